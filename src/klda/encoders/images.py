"""Images: decoded, and read ahead of the network that turns them into rows."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from klda.cpus import usable_cpus
from klda.encoders.encoder import NetworkEncoder, gather
from klda.errors import KldaError, require
from klda.progress import Show

ACCEPTED = "a path, a PIL image, the bytes of an image file, or a uint8 array (height, width, 3)"
# Pillow has readers for dozens of formats, some of which run other programs. Classes of images come
# in these.
FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM")


class ImageEncoder(NetworkEncoder):
    """Images to rows: reads the next batch while the network runs on one."""

    modality = "image"

    def encode(self, inputs: Any, *, progress: Show = False) -> np.ndarray:
        """Turn paths, PIL images, bytes of image files or uint8 arrays into features."""
        images = _check_list(inputs)
        return gather(self, len(images), self._batches(images), progress=progress)

    def _batches(self, inputs: Sequence[Any]) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        size = self.network.batch_size
        starts = range(0, len(inputs), size)
        with ThreadPoolExecutor(min(8, usable_cpus())) as pool:
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
        # Some processors keep an image's shape; images of different shapes are encoded one by one.
        same = len({array.shape for array in pixels}) == 1
        groups = [pixels] if same else [[array] for array in pixels]
        with self.lock:
            return np.concatenate([self.network.rows(np.stack(group)) for group in groups])


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
            f"inputs must be a list of images ({ACCEPTED}); got {type(inputs).__name__}."
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
        raise KldaError(f"{where} must be {ACCEPTED}; got {type(item).__name__}.")
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
