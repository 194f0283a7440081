"""Inputs and labels that were sent, chosen, typed or pasted, as the model takes them."""

from __future__ import annotations

import base64
import binascii
import io
from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np
from pydantic import TypeAdapter, ValidationError

from klda.data import as_label, open_pasted
from klda.errors import require
from klda.labels import Label
from klda.server import schemas
from klda.server.errors import ServerError
from klda.server.service import Service

T = TypeVar("T")

FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP")
MAX_PIXELS = 50_000_000  # of one image
MAX_PIXELS_TOGETHER = 250_000_000  # of a request
MAX_SIDE = 2048  # networks use 224 to 518
MOST_ROWS = 100_000
_label: TypeAdapter[Label] = TypeAdapter(schemas.ClassLabel)
_text = TypeAdapter(schemas.Text)
_description = TypeAdapter(schemas.Description)
_texts = TypeAdapter(list[schemas.Text])


async def inputs_of(service: Service, kind: str, values: list[Any]) -> Any:
    """Return the inputs of a request: texts, image files, or an array of features."""
    wanted = {"text": "texts", "image": "images", "features": "features"}[service.modality]
    if kind != wanted:
        raise ServerError(f"This model takes {wanted}, not {kind}.")
    if kind == "features":
        width = service.snapshot.width or len(values[0])
        for row in values:
            if len(row) != width:
                raise ServerError(f"features has a row of {len(row)} numbers; give {width}.")
        return np.array(values, np.float32)
    return await service.prepare(read_images, values) if kind == "images" else values


def read_images(encoded: Sequence[str]) -> list[bytes]:
    """Decode the base64 image files of a request; an error names the one that is wrong.

    All files that are returned can be decoded, and none is large: a small file can hold a large
    image, so requests that wait hold files, not pixels.
    """
    left = MAX_PIXELS_TOGETHER
    files = []
    for i, text in enumerate(encoded):
        try:
            file = base64.b64decode(text, validate=True)
        except (binascii.Error, ValueError) as error:
            raise ServerError(f"images[{i}] is not base64.") from error
        try:
            pixels, file = _checked_image(file, f"images[{i}]", left)
        except ServerError:
            raise
        except Exception as error:  # Pillow raises many kinds on a damaged file
            raise ServerError(
                f"images[{i}] can't be read as an image: give {', '.join(FORMATS)}."
            ) from error
        left -= pixels
        files.append(file)
    return files


def _checked_image(file: bytes, name: str, left: int) -> tuple[int, bytes]:
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


def chosen_class(name: str, known: Collection[Label]) -> Label:
    """Return the class that was chosen from a list."""
    for label in known:
        if str(label) == name:
            return label
    raise ServerError(f"There is no class {name[:60]!r}: it was forgotten or renamed.", 404)


def typed_class(name: str, known: Collection[Label]) -> Label:
    """Return the class that was typed: a known one, or a new one of the same kind."""
    return name if name in known else _checked(as_label(str(_checked(name.strip())), known))


def _checked(label: Label) -> Label:
    def wrong(first: Any) -> str:
        if isinstance(label, int):
            return f"{label} can't be a label: give a number between -2^53 and 2^53."
        return str(first["msg"]).removeprefix("Value error, ")

    return _valid(_label, label, wrong)


def typed_text(value: str) -> str:
    """Return a text, or raise if it can't be taught or asked about."""
    return _valid(_text, value, lambda first: f"The text: {first['msg']}.")


def typed_description(value: str) -> str | None:
    """Return the description of a class; None if the field was left empty."""
    if not value.strip():
        return None
    return _valid(_description, value.strip(), lambda first: f"The description: {first['msg']}.")


def _valid(kind: TypeAdapter[T], value: Any, wrong: Callable[[Any], str]) -> T:
    """Return a value that is valid; `wrong` says what is wrong, given pydantic's first error."""
    try:
        return kind.validate_python(value)
    except ValidationError as error:
        raise ServerError(wrong(error.errors()[0])) from error


class PastedRows(NamedTuple):
    """Texts and their labels; without a header the first line is the first row."""

    texts: list[str]
    labels: list[Label]
    has_header: bool


def pasted_rows(
    content: bytes, name: str, known: Collection[Label], *, skip: int = 0
) -> PastedRows:
    """Read rows as files are read, and check that they can be taught; errors call them `name`."""
    table = open_pasted(content, name=name, classes=known)
    batches = table.batches(rows=MOST_ROWS, skip=skip)
    batch = next(batches, None)
    if batch is None:
        raise ServerError(f"{name}: there is a header but no row.")
    if next(batches, None) is not None:
        raise ServerError(f"{name}: more than {MOST_ROWS:,} rows. Send them in several parts.")
    labels = batch.labels or []
    _valid(
        _texts, batch.inputs, lambda e: f"{name}, row {int(e['loc'][0]) + 1 + skip}: {e['msg']}."
    )
    for label in dict.fromkeys(labels):
        try:
            _checked(label)
        except ServerError as error:
            raise ServerError(f"{name}, row {labels.index(label) + 1 + skip}: {error}") from error
    return PastedRows(batch.inputs, labels, table.header)
