"""Reading data sets: known ones by their names, a user's own by their folder.

A data set is looked for in ``--data``, by default ``KLDA_DATA`` or else ``../shared/data``, then in
the user's cache; then it is downloaded into the cache. The paper's text sets have the split that
was published with it. Image sets may also lie there as their authors' archives
(:mod:`klda_bench.data.archives`).

Layout of a data folder, and of the cache::

    paper/clinc/train.csv.gz  test.csv.gz             columns text, label
    more/emotion/train.csv.gz test.csv.gz             the same
    paper/cifar10/train.npz   test.npz                arrays images (n, h, w, 3) uint8, labels
    paper/cars/train/CLASS/*.jpg  test/CLASS/*.jpg    one folder of images per class
    cifar-100-python.tar.gz                           an archive, unpacked into the cache
"""

from __future__ import annotations

import hashlib
import http.client
import os
import urllib.error
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd

from klda.data import open_table
from klda.encoders.sources import default_cache_folder
from klda.errors import KldaError
from klda_bench.data import archives, downloads
from klda_bench.data.catalog import DATASETS
from klda_bench.environment import UnavailableError

Modality = Literal["text", "image", "features"]
Folder = str | os.PathLike[str]
BESIDE = Path("../shared/data")  # beside a clone, in which the benchmark is run

_SUFFIXES = (".csv", ".csv.gz", ".tsv", ".tsv.gz", ".jsonl", ".jsonl.gz", ".parquet", ".npz")


@dataclass(frozen=True)
class Samples:
    """Inputs (feature rows, texts or images) and their labels."""

    X: Any
    y: np.ndarray

    def __len__(self) -> int:
        return len(self.y)

    def of_classes(self, classes: Sequence[str]) -> Samples:
        """Only the rows of `classes`, in their original order."""
        return self.take(np.flatnonzero(np.isin(self.y, np.asarray(classes))))

    def take(self, rows: np.ndarray) -> Samples:
        """Only the given rows."""
        if isinstance(self.X, np.ndarray):
            return Samples(self.X[rows], self.y[rows])
        return Samples([self.X[row] for row in rows], self.y[rows])


@dataclass(frozen=True, eq=False)
class Dataset:
    """Rows of a data set.

    `split` is ``"paper"``, ``"more"``, or ``"own"`` for a user's folder.
    """

    name: str
    title: str
    modality: Modality
    split: str
    train: Samples
    test: Samples
    tasks: int

    @property
    def classes(self) -> list[str]:
        """Labels that occur in the training rows, sorted."""
        return sorted(set(self.train.y.tolist()))

    @cached_property
    def sha256(self) -> str:
        """Digest of all rows: a result belongs to these and to no others."""
        digest = hashlib.sha256()
        for part in (self.train, self.test):
            digest.update("\0".join(part.y.tolist()).encode())
            if isinstance(part.X, np.ndarray):
                digest.update(np.ascontiguousarray(part.X).tobytes())
            elif self.modality == "image":
                for file in part.X:  # by what they hold: the same wherever they lie
                    digest.update(hashlib.sha256(Path(file).read_bytes()).digest())
            else:
                digest.update("\0".join(str(item) for item in part.X).encode())
        return digest.hexdigest()


def cache_root() -> Path:
    """Folder of downloaded data sets: ``KLDA_CACHE``, or the platform's cache folder."""
    return default_cache_folder() / "data"


def find(name: str, *, data: Folder | None = None) -> Path | None:
    """Folder of a data set on this machine, or ``None``."""
    for root in _roots(data):
        for place in (root / DATASETS[name].collection / name, root / name):
            if _part(place, "train") and _part(place, "test"):
                return place
    return None


def _roots(data: Folder | None) -> list[Path]:
    """Folders to look in: the one given or the usual one, then the cache."""
    return [Path(data or os.environ.get("KLDA_DATA") or BESIDE), cache_root()]


def check(names: Iterable[str], *, data: Folder | None = None) -> None:
    """Raise an error for a name that is no data set, before hours are spent on the others."""
    for name in names:
        if name in DATASETS and data is not None and not Path(data).is_dir():
            raise KldaError(
                f"data={str(data)!r} is not a folder: it must hold paper/clinc/train.csv.gz and so "
                "on."
            )
        if name not in DATASETS and not Path(name).is_dir():
            raise KldaError(
                f"datasets={name!r} is neither a folder nor one of {', '.join(DATASETS)}. "
                "A folder of your own needs train and test files (csv, tsv, jsonl, npz, or one "
                "folder of images per class)."
            )


