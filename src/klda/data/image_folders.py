"""Folders of images, with one folder per class."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from klda.data.batch import Block, Contents
from klda.data.damage import TableError
from klda.data.files import IMAGE_SUFFIXES, images_in, is_hidden
from klda.data.table import Table


@contextmanager
def read_folder(table: Table) -> Iterator[Contents]:
    """Read the image paths of a folder with one folder per class, or (to predict) of a flat one."""
    classes = sorted(
        entry for entry in table.path.iterdir() if entry.is_dir() and not is_hidden(entry)
    )

    def blocks(columns: Sequence[str] | None, rows: int) -> Iterator[Block]:
        labels = columns is not None and "class" in columns
        pairs = _with_classes(classes, labels)
        if not classes:
            pairs = [(image, None) for image in images_in(table.path)]
        if labels:
            # Mixed, because a bandwidth may be chosen from the first batch: it should show all
            # classes.
            random.Random(0).shuffle(pairs)
        for start in range(0, len(pairs), rows):
            images, names = zip(*pairs[start : start + rows], strict=True)
            fraction = min(1.0, (start + rows) / len(pairs))
            found = {"image": list(images), "class": list(names)}
            yield Block({name: found[name] for name in columns or found}, fraction)

    names = ["image", "class"] if classes else ["image"]
    hint = "Put the images of each class into a folder that is named after the class."
    yield Contents(names, blocks, labels_hint=hint)


def _with_classes(classes: Sequence[Path], labels: bool) -> list[tuple[Path, Any]]:
    pairs: list[tuple[Path, Any]] = []
    for folder in classes:
        images = images_in(folder)
        if not images and labels:
            raise TableError(
                f"{folder} holds no images; known suffixes are {', '.join(sorted(IMAGE_SUFFIXES))}."
            )
        pairs.extend((image, folder.name) for image in images)
    return pairs
