"""Features on disk, so that no input is encoded twice."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import sqlite3
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from klda.encoders.base import Encoder, Modality
from klda.encoders.progress import Show
from klda.encoders.sources import default_cache_folder
from klda.engine.feature_map import GAMMA_SCALE
from klda.errors import KldaError

_FORMAT = 1
_WINDOW = 8192  # inputs encoded between two writes: the most that a killed run loses
_ORIENTATION = 0x0112  # EXIF tag: how an image is turned before it is encoded
_DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
_SCHEMA = (
    "CREATE TABLE IF NOT EXISTS features (number INTEGER PRIMARY KEY, key BLOB NOT NULL UNIQUE, "
    "digest BLOB NOT NULL, row BLOB NOT NULL)"
)


class FeatureCacheWarning(UserWarning):
    """The feature cache can't be used or is damaged in part; the features are still correct."""


class FeatureCache:
    """Feature rows on disk, by a digest of the model and the input.

    One SQLite file, which several threads and processes can use at the same time and which stays
    intact if a process is killed. Each row has its own digest: a damaged row counts as absent, and
    a damaged file is renamed. A problem with the cache is a warning, never an error.

    Parameters
    ----------
    folder : path-like, optional
        Folder of the file; by default ``KLDA_CACHE``, else the platform's cache folder.
    max_bytes : int, default=4 GiB
        Maximum size of the file; when it is full, the oldest rows are deleted.

    Examples
    --------
    >>> import tempfile, numpy as np
    >>> cache = FeatureCache(tempfile.mkdtemp())
    >>> cache.put([b"key"], np.ones((1, 3)))
    >>> cache.get([b"key", b"other"])[0]
    array([1., 1., 1.], dtype=float32)
    """

    def __init__(
        self, folder: str | os.PathLike[str] | None = None, *, max_bytes: int = 4 * 2**30
    ) -> None:
        if max_bytes <= 0:
            raise KldaError(f"max_bytes={max_bytes!r} must be positive.")
        self.folder = Path(folder).expanduser() if folder is not None else default_cache_folder()
        self.path = self.folder / f"features-v{_FORMAT}.sqlite"
        self.max_bytes = max_bytes

    def get(self, keys: Sequence[bytes]) -> list[np.ndarray | None]:
        """Return the float32 row of each key, a digest of model and input; None if absent."""
        rows: list[np.ndarray | None] = [None] * len(keys)
        if not self.path.exists():
            return rows
        damaged = 0
        with self._guard("read"), self._open() as connection:
            for position, key in enumerate(keys):
                query = "SELECT digest, row FROM features WHERE key = ?"
                for digest, row in connection.execute(query, (key,)):
                    if isinstance(row, bytes) and digest == _digest(key, row):
                        rows[position] = np.frombuffer(row, dtype="<f4")
                    else:
                        damaged += 1
        if damaged:
            self._warn(f"{damaged} of its rows are damaged")
        return rows

    def put(self, keys: Sequence[bytes], rows: np.ndarray) -> None:
        """Write one row per key, replacing older ones: all of them or none."""
        blobs = [row.tobytes() for row in np.ascontiguousarray(rows, dtype="<f4")]
        values = [(key, _digest(key, blob), blob) for key, blob in zip(keys, blobs, strict=True)]
        with self._guard("write"), self._open() as connection:
            with connection:
                connection.executemany(
                    "INSERT OR REPLACE INTO features (key, digest, row) VALUES (?, ?, ?)", values
                )
            size = self.path.stat().st_size
            if size > self.max_bytes:
                # A tenth more than needed, so that not every write to a full cache has to delete.
                surplus = 1 - 0.9 * self.max_bytes / size
                with connection:
                    connection.execute(
                        "DELETE FROM features WHERE number < (SELECT MIN(number) + ? * "
                        "(MAX(number) + 1 - MIN(number)) FROM features)",
                        (surplus,),
                    )
                connection.execute("PRAGMA incremental_vacuum").fetchall()

    def clear(self) -> None:
        """Delete all rows."""
        with self._guard("clear"):
            self.path.unlink(missing_ok=True)
            for ending in ("-journal", "-wal", "-shm"):
                self.path.with_name(self.path.name + ending).unlink(missing_ok=True)

    def __len__(self) -> int:
        count = 0
        if self.path.exists():
            with self._guard("read"), self._open() as connection:
                count = connection.execute("SELECT COUNT(*) FROM features").fetchone()[0]
        return count

    @contextlib.contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        # One connection per call: safe across threads and forks, and it takes a fraction of a
        # millisecond where encoding takes several.
        self.folder.mkdir(parents=True, exist_ok=True)
        connection = sqlite3.connect(self.path, timeout=30)
        try:
            connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
            connection.execute("PRAGMA synchronous = NORMAL")
            connection.execute(_SCHEMA)
            yield connection
        finally:
            connection.close()

    @contextlib.contextmanager
    def _guard(self, verb: str) -> Iterator[None]:
        """Turn any problem with the cache into a warning."""
        try:
            yield
        except (sqlite3.Error, OSError) as error:
            code = getattr(error, "sqlite_errorcode", 0) & 0xFF  # extended codes share this byte
            if code in _DAMAGED:
                aside = self.path.with_suffix(".damaged")
                with contextlib.suppress(OSError):
                    self.path.replace(aside)
                self._warn(f"the file is damaged ({error}) and was renamed to {aside.name}")
            else:
                self._warn(f"could not {verb} it ({error})")

    def _warn(self, problem: str) -> None:
        warnings.warn(
            f"Feature cache {self.path}: {problem}. The features are computed instead.",
            FeatureCacheWarning,
            stacklevel=4,
        )


