"""Inputs and labels that were sent, chosen, typed or pasted, as the model takes them."""

from __future__ import annotations

import base64
import binascii
import io
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
from pydantic import TypeAdapter

from klda.data import BadRow, Layout, as_label, open_bytes
from klda.errors import require
from klda.labels import Label
from klda.server import schemas
from klda.server.errors import ServerError
from klda.server.service import Service
from klda.server.settings import MAX_COMPARED

FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP")
MAX_PIXELS = 50_000_000  # of one image
MAX_PIXELS_TOGETHER = 250_000_000  # of a request
MAX_SIDE = 2048  # networks use 224 to 518
MOST_ROWS = 100_000
_label: TypeAdapter[Label] = TypeAdapter(schemas.ClassLabel)


async def inputs_of(service: Service, kind: str, values: list[Any]) -> Any:
    """Return the inputs of a request: texts, image files, or an array of features."""
    wanted = {"text": "texts", "image": "images", "features": "features"}[service.modality]
    if kind != wanted:
        raise ServerError(f"This model takes {wanted}, not {kind}.")
    if kind == "features":
        width = service.snapshot.learner.width or len(values[0])
        for row in values:
            if len(row) != width:
                raise ServerError(f"features has a row of {len(row)} numbers; give {width}.")
        return np.array(values, np.float32)
    return await service.run(read_images, values) if kind == "images" else values


async def typed_input(service: Service, value: str) -> Any:
    """Return what was typed or dropped into a form, as the model takes it."""
    if service.modality == "image":
        return await inputs_of(service, "images", [value])
    if service.modality == "text":
        body = schemas.PredictBody.model_validate({"text": value})
    else:
        try:
            row = [float(part) for part in value.replace(",", " ").split()]
        except ValueError as error:
            raise ServerError("Give numbers, separated by commas or spaces.") from error
        body = schemas.PredictBody.model_validate({"features": [row]})
    return await inputs_of(service, *body.inputs())


def read_images(encoded: Sequence[str], most: int = MAX_PIXELS_TOGETHER) -> list[bytes]:
    """Decode the base64 image files of a request, with so many pixels at most.

    All files that are returned can be decoded, and none is large: a small file can hold a large
    image, so requests that wait hold files, not pixels. An error names the one that is wrong.
    """
    left, files = most, []
    for i, text in enumerate(encoded):
        try:
            pixels, file = _checked_image(base64.b64decode(text, validate=True), i, left)
        except ServerError:
            raise
        except binascii.Error as error:
            raise ServerError(f"images[{i}] is not base64.") from error
        except Exception as error:  # Pillow raises many kinds on a damaged file
            raise ServerError(
                f"images[{i}] can't be read as an image: give {', '.join(FORMATS)}."
            ) from error
        left -= pixels
        files.append(file)
    return files


def _checked_image(file: bytes, i: int, left: int) -> tuple[int, bytes]:
    """Return the number of pixels, and the file, or one of a smaller image."""
    pillow = require("PIL.Image", "images")
    with pillow.open(io.BytesIO(file), formats=FORMATS) as image:
        pixels = image.width * image.height
        if pixels > MAX_PIXELS:
            raise ServerError(f"images[{i}] has {pixels} pixels; give at most {MAX_PIXELS}.")
        if pixels > left:
            raise ServerError(
                f"images[{i}]: the images have too many pixels together (more than "
                f"{MAX_PIXELS_TOGETHER}); send fewer at a time, or smaller ones."
            )
        if max(image.size) <= MAX_SIDE:
            image.load()
            return pixels, file
        image.draft("RGB", (MAX_SIDE, MAX_SIDE))  # decodes a JPEG file at a smaller size
        image.thumbnail((MAX_SIDE, MAX_SIDE))
        upright, buffer = require("PIL.ImageOps", "images").exif_transpose(image), io.BytesIO()
        upright.save(buffer, "PNG", compress_level=1)
        return pixels, buffer.getvalue()


def chosen_class(name: str, known: Collection[Label]) -> Label:
    """Return the class that was chosen from a list."""
    for label in known:
        if str(label) == name:
            return label
    raise ServerError(f"There is no class {name[:60]!r}: it was forgotten or renamed.", 404)


def typed_class(name: str, known: Collection[Label]) -> Label:
    """Return the class that was typed: a known one, or a new one of the same kind."""
    return name if name in known else _label.validate_python(as_label(name, known))


def rows_of_file(
    content: bytes, name: str, known: Collection[Label], layout: Layout, *, skip_bad: bool = False
) -> tuple[list[str], list[Label], Layout, list[BadRow]]:
    """Read texts and labels of a file that was sent, as `klda learn` reads it.

    Return also where they were found, and the rows that were left out.
    """
    texts: list[str] = []
    labels: list[Label] = []
    bad: list[BadRow] = []
    table = open_bytes(content, name=name, layout=layout, classes=known)
    for batch in table.batches(bad=bad.append if skip_bad else None):
        texts += batch.inputs
        labels += batch.labels or []
        layout = batch.layout
        if len(texts) > MAX_COMPARED:
            raise ServerError(f"{name}: more than {MAX_COMPARED:,} rows. Send several files.", 413)
    if not texts:
        raise ServerError(f"{name}: there is no row that can be learned.")
    return texts, labels, layout, bad
