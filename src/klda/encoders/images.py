"""Images: decoding, checks, and batches that are read ahead."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from klda.encoders.base import FrozenModel
from klda.encoders.files import ModelFiles
from klda.engine.cpus import usable_cpus
from klda.errors import KldaError, require

if TYPE_CHECKING:
    from klda.encoders.image_networks import ImageNetwork

_READERS = min(8, usable_cpus())
_ACCEPTED = "a path, a PIL image, the bytes of an image file, or a uint8 array (height, width, 3)"


class ImageEncoder(FrozenModel):
    """Images to rows: reads the next batch while the network runs on one."""

    modality = "image"

    def __init__(self, name: str, files: ModelFiles, network: ImageNetwork) -> None:
        super().__init__(name, files, network)
        self.network = network

    def encode(self, inputs: Any, *, progress: bool = False) -> np.ndarray:
        """Turn paths, PIL images, bytes of image files or uint8 arrays into features."""
        images = _check_list(inputs)
        return self.collect(len(images), self._batches(images), progress=progress)

    def _batches(self, inputs: Sequence[Any]) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        if len(inputs) == 1:  # not worth a thread
            yield np.zeros(1, dtype=np.int64), self._rows([self._read(inputs[0], 0)])
            return
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
    """Turn one input into an RGB image.

    Parameters
    ----------
    item : path-like, PIL.Image.Image, bytes or ndarray
        A path, an image, an image file's bytes, or a uint8 array (height, width[, 3 or 4]).
    position : int
        Position among the inputs, for error messages.

    Returns
    -------
    PIL.Image.Image
        In RGB, rotated upright according to its EXIF data.

    Raises
    ------
    KldaError
        If the input can't be read or decoded.
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
