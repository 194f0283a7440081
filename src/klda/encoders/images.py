"""Images through a frozen vision network."""

from __future__ import annotations

import io
import os
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from klda.encoders.base import (
    FrozenModel,
    Layers,
    Precision,
    check_batch_size,
    choose_device,
    choose_dtype,
    resolve_layers,
    unit_rows,
)
from klda.encoders.files import ModelFiles
from klda.encoders.networks import (
    final_norm,
    load_image_processor,
    load_network,
    narrow_range,
)
from klda.errors import KldaError, require

_READERS = min(8, os.cpu_count() or 1)
_ACCEPTED = "a path, a PIL image, the bytes of an image file, or a uint8 array (height, width, 3)"


def open_image(item: Any, position: int) -> Any:
    """Turn one input into an RGB image.

    Parameters
    ----------
    item : path-like, PIL.Image.Image, bytes or ndarray
        A path, an image, an image file's bytes, or a uint8 array (height, width[, 3 or 4]).
    position : int
        Its place among the inputs, for the error.

    Returns
    -------
    PIL.Image.Image
        In RGB, turned upright as its EXIF data say.

    Raises
    ------
    KldaError
        If it can't be read or decoded.
    """
    image_module = require("PIL.Image", "images")
    where = f"inputs[{position}]"
    if isinstance(item, np.ndarray):
        return _from_array(item, where)
    if isinstance(item, image_module.Image):
        return _to_rgb(item, where)
    if isinstance(item, str | os.PathLike):
        where = f"{where} ({os.fspath(item)})"
        if not Path(item).is_file():
            raise KldaError(f"{where}: there is no such file.")
        return _decode(item, where)
    if isinstance(item, bytes):
        return _decode(io.BytesIO(item), where)
    raise KldaError(f"{where} must be {_ACCEPTED}; got {type(item).__name__}.")


def _decode(source: Any, where: str) -> Any:
    image_module = require("PIL.Image", "images")
    upright = require("PIL.ImageOps", "images").exif_transpose
    try:
        with image_module.open(source) as image:
            return _to_rgb(upright(image), where)
    # Pillow's decoders raise SyntaxError, struct.error and others on damaged files.
    except Exception as error:
        raise KldaError(f"{where} can't be decoded as an image: {error}") from error


def _to_rgb(image: Any, where: str) -> Any:
    if image.mode.startswith("I;16"):  # Pillow would clip 16 bits to 8, not scale them
        return _from_array((np.asarray(image) >> 8).astype(np.uint8), where)
    if image.mode in ("LA", "PA", "P", "RGBA") and "transparency" in image.info:
        image = image.convert("RGBA")
    try:
        return image.convert("RGB")
    except (OSError, ValueError, SyntaxError) as error:
        raise KldaError(f"{where} can't be decoded as an image: {error}") from error


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


class ImageEncoder(FrozenModel):
    """Base of the image encoders: reads images ahead while the network runs."""

    modality = "image"

    def _check(self, inputs: Any) -> Sequence[Any]:
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

    def _encode_batches(self, inputs: Sequence[Any]) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        if len(inputs) == 1:
            yield np.zeros(1, dtype=np.int64), self._run([self._prepare(inputs[0], 0)])
            return
        batches = np.split(
            np.arange(len(inputs)), range(self.batch_size, len(inputs), self.batch_size)
        )
        with ThreadPoolExecutor(_READERS) as pool:
            waiting: tuple[np.ndarray, list[Any]] | None = None
            for batch in batches:
                reading = [pool.submit(self._prepare, inputs[at], int(at)) for at in batch]
                if waiting is not None:
                    yield waiting[0], self._run([future.result() for future in waiting[1]])
                waiting = batch, reading
            if waiting is not None:
                yield waiting[0], self._run([future.result() for future in waiting[1]])

    def _prepare(self, item: Any, position: int) -> np.ndarray:
        return self._pixels(open_image(item, position))

    def _run(self, pixels: list[np.ndarray]) -> np.ndarray:
        import torch

        # Some processors keep an image's shape; such images go through one by one.
        same = len({array.shape for array in pixels}) == 1
        groups = [pixels] if same else [[array] for array in pixels]
        rows = []
        with self._lock, torch.inference_mode():
            for group in groups:
                tensor = torch.from_numpy(np.stack(group)).to(self._device, self._dtype)
                rows.append(self._forward(tensor).float().cpu().numpy())
        return np.concatenate(rows)

    @property
    def precision(self) -> str:
        """Number format of the weights."""
        return str(self._dtype).removeprefix("torch.")

    _device: Any
    _dtype: Any

    @abstractmethod
    def _pixels(self, image: Any) -> np.ndarray:
        """Resize and scale one RGB image as the network expects it."""

    @abstractmethod
    def _forward(self, pixels: Any) -> Any:
        """Run the network on a batch of pixels; return one row each."""


