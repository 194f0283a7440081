"""Images of requests: checked one at a time, and kept as files until the model takes them.

A small file can hold a large image. Requests that wait hold files, not pixels; an image much larger
than any foundation model looks at is made smaller when it comes.
"""

from __future__ import annotations

import base64
import binascii
import io
from collections.abc import Sequence
from typing import Any

from klda.errors import require
from klda.server.errors import ServiceError

FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP")
MOST_PIXELS = 50_000_000  # of one image
MOST_PIXELS_TOGETHER = 250_000_000  # of a request
LARGEST_SIDE = 2048  # networks look at 224 to 518


def read_images(encoded: Sequence[str]) -> list[bytes]:
    """Check the images of a request.

    Parameters
    ----------
    encoded : sequence of str
        Image files, base64.

    Returns
    -------
    list of bytes
        Image files that can be decoded, none of them large.

    Raises
    ------
    ServiceError
        If one is no image or there are too many pixels; the message names it.
    """
    left = MOST_PIXELS_TOGETHER
    files = []
    for i, text in enumerate(encoded):
        try:
            file = base64.b64decode(text, validate=True)
        except (binascii.Error, ValueError) as error:
            raise ServiceError(f"images[{i}] is not base64.") from error
        try:
            pixels, file = _checked(file, f"images[{i}]", left)
        except ServiceError:
            raise
        except Exception as error:  # Pillow raises many kinds on a damaged file
            raise ServiceError(
                f"images[{i}] is not an image that can be read: give {', '.join(FORMATS)}."
            ) from error
        left -= pixels
        files.append(file)
    return files


def _checked(file: bytes, name: str, left: int) -> tuple[int, bytes]:
    """Return the number of pixels, and the file, or one of a smaller image."""
    pillow = require("PIL.Image", "images")
    with pillow.open(io.BytesIO(file), formats=FORMATS) as image:
        pixels = image.width * image.height
        if pixels > MOST_PIXELS:
            raise ServiceError(f"{name} has {pixels} pixels; give at most {MOST_PIXELS}.")
        if pixels > left:
            raise ServiceError(
                f"{name}: the images have more than {MOST_PIXELS_TOGETHER} pixels together; send "
                "fewer at a time, or smaller ones."
            )
        if max(image.size) <= LARGEST_SIDE:
            image.load()
            return pixels, file
        return pixels, _smaller(image)


def _smaller(image: Any) -> bytes:
    upright = require("PIL.ImageOps", "images").exif_transpose
    image.draft("RGB", (LARGEST_SIDE, LARGEST_SIDE))  # a JPEG file is decoded smaller at once
    image.thumbnail((LARGEST_SIDE, LARGEST_SIDE))
    buffer = io.BytesIO()
    upright(image).save(buffer, "PNG", compress_level=1)
    return buffer.getvalue()
