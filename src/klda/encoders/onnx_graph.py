"""A small writer of ONNX graphs, so that ONNX Runtime is all that is needed to run one.

The format is Protocol Buffers; the field numbers below are those of onnx.proto. The `onnx` package
writes the same, but takes a tenth of the disk space that klda and its text encoder need together.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable

import numpy as np

MICROSOFT = "com.microsoft"  # domain of the fused operators that ONNX Runtime adds
_FORMAT_VERSION = 8
_OPSETS = {"": 18, MICROSOFT: 1}
_ELEMENT_TYPES = {
    "float32": 1, "int32": 6, "int64": 7, "string": 8, "bool": 9, "float64": 11
}  # fmt: skip
_FLOAT, _INT = 1, 2  # types of an attribute

Field = tuple[int, "int | float | str | bytes"]


class Graph:
    """A graph under construction: operators are added in the order in which they run.

    A session gets the large arrays, `weights`, from memory, unless `serialize` embeds them.
    """

    def __init__(self) -> None:
        self.weights: dict[str, np.ndarray] = {}
        self._nodes: list[bytes] = []
        self._constants: list[bytes] = []
        self._n_names = 0

    def add(
        self, operator: str, *inputs: str, domain: str = "", output: str = "", **attributes: float
    ) -> str:
        """Add an operator; return the name of its output. An input "" is left out."""
        output = output or self._new_name()
        fields: list[Field] = [(1, name) for name in inputs]
        fields += [(2, output), (4, operator), (7, domain)]
        for name, value in attributes.items():
            field, kind = (2, _FLOAT) if isinstance(value, float) else (3, _INT)
            fields.append((5, _message([(1, name), (field, value), (20, kind)])))
        self._nodes.append(_message(fields))
        return output

    def weight(self, values: np.ndarray, dtype: str = "float32") -> str:
        """Add a large array; return its name."""
        name = self._new_name()
        self.weights[name] = np.ascontiguousarray(values, dtype=dtype)
        return name

    def constant(self, values: np.ndarray) -> str:
        """Add a small array that is part of the graph; return its name."""
        name = self._new_name()
        self._constants.append(_tensor(name, values))
        return name

    def strings(self, values: Iterable[str]) -> str:
        """Add a vector of strings; return its name."""
        name, content = self._new_name(), [value.encode() for value in values]
        head: list[Field] = [(1, len(content)), (2, _ELEMENT_TYPES["string"]), (8, name)]
        self._constants.append(_message([*head, *((6, value) for value in content)]))
        return name

    def serialize(
        self, inputs: dict[str, str], outputs: dict[str, str], *, embed: bool = False
    ) -> bytes:
        """Return the file's content.

        `inputs` and `outputs` give each one's element type, as ``"int32"``; with `embed` the
        weights are part of the file.
        """
        graph: list[Field] = [(1, node) for node in self._nodes]
        graph.append((2, "klda"))
        graph += [(5, _tensor(*item, embed=embed)) for item in self.weights.items()]
        graph += [(5, constant) for constant in self._constants]
        graph += [(11, _value(name, element_type)) for name, element_type in inputs.items()]
        graph += [(12, _value(name, element_type)) for name, element_type in outputs.items()]
        opsets: list[Field] = [
            (8, _message([(1, domain), (2, version)])) for domain, version in _OPSETS.items()
        ]
        return _message([(1, _FORMAT_VERSION), (7, _message(graph)), *opsets])

    def _new_name(self) -> str:
        self._n_names += 1
        return f"v{self._n_names}"


def _tensor(name: str, values: np.ndarray, *, embed: bool = True) -> bytes:
    fields: list[Field] = [(1, size) for size in values.shape]
    fields += [(2, _ELEMENT_TYPES[values.dtype.name]), (8, name)]
    if embed:
        return _message([*fields, (9, values.tobytes())])
    # Declared as stored elsewhere: the session gets these arrays from memory.
    place = _message([(1, "location"), (2, "memory")])
    return _message([*fields, (13, place), (14, 1)])


def _value(name: str, element_type: str) -> bytes:
    tensor = _message([(1, _ELEMENT_TYPES[element_type])])
    return _message([(1, name), (2, _message([(1, tensor)]))])


def _message(fields: Iterable[Field]) -> bytes:
    return b"".join(_field(number, value) for number, value in fields)


def _field(number: int, value: int | float | str | bytes) -> bytes:
    if isinstance(value, int):
        return _varint(number << 3) + _varint(value)
    if isinstance(value, float):
        return _varint(number << 3 | 5) + struct.pack("<f", value)
    content = value.encode() if isinstance(value, str) else value
    return _varint(number << 3 | 2) + _varint(len(content)) + content


def _varint(value: int) -> bytes:
    value &= 2**64 - 1  # negative numbers in two's complement
    groups = bytearray()
    while value > 0x7F:
        groups.append(value & 0x7F | 0x80)
        value >>= 7
    groups.append(value)
    return bytes(groups)