def _digest(key: bytes, row: bytes) -> bytes:
    # Over the key too, so that a row stored under another key is not accepted.
    return hashlib.blake2b(row, digest_size=16, key=key[:64]).digest()


class CachedEncoder:
    """An encoder that computes only the features that are not in a cache."""

    def __init__(self, encoder: Encoder, cache: FeatureCache) -> None:
        self.encoder = encoder
        self.cache = cache
        self.name = encoder.name
        self.modality = encoder.modality
        self.dimension = encoder.dimension
        self.gamma_scale = getattr(encoder, "gamma_scale", GAMMA_SCALE)
        identity = json.dumps([_FORMAT, _identity(encoder)], sort_keys=True)
        self._model_digest = hashlib.sha256(identity.encode()).digest()

    def fingerprint(self) -> dict[str, Any]:
        """Describe the features: the encoder's own fingerprint."""
        return self.encoder.fingerprint()

    def encode(self, inputs: Any, *, progress: Show = False) -> np.ndarray:
        """Turn inputs into features; compute only those that are not in the cache."""
        keys = self._keys(inputs)
        if keys is None:
            return self.encoder.encode(inputs, progress=progress)  # which raises the error
        features = np.empty((len(keys), self.dimension), dtype=np.float32)
        missing: dict[bytes, list[int]] = {}
        for position, (key, row) in enumerate(zip(keys, self.cache.get(keys), strict=True)):
            if row is None or len(row) != self.dimension:
                missing.setdefault(key, []).append(position)
            else:
                features[position] = row
        new_keys = list(missing)
        for start in range(0, len(new_keys), _WINDOW):
            part = new_keys[start : start + _WINDOW]
            items = [inputs[missing[key][0]] for key in part]
            rows = self.encoder.encode(items, progress=progress)
            self.cache.put(part, rows)
            for key, row in zip(part, rows, strict=True):
                features[missing[key]] = row
        return features

    def _keys(self, inputs: Any) -> list[bytes] | None:
        """Return a digest of the model and of each input's content; None if one can't be read."""
        if isinstance(inputs, str | bytes | os.PathLike) or not hasattr(inputs, "__len__"):
            return None
        try:
            return [
                hashlib.sha256(self._model_digest + _content(item, self.modality)).digest()
                for item in inputs
            ]
        except (OSError, TypeError, ValueError, AttributeError):
            return None


def _identity(encoder: Encoder) -> dict[str, Any]:
    """Describe what features depend on bit by bit: tokenizer and precision are part of it."""
    fingerprint, files = encoder.fingerprint(), getattr(encoder, "files", None)
    if files is None:
        return fingerprint
    parts = ("modality", "revision", "pooling", "layers", "dimension")
    key = {part: fingerprint[part] for part in parts}
    return key | {"settings": files.settings_digest, "precision": getattr(encoder, "precision", "")}


def _content(item: Any, modality: Modality) -> bytes:
    if isinstance(item, str) and modality == "text":
        return b"text\0" + item.encode()
    if isinstance(item, str | os.PathLike):
        return b"file\0" + Path(item).read_bytes()
    if isinstance(item, bytes):
        return b"file\0" + item
    if isinstance(item, np.ndarray):
        return f"array {item.dtype} {item.shape}\0".encode() + item.tobytes()
    # A PIL image.
    palette = item.getpalette() if item.mode == "P" else None
    turned = item.getexif().get(_ORIENTATION)
    return f"image {item.mode} {item.size} {palette} {turned}\0".encode() + item.tobytes()
