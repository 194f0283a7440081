"""Which files a user means, and whether one has changed."""

from __future__ import annotations

import glob
import hashlib
import json
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any

from klda.data.damage import TableError

IMAGE_SUFFIXES = frozenset(
    {".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm"}
)
IDENTITY_BYTES, IDENTITY_PLACES = 1 << 16, 16  # parts of a file that show a change


def find_files(paths: str | Path | Iterable[str | Path], suffixes: Collection[str]) -> list[Path]:
    """Find the files a user means: patterns and folders of data files stand for their files.

    Data files have one of the `suffixes`. A folder of images stays a folder; in patterns such as
    ``shards/*.parquet``, ``**`` matches folders at any depth. Each file comes once, in the order
    given, those of one pattern or folder sorted by name.
    """
    given = [paths] if isinstance(paths, str | Path) else paths
    found: dict[Path, Path] = {}  # a file that is named twice is read once
    for path in map(Path, given):
        for match in [path] if path.exists() else _matches(path):
            for file in _data_files(match, suffixes) or [match]:
                found.setdefault(file.resolve(), file)
    return list(found.values())


def _matches(pattern: Path) -> list[Path]:
    if not glob.has_magic(str(pattern)):
        return [pattern]  # opening it raises the error
    matches = sorted(map(Path, glob.glob(str(pattern), recursive=True)))  # noqa: PTH207
    if not matches:
        raise TableError(
            f"{pattern}: no file matches this pattern (searched from {Path.cwd()})."
            if not pattern.is_absolute()
            else f"{pattern}: no file matches this pattern."
        )
    opened = {folder for match in matches for folder in match.parents}
    return [match for match in matches if match not in opened]  # their files match, too


def _data_files(folder: Path, suffixes: Collection[str]) -> list[Path]:
    """Return the files of a folder of data files, sorted; none for a file or a folder of images."""
    if not folder.is_dir():
        return []
    entries = sorted(entry for entry in folder.iterdir() if not is_hidden(entry))
    if not entries:
        raise TableError(f"{folder} is an empty folder: name a file, or a folder with files in it.")
    files = [entry for entry in entries if suffix_of(entry) in suffixes and entry.is_file()]
    if any(entry.is_dir() for entry in entries) and files and not images_in(folder):
        raise TableError(
            f"{folder} has data files and folders in it. Name the files that are meant, or give a "
            f"pattern such as '{folder}/*{files[0].suffix}'."
        )
    if any(entry.is_dir() or entry.suffix.lower() in IMAGE_SUFFIXES for entry in entries):
        return []
    return files


def identity(path: Path) -> dict[str, Any]:
    """Return what shows whether a file has changed: the last change, and its content.

    The content is the size and a digest of parts of the file, or of the names and sizes of the
    images in a folder: a copy has the same. Empty for a pipe, which can be read only once. Can be
    written as JSON.
    """
    if path.is_dir():
        images = [(str(image.relative_to(path)), image.stat()) for image in images_in(path)]
        digest = hashlib.sha256(json.dumps([(name, s.st_size) for name, s in images]).encode())
        changed = hashlib.sha256(json.dumps([s.st_mtime_ns for _, s in images]).encode())
        return {"changed": changed.hexdigest(), "content": [len(images), digest.hexdigest()]}
    if not path.is_file():
        return {}
    status, digest = path.stat(), hashlib.sha256()
    with path.open("rb") as file:
        for i in range(IDENTITY_PLACES):
            file.seek(max(0, status.st_size - IDENTITY_BYTES) * i // (IDENTITY_PLACES - 1))
            digest.update(file.read(IDENTITY_BYTES))
    return {"changed": status.st_mtime_ns, "content": [status.st_size, digest.hexdigest()]}


def suffix_of(path: Path) -> str:
    """Return the suffix that tells how to read a file, without ``.gz`` and by its usual name."""
    suffixes = [suffix.lower() for suffix in path.suffixes]
    if suffixes and suffixes[-1] == ".gz":
        suffixes.pop()
    suffix = suffixes[-1] if suffixes else ""
    usual = {".ndjson": ".jsonl", ".pq": ".parquet", ".yaml": ".yml", ".xlsm": ".xlsx"}
    return usual.get(suffix, suffix)


def images_in(folder: Path) -> list[Path]:
    """Return the images of a folder and of the folders in it, sorted."""
    return sorted(
        path
        for path in folder.rglob("*")
        if path.suffix.lower() in IMAGE_SUFFIXES and path.is_file() and not is_hidden(path)
    )


def is_hidden(path: Path) -> bool:
    """Whether a file is hidden."""
    return path.name.startswith(".")
