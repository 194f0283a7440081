"""Features on disk: a data set is encoded once, and a run that was stopped goes on from there."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import numpy as np

from klda.encoders.encoder import Encoder
from klda.encoders.model_files import ModelFiles, is_settings
from klda.encoders.sources import default_cache_folder
from klda.engine.feature_map import GAMMA_SCALE
from klda.errors import KldaError

PART = 1024  # inputs of one file: the most that a killed run encodes again


class CachedEncoder:
    """An encoder that computes only the features that are not on disk.

    Inputs that follow one another share a file, named by a digest of the model and of all of them.
    `folder` is by default ``KLDA_CACHE``, else the platform's cache folder. Several processes can
    use it at the same time.
    """

    def __init__(self, encoder: Encoder, folder: str | os.PathLike[str] | None = None) -> None:
        self.encoder = encoder
        self.name = encoder.name
        self.modality = encoder.modality
        self.dimension = encoder.dimension
        self.gamma_scale = getattr(encoder, "gamma_scale", GAMMA_SCALE)
        root = default_cache_folder() if folder is None else Path(folder).expanduser()
        self.folder = root / "features"
        self._identity = json.dumps(_identity(encoder), sort_keys=True).encode()

    def fingerprint(self) -> dict[str, Any]:
        """Describe the features: the encoder's own fingerprint."""
        return self.encoder.fingerprint()

    def encode(self, inputs: Any, *, progress: bool = False) -> np.ndarray:
        """Turn inputs into features; compute only those that are not on disk."""
        parts = [inputs[start : start + PART] for start in range(0, len(inputs), PART)]
        if not parts:
            return np.empty((0, self.dimension), dtype=np.float32)
        return np.concatenate([self._part(part, progress) for part in parts])

    def _part(self, inputs: Any, progress: bool) -> np.ndarray:
        file = self.folder / f"{self._digest(inputs)}.npy"
        try:
            return np.load(file)
        except FileNotFoundError:
            rows = self.encoder.encode(inputs, progress=progress)
        except ValueError as error:
            raise KldaError(f"Feature cache {file}: {error}. Delete the file.") from error
        beside = file.with_suffix(f".{os.getpid()}.part")
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with beside.open("wb") as out:
                np.save(out, rows)
            beside.replace(file)
        except OSError as error:
            raise KldaError(
                f"Feature cache {file}: {error}. Make room, or give another folder with --cache "
                "or KLDA_CACHE."
            ) from error
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


def _identity(encoder: Encoder) -> dict[str, Any]:
    """Describe what features depend on bit by bit: tokenizer and precision are part of it."""
    fingerprint, files = encoder.fingerprint(), getattr(encoder, "files", None)
    if files is None:
        return fingerprint
    settings = {"settings": _settings(files), "precision": getattr(encoder, "precision", "")}
    return fingerprint | settings


def _settings(files: ModelFiles) -> str:
    """Return a digest of the small files beside the weights: tokenizer, pooling, image size."""
    digest = hashlib.sha256()
    for path in sorted(files.folder.rglob("*")):
        if is_settings(path):
            digest.update(f"{path.relative_to(files.folder).as_posix()}\0".encode())
            digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()
