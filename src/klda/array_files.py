"""Files of named arrays in the safetensors format, written from memory and mapped into it.

Written here rather than by the safetensors package because that one copies the arrays first, which
at D = 20,000 would be 1.6 GB, and does not map them copy-on-write.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from klda import schema
from klda.errors import KldaError

LARGEST_HEADER = 100_000_000  # bytes, as the format has it
MOST_DIMENSIONS = 8
_DTYPES: dict[str, np.dtype[Any]] = {
    "F64": np.dtype("<f8"),
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "I64": np.dtype("<i8"),
    "I32": np.dtype("<i4"),
    "I16": np.dtype("<i2"),
    "I8": np.dtype("i1"),
    "U64": np.dtype("<u8"),
    "U32": np.dtype("<u4"),
    "U16": np.dtype("<u2"),
    "U8": np.dtype("u1"),
    "BOOL": np.dtype("?"),
}
_DTYPE_NAMES = {dtype: name for name, dtype in _DTYPES.items()}
_ENTRY = schema.record(
    {
        "dtype": schema.choice(*_DTYPES),
        "shape": schema.listing(schema.integer()),
        "data_offsets": schema.listing(schema.integer()),
    }
)


class ArrayFileError(KldaError):
    """An array that can't be written, or a file that is not what it should be."""


def header(arrays: Mapping[str, np.ndarray]) -> bytes:
    """Return what a file of these arrays begins with.

    Parameters
    ----------
    arrays : mapping of str to ndarray
        In the order in which their contents follow.

    Returns
    -------
    bytes
        The length of a JSON text, and the text, padded to a multiple of 8 bytes.
    """
    entries: dict[str, Any] = {}
    offset = 0
    for name, array in arrays.items():
        dtype = _DTYPE_NAMES.get(array.dtype.newbyteorder("<"))
        if dtype is None:
            raise ArrayFileError(f"Array {name!r} has dtype {array.dtype}, which can't be saved.")
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
    """Return what a file begins with, up to where the contents of its arrays begin.

    Parameters
    ----------
    file : Path
        The file.

    Returns
    -------
    bytes
        As `header` made them.

    Raises
    ------
    ArrayFileError
        If the file ends before that.
    """
    with file.open("rb") as opened:
        start = opened.read(8)
        if len(start) < 8:
            raise ArrayFileError("it ends within its header")
        (length,) = struct.unpack("<Q", start)
        if length > min(file.stat().st_size - 8, LARGEST_HEADER):
            raise ArrayFileError(f"its header has {length} bytes, more than there can be")
        return start + opened.read(length)


def map_arrays(file: Path, header: bytes) -> dict[str, np.ndarray]:
    """Map the arrays of a file into memory, copy-on-write.

    Parameters
    ----------
    file : Path
        The file.
    header : bytes
        What it begins with.

    Returns
    -------
    dict of str to ndarray
        Nothing of them is read until they are used.

    Raises
    ------
    ArrayFileError
        If the header is damaged: arrays that don't follow one another to the end of the file.
    """
    size = file.stat().st_size - len(header)
    entries = _entries(header[8:], size)
    data: np.ndarray = (
        np.memmap(file, dtype=np.uint8, mode="c", offset=len(header))
        if size  # nothing can't be mapped
        else np.empty(0, dtype=np.uint8)
    )
    arrays = {}
    for name, entry in entries.items():
        start, end = entry["data_offsets"]
        try:
            flat = np.asarray(data[start:end]).view(_DTYPES[entry["dtype"]])
            arrays[name] = flat.reshape(entry["shape"])
        except ValueError as error:
            raise ArrayFileError(f"array {name!r} can't have its shape: {error}") from error
    return arrays


def _entries(text: bytes, size: int) -> dict[str, Any]:
    """Return what a header says of each array, after a check."""
    try:
        entries = json.loads(text)
        schema.mapping(_ENTRY)(entries, "header")
    except (ValueError, RecursionError) as error:
        raise ArrayFileError(f"its header can't be read: {error}") from error
    at = 0
    for name, entry in sorted(entries.items(), key=lambda item: item[1]["data_offsets"]):
        shape, offsets = entry["shape"], entry["data_offsets"]
        if len(shape) > MOST_DIMENSIONS:
            raise ArrayFileError(f"the header gives array {name!r} {len(shape)} dimensions")
        length = math.prod(shape) * _DTYPES[entry["dtype"]].itemsize
        if offsets != [at, at + length]:
            raise ArrayFileError(f"the header gives array {name!r} a wrong place or shape")
        at += length
    if at != size:
        raise ArrayFileError(f"the header describes {at} bytes of data, the file has {size}")
    return entries
