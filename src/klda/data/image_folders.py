"""Folders of images, with one folder per class."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from klda.data.batch import Batch, TableError
from klda.data.files import IMAGE_SUFFIXES, images_in, is_hidden
from klda.data.table import Table


def read_folder(table: Table, labels: bool, rows: int) -> Iterator[Batch]:
    """Read the image paths of a folder with one folder per class, or (to predict) of a flat one."""
    classes = sorted(
        entry for entry in table.path.iterdir() if entry.is_dir() and not is_hidden(entry)
    )
    if not classes and labels:
        raise TableError(
            f"{table.path} has no folders in it. Put the images of each class into a folder that "
            "is named after the class."
        )
    pairs: list[tuple[Path, Any]] = []
    for folder in classes:
        images = images_in(folder)
        if not images and labels:
            raise TableError(
                f"{folder} holds no images; known suffixes are {', '.join(sorted(IMAGE_SUFFIXES))}."
            )
        pairs.extend((image, folder.name) for image in images)
    if not classes:
        pairs.extend((image, None) for image in images_in(table.path))
    if labels:
        # Mixed, because a bandwidth may be chosen from the first batch: it should show all classes.
        random.Random(0).shuffle(pairs)
    for start in range(0, len(pairs), rows):
        block = pairs[start : start + rows]
        names = [label for _, label in block] if labels else None
        yield Batch([path for path, _ in block], names, min(1.0, (start + rows) / len(pairs)))
