"""Reads what klda 0.1.0 stored for its service, and moves it into the journal.

That version kept the keys, the forgotten classes and the tallies as arrays in the model folder, and
its journal in files ``journal-<first change>.klda``. These formats are no longer written.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from klda.labels import Label
from klda.learner import Detached
from klda.learner import folder as storage
from klda.server.changes import Acknowledgement, Change
from klda.server.journal import Journal, JournalError, Tally

MEMORY = "service/memory"
FILES = "journal-*.klda"
_HEAD = struct.Struct("<4sQI")  # magic, length and CRC-32 of a frame's payload
_MAGIC = b"KLJ\x01"
_CALIBRATION = ("filed", "novelty", "losses")


def migrate(folder: Path, journal: Journal) -> None:
    """Move the memory and the journal files of an old service into the journal.

    After a kill it is repeated: changes that the journal already has are left out.
    """
    files = sorted(folder.glob(FILES))
    stored = storage.load(folder) if storage.exists(folder) else None
    if stored is None or not (files or MEMORY in stored.arrays):
        return
    entries = [entry for file in files for entry in _read(file)]
    dropped = {header["target"] for header, _ in entries if header["kind"] == "cancel"}
    position = stored.document["classifier"].get("service", {}).get("position")
    with journal.transaction():
        if not journal.last and MEMORY in stored.arrays:
            _move_memory(stored, journal)
        journal.set_last(position or 0)
        last = journal.last
        for header, rows in entries:
            number = header["sequence"]
            if number > last and number not in dropped and header["kind"] != "cancel":
                journal.add(Change.of(header, rows))
    journal.start_at(position)
    for file in files:
        file.unlink()


def _move_memory(stored: storage.StoredModel, journal: Journal) -> None:
    content = json.loads(np.asarray(stored.arrays[MEMORY]).tobytes())
    for key, sequence, classes, samples, new, digest in content["keys"]:
        journal.add_key(key, digest, Acknowledgement(sequence, classes, samples, tuple(new)))
    for number, when, dropped in content["dropped"]:
        kept = []
        for i, (label, count, names) in enumerate(dropped):
            own = {name: np.array(stored.arrays[f"service/{number}/{i}/{name}"]) for name in names}
            kept.append(_detached(label, count, own, stored.document["classifier"]))
        journal.keep(number, when, kept)
    for _, label in content.get("taken", ()):
        journal.reuse_name(label)
    for tally in content["tallies"]:
        journal.add_tally(Tally(*tally))


def _detached(
    label: Label, count: int, own: dict[str, np.ndarray], model: Mapping[str, Any]
) -> Detached:
    """Return a class as `Learner.detach` describes it now."""
    if "rows" in own:
        return Detached(label, count, own, {})
    arrays: dict[str, np.ndarray] = {}
    members: list[dict[str, Any]] = []
    for i, mean in enumerate(np.atleast_2d(own["means"])):
        arrays[f"learn/{i}/means"] = mean[None]
        members.append({"n_scattered": 0})
        if "turnover" in model["members"][i]:  # the scatter has all of the class still
            arrays[f"learn/{i}/rows"] = np.empty((0, len(mean)), mean.dtype)
            arrays[f"learn/{i}/signs"] = np.empty(0, np.int8)
            members[i]["turnover"] = 0.0
    if "filed" in own:
        arrays |= {f"predict/calibration/{name}": own[name] for name in _CALIBRATION}
        arrays["predict/calibration/labels"] = np.zeros(len(own["filed"]), np.int64)
    meta = {"n_features": model["n_features"], "classes": [label], "counts": [count]}
    return Detached(label, count, arrays, {**meta, "members": members})


def _read(path: Path) -> Iterator[tuple[dict[str, Any], bytes]]:
    """Yield the changes of a journal file; an incomplete last frame was never acknowledged."""
    content, at = path.read_bytes(), 0
    while at < len(content):
        payload = _payload(content, at)
        if payload is None:
            if any(_payload(content, i) for i in _occurrences(content, at + 1)):
                raise JournalError(
                    f"{path} is damaged at byte {at}, and more changes follow. Restore it from a "
                    "copy, or move it away to continue without the changes in it."
                )
            return
        yield from _entries(payload)
        at += _HEAD.size + len(payload)


def _payload(content: bytes, at: int) -> bytes | None:
    if len(content) - at < _HEAD.size:
        return None
    magic, length, checksum = _HEAD.unpack_from(content, at)
    payload = content[at + _HEAD.size : at + _HEAD.size + length]
    whole = magic == _MAGIC and len(payload) == length and zlib.crc32(payload) == checksum
    return payload if whole else None


def _occurrences(content: bytes, at: int) -> Iterator[int]:
    while (at := content.find(_MAGIC, at)) >= 0:
        yield at
        at += 1


def _entries(payload: bytes) -> Iterator[tuple[dict[str, Any], bytes]]:
    (length,) = struct.unpack_from("<I", payload)
    at = 4 + length
    for header in json.loads(payload[4:at]):
        n, d = header.get("shape", (0, 0))
        yield header, payload[at : at + 4 * n * d]
        at += 4 * n * d
