"""Images of requests: checked one at a time, and kept as files until they are encoded.

A small file can hold a large image, so requests that wait hold files, not pixels. An image much
larger than any foundation model uses is made smaller when it arrives.
"""

from __future__ import annotations

import base64
import binascii
import io
from collections.abc import Sequence
from typing import Any

from klda.errors import require
from klda.server.errors import ServerError

FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP")
MAX_PIXELS = 50_000_000  # of one image
MAX_PIXELS_TOGETHER = 250_000_000  # of a request
MAX_SIDE = 2048  # networks use 224 to 518


def read_images(encoded: Sequence[str]) -> list[bytes]:
    """Decode the base64 image files of a request; an error names the one that is wrong.

    All files that are returned can be decoded, and none is large.
    """
    left = MAX_PIXELS_TOGETHER
    files = []
    for i, text in enumerate(encoded):
        try:
            file = base64.b64decode(text, validate=True)
        except (binascii.Error, ValueError) as error:
            raise ServerError(f"images[{i}] is not base64.") from error
        try:
            pixels, file = _checked(file, f"images[{i}]", left)
        except ServerError:
            raise
        except Exception as error:  # Pillow raises many kinds on a damaged file
            raise ServerError(
                f"images[{i}] can't be read as an image: give {', '.join(FORMATS)}."
            ) from error
        left -= pixels
        files.append(file)
    return files


def _checked(file: bytes, name: str, left: int) -> tuple[int, bytes]:
    """Return the number of pixels, and the file, or one of a smaller image."""
    pillow = require("PIL.Image", "images")
    with pillow.open(io.BytesIO(file), formats=FORMATS) as image:
        pixels = image.width * image.height
        if pixels > MAX_PIXELS:
            raise ServerError(f"{name} has {pixels} pixels; give at most {MAX_PIXELS}.")
        if pixels > left:
            raise ServerError(
                f"{name}: the images have more than {MAX_PIXELS_TOGETHER} pixels together; send "
                "fewer at a time, or smaller ones."
            )
        if max(image.size) <= MAX_SIDE:
            image.load()
            return pixels, file
        return pixels, _smaller(image)


def _smaller(image: Any) -> bytes:
    upright = require("PIL.ImageOps", "images").exif_transpose
    image.draft("RGB", (MAX_SIDE, MAX_SIDE))  # decodes a JPEG file at a smaller size
    image.thumbnail((MAX_SIDE, MAX_SIDE))
    buffer = io.BytesIO()
    upright(image).save(buffer, "PNG", compress_level=1)
    return buffer.getvalue()
