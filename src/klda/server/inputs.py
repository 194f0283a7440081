"""Inputs and labels from requests, forms and files, as the model takes them."""

from __future__ import annotations

import base64
import io
import re
import zipfile
from collections.abc import Collection, Iterator, Sequence
from pathlib import PurePosixPath
from typing import Any

import numpy as np
from pydantic import TypeAdapter

from klda.data import BadRow, Layout, as_label, open_bytes
from klda.data.damage import damage_named
from klda.errors import require
from klda.labels import Label
from klda.server import schemas
from klda.server.errors import ServerError
from klda.server.service import Service
from klda.server.settings import MAX_COMPARED, MAX_TEXT_LENGTH

FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP")
MAX_PIXELS = 50_000_000  # of one image
MAX_PIXELS_TOGETHER = 250_000_000  # of a request
MAX_SIDE = 2048  # networks use 224 to 518
MAX_UNPACKED = 1 << 28  # bytes in an archive
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


def read_images(encoded: Sequence[str]) -> list[bytes]:
    """Decode the base64 image files of a request.

    All files that are returned can be decoded, and none is large: a small file can hold a large
    image, so requests that wait hold files, not pixels. An error names the one that is wrong.
    """
    left, files = MAX_PIXELS_TOGETHER, []
    for i, text in enumerate(encoded):
        try:
            decoded = base64.b64decode(text, validate=True)
        except ValueError as error:
            raise ServerError(f"images[{i}] is not base64.") from error
        pixels, file = _checked_image(decoded, f"images[{i}]", left)
        left -= pixels
        files.append(file)
    return files


def _checked_image(file: bytes, name: str, left: int) -> tuple[int, bytes]:
    """Return the number of pixels, and the file, or one of a smaller image."""
    pillow, operations = require("PIL.Image", "images"), require("PIL.ImageOps", "images")
    try:
        with pillow.open(io.BytesIO(file), formats=FORMATS) as image:
            pixels = image.width * image.height
            if pixels > MAX_PIXELS:
                raise ServerError(f"{name} has {pixels} pixels; give at most {MAX_PIXELS}.")
            if pixels > left:
                raise ServerError(
                    f"{name}: the images have too many pixels together (more than "
                    f"{MAX_PIXELS_TOGETHER}); send fewer at a time, or smaller ones."
                )
            if max(image.size) <= MAX_SIDE:
                image.load()
                return pixels, file
            image.draft("RGB", (MAX_SIDE, MAX_SIDE))  # decodes a JPEG file at a smaller size
            image.thumbnail((MAX_SIDE, MAX_SIDE))
            upright, buffer = operations.exif_transpose(image), io.BytesIO()
            upright.save(buffer, "PNG", compress_level=1)
            return pixels, buffer.getvalue()
    except ServerError:
        raise
    except Exception as error:  # Pillow raises many kinds on a damaged file
        formats = ", ".join(FORMATS)
        raise ServerError(f"{name} can't be read as an image: give {formats}.") from error


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
    content: bytes,
    name: str,
    known: Collection[Label],
    layout: Layout,
    *,
    skip_bad: bool = False,
    most: int | None = None,
) -> tuple[list[str], list[Label], Layout, list[BadRow]]:
    """Read texts and labels of a file that was sent, as `klda learn` reads it.

    Return also where they were found, and the rows that were left out. There may be at most
    `most` rows, by default as many as one change may have.
    """
    most = MAX_COMPARED if most is None else most
    texts: list[str] = []
    labels: list[Label] = []
    bad: list[BadRow] = []
    table = open_bytes(content, name=name, layout=layout, classes=known)
    for batch in table.batches(bad=bad.append if skip_bad else None):
        layout = batch.layout
        rows = zip(batch.inputs, batch.labels or [], batch.numbers, strict=True)
        for text, label, number in rows:
            if problem := _text_problem(text):
                if not skip_bad:
                    raise ServerError(f"{name}, row {number}: {problem}")
                bad.append(BadRow(name, f"row {number}", problem, {}))
                continue
            texts.append(text)
            labels.append(label)
        _check_rows(len(texts), most, name)
    if not texts:
        raise ServerError(f"{name}: there is no row that can be learned.")
    return texts, labels, layout, bad