def load(name: str, *, data: Folder | None = None) -> Dataset:
    """Read a data set: one of :data:`DATASETS`, or a folder with train and test files.

    `data` is the folder to look in first. Raises `UnavailableError` if
    the data set is not here and cannot be downloaded.
    """
    check([name], data=data)
    if name not in DATASETS:
        return _load_own(Path(name))
    place = find(name, data=data)
    for root in _roots(data) if place is None else ():
        if paths := archives.find(name, root):
            place = archives.unpack(name, paths, cache_root() / "paper" / name)
            break
    return _read(place or _download(name), name)


def out_of_scope(data: Folder | None = None) -> list[str]:
    """Read CLINC150's out-of-scope test queries; none if they are not on this machine."""
    file = _roots(data)[0] / "clinc150_oos" / "oos_test.csv.gz"
    return list(read_table(file, labels=False)[0]) if file.exists() else []


def listing(*, data: Folder | None = None) -> pd.DataFrame:
    """Every known data set: its size, its tasks and where it is."""
    rows = []
    for name, info in DATASETS.items():
        place = find(name, data=data)
        row = {"name": name, "inputs": info.modality, "train": info.train_rows}
        row |= {"test": info.test_rows, "classes": info.classes, "tasks": info.tasks}
        row |= {"here": "yes" if place else "no", "where": str(place or downloads.describe(name))}
        rows.append(row)
    return pd.DataFrame(rows, dtype=object)


def _download(name: str) -> Path:
    collection = DATASETS[name].collection
    target = cache_root() / collection / name
    archive = f", or {archives.describe(name)} into DIR" if archives.describe(name) else ""
    how = (
        f"Put train and test files into DIR/{collection}/{name}/{archive}, and pass --data DIR "
        f"(or set KLDA_DATA), or run once with a network: {downloads.describe(name)}."
    )
    try:
        downloads.download(name, target)
    except (urllib.error.URLError, http.client.HTTPException, ConnectionError, TimeoutError) as no:
        raise UnavailableError(
            f"Data set {name!r} is not on this machine and the download failed ({no}). {how}"
        ) from no
    except OSError as error:
        raise KldaError(
            f"Data set {name!r} can't be written to {target} ({error}). Make room there, or "
            "set KLDA_CACHE to another folder."
        ) from error
    return target


def _load_own(place: Path) -> Dataset:
    train, test, modality = _read_parts(place)
    tasks, name = min(10, len(set(train.y.tolist()))), place.resolve().name
    return Dataset(name, name, modality, "own", train, test, tasks)


def _read(place: Path, name: str) -> Dataset:
    info = DATASETS[name]
    train, test, modality = _read_parts(place, only_learned=info.collection == "more")
    if modality != info.modality:
        raise KldaError(f"{place} holds {modality} rows; {name} needs {info.modality} rows.")
    return Dataset(name, info.title, modality, info.collection, train, test, info.tasks)


def _read_parts(place: Path, *, only_learned: bool = False) -> tuple[Samples, Samples, Modality]:
    """Read train and test rows; `only_learned`, no test rows of classes that train has not."""
    train, modality = _read_part(place, "train")
    test, _ = _read_part(place, "test")
    if only_learned:
        test = test.of_classes(np.unique(train.y).tolist())
    if not len(train) or not len(test):
        raise KldaError(f"{place}: train and test must both have rows.")
    unknown = sorted(set(test.y.tolist()) - set(train.y.tolist()))
    if unknown:
        raise KldaError(
            f"{place}: test has classes that train has not: {', '.join(unknown[:5])}. "
            "Remove those rows or add training rows."
        )
    return train, test, modality


def _part(place: Path, part: str) -> Path | None:
    files = [place / f"{part}{suffix}" for suffix in _SUFFIXES]
    found = next((file for file in files if file.is_file()), place / part)
    return found if found.exists() else None


def _read_part(place: Path, part: str) -> tuple[Samples, Modality]:
    file = _part(place, part)
    if file is None:
        raise KldaError(
            f"{place} has no {part} file: expected {part} with one of {', '.join(_SUFFIXES)}, "
            f"or a folder {part}/ with one folder of images per class."
        )
    inputs, labels, modality = read_table(file)
    return Samples(inputs, np.asarray(labels)), modality


def read_table(file: Path, *, labels: bool = True) -> tuple[Any, list[str], Any]:
    """Read a file or folder of samples: its inputs, its labels, and its modality."""
    table = open_table(file)
    batches = list(table.batches(labels=labels))
    names = [str(label) for batch in batches for label in batch.labels or ()]
    if batches and isinstance(batches[0].inputs, np.ndarray):
        return np.concatenate([batch.inputs for batch in batches]), names, table.modality
    return [item for batch in batches for item in batch.inputs], names, table.modality