class VisionEncoder(ImageEncoder):
    """Images through a vision model of transformers.

    With ``layers="last"`` a row is the class token of the last layer where the network has one
    (DINOv2, ViT), else what the model pools itself, else the mean over positions. With layer
    numbers it is the same for each of these layers, scaled to unit length, side by side, from the
    same forward pass; earlier layers go through the network's final normalisation first.

    Parameters
    ----------
    name : str
        Name that the model was asked for by.
    files : ModelFiles
        Its files.
    device, layers, batch_size, precision, trust_remote_code
        As in :func:`klda.encoders.load`.
    """

    def __init__(
        self,
        name: str,
        files: ModelFiles,
        *,
        device: str = "auto",
        layers: Layers = "last",
        batch_size: int | None = None,
        precision: Precision = "auto",
        trust_remote_code: bool = False,
    ) -> None:
        require("PIL", "images")
        self._device = choose_device(device)
        config = files.read_json("config.json") or {}
        self._dtype = choose_dtype(precision, self._device, wide_range=not narrow_range(config))
        self._processor = load_image_processor(
            files.folder, name, trust_remote_code=trust_remote_code
        )
        network = load_network(
            files.folder,
            name,
            kind="AutoModel",
            dtype=self._dtype,
            device=self._device,
            trust_remote_code=trust_remote_code,
        )
        # CLIP and its kin hold a text half too, and pool the image half themselves.
        tower = getattr(network, "vision_model", None)
        self._network = network if tower is None else tower
        self._class_token = tower is None and _has_class_token(self._network)
        self._norm = final_norm(self._network)
        self._probe = open_image(np.zeros((64, 64, 3), dtype=np.uint8), 0)
        resolved = self._resolve(layers, name)
        pooling = "cls" if self._class_token else "pooled"
        super().__init__(
            name=name,
            files=files,
            layers=resolved,
            pooling=pooling if resolved == "last" else f"{pooling}+unit",
            dimension=0,
            batch_size=check_batch_size(batch_size, 64 if self._device.type == "cuda" else 16),
        )
        self.dimension = self._run([self._pixels(self._probe)]).shape[1]

    def _pixels(self, image: Any) -> np.ndarray:
        return self._processor(images=[image], return_tensors="np")["pixel_values"][0]

    def _forward(self, pixels: Any) -> Any:
        import torch

        if self.layers == "last":
            outputs = self._network(pixel_values=pixels, return_dict=True)
            if not self._class_token and outputs.get("pooler_output") is not None:
                return outputs.pooler_output.flatten(1)
            return self._pool(outputs.last_hidden_state)
        states = self._states(pixels)
        return torch.cat([self._layer(states, at) for at in self.layers], dim=1)

    def _layer(self, states: list[Any], layer: int) -> Any:
        hidden = states[layer]
        fits = getattr(getattr(self._norm, "weight", None), "shape", None) == hidden.shape[-1:]
        if fits and layer < len(states) - 1:
            hidden = self._norm(hidden)
        return unit_rows(self._pool(hidden).float())

    def _pool(self, hidden: Any) -> Any:
        if hidden.ndim == 4:  # a convolutional network: channels first
            return hidden.mean(dim=(2, 3))
        return hidden[:, 0] if self._class_token else hidden.mean(dim=1)

    def _states(self, pixels: Any) -> list[Any]:
        outputs = self._network(pixel_values=pixels, output_hidden_states=True, return_dict=True)
        states = list(outputs.hidden_states)
        if states[-1].shape == outputs.last_hidden_state.shape:
            states[-1] = outputs.last_hidden_state
        return states

    def _resolve(self, layers: Layers, name: str) -> Layers:
        import torch

        if layers == "last":
            return layers
        pixels = torch.from_numpy(self._pixels(self._probe)[None]).to(self._device, self._dtype)
        with torch.inference_mode():
            return resolve_layers(layers, len(self._states(pixels)) - 1, name)


