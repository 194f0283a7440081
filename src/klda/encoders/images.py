"""Images, decoded from whatever they come as."""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import Any

import numpy as np

from klda.errors import KldaError, require

ACCEPTED = "a path, a PIL image, the bytes of an image file, or a uint8 array (height, width, 3)"
# Pillow has readers for dozens of formats, some of which run other programs. Classes of images come
# in these.
FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM")


def open_image(item: Any, position: int) -> Any:
    """Turn one input into an RGB image of Pillow, upright according to its EXIF data.

    It is a path, a Pillow image, an image file's bytes, or a uint8 array (height, width[, 3 or 4]).
    Errors name its path, or else its position among the inputs.
    """
    where = f"inputs[{position}]"
    pillow = require("PIL.Image", "images")
    if isinstance(item, np.ndarray):
        return _from_array(item, where)
    if isinstance(item, str | os.PathLike):
        where = os.fspath(item)
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
