"""Data sets of the paper, and a user's own.

A data set is looked for in ``--data`` / ``KLDA_DATA`` first, then in the user's cache, then
downloaded into the cache. Text sets come in two splits: ``paper`` (published with the KLDA paper,
what its tables use) and ``official`` (the data set's own).

Layout of a data folder, and of the cache::

    paper/clinc/train.csv.gz  test.csv.gz             columns text, label
    paper/cifar10/train.npz   test.npz                arrays images (n, h, w, 3) uint8, labels
    official/clinc/...                                the same with split="official"
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np

from klda.benchmarks import hub
from klda.benchmarks.protocol import Samples
from klda.benchmarks.resources import is_unreachable
from klda.data import open_table
from klda.encoders.cache import default_cache_folder
from klda.errors import KldaError

Modality = Literal["text", "image", "features"]
Split = Literal["paper", "official"]

_SUFFIXES = (
    *(".csv", ".csv.gz", ".tsv", ".tsv.gz", ".jsonl", ".jsonl.gz"),
    *(".parquet", ".npz"),
)


class DatasetNotAvailableError(KldaError):
    """A data set is neither on this machine nor within reach."""


@dataclass(frozen=True)
class DatasetInfo:
    """What is known of a data set before its rows are read.

    Parameters
    ----------
    name : str
        Name on the command line.
    modality : {"text", "image"}
        Kind of input.
    tasks : int
        Tasks of the protocol.
    rows : tuple of int
        Train and test rows of the paper's split.
    classes : int
        Number of classes.
    title : str
        Name in tables.
    licence : str
        Licence of the data.
    note : str
        Anything a reader of its numbers should know.
    """

    name: str
    modality: Modality
    tasks: int
    rows: tuple[int, int]
    classes: int
    title: str
    licence: str
    note: str = ""


_OWN_TASKS = "number of tasks chosen here"
DATASETS: dict[str, DatasetInfo] = {
    info.name: info
    for info in (
        DatasetInfo("clinc", "text", 10, (10_500, 750), 150, "CLINC", "CC BY 3.0"),
        DatasetInfo("banking", "text", 7, (10_003, 1_000), 77, "Banking", "CC BY 4.0"),
        DatasetInfo("dbpedia", "text", 7, (10_000, 1_000), 70, "DBpedia", "CC BY-SA 3.0"),
        DatasetInfo("hwu", "text", 8, (8_954, 1_076), 64, "HWU", "CC BY 4.0"),
        DatasetInfo(
            "cifar10", "image", 5, (50_000, 10_000), 10, "CIFAR-10", "no licence stated", _OWN_TASKS
        ),
        DatasetInfo(
            "cifar100",
            "image",
            10,
            (50_000, 10_000),
            100,
            "CIFAR-100",
            "no licence stated",
            _OWN_TASKS,
        ),
        DatasetInfo(
            "tiny-imagenet",
            "image",
            10,
            (100_000, 10_000),
            200,
            "Tiny-ImageNet",
            "ImageNet's terms of access",
            _OWN_TASKS,
        ),
        DatasetInfo(
            "cars", "image", 10, (8_144, 8_041), 196, "Stanford Cars", "research use", _OWN_TASKS
        ),
    )
}

TEXT_SETS = tuple(info.name for info in DATASETS.values() if info.modality == "text")
IMAGE_SETS = tuple(info.name for info in DATASETS.values() if info.modality == "image")
_SUBSETS = {"cifar10": "cifar10_subset"}


@dataclass(frozen=True)
class Dataset:
    """Rows of a data set.

    Parameters
    ----------
    name, title : str
        Name on the command line and in tables.
    modality : {"text", "image", "features"}
        Kind of input; ``"features"`` rows need no encoder.
    split : str
        ``"paper"``, ``"official"``, or ``"own"`` for a user's folder.
    train, test : Samples
        Inputs and labels.
    tasks : int
        Tasks of the protocol, unless asked otherwise.
    location : Path
        Folder it was read from.
    source : str
        The same without the machine's part of the path, for result lines.
    note : str
        Says so when this is not the whole data set.
    """

    name: str
    title: str
    modality: Modality
    split: str
    train: Samples
    test: Samples
    tasks: int
    location: Path
    source: str
    note: str = ""

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
            else:
                digest.update("\0".join(str(item) for item in part.X).encode())
        return digest.hexdigest()


@dataclass(frozen=True)
class Listing:
    """One line of ``klda bench datasets``.

    Parameters
    ----------
    name, modality, split : str
        As in :class:`Dataset`.
    train_rows, test_rows, classes : int or None
        Of what was found; of the published set when nothing was; ``None`` where we don't know.
    tasks : int
        Tasks of the protocol.
    found : str
        Folder, or what would be downloaded.
    here : bool
        Whether it can be used without the network.
    note : str
        Subset, or a remark.
    """

    name: str
    modality: str
    split: str
    train_rows: int | None
    test_rows: int | None
    classes: int | None
    tasks: int
    found: str
    here: bool
    note: str


def cache_root() -> Path:
    """Folder of downloaded data sets: ``KLDA_CACHE``, or the platform's cache folder."""
    return default_cache_folder() / "data"