def texts_of_file(
    content: bytes, name: str, layout: Layout, most: int | None = None
) -> tuple[list[str], list[dict[str, Any]], Layout]:
    """Return the texts of a file, with classes or not, their rows, and where they were found."""
    texts: list[str] = []
    rows: list[dict[str, Any]] = []
    table = open_bytes(content, name=name, layout=layout)
    for batch in table.batches(labels=False, keep=None, bad=lambda row: None):
        texts += (text[:MAX_TEXT_LENGTH] for text in batch.inputs)
        _check_rows(len(texts), most or MAX_COMPARED, name)
        columns = batch.cells or {}
        rows += (
            dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)
        )
        layout = batch.layout
    return texts, rows, layout


def _check_rows(number: int, most: int, name: str) -> None:
    if number > most:
        raise ServerError(f"{name}: more than {most:,} rows. Send several files.", 413)


def column_names(content: bytes, name: str, layout: Layout) -> list[str]:
    """Return the names of a file's columns."""
    table = open_bytes(content, name=name, layout=layout)
    with damage_named(lambda: name), table.read(table) as contents:
        return list(contents.names)


def _text_problem(text: str) -> str:
    """Say what keeps a text of a file from being taken, as one of a request; "" if nothing does."""
    if len(text) > MAX_TEXT_LENGTH:
        return f"the text has {len(text):,} characters; give at most {MAX_TEXT_LENGTH:,}."
    if not re.search(schemas.VISIBLE, text):
        return "the text has no visible character."
    return ""


def image_files(
    files: Sequence[tuple[str, bytes]], label: str = ""
) -> tuple[list[bytes], list[str], list[BadRow]]:
    """Return the images of files that were sent, the class of each, and what can't be read.

    An image's class is that of its folder, in a .zip archive or the file's name, or else `label`;
    where neither names one, it is "".
    """
    images, labels, bad, left = [], [], [], MAX_PIXELS_TOGETHER
    for name, content in (one for file in files for one in _members(*file)):
        try:
            pixels, image = _checked_image(content, name, left)
        except ServerError as error:
            bad.append(BadRow(name, name, str(error), {}))
            continue
        left -= pixels
        images.append(image)
        labels.append(PurePosixPath(name).parent.name or label)
    if not images:
        raise ServerError(bad[0].problem if bad else "There is no image in this file.")
    return images, labels, bad


def _members(name: str, content: bytes) -> Iterator[tuple[str, bytes]]:
    """Yield the files of a .zip archive, or the file itself."""
    if not zipfile.is_zipfile(io.BytesIO(content)):
        yield name, content
        return
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        found = [
            one
            for one in archive.infolist()
            if not one.is_dir() and not re.search(r"(^|/)(\.|__MACOSX/)", one.filename)
        ]
        size = sum(one.file_size for one in found)
        if len(found) > MAX_COMPARED or size > MAX_UNPACKED:
            raise ServerError(f"{name} holds too much: send several smaller files.", 413)
        for one in found:
            try:
                yield one.filename, archive.read(one)
            except Exception as error:  # encrypted, cut short, of an unknown kind
                raise ServerError(f"{name}: {one.filename} can't be unpacked.") from error


def thumbnail(file: bytes, side: int) -> bytes:
    """Return a small JPEG file of an image that was checked."""
    buffer = io.BytesIO()
    with require("PIL.Image", "images").open(io.BytesIO(file), formats=FORMATS) as image:
        image.draft("RGB", (2 * side, 2 * side))
        upright = require("PIL.ImageOps", "images").exif_transpose(image).convert("RGB")
        upright.thumbnail((side, side))
        upright.save(buffer, "JPEG", quality=80)
    return buffer.getvalue()