class EfficientNetLite(ImageEncoder):
    """Images through EfficientNet-Lite0, whose weights come in a Python package.

    A row is the global average of the last convolution's 1,280 channels.

    Parameters
    ----------
    name : str
        Name that the model was asked for by.
    files : ModelFiles
        The weights.
    device, batch_size, precision
        As in :func:`klda.encoders.load`.
    """

    _SIZE = 224

    def __init__(
        self,
        name: str,
        files: ModelFiles,
        *,
        device: str = "auto",
        batch_size: int | None = None,
        precision: Precision = "auto",
    ) -> None:
        torch = require("torch", "efficientnet")
        require("PIL", "efficientnet")
        package = require("efficientnet_lite_pytorch", "efficientnet")
        self._device = choose_device(device)
        self._dtype = choose_dtype(precision, self._device, wide_range=False)
        network = package.EfficientNet.from_name("efficientnet-lite0")
        weights = torch.load(files.weights[0], map_location="cpu", weights_only=True)
        network.load_state_dict(weights)
        _fold_batch_norms(network.eval().requires_grad_(False))
        # Channels last is the layout that convolutions are fastest in, on CPUs too.
        self._network = network.to(self._device, self._dtype, memory_format=torch.channels_last)
        super().__init__(
            name=name,
            files=files,
            layers="last",
            pooling="average",
            dimension=1280,
            batch_size=check_batch_size(batch_size, 64 if self._device.type == "cuda" else 8),
        )

    def _pixels(self, image: Any) -> np.ndarray:
        bicubic = require("PIL.Image", "efficientnet").Resampling.BICUBIC
        resized = np.asarray(image.resize((self._SIZE, self._SIZE), bicubic), dtype=np.float32)
        return (resized.transpose(2, 0, 1) - 127.0) / 128.0

    def _forward(self, pixels: Any) -> Any:
        import torch

        pixels = pixels.contiguous(memory_format=torch.channels_last)
        return self._network.extract_features(pixels).mean(dim=(2, 3))


def _has_class_token(network: Any) -> bool:
    embeddings = getattr(network, "embeddings", None)
    names = ("cls_token", "class_embedding", "class_token")
    return any(getattr(embeddings, name, None) is not None for name in names)


def _fold_batch_norms(network: Any) -> None:
    """Fold EfficientNet's frozen batch normalisations into the convolutions before them."""
    import torch
    from torch.nn.utils.fusion import fuse_conv_bn_eval

    block_pairs = (("_expand_conv", "_bn0"), ("_depthwise_conv", "_bn1"), ("_project_conv", "_bn2"))
    pairs = [(network, "_conv_stem", "_bn0"), (network, "_conv_head", "_bn1")]
    pairs += [(block, *pair) for block in network._blocks for pair in block_pairs]
    for part, convolution, norm in pairs:
        if hasattr(part, convolution):  # a block that does not expand has no such convolution
            fused = fuse_conv_bn_eval(getattr(part, convolution), getattr(part, norm))
            setattr(part, convolution, fused)
            setattr(part, norm, torch.nn.Identity())