def find(
    name: str, *, data: str | os.PathLike[str] | None = None, split: Split = "paper"
) -> Path | None:
    """Folder of a data set on this machine, or ``None``.

    Parameters
    ----------
    name : str
        One of :data:`DATASETS`.
    data : path-like, optional
        Data folder; ``KLDA_DATA`` when not given.
    split : {"paper", "official"}
        Which split of a text set.
    """
    given = data if data is not None else os.environ.get("KLDA_DATA")
    roots = ([Path(given)] if given else []) + [cache_root()]
    for root in roots:
        for folder in (name, _SUBSETS.get(name)):
            if folder is None:
                continue
            for place in (root / split / folder, root / folder):
                # A bare folder carries no split, so it can only stand for the default one.
                if place == root / folder and split != "paper":
                    continue
                if _part(place, "train") and _part(place, "test"):
                    return place
    return None


def load(
    name: str,
    *,
    data: str | os.PathLike[str] | None = None,
    split: Split = "paper",
    download: bool = True,
) -> Dataset:
    """Read a data set.

    Parameters
    ----------
    name : str
        One of :data:`DATASETS`, or a folder with train and test files.
    data : path-like, optional
        Data folder to look in first; ``KLDA_DATA`` when not given.
    split : {"paper", "official"}
        Which split of a text set.
    download : bool, default=True
        Whether the network may be used.

    Returns
    -------
    Dataset
        Rows of both parts.

    Raises
    ------
    DatasetNotAvailableError
        If it is not here and cannot be downloaded.
    """
    if split not in ("paper", "official"):
        raise KldaError(f"split={split!r} is not known: use 'paper' or 'official'.")
    if name not in DATASETS:
        return _load_own(name)
    if data is not None and not Path(data).is_dir():
        raise KldaError(
            f"data={str(data)!r} is not a folder: it must hold paper/clinc/train.csv.gz and so on."
        )
    place = find(name, data=data, split=split)
    if place is None:
        place = _download(name, split, download)
    info = DATASETS[name]
    return _read(place, info, split, data)


def listing(*, data: str | os.PathLike[str] | None = None, split: Split = "paper") -> list[Listing]:
    """Every known data set: its size, its tasks and where it is.

    Parameters
    ----------
    data : path-like, optional
        Data folder to look in first.
    split : {"paper", "official"}
        Which split of the text sets.
    """
    lines = []
    for name, info in DATASETS.items():
        place = find(name, data=data, split=split)
        train: int | None
        test: int | None
        classes: int | None
        if place is None:
            # The known sizes of a text set are those of the paper's split.
            known = split == "paper" or info.modality == "image"
            train, test = info.rows if known else (None, None)
            classes = info.classes if known else None
            found, note = hub.describe(name, split), info.note
        else:
            read = _read(place, info, split, data)
            train, test, classes = len(read.train), len(read.test), len(read.classes)
            found, note = str(place), read.note or info.note
        here = place is not None
        sizes = {"train_rows": train, "test_rows": test, "classes": classes}
        lines.append(
            Listing(
                name=name,
                modality=info.modality,
                split=split,
                **sizes,
                tasks=info.tasks,
                found=found,
                here=here,
                note=note,
            )
        )
    return lines


def subset(
    dataset: Dataset, *, classes: int | None = None, per_class: int | None = None, seed: int = 0
) -> Dataset:
    """Keep a stated part of a data set, for methods too slow for the whole.

    Parameters
    ----------
    dataset : Dataset
        The whole.
    classes : int, optional
        Keep this many classes, drawn by `seed`.
    per_class : int, optional
        Keep at most this many training rows a class: the first ones.
    seed : int, default=0
        Seed of the draw of classes.

    Returns
    -------
    Dataset
        With a `note` that says what was kept.
    """
    train, test, notes = dataset.train, dataset.test, [dataset.note] if dataset.note else []
    if classes is not None:
        names = dataset.classes
        if not 1 <= classes <= len(names):
            raise KldaError(f"classes={classes} is not within 1 and {len(names)} ({dataset.name}).")
        chosen = np.random.default_rng(seed).permutation(len(names))[:classes]
        kept = [names[i] for i in chosen]
        train, test = train.of_classes(kept), test.of_classes(kept)
        notes.append(f"{classes} of {len(names)} classes")
    if per_class is not None:
        if per_class < 1:
            raise KldaError(f"per_class={per_class} must be at least 1.")
        train = train.take(_first_rows(train.y, per_class))
        notes.append(f"at most {per_class} training rows a class")
    tasks = min(dataset.tasks, len(set(train.y.tolist())))
    return Dataset(
        dataset.name,
        dataset.title,
        dataset.modality,
        dataset.split,
        train,
        test,
        tasks,
        dataset.location,
        dataset.source,
        "; ".join(notes),
    )


def _first_rows(labels: np.ndarray, per_class: int) -> np.ndarray:
    seen: dict[str, int] = {}
    rows = []
    for row, label in enumerate(labels.tolist()):
        seen[label] = seen.get(label, 0) + 1
        if seen[label] <= per_class:
            rows.append(row)
    return np.asarray(rows)


