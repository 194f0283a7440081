"""Snapshots for other processes: the writer publishes them, the workers read them.

A compact model is saved to a folder in memory, then a small file ``current`` is replaced. A worker
reads that file before each batch of answers, so an answer includes every change acknowledged before
its request came. A save writes only the arrays that changed, which the feature map never does.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from pathlib import Path

from klda.learner import Learner
from klda.server.snapshot import Snapshot

_CURRENT, _MODEL = "current", "model"


def folder_for(model: Path) -> Path:
    """Make an empty folder for the snapshots of a model folder, readable by this user only.

    The lock of the model folder must be held, so that nobody else uses the name. The folder is in
    memory where the system has such a place.
    """
    memory = Path("/dev/shm")
    base = memory if memory.is_dir() else Path(tempfile.gettempdir())
    name = hashlib.sha256(str(model.resolve()).encode()).hexdigest()[:16]
    folder = base / f"klda-{os.getuid()}-{name}"
    if folder.is_dir() and not folder.is_symlink() and folder.stat().st_uid == os.getuid():
        shutil.rmtree(folder)  # left by a service that was killed
    folder.mkdir(mode=0o700)
    return folder


class Publisher:
    """Writes snapshots to a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._number = 0

    def publish(self, snapshot: Snapshot) -> None:
        """Make a snapshot the current one; every reader sees it when this returns."""
        self._number += 1
        if snapshot.frozen is not None:
            snapshot.frozen.save(self._folder / _MODEL, compact=True, overwrite=True)
        # The model first: a reader may find a newer model than `current` says, never an older one.
        temporary = self._folder / f".{_CURRENT}"
        is_empty = snapshot.frozen is None
        temporary.write_text(f"{self._number} {snapshot.version} {int(is_empty)}")
        temporary.replace(self._folder / _CURRENT)


class Subscriber:
    """Reads snapshots from a folder, for one thread.

    Parameters
    ----------
    folder : Path
        Where the publisher writes.
    learner : Learner
        With the encoder to use; its classifier is not used.
    """

    def __init__(self, folder: Path, learner: Learner) -> None:
        self._folder, self._learner = folder, learner
        self._read = ""
        self._snapshot: Snapshot | None = None

    def current(self) -> Snapshot:
        """Return the snapshot that was published last."""
        current = (self._folder / _CURRENT).read_text()
        if self._snapshot is None or current != self._read:
            _, version, is_empty = map(int, current.split())
            if is_empty:
                self._snapshot = Snapshot(version, {}, 0, None)
            else:
                learner = Learner.load(self._folder / _MODEL, model=self._learner.encoder)
                self._snapshot = Snapshot.of(learner, version)
            self._read = current
        return self._snapshot
