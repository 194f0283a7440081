"""Downloads: the paper's text sets from its repository, images from their authors' pages."""

from __future__ import annotations

import os
import shutil
import tempfile
import urllib.request
from importlib.resources import files
from pathlib import Path
from typing import Any

import pandas as pd

from klda_bench.data import archives

_PAPER = "https://raw.githubusercontent.com/SalehMomeni/KLDA/main/data"
_TIMEOUT_S = 20.0


DATASETS: dict[str, Any] = {
    row.name: row
    for row in pd.read_csv(
        str(files(__package__) / "datasets.csv"), keep_default_na=False
    ).itertuples(index=False)
}
"""Known data sets: sizes, tasks, and the address of an archive or repository."""


def describe(name: str) -> str:
    """Say where `name` would be downloaded from."""
    if DATASETS[name].modality == "text" and DATASETS[name].collection == "paper":
        return f"{_PAPER}/{name}_train.csv and {name}_test.csv"
    return DATASETS[name].address or "its authors no longer publish it"


def download(name: str, target: Path) -> None:
    """Fetch a data set into a folder, whose files appear complete or not at all."""
    if os.environ.get("HF_HUB_OFFLINE") == "1" or os.environ.get("KLDA_OFFLINE") == "1":
        raise ConnectionError("offline by HF_HUB_OFFLINE or KLDA_OFFLINE")
    if DATASETS[name].modality == "image":
        _download_archive(name, target)
        return
    if DATASETS[name].collection != "paper":
        raise ConnectionError("it is published in another form")
    parts = {part: _fetch_csv(f"{_PAPER}/{name}_{part}.csv") for part in ("train", "test")}
    target.mkdir(parents=True, exist_ok=True)
    for part, rows in parts.items():
        beside = target / f".{part}.csv.gz.part"
        rows.to_csv(beside, index=False, compression="gzip")
        beside.replace(target / f"{part}.csv.gz")


def _download_archive(name: str, target: Path) -> None:
    address = DATASETS[name].address
    if not address:
        raise ConnectionError(describe(name))
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        file = Path(folder) / address.rpartition("/")[2]
        with urllib.request.urlopen(address, timeout=_TIMEOUT_S) as answer, file.open("wb") as out:
            shutil.copyfileobj(answer, out)
        archives.unpack(name, (file,), target)


def _fetch_csv(address: str) -> pd.DataFrame:
    with urllib.request.urlopen(address, timeout=_TIMEOUT_S) as answer:
        rows = pd.read_csv(answer, dtype=str, keep_default_na=False)
    return rows[["text", "label"]]
