"""Downloads: the paper's text sets from its repository, images from the hub."""

from __future__ import annotations

import os
import urllib.request
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from klda_bench.environment import require

_PAPER = "https://raw.githubusercontent.com/SalehMomeni/KLDA/main/data"
_TIMEOUT_S = 20.0


DATASETS: dict[str, Any] = {
    row.name: row
    for row in pd.read_csv(
        str(files(__package__) / "datasets.csv"), keep_default_na=False
    ).itertuples(index=False)
}
"""Known data sets: sizes, tasks, and where the hub has images and labels."""


def describe(name: str) -> str:
    """Say where `name` would be downloaded from."""
    if DATASETS[name].modality == "text":
        return f"{_PAPER}/{name}_train.csv and {name}_test.csv"
    return f"hub data set {DATASETS[name].repository}"


def download(name: str, target: Path) -> None:
    """Fetch a data set into a folder, whose files appear complete or not at all."""
    if os.environ.get("HF_HUB_OFFLINE") == "1" or os.environ.get("KLDA_OFFLINE") == "1":
        raise ConnectionError("offline by HF_HUB_OFFLINE or KLDA_OFFLINE")
    if DATASETS[name].modality == "image":
        source = DATASETS[name]
        whole = require("datasets", "hub").load_dataset(source.repository)
        save_parts(source, {"train": whole["train"], "test": whole[source.test]}, target)
        return
    parts = {part: _fetch_csv(f"{_PAPER}/{name}_{part}.csv") for part in ("train", "test")}
    target.mkdir(parents=True, exist_ok=True)
    for part, rows in parts.items():
        beside = target / f".{part}.csv.gz.part"
        rows.to_csv(beside, index=False, compression="gzip")
        beside.replace(target / f"{part}.csv.gz")


def _fetch_csv(address: str) -> pd.DataFrame:
    with urllib.request.urlopen(address, timeout=_TIMEOUT_S) as answer:
        rows = pd.read_csv(answer, dtype=str, keep_default_na=False)
    return rows[["text", "label"]]


def save_parts(source: Any, parts: Mapping[str, Any], target: Path) -> None:
    """Write the parts ``train`` and ``test`` of a hub data set of images in the loader's layout."""
    for part, rows in parts.items():
        names = getattr(rows.features.get(source.label), "names", None)
        pairs = [
            (row[source.input], names[row[source.label]] if names else str(row[source.label]))
            for row in rows
        ]
        _write_images(target / part, pairs)


def _write_images(folder: Path, pairs: list[tuple[Any, str]]) -> None:
    sizes = {np.asarray(image.convert("RGB")).shape for image, _ in pairs[:64]}
    if len(sizes) == 1:
        images = np.stack([np.asarray(image.convert("RGB")) for image, _ in pairs])
        folder.parent.mkdir(parents=True, exist_ok=True)
        beside = folder.with_name(f".{folder.name}.part.npz")
        np.savez_compressed(beside, images=images, labels=np.asarray([name for _, name in pairs]))
        beside.replace(folder.with_suffix(".npz"))
        return
    beside = folder.with_name(f".{folder.name}.part")
    for number, (image, name) in enumerate(pairs):
        place = beside / name.replace("/", "_")
        place.mkdir(parents=True, exist_ok=True)
        image.convert("RGB").save(place / f"{number:06d}.jpg", quality=95)
    beside.replace(folder)
