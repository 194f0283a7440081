"""Snapshots for other processes: the writer publishes, the workers read.

A snapshot is one file in a folder in memory; the file ``current`` names it and is replaced once it
is complete. A worker looks at ``current`` before each batch of answers, so an answer always knows
what was acknowledged before its request came. What never changes (the feature map) is written once.
"""

from __future__ import annotations

import copy
import hashlib
import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from klda.classifiers import from_state
from klda.learner import Learner
from klda.server.snapshot import Snapshot

KEPT = 3  # versions that a slow reader may still be opening
_FIXED = ("/frequencies", "/phases")
_POINTER = "current"


def folder_for(model: Path) -> Path:
    """Make an empty folder for the snapshots of a model folder, readable by this user only.

    Parameters
    ----------
    model : Path
        The model folder; its lock must be held, so that nobody else uses the name.

    Returns
    -------
    Path
        In memory where the system has such a place.
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
    """Writes snapshots.

    Parameters
    ----------
    folder : Path
        Where the readers look.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._number = 0
        self._fixed: dict[str, np.ndarray] = {}

    def publish(self, snapshot: Snapshot) -> None:
        """Make a snapshot the current one; every reader sees it when this returns.

        Parameters
        ----------
        snapshot : Snapshot
            May have no classes.
        """
        self._number += 1
        arrays: dict[str, np.ndarray] = {}
        meta: dict[str, Any] = {}
        if snapshot.counts:
            arrays, meta = snapshot.learner.classifier.to_state(compact=True)
            self._write_fixed({n: a for n, a in arrays.items() if n.endswith(_FIXED)})
        changing = {n: np.ascontiguousarray(a) for n, a in arrays.items() if n not in self._fixed}
        about = {"version": str(snapshot.version), "meta": json.dumps(meta)}
        save_file(changing, self.folder / f"{self._number}.safetensors", metadata=about)
        pointer = self.folder / f".{_POINTER}"
        pointer.write_text(str(self._number))
        pointer.replace(self.folder / _POINTER)
        (self.folder / f"{self._number - KEPT}.safetensors").unlink(missing_ok=True)

    def _write_fixed(self, arrays: dict[str, np.ndarray]) -> None:
        if arrays.keys() - self._fixed.keys():
            self._fixed = arrays
            save_file(arrays, self.folder / "fixed.safetensors")


class Subscriber:
    """Reads snapshots.

    Parameters
    ----------
    folder : Path
        Where the publisher writes.
    learner : Learner
        With the encoder to be used; its classifier is not.
    """

    def __init__(self, folder: Path, learner: Learner) -> None:
        self._folder, self._learner = folder, learner
        self._number = ""
        self._fixed: dict[str, np.ndarray] = {}
        self._snapshot: Snapshot | None = None

    def current(self) -> Snapshot:
        """Return the current snapshot; for one thread.

        Returns
        -------
        Snapshot
            As published last.
        """
        while True:
            number = (self._folder / _POINTER).read_text()
            if self._snapshot is not None and number == self._number:
                return self._snapshot
            try:
                self._snapshot = self._read(self._folder / f"{number}.safetensors")
            except FileNotFoundError:  # replaced in between: there is a newer one
                continue
            self._number = number

    def _read(self, file: Path) -> Snapshot:
        with safe_open(file, framework="numpy") as opened:
            about = opened.metadata()
            arrays = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
        meta = json.loads(about["meta"])
        learner = copy.copy(self._learner)
        if meta:
            if not self._fixed and (self._folder / "fixed.safetensors").exists():
                self._fixed = load_file(self._folder / "fixed.safetensors")
            learner.classifier = from_state({**arrays, **self._fixed}, meta)
        else:
            learner.classifier = type(self._learner.classifier)()
        return Snapshot(learner, int(about["version"]))
