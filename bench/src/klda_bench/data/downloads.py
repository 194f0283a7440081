"""Downloads: the paper's text sets from its repository, images from their authors' pages."""

from __future__ import annotations

import os
import shutil
import tempfile
import urllib.request
from pathlib import Path

from klda_bench.data import archives
from klda_bench.data.catalog import DATASETS

_PAPER = "https://raw.githubusercontent.com/SalehMomeni/KLDA/main/data"
_TIMEOUT_S = 20.0


def describe(name: str) -> str:
    """Say where `name` would be downloaded from."""
    if DATASETS[name].modality == "text" and DATASETS[name].collection == "paper":
        return f"{_PAPER}/{name}_train.csv and {name}_test.csv"
    return DATASETS[name].address or "no longer published: take a copy in class folders"


def download(name: str, target: Path) -> None:
    """Fetch a data set into a folder, which appears complete or not at all."""
    if os.environ.get("HF_HUB_OFFLINE") == "1" or os.environ.get("KLDA_OFFLINE") == "1":
        raise ConnectionError("offline by HF_HUB_OFFLINE or KLDA_OFFLINE")
    info = DATASETS[name]
    if info.modality == "text" and info.collection != "paper":
        raise ConnectionError("it is published in another form")
    if info.modality == "image" and not info.address:
        raise ConnectionError(describe(name))
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        if info.modality == "image":
            file = Path(scratch) / info.address.rpartition("/")[2]
            _fetch(info.address, file)
            archives.unpack(name, (file,), target)
            return
        folder = Path(scratch) / name
        folder.mkdir()
        for part in ("train", "test"):
            _fetch(f"{_PAPER}/{name}_{part}.csv", folder / f"{part}.csv")
        folder.rename(target)


def _fetch(address: str, file: Path) -> None:
    with urllib.request.urlopen(address, timeout=_TIMEOUT_S) as answer, file.open("wb") as out:
        shutil.copyfileobj(answer, out)
