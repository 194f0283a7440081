"""Images: decoding, batches that are read ahead, and the torch networks that make rows of them."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from klda.encoders.base import FrozenModel, Layers, collect
from klda.encoders.files import ModelFiles
from klda.encoders.options import Options
from klda.encoders.pretrained import (
    dtype_name,
    final_norm,
    from_folder,
    hidden_states,
    load_frozen,
    pooled_layers,
    resolve_layers,
)
from klda.encoders.progress import Show
from klda.engine.cpus import usable_cpus
from klda.errors import KldaError, require

_READERS = min(8, usable_cpus())
_ACCEPTED = "a path, a PIL image, the bytes of an image file, or a uint8 array (height, width, 3)"
# Pillow has readers for dozens of formats, some of which run other programs. Classes of images come
# in these.
FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM")
_CLASS_TOKENS = ("cls_token", "class_embedding", "class_token")


class ImageEncoder(FrozenModel):
    """Images to rows: reads the next batch while the network runs on one."""

    modality = "image"

    def encode(self, inputs: Any, *, progress: Show = False) -> np.ndarray:
        """Turn paths, PIL images, bytes of image files or uint8 arrays into features."""
        images = _check_list(inputs)
        return collect(self, len(images), self._batches(images), progress=progress)

    def _batches(self, inputs: Sequence[Any]) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        size = self.network.batch_size
        starts = range(0, len(inputs), size)
        with ThreadPoolExecutor(_READERS) as pool:
            ahead: list[Future[np.ndarray]] = []
            for start in (*starts, len(inputs)):
                current, numbers = ahead, range(start, min(start + size, len(inputs)))
                ahead = [pool.submit(self._read, inputs[at], at) for at in numbers]
                if current:
                    rows = self._rows([future.result() for future in current])
                    yield np.arange(start - len(rows), start), rows

    def _read(self, item: Any, position: int) -> np.ndarray:
        return self.network.pixels(open_image(item, position))

    def _rows(self, pixels: list[np.ndarray]) -> np.ndarray:
        import torch

        # Some processors keep an image's shape; images of different shapes are encoded one by one.
        same = len({array.shape for array in pixels}) == 1
        groups = [pixels] if same else [[array] for array in pixels]
        network, rows = self.network, []
        with self.lock, torch.inference_mode():
            for group in groups:
                tensor = torch.from_numpy(np.stack(group)).to(network.device, network.dtype)
                rows.append(network.forward(tensor).float().cpu().numpy())
        return np.concatenate(rows)


def _check_list(inputs: Any) -> list[Any]:
    single = isinstance(inputs, str | bytes | os.PathLike) or hasattr(inputs, "getpixel")
    if single or (isinstance(inputs, np.ndarray) and inputs.ndim in (2, 3)):
        raise KldaError(
            "inputs is one image: give a list of images, [image] for one, or a stacked uint8 "
            "array (n, height, width, 3)."
        )
    try:
        return list(inputs)
    except TypeError as error:
        raise KldaError(
            f"inputs must be a list of images ({_ACCEPTED}); got {type(inputs).__name__}."
        ) from error


def open_image(item: Any, position: int) -> Any:
    """Turn one input into an RGB image of Pillow, upright according to its EXIF data.

    It is a path, a Pillow image, an image file's bytes, or a uint8 array (height, width[, 3 or 4]).
    Errors name its position among the inputs.
    """
    where = f"inputs[{position}]"
    pillow = require("PIL.Image", "images")
    if isinstance(item, np.ndarray):
        return _from_array(item, where)
    if isinstance(item, str | os.PathLike):
        where = f"{where} ({os.fspath(item)})"
        if not Path(item).is_file():
            raise KldaError(f"{where}: there is no such file.")
    elif not isinstance(item, bytes | pillow.Image):
        raise KldaError(f"{where} must be {_ACCEPTED}; got {type(item).__name__}.")
    try:
        if isinstance(item, pillow.Image):
            return _to_rgb(item, where)
        source = io.BytesIO(item) if isinstance(item, bytes) else item
        with pillow.open(source, formats=FORMATS) as image:
            return _to_rgb(image, where)
    except (MemoryError, KldaError):
        raise
    except pillow.UnidentifiedImageError as error:
        raise KldaError(
            f"{where} is not an image, or not of a format that can be read here: "
            f"{', '.join(FORMATS)}."
        ) from error
    # Pillow's decoders raise SyntaxError, struct.error and others on damaged files.
    except Exception as error:
        raise KldaError(f"{where} can't be decoded as an image: {error}") from error


def _to_rgb(image: Any, where: str) -> Any:
    image = require("PIL.ImageOps", "images").exif_transpose(image)
    if image.mode.startswith("I;16"):  # Pillow would clip 16 bits to 8, not scale them
        return _from_array((np.asarray(image) >> 8).astype(np.uint8), where)
    if image.mode in ("LA", "PA", "P", "RGBA") and "transparency" in image.info:
        image = image.convert("RGBA")
    return image.convert("RGB")


def _from_array(array: np.ndarray, where: str) -> Any:
    if array.ndim == 3 and array.shape[2] == 1:
        array = array[:, :, 0]
    shaped = array.ndim == 2 or (array.ndim == 3 and array.shape[2] in (3, 4))
    if array.dtype != np.uint8 or not shaped or array.size == 0:
        raise KldaError(
            f"{where} must be a uint8 array of shape (height, width, 3) with values 0 to 255; got "
            f"{array.dtype} of shape {array.shape}."
        )
    image_module = require("PIL.Image", "images")
    return image_module.fromarray(np.ascontiguousarray(array)).convert("RGB")


def load_network(files: ModelFiles, options: Options) -> VisionNetwork:
    """Load the network of an image model."""
    if options.engine == "onnx":
        raise KldaError(
            f'engine="onnx" runs text models; {files.name!r} takes images. Leave it out.'
        )
    return VisionNetwork(files, options)


class VisionNetwork:
    """A vision model of transformers.

    With ``layers="last"`` a row is the class token of the last layer where the network has one
    (DINOv2, ViT), else the model's own pooled output, else the mean over positions. With layer
    numbers it is the same for each of these layers, scaled to unit length and concatenated, from
    one forward pass; earlier layers pass through the network's final normalization first.
    """

    engine = "torch"

    def __init__(self, files: ModelFiles, options: Options) -> None:
        require("PIL", "images")
        self.device, self.dtype = options.on_torch(files.read_json("config.json"))
        self.precision = dtype_name(self.dtype)
        self.batch_size = options.batch_size or (64 if self.device.type == "cuda" else 16)
        # The processor that uses Pillow even if torchvision is installed: the two differ in the
        # last bits of a resized image.
        self.processor = from_folder("AutoImageProcessor", files, options, backend="pil")
        network = load_frozen("AutoModel", files, options, dtype=self.dtype, device=self.device)
        # CLIP and similar models also have a text half, and pool the image half themselves.
        tower = getattr(network, "vision_model", None)
        self.model = network if tower is None else tower
        embeddings = getattr(self.model, "embeddings", None)
        has_token = any(getattr(embeddings, token, None) is not None for token in _CLASS_TOKENS)
        self._class_token = tower is None and has_token
        self._norm = final_norm(self.model)
        self.pooling = "cls" if self._class_token else "pooled"
        self.layers: Layers = options.layers
        self._probe(files.name)

    def pixels(self, image: Any) -> np.ndarray:
        """Resize and scale an RGB image."""
        return self.processor(images=[image], return_tensors="np")["pixel_values"][0]

    def forward(self, pixels: Any) -> Any:
        """Return one row per image, given a tensor of pixels."""
        if self.layers != "last":
            return pooled_layers(self._states(pixels), self.layers, self._pool, norm=self._norm)
        outputs = self.model(pixel_values=pixels, return_dict=True)
        if not self._class_token and outputs.get("pooler_output") is not None:
            return outputs.pooler_output.flatten(1)
        return self._pool(outputs.last_hidden_state)

    def _pool(self, hidden: Any) -> Any:
        if hidden.ndim == 4:  # a convolutional network: channels first
            return hidden.mean(dim=(2, 3))
        return hidden[:, 0] if self._class_token else hidden.mean(dim=1)

    def _states(self, pixels: Any) -> list[Any]:
        return hidden_states(
            self.model(pixel_values=pixels, output_hidden_states=True, return_dict=True)
        )

    def _probe(self, name: str) -> None:
        """Encode a black image to learn the number of layers and the length of a row."""
        import torch

        black = require("PIL.Image", "images").new("RGB", (64, 64))
        pixels = torch.from_numpy(self.pixels(black)[None]).to(self.device, self.dtype)
        with torch.inference_mode():
            if self.layers != "last":
                self.pooling += "+unit"
                self.layers = resolve_layers(self.layers, len(self._states(pixels)) - 1, name)
            self.dimension = int(self.forward(pixels).shape[1])