def _download(name: str, split: Split, allowed: bool) -> Path:
    target = cache_root() / split / name
    how = (
        f"Put train and test files into DIR/{split}/{name}/ and pass --data DIR (or set "
        f"KLDA_DATA), or run once with a network: {hub.describe(name, split)}."
    )
    if not allowed:
        raise DatasetNotAvailableError(f"Data set {name!r} is not on this machine. {how}")
    try:
        hub.download(name, split, target)
    except (OSError, ImportError, hub.DownloadError) as error:
        if isinstance(error, OSError) and not is_unreachable(error):
            raise KldaError(
                f"Data set {name!r} can't be written to {target} ({error}). Make room there, or "
                "set KLDA_CACHE to another folder."
            ) from error
        raise DatasetNotAvailableError(
            f"Data set {name!r} is not on this machine and the download failed ({error}). {how}"
        ) from error
    return target


def _load_own(folder: str) -> Dataset:
    place = Path(folder)
    if not place.is_dir():
        raise KldaError(
            f"datasets={folder!r} is neither a folder nor one of {', '.join(DATASETS)}. "
            "A folder of your own needs train and test files (csv, tsv, jsonl, npz, or one "
            "sub-folder of images a class)."
        )
    own = _own_settings(place / "dataset.json")
    train, modality = _read_part(place, "train")
    test, _ = _read_part(place, "test")
    _check_parts(place, train, test)
    classes = len(set(train.y.tolist()))
    tasks = own.get("tasks", min(10, classes))
    name = str(own.get("name", place.resolve().name))
    return Dataset(name, name, modality, "own", train, test, tasks, place, f"own/{place.name}")


def _own_settings(file: Path) -> dict[str, Any]:
    """Read a user's ``dataset.json``, if there is one."""
    if not file.exists():
        return {}
    try:
        own = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise KldaError(
            f'{file} is no JSON ({error}): write for instance {{"tasks": 5}}.'
        ) from error
    if not isinstance(own, dict):
        raise KldaError(
            f"{file} holds a {type(own).__name__}, not an object: write for instance "
            '{"name": "mine", "tasks": 5}.'
        )
    tasks = own.get("tasks", 1)
    if isinstance(tasks, bool) or not isinstance(tasks, int) or tasks < 1:
        raise KldaError(f"{file}: tasks={tasks!r} must be a whole number of at least 1.")
    return own


def _read(place: Path, info: DatasetInfo, split: str, data: object) -> Dataset:
    train, modality = _read_part(place, "train")
    test, _ = _read_part(place, "test")
    _check_parts(place, train, test)
    note = ""
    if place.name == _SUBSETS.get(info.name):
        note = f"subset: {len(train):,} of {info.rows[0]:,} train, {len(test):,} of "
        note += f"{info.rows[1]:,} test images"
    if modality != info.modality:
        raise KldaError(f"{place} holds {modality} rows; {info.name} needs {info.modality} rows.")
    root = "cache" if cache_root() in place.parents else "data"
    source = f"{root}/{place.parent.name}/{place.name}"
    tasks = info.tasks
    return Dataset(info.name, info.title, modality, split, train, test, tasks, place, source, note)


def _check_parts(place: Path, train: Samples, test: Samples) -> None:
    if not len(train) or not len(test):
        raise KldaError(f"{place}: train and test must both have rows.")
    unknown = sorted(set(test.y.tolist()) - set(train.y.tolist()))
    if unknown:
        raise KldaError(
            f"{place}: test has classes that train has not: {', '.join(unknown[:5])}. "
            "Remove those rows or add training rows."
        )


def _part(place: Path, part: str) -> Path | None:
    for suffix in _SUFFIXES:
        file = place / f"{part}{suffix}"
        if file.is_file():
            return file
    folder = place / part
    return folder if folder.is_dir() else None


def _read_part(place: Path, part: str) -> tuple[Samples, Modality]:
    file = _part(place, part)
    if file is None:
        raise KldaError(
            f"{place} has no {part} file: expected {part} with one of {', '.join(_SUFFIXES)}, "
            f"or a folder {part}/ with one sub-folder of images a class."
        )
    table = open_table(file)
    batches = list(table.batches())
    labels = [str(label) for batch in batches for label in batch.labels or ()]
    inputs: np.ndarray | list
    if isinstance(batches[0].inputs, np.ndarray):
        inputs = np.concatenate([batch.inputs for batch in batches])
    else:
        inputs = [item for batch in batches for item in batch.inputs]
    return Samples(inputs, np.asarray(_class_names(place, labels))), table.modality


def _class_names(place: Path, labels: list[str]) -> list[str]:
    """Names for numbered classes, where the folder gives them."""
    file = place / "class_names.json"
    if not file.exists():
        return labels
    names = json.loads(file.read_text())
    named = names if isinstance(names, dict) else {str(i): name for i, name in enumerate(names)}
    return [str(named.get(label, label)) for label in labels]
