from __future__ import annotations

import io
import re

import numpy as np
import pytest
import torch
import transformers

from klda import encoders
from klda.data.files import IMAGE_SUFFIXES
from klda.encoders.images import open_image
from klda.errors import KldaError

Image = pytest.importorskip("PIL.Image")


def pixels_of(encoder, pictures: np.ndarray) -> torch.Tensor:
    """Pixels of all images, from the model's image processor."""
    processed = encoder.network.processor(list(pictures), return_tensors="np")
    return torch.from_numpy(processed.pixel_values)


def test_dinov2_gives_the_class_token_of_the_last_layer(tiny_dinov2, pictures):
    encoder = encoders.load(tiny_dinov2, device="cpu")
    rows = encoder.encode(pictures)
    assert type(encoder.network.model).__name__ == "Dinov2Model"
    assert encoder.modality == "image"
    assert rows.shape == (8, encoder.dimension) == (8, 32)
    model = transformers.Dinov2Model.from_pretrained(tiny_dinov2).eval()
    pixels = pixels_of(encoder, pictures)
    with torch.inference_mode():
        expected = model(pixels).last_hidden_state[:, 0].numpy()
    np.testing.assert_allclose(rows, expected, atol=1e-5)
    assert np.linalg.norm(rows[0] - rows[1]) > 0.1


def test_dinov2_layers_are_normalized_and_concatenated_class_tokens(tiny_dinov2, pictures):
    last = encoders.load(tiny_dinov2, device="cpu").encode(pictures)
    encoder = encoders.load(tiny_dinov2, device="cpu", layers=(2, -1))
    rows = encoder.encode(pictures)
    assert encoder.fingerprint()["layers"] == [2, 4]
    np.testing.assert_allclose(np.linalg.norm(rows.reshape(-1, 32), axis=1), 1, atol=1e-5)
    unit = last / np.linalg.norm(last, axis=1, keepdims=True)
    np.testing.assert_allclose(rows[:, 32:], unit, atol=1e-5)
    model = transformers.Dinov2Model.from_pretrained(tiny_dinov2).eval()
    pixels = pixels_of(encoder, pictures)
    with torch.inference_mode():
        hidden = model(pixels, output_hidden_states=True).hidden_states[2]
        early = model.layernorm(hidden)[:, 0].numpy()
    early /= np.linalg.norm(early, axis=1, keepdims=True)
    np.testing.assert_allclose(rows[:, :32], early, atol=1e-5)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
def test_gpu_features_equal_cpu_features_to_half_precision(tiny_dinov2, pictures):
    expected = encoders.load(tiny_dinov2, device="cpu").encode(pictures)
    encoder = encoders.load(tiny_dinov2)
    assert encoder.precision == "float16"
    error = np.linalg.norm(encoder.encode(pictures) - expected) / np.linalg.norm(expected)
    assert error < 0.01


def test_convolutional_networks_are_pooled_over_positions(tmp_path, tiny_dinov2, pictures):
    torch.manual_seed(0)
    config = transformers.ResNetConfig(
        embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic"
    )
    model = transformers.ResNetModel(config).eval()
    model.save_pretrained(tmp_path)
    processor = (tiny_dinov2 / "preprocessor_config.json").read_text()
    (tmp_path / "preprocessor_config.json").write_text(processor)
    encoder = encoders.load(tmp_path, device="cpu")
    pixels = pixels_of(encoder, pictures)
    with torch.inference_mode():
        expected = model(pixels).last_hidden_state.mean(dim=(2, 3)).numpy()
    np.testing.assert_allclose(encoder.encode(pictures), expected, atol=1e-5)
    assert encoders.load(tmp_path, device="cpu", layers=(1, 2)).dimension == 8 + 16


def test_clip_needs_a_modality_and_gives_its_pooled_image_features(tmp_path, tiny_dinov2, pictures):
    torch.manual_seed(0)
    small = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = transformers.CLIPConfig(
        text_config={**small, "vocab_size": 50, "intermediate_size": 16},
        vision_config={**small, "image_size": 28, "patch_size": 14, "intermediate_size": 16},
    )
    model = transformers.CLIPModel(config).eval()
    model.save_pretrained(tmp_path)
    processor = (tiny_dinov2 / "preprocessor_config.json").read_text()
    (tmp_path / "preprocessor_config.json").write_text(processor)
    (tmp_path / "tokenizer_config.json").write_text("{}")
    with pytest.raises(KldaError, match="modality="):
        encoders.load(tmp_path, device="cpu")
    encoder = encoders.load(tmp_path, device="cpu", modality="image")
    pixels = pixels_of(encoder, pictures)
    with torch.inference_mode():
        expected = model.vision_model(pixels).pooler_output.numpy()
    np.testing.assert_allclose(encoder.encode(pictures), expected, atol=1e-5)


