"""Files of named arrays in the safetensors format, written from memory and mapped into it.

Written here rather than by the safetensors package because that one copies the arrays first, which
at D = 20,000 would be 1.6 GB, and does not map them copy-on-write.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import reprlib
import stat
import struct
import uuid
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from klda.engine.arrays import is_finite
from klda.errors import KldaError

LARGEST_HEADER = 100_000_000  # bytes, as the format has it
# Values in a JSON file of a model folder; one of a million classes has a few million. Short values
# take up to 20 times the memory that they take on disk.
MOST_VALUES = 1 << 23
# Files up to this size are compared with their checksum whenever they are opened, which takes a
# millisecond. The data of larger ones, which are mapped and not read, only if that is asked for.
VERIFIED_UP_TO = 1 << 20
_KINDS = "F64 <f8, F32 <f4, F16 <f2, I64 <i8, I32 <i4, I16 <i2, I8 i1"
_KINDS += ", U64 <u8, U32 <u4, U16 <u2, U8 u1, BOOL ?"
_DTYPES = {name: np.dtype(kind) for name, kind in map(str.split, _KINDS.split(","))}
_DTYPE_NAMES = {dtype: name for name, dtype in _DTYPES.items()}
_JSON_STRING = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)


class ModelFolderError(KldaError):
    """A model folder that can't be read or written; the message names it and the fix."""


def damaged(file: Path, reason: object) -> ModelFolderError:
    """Return the error that names a damaged file and the fix."""
    return ModelFolderError(
        f"{file} is truncated or damaged: {reason}. Restore the folder from a copy."
    )


def parse_json(text: bytes) -> Any:
    """Parse a JSON file of a model folder; raise if it would fill the memory."""
    check_values(text)
    return json.loads(text.decode(), parse_constant=_refuse_constant)


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a number")


def check_values(text: bytes) -> None:
    """Raise if JSON has more values than a model folder may have."""

    def separators(part: bytes) -> int:
        return part.count(b",") + part.count(b"[") + part.count(b"{")

    count = separators(text)
    if count > MOST_VALUES:
        count -= sum(separators(match[0]) for match in _JSON_STRING.finditer(text))
    if count > MOST_VALUES:
        raise ValueError(f"it has {count:,} values, more than {MOST_VALUES:,}")


def header(arrays: Mapping[str, np.ndarray]) -> bytes:
    """Return what a file of these arrays begins with: a length, and JSON padded to 8 bytes."""
    entries: dict[str, Any] = {}
    offset = 0
    for name, array in arrays.items():
        dtype = _DTYPE_NAMES.get(array.dtype.newbyteorder("<"))
        if dtype is None:
            raise ValueError(f"Array {name!r} has dtype {array.dtype}, which can't be saved.")
        if not is_finite(array):
            raise ValueError(f"Array {name!r} holds values that are not finite.")
        end = offset + array.nbytes
        entries[name] = {"dtype": dtype, "shape": array.shape, "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text


def content(array: np.ndarray) -> memoryview:
    """Return the bytes of an array as a file holds them."""
    little = array.astype(array.dtype.newbyteorder("<"), copy=False)
    return little.reshape(-1).view(np.uint8).data


def read_header(file: Path) -> bytes:
    """Return the header of a file, as `header` made it; raise if the file ends before its end."""
    with file.open("rb") as opened:
        start = opened.read(8)
        if len(start) < 8:
            raise damaged(file, "it ends within its header")
        (length,) = struct.unpack("<Q", start)
        if length > min(file.stat().st_size - 8, LARGEST_HEADER):
            raise damaged(file, f"its header has {length} bytes, more than there can be")
        return start + opened.read(length)


def map_arrays(file: Path, header: bytes) -> dict[str, np.ndarray]:
    """Map the arrays of a file into memory, copy-on-write: nothing is read until it is used."""
    data: np.ndarray = (
        np.memmap(file, dtype=np.uint8, mode="c", offset=len(header))
        if file.stat().st_size > len(header)  # nothing can't be mapped
        else np.empty(0, dtype=np.uint8)
    )
    arrays = {}
    try:
        for name, entry in parse_json(header[8:]).items():
            start, end = entry["data_offsets"]
            flat = np.asarray(data[start:end]).view(_DTYPES[entry["dtype"]])
            arrays[name] = flat.reshape(entry["shape"])
    except (
        ValueError,
        KeyError,
        TypeError,
        AttributeError,
        ArithmeticError,
        RecursionError,
    ) as error:
        raise damaged(file, f"its header can't be read: {error}") from error
    return arrays


def write(folder: Path, part: str, arrays: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """Write arrays to a file named after its content, unless it is there, and describe it."""
    start = header(arrays)
    digest = hashlib.sha256(start)
    for array in arrays.values():
        digest.update(content(array))
    checksum = digest.hexdigest()
    size = len(start) + sum(array.nbytes for array in arrays.values())
    stem = re.sub(r"[^\w.]", "_", part)
    target = folder / f"{stem}-{checksum[:16]}.safetensors"
    is_there = target.is_file() and not target.is_symlink() and target.stat().st_size == size
    if not is_there:
        replace_file(target, [start, *map(content, arrays.values())])
    return {
        "name": target.name,
        "bytes": size,
        "sha256": checksum,
        "header_sha256": hashlib.sha256(start).hexdigest(),
        "arrays": sorted(arrays),
    }


def replace_file(target: Path, parts: Iterable[bytes | memoryview]) -> None:
    """Write a file beside its target, sync it, and put it in the target's place."""
    temporary = target.with_name(f".new-{uuid.uuid4().hex}")
    with temporary.open("xb") as file:
        for part in parts:
            file.write(part)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(target)


def open_file(file: Path, entry: Mapping[str, Any], *, verify: bool) -> dict[str, np.ndarray]:
    """Map the arrays of a file that `write` described, after comparing size and checksums."""
    status = file.stat()
    if not stat.S_ISREG(status.st_mode):  # reading a pipe would wait forever
        raise damaged(file, "it is not a file")
    if status.st_size != entry["bytes"]:
        raise damaged(file, f"it has {status.st_size} bytes, {entry['bytes']} expected")
    if verify or status.st_size <= VERIFIED_UP_TO:
        with file.open("rb") as opened:
            _compare(file, hashlib.file_digest(opened, "sha256").hexdigest(), entry["sha256"])
    start = read_header(file)
    _compare(file, hashlib.sha256(start).hexdigest(), entry["header_sha256"])
    return map_arrays(file, start)


def _compare(file: Path, found: str, expected: str) -> None:
    if found != expected:
        raise damaged(file, f"its SHA-256 is {found}, expected {reprlib.repr(expected)}")
