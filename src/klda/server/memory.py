"""What the service remembers beside the model: saved in the model folder, in the same step.

The number of the last change in the model makes a replay count every change once; the idempotency
keys make a retried request count once; the classes forgotten lately can be brought back; the tally
of answers before teaching is what the page draws.
"""

from __future__ import annotations

import json
import time
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from klda import schema, state_schema
from klda.schema import Shapes, refused
from klda.server.changes import Change, Label, names_taken

MAX_KEYS = 10_000
MAX_TALLIES = 2_000
_ARRAY = "service/memory"

_COUNT = schema.integer()
_KEY = schema.entries(
    schema.text, _COUNT, _COUNT, _COUNT, schema.listing(schema.scalar), schema.text
)
_DROPPED = schema.entries(schema.scalar, schema.integer(1), schema.listing(schema.text))
_CONTENT = schema.record(
    {
        "keys": schema.listing(_KEY),
        "dropped": schema.listing(
            schema.entries(_COUNT, schema.number(), schema.listing(_DROPPED))
        ),
        "tallies": schema.listing(schema.entries(schema.number(), _COUNT, _COUNT, _COUNT)),
    },
    {"taken": schema.listing(schema.entries(_COUNT, schema.scalar))},
)
_SHAPES = {"rows": ("n", "d"), "means": ("members", "D"), "novelty": ("P",), "losses": ("P", "T")}
_SETS_OF_ARRAYS = ({"rows"}, {"means"}, {"means", "filed", "novelty", "losses"})


@dataclass(frozen=True)
class Acknowledgement:
    """What the service answered to a change.

    Attributes
    ----------
    sequence : int
        Number of the change.
    classes, samples : int
        How many the model had after it.
    new : tuple of label
        Classes that it brought.
    digest : str
        Fingerprint of the request.
    repeated : bool
        Whether the change had been made before, by a request with the same key.
    """

    sequence: int
    classes: int
    samples: int
    new: tuple[Label, ...] = ()
    digest: str = ""
    repeated: bool = False


@dataclass(frozen=True)
class Dropped:
    """A class that was forgotten and can be brought back.

    Attributes
    ----------
    label : label
        Its name.
    count : int
        Its samples.
    arrays : dict of str to ndarray
        ``means`` by member and its part of the calibration, or ``rows`` where a ledger had them.
    """

    label: Label
    count: int
    arrays: dict[str, np.ndarray]


@dataclass
class Memory:
    """See the module.

    Attributes
    ----------
    position : int
        Number of the last change that was applied.
    saved_elsewhere : bool
        Whether the model was last saved by something that keeps no such memory.
    keys : OrderedDict of str to Acknowledgement
        By idempotency key, oldest first.
    dropped : dict of int to (float, list of Dropped)
        By the number of the forget: when, and what.
    taken : set of (int, label)
        Forgets and classes that they dropped, whose names other classes were given since.
    tallies : list of (when, right, wrong, new)
        How the model answered just before it was taught.
    """

    position: int = 0
    saved_elsewhere: bool = False
    keys: OrderedDict[str, Acknowledgement] = field(default_factory=OrderedDict)
    dropped: dict[int, tuple[float, list[Dropped]]] = field(default_factory=dict)
    taken: set[tuple[int, Label]] = field(default_factory=set)
    tallies: list[tuple[float, int, int, int]] = field(default_factory=list)

    def note(self, change: Change, acknowledgement: Acknowledgement) -> None:
        """Take note of a change that was applied."""
        self.position = change.sequence
        if change.key:
            self.keys[change.key] = acknowledgement
            while len(self.keys) > MAX_KEYS:
                self.keys.popitem(last=False)
        if change.kind == "rename":
            self.taken |= names_taken(change.labels[1], self.forgotten())
        if change.right or change.wrong or change.new:
            self.tallies.append((change.when, change.right, change.wrong, change.new))
            del self.tallies[:-MAX_TALLIES]

    def purge(self, undo_seconds: float, now: float | None = None) -> bool:
        """Let go of forgotten classes whose time is over; say whether there were any."""
        oldest = (time.time() if now is None else now) - undo_seconds
        over = [n for n, (when, _) in self.dropped.items() if when < oldest]
        for number in over:
            del self.dropped[number]
        self.taken = {(n, label) for n, label in self.taken if n in self.dropped}
        return bool(over)

    def forgotten(self) -> dict[int, dict[Label, int]]:
        """Return the classes and counts that each forget dropped."""
        return {n: {d.label: d.count for d in gone} for n, (_, gone) in self.dropped.items()}

    def pack(self) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """Return arrays and meta to be saved with the model."""
        arrays: dict[str, np.ndarray] = {}
        bin_ = []
        for number, (when, gone) in self.dropped.items():
            for i, one in enumerate(gone):
                arrays |= {f"service/{number}/{i}/{name}": a for name, a in one.arrays.items()}
            bin_.append([number, when, [[d.label, d.count, list(d.arrays)] for d in gone]])
        keys = [
            [k, a.sequence, a.classes, a.samples, list(a.new), a.digest]
            for k, a in self.keys.items()
        ]
        taken = sorted(self.taken, key=repr)
        text = json.dumps({"keys": keys, "dropped": bin_, "taken": taken, "tallies": self.tallies})
        arrays[_ARRAY] = np.frombuffer(text.encode(), np.uint8)
        return arrays, {"position": self.position}

    @classmethod
    def unpack(cls, arrays: Mapping[str, np.ndarray], meta: Mapping[str, Any]) -> Memory:
        """Return what `pack` described; an empty memory for a model that was never served."""
        schema.record({}, {"position": schema.integer()})(meta, "service")
        memory = cls(meta.get("position", 0), saved_elsewhere="position" not in meta)
        if _ARRAY not in arrays:
            return memory
        content = state_schema.read_json(Shapes(arrays).array(_ARRAY, "u", "n"), _ARRAY)
        _CONTENT(content, _ARRAY)
        for key, sequence, classes, samples, new, digest in content["keys"]:
            memory.keys[key] = Acknowledgement(sequence, classes, samples, tuple(new), digest)
        for number, when, gone in content["dropped"]:
            held = [
                Dropped(label, count, _set_aside(arrays, f"service/{number}/{i}/", names))
                for i, (label, count, names) in enumerate(gone)
            ]
            memory.dropped[number] = (when, held)
        memory.taken = {(number, label) for number, label in content.get("taken", ())}
        memory.tallies = [tuple(tally) for tally in content["tallies"]]
        return memory


def _set_aside(
    arrays: Mapping[str, np.ndarray], prefix: str, names: list[str]
) -> dict[str, np.ndarray]:
    """Return the arrays of a class that was forgotten, in memory of their own, after a check."""
    if set(names) not in _SETS_OF_ARRAYS:
        raise refused(f"the arrays {prefix}...", names, "those of a class")
    shapes = Shapes(arrays)
    for name in names:
        if name == "filed":
            shapes.array(prefix + name, "i", "P")
            continue
        shape = _SHAPES[name]
        if name == "means" and getattr(arrays.get(prefix + name), "ndim", 0) == 1:
            shape = shape[1:]  # of a classifier that is no ensemble
        shapes.finite(prefix + name, *shape)
    return {name: np.array(arrays[prefix + name]) for name in names}
