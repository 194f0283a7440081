"""Features on disk: no input is encoded twice, and a run that was stopped goes on from there."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from klda.encoders.base import Encoder
from klda.encoders.files import ModelFiles, is_settings
from klda.encoders.sources import default_cache_folder
from klda.engine.feature_map import GAMMA_SCALE
from klda.errors import KldaError

_FORMAT = 2
_WINDOW = 8192  # inputs encoded between two writes: the most that a killed run loses


class FeatureCache:
    """Feature rows by a digest of the model and the input, in one SQLite file.

    Several processes can use it at the same time. `folder` is by default ``KLDA_CACHE``, else the
    platform's cache folder.
    """

    def __init__(self, folder: str | os.PathLike[str] | None = None) -> None:
        self.folder = Path(folder).expanduser() if folder is not None else default_cache_folder()
        self.path = self.folder / f"features-v{_FORMAT}.sqlite"

    def get(self, keys: Sequence[bytes]) -> list[np.ndarray | None]:
        """Return the float32 row of each key; None if it is absent."""
        query, rows = "SELECT row FROM features WHERE key = ?", []
        with self._open() as connection:
            for key in keys:
                found = connection.execute(query, (key,)).fetchone()
                rows.append(None if found is None else np.frombuffer(found[0], dtype="<f4"))
        return rows

    def put(self, keys: Sequence[bytes], rows: np.ndarray) -> None:
        """Write one row per key: all of them or none."""
        blobs = [row.tobytes() for row in np.ascontiguousarray(rows, dtype="<f4")]
        with self._open() as connection, connection:
            connection.executemany(
                "INSERT OR REPLACE INTO features VALUES (?, ?)", zip(keys, blobs, strict=True)
            )

    def __len__(self) -> int:
        with self._open() as connection:
            return int(connection.execute("SELECT COUNT(*) FROM features").fetchone()[0])

    @contextlib.contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with contextlib.closing(sqlite3.connect(self.path, timeout=60)) as connection:
                connection.execute(
                    "CREATE TABLE IF NOT EXISTS features (key BLOB PRIMARY KEY, row BLOB NOT NULL)"
                )
                yield connection
        except (sqlite3.Error, OSError) as error:
            raise KldaError(
                f"Feature cache {self.path}: {error}. Delete the file, make room, or give another "
                "folder with --cache or KLDA_CACHE."
            ) from error


class CachedEncoder:
    """An encoder that computes only the features that are not in a cache."""

    def __init__(self, encoder: Encoder, cache: FeatureCache) -> None:
        self.encoder = encoder
        self.cache = cache
        self.name = encoder.name
        self.modality = encoder.modality
        self.dimension = encoder.dimension
        self.gamma_scale = getattr(encoder, "gamma_scale", GAMMA_SCALE)
        identity = json.dumps(_identity(encoder), sort_keys=True)
        self._model_digest = hashlib.sha256(identity.encode()).digest()

    def fingerprint(self) -> dict[str, Any]:
        """Describe the features: the encoder's own fingerprint."""
        return self.encoder.fingerprint()

    def encode(self, inputs: Any, *, progress: bool = False) -> np.ndarray:
        """Turn inputs into features; compute only those that are not in the cache."""
        keys = [self._key(item) for item in inputs]
        features = np.empty((len(keys), self.dimension), dtype=np.float32)
        missing: dict[bytes, list[int]] = {}
        for position, (key, row) in enumerate(zip(keys, self.cache.get(keys), strict=True)):
            if row is None:
                missing.setdefault(key, []).append(position)
            else:
                features[position] = row
        new = list(missing)
        for start in range(0, len(new), _WINDOW):
            part = new[start : start + _WINDOW]
            items = [inputs[missing[key][0]] for key in part]
            rows = self.encoder.encode(items, progress=progress)
            self.cache.put(part, rows)
            for key, row in zip(part, rows, strict=True):
                features[missing[key]] = row
        return features

    def _key(self, item: Any) -> bytes:
        """Return a digest of the model and of the input: a text, pixels, or what a file holds."""
        if isinstance(item, np.ndarray):
            content = f"array {item.dtype} {item.shape}\0".encode() + item.tobytes()
        elif self.modality == "text":
            content = b"text\0" + str(item).encode()
        else:
            content = b"file\0" + Path(item).read_bytes()
        return hashlib.sha256(self._model_digest + content).digest()


def _identity(encoder: Encoder) -> dict[str, Any]:
    """Describe what features depend on bit by bit: tokenizer and precision are part of it."""
    fingerprint, files = encoder.fingerprint(), getattr(encoder, "files", None)
    if files is None:
        return fingerprint
    settings = {"settings": _digest(files), "precision": getattr(encoder, "precision", "")}
    return fingerprint | settings


def _digest(files: ModelFiles) -> str:
    """Return a digest of the small files beside the weights: tokenizer, pooling, image size."""
    digest = hashlib.sha256()
    for path in sorted(files.folder.rglob("*")):
        if is_settings(path):
            digest.update(f"{path.relative_to(files.folder).as_posix()}\0".encode())
            digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()
