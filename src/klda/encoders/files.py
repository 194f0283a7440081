"""The files of a model: in a folder, in the hub's cache, or on the hub."""

from __future__ import annotations

import hashlib
import json
import os
import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from klda.errors import KldaError, require

_HUB_TIMEOUT = 5.0  # seconds: an unreachable hub must not keep a user waiting
_HUB_ID = re.compile(r"[\w.-]+(/[\w.-]+)?")
_SHA256 = re.compile(r"[0-9a-f]{64}")
# In order of preference; an index file lists the shards of a model stored in several files.
_WEIGHTS = ("model.safetensors", "pytorch_model.bin")
_SETTINGS = (".json", ".txt", ".model", ".spm", ".vocab", ".jinja")
_NOT_SETTINGS = ("README", "data_config.json", "train_script")


class OfflineModelError(KldaError):
    """A foundation model is not on this computer and can't be downloaded."""


@dataclass(frozen=True)
class ModelFiles:
    """The files of one model on this computer."""

    source: str  # hub name or folder: what to request to get the files again
    folder: Path
    weights: tuple[Path, ...]
    weights_digest: str = ""  # SHA-256 of the only weights file, where it is known already

    @classmethod
    def in_folder(cls, folder: Path, source: str) -> ModelFiles:
        """Describe a complete model in a folder, as ``save_pretrained`` writes it."""
        if not folder.is_dir():
            raise KldaError(f"The model {source!r} is a file, not a folder with a model's files.")
        weights = _find_weights(folder)
        if not weights:
            raise KldaError(
                f"The folder {folder} holds no complete model: it needs a config.json and all "
                "parts of model.safetensors or pytorch_model.bin."
            )
        return cls(source, folder, tuple(weights))

    @cached_property
    def revision(self) -> str:
        """Digest of the weights: the same wherever the files are."""
        known = [self.weights_digest] if self.weights_digest else None
        digests = known or [_weights_sha256(path) for path in self.weights]
        if len(digests) == 1:
            return f"sha256:{digests[0]}"
        return f"sha256:{hashlib.sha256(' '.join(digests).encode()).hexdigest()}"

    @cached_property
    def settings_digest(self) -> str:
        """Digest of the small files beside the weights: tokenizer, pooling, image size."""
        digest = hashlib.sha256()
        for path in sorted(self.folder.rglob("*")):
            if _is_settings(path):
                digest.update(f"{path.relative_to(self.folder).as_posix()}\0".encode())
                digest.update(hashlib.sha256(path.read_bytes()).digest())
        return digest.hexdigest()

    def read_json(self, name: str) -> Any:
        """Return the content of a settings file in the folder; None if there is no such file."""
        path = self.folder / name
        if not path.is_file():
            return None
        try:
            return json.loads(path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise KldaError(f"The file {path} of the model is damaged: {error}.") from error


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file as hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _weights_sha256(path: Path) -> str:
    # The hub's cache names a large file by its SHA-256, which saves reading 14 GB.
    target = path.resolve()
    if target.parent.name == "blobs" and _SHA256.fullmatch(target.name):
        return target.name
    return sha256(path)


def _is_settings(path: Path) -> bool:
    return path.suffix in _SETTINGS and not path.name.startswith(_NOT_SETTINGS)


def _find_weights(folder: Path) -> list[Path]:
    """Return a model's weight files; none if the model or a part of it is missing."""
    parts = [folder, *_module_folders(folder)]
    found = [_weights_of(part) for part in dict.fromkeys(parts)]
    complete = any(part.joinpath("config.json").is_file() for part in parts)
    if not complete or any(weights is None for weights in found):
        return []
    return [path for weights in found for path in weights or ()]


def _module_folders(folder: Path) -> list[Path]:
    """Return the subfolders of a sentence-transformers model."""
    try:
        modules = json.loads((folder / "modules.json").read_text(encoding="utf-8"))
        return [folder / module["path"] for module in modules]
    except (OSError, ValueError, KeyError, TypeError):
        return []


def _weights_of(folder: Path) -> list[Path] | None:
    """Return the weight files of one folder; None if a shard is missing."""
    for name in _WEIGHTS:
        if (folder / name).is_file():
            return [folder / name]
        index = folder / f"{name}.index.json"
        if index.is_file():
            shards = sorted(set(json.loads(index.read_text())["weight_map"].values()))
            paths = [folder / shard for shard in shards]
            return paths if all(path.is_file() for path in paths) else None
    return []


def hub_cache(hub_id: str = "") -> Path:
    """Return the folder of the hub client's downloads, or of one model's in it."""
    environment = os.environ
    xdg = environment.get("XDG_CACHE_HOME") or "~/.cache"
    home = environment.get("HF_HOME") or f"{xdg}/huggingface"
    cache = environment.get("HF_HUB_CACHE") or environment.get("HUGGINGFACE_HUB_CACHE")
    folder = Path(cache or f"{home}/hub").expanduser()
    return folder / f"models--{hub_id.replace('/', '--')}" if hub_id else folder


def cached_snapshot(hub_id: str, revision: str | None = None) -> Path | None:
    """Find the folder of a complete model in the hub's cache; None if a part of it is missing.

    Without a `revision` (branch, tag or commit) it is ``main``, else the newest snapshot.
    """
    folder = hub_cache(hub_id)
    reference = folder / "refs" / (revision or "main")
    commit = reference.read_text().strip() if reference.is_file() else revision
    snapshots = [folder / "snapshots" / commit] if commit else []
    if revision is None:
        others = (folder / "snapshots").glob("*")
        snapshots += sorted(others, key=lambda path: path.stat().st_mtime, reverse=True)
    return next((snapshot for snapshot in snapshots if _find_weights(snapshot)), None)


def downloads_are_forbidden() -> bool:
    """Check the hub client's switch, which here covers every download."""
    return os.environ.get("HF_HUB_OFFLINE", "").upper() in {"1", "ON", "YES", "TRUE"}


def from_hub(hub_id: str, revision: str | None) -> ModelFiles:
    """Return the files of a hub model, downloading them on first use.

    If there are none, the message of the OfflineModelError is the reason alone.
    """
    folder = cached_snapshot(hub_id, revision)
    if folder is None:
        if not _HUB_ID.fullmatch(hub_id):
            raise OfflineModelError("there is no such folder")
        if downloads_are_forbidden():
            raise OfflineModelError("HF_HUB_OFFLINE forbids downloads")
        try:
            folder = _download(hub_id, revision)
        except KldaError:
            raise
        except Exception as error:  # the client raises its own, httpx's, requests' and OS errors
            first_line = (str(error).strip() or type(error).__name__).splitlines()[0]
            reason = f"the download failed: {type(error).__name__}: {first_line}"
            raise OfflineModelError(reason) from error
    return ModelFiles.in_folder(folder, hub_id)


def _download(hub_id: str, revision: str | None) -> Path:
    hub = require("huggingface_hub", "minilm")
    # One request with a short timeout first: the download itself would retry for minutes.
    info = hub.HfApi().model_info(hub_id, revision=revision, timeout=_HUB_TIMEOUT)
    names = [sibling.rfilename for sibling in info.siblings or ()]
    wanted = [name for name in names if _is_needed(Path(name), names)]
    # By name and not by commit, so that the cache's refs point to it.
    return Path(hub.snapshot_download(hub_id, revision=revision, allow_patterns=wanted))


def _is_needed(path: Path, names: list[str]) -> bool:
    if path.suffix == ".safetensors":
        return path.name.startswith("model")
    # PyTorch's own format only where the same folder has no safetensors file.
    others = (Path(name) for name in names)
    has_better = any(o.suffix == ".safetensors" and o.parent == path.parent for o in others)
    return _is_settings(path) or (path.name.startswith("pytorch_model") and not has_better)