def test_paths_images_bytes_and_arrays_give_the_same_features(tiny_dinov2, pictures, tmp_path):
    encoder = encoders.load(tiny_dinov2, device="cpu", batch_size=3)
    images = [Image.fromarray(picture) for picture in pictures]
    paths = [tmp_path / f"{number}.png" for number in range(len(images))]
    for image, path in zip(images, paths, strict=True):
        image.save(path)
    stacked = encoder.encode(pictures)
    for same in (list(pictures), images, paths, [str(p) for p in paths]):
        np.testing.assert_allclose(encoder.encode(same), stacked, atol=1e-5)
    blobs = [path.read_bytes() for path in paths]
    np.testing.assert_allclose(encoder.encode(blobs), stacked, atol=1e-5)


def test_the_features_of_an_image_do_not_depend_on_its_batch(tiny_dinov2, pictures):
    encoder = encoders.load(tiny_dinov2, device="cpu", batch_size=3)
    alone = np.concatenate([encoder.encode(pictures[at : at + 1]) for at in range(8)])
    np.testing.assert_allclose(encoder.encode(pictures), alone, atol=1e-5)
    np.testing.assert_allclose(encoder.encode(pictures[::-1]), alone[::-1], atol=1e-5)
    assert encoder.encode([]).shape == (0, 32)


@pytest.mark.parametrize(
    "bad, says",
    [
        (b"not an image", r"inputs\[1\] is not an image.* JPEG, PNG"),
        ("nowhere/at-all.png", r"^nowhere/at-all.png: there is no such file"),
        (np.zeros((4, 4, 3)), r"inputs\[1\] must be a uint8 array.*float64"),
        (np.zeros((4, 4, 7), np.uint8), r"inputs\[1\] must be a uint8 array"),
        (np.zeros((0, 4, 3), np.uint8), r"inputs\[1\] must be a uint8 array"),
        (17, r"inputs\[1\] must be a path.*int"),
    ],
)
def test_errors_name_the_image_that_cannot_be_read(bad, says, tiny_dinov2, pictures):
    encoder = encoders.load(tiny_dinov2, device="cpu")
    with pytest.raises(KldaError, match=says):
        encoder.encode([pictures[0], bad, pictures[1]])


def test_errors_name_a_truncated_file(tiny_dinov2, pictures, tmp_path):
    path = tmp_path / "cut.jpg"
    Image.fromarray(pictures[0]).save(path)
    path.write_bytes(path.read_bytes()[:-400])
    with pytest.raises(KldaError, match=r"cut.jpg can't be decoded"):
        encoders.load(tiny_dinov2, device="cpu").encode([path])


@pytest.mark.parametrize("single", ["a.png", b"bytes", np.zeros((4, 4, 3), np.uint8), 3])
def test_inputs_that_are_not_a_list_are_rejected(single, tiny_dinov2):
    with pytest.raises(KldaError, match="list of images"):
        encoders.load(tiny_dinov2, device="cpu").encode(single)


def test_images_are_rotated_upright_and_converted_to_rgb(pictures):
    upright = Image.fromarray(pictures[0])
    exif = Image.Exif()
    exif[0x0112] = 6  # rotate by 90 degrees clockwise
    buffer = io.BytesIO()
    upright.rotate(90, expand=True).save(buffer, "png", exif=exif)
    for given in (buffer.getvalue(), Image.open(buffer)):
        np.testing.assert_array_equal(np.asarray(open_image(given, 0)), pictures[0])
    grey = np.full((5, 5), 40_000, dtype=np.uint16)
    assert np.asarray(open_image(Image.fromarray(grey), 0)).max() == 40_000 >> 8
    assert open_image(pictures[0][:, :, 0], 0).mode == "RGB"


@pytest.mark.parametrize("suffix", sorted(IMAGE_SUFFIXES))
def test_every_suffix_that_folders_are_searched_for_can_be_opened(tmp_path, suffix):
    path = tmp_path / f"red{suffix}"
    Image.new("RGB", (8, 8), "red").save(path)
    assert open_image(path, 0).size == open_image(path.read_bytes(), 0).size == (8, 8)


@pytest.mark.parametrize("kind", ["EPS", "TGA", "ICO", "PCX", "SGI", "PDF"])
def test_other_formats_are_not_tried_whatever_the_suffix(tmp_path, kind):
    """Reading some of them runs other programs: EPS runs Ghostscript."""
    path = tmp_path / "photo.png"
    Image.new("RGB", (8, 8), "red").save(path, kind)
    for item, named in ((path, str(path)), (path.read_bytes(), "inputs[3]")):
        said = rf"^{re.escape(named)} is not an image.* JPEG, PNG, WEBP"
        with pytest.raises(KldaError, match=said):
            open_image(item, 3)
