"""Pictures that commands draw."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from klda._optional import require
from klda.errors import KldaError

if TYPE_CHECKING:
    from klda.evaluation import Evaluation

SUFFIXES = (".png", ".svg", ".pdf")


def draw_confusion(result: Evaluation, path: Path) -> None:
    """Draw which classes are taken for which.

    Parameters
    ----------
    result : Evaluation
        Agreement of answers with labels.
    path : Path
        The picture: .png, .svg or .pdf.
    """
    if path.suffix.lower() not in SUFFIXES:
        raise KldaError(f"--confusion {path}: give a name that ends in {', '.join(SUFFIXES)}.")
    matplotlib = require("matplotlib", "plot")
    matplotlib.use("Agg")
    pyplot = require("matplotlib.pyplot", "plot")
    count = len(result.labels)
    totals = np.maximum(result.confusion.sum(axis=1, keepdims=True), 1)
    side = min(max(4.5, 0.16 * count + 2), 24)
    figure, axes = pyplot.subplots(figsize=(side, side), layout="constrained")
    image = axes.imshow(result.confusion / totals, cmap="magma_r", vmin=0, vmax=1)
    names = [str(label) for label in result.labels]
    size = max(4.0, min(9.0, 400 / max(count, 1)))
    if count <= 150:
        axes.set_xticks(range(count), names, rotation=90, fontsize=size)
        axes.set_yticks(range(count), names, fontsize=size)
    axes.set_xlabel("answer")
    axes.set_ylabel("label")
    axes.set_title(f"accuracy {result.accuracy:.1%}, {result.samples:,} samples")
    figure.colorbar(image, ax=axes, shrink=0.7, label="fraction of the label's samples")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
