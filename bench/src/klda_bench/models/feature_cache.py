"""Features on disk: a data set is encoded once, and a run that was stopped goes on from there."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import numpy as np

from klda.encoders import Encoder
from klda.encoders.model_files import is_settings
from klda.encoders.sources import default_cache_folder
from klda.errors import KldaError
from klda.progress import Show

PART = 1024  # inputs of one file: the most that a killed run encodes again


class CachedEncoder(Encoder):
    """An encoder that computes only the features that are not on disk.

    Inputs that follow one another share a file, named by a digest of the model and of all of them,
    in ``KLDA_CACHE`` or else the platform's cache folder. Several processes can use it at once.
    """

    def __init__(self, encoder: Encoder, *, part: int = PART) -> None:
        self.own = encoder
        self.name, self.modality, self.dimension = encoder.name, encoder.modality, encoder.dimension
        self._part, self._identity = part, _identity(encoder)

    def encode(self, inputs: Any, *, progress: Show = False) -> np.ndarray:
        """Turn inputs into features; compute only those that are not on disk."""
        parts = [inputs[start : start + self._part] for start in range(0, len(inputs), self._part)]
        if not parts:
            return np.empty((0, self.dimension), dtype=np.float32)
        return np.concatenate([self._rows(part, progress) for part in parts])

    def fingerprint(self) -> dict[str, Any]:
        """Describe the features as the encoder does."""
        return self.own.fingerprint()

    def __getattr__(self, name: str) -> Any:
        """Return what else the encoder has."""
        if name == "own":  # not there while this is being copied
            raise AttributeError(name)
        return getattr(self.own, name)

    def _rows(self, inputs: Any, progress: Show) -> np.ndarray:
        file = default_cache_folder() / "features" / f"{self._digest(inputs)}.npy"
        try:
            return np.load(file)
        except FileNotFoundError:
            rows = self.own.encode(inputs, progress=progress)
        except ValueError as error:
            raise KldaError(f"Feature cache {file}: {error}. Delete the file.") from error
        beside = file.with_suffix(f".{os.getpid()}.part")
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            with beside.open("wb") as out:
                np.save(out, rows)
            beside.replace(file)
        except OSError as error:
            message = f"Feature cache {file}: {error}. Make room, or set KLDA_CACHE."
            raise KldaError(message) from error
        return rows

    def _digest(self, inputs: Any) -> str:
        """Return a digest of the model and of inputs: texts, pixels, or what files hold."""
        digest = hashlib.sha256(self._identity)
        for item in inputs:
            if isinstance(item, np.ndarray):
                content = f"array {item.dtype} {item.shape}\0".encode() + item.tobytes()
            elif self.modality == "text":
                content = str(item).encode()
            else:
                content = Path(item).read_bytes()
            digest.update(hashlib.sha256(content).digest())
        return digest.hexdigest()


def _identity(encoder: Encoder) -> bytes:
    """Describe what features depend on bit by bit: tokenizer and precision are part of it."""
    found, files = encoder.fingerprint(), getattr(encoder, "files", None)
    if files is not None:
        digest = hashlib.sha256()
        for path in sorted(filter(is_settings, files.folder.rglob("*"))):
            digest.update(f"{path.relative_to(files.folder).as_posix()}\0".encode())
            digest.update(hashlib.sha256(path.read_bytes()).digest())
        found |= {"settings": digest.hexdigest(), "precision": getattr(encoder, "precision", "")}
    return json.dumps(found, sort_keys=True).encode()
