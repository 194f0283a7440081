"""Measure what klda says about labels: expected accuracy, suspected labels, what to label next.

    python tools/measure_labels.py quality DATA --features CACHE
    python tools/measure_labels.py suspects DATA --features CACHE
    python tools/measure_labels.py suggest DATA --features CACHE

DATA has a folder for each data set, anywhere below it, with train.csv.gz and test.csv.gz: columns
text and label. Texts are encoded once, with MiniLM, and kept in the folder CACHE.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from klda import Learner

SHOTS = (5, 20, None)  # samples of each class; None for all
DRAWS = 3


class DataSet:
    """Encoded texts with their labels, to learn and to test with."""

    def __init__(self, folder: Path, cache: Path) -> None:
        self.name = folder.name
        kept = cache / f"{self.name}.npz"
        if not kept.exists():
            cache.mkdir(parents=True, exist_ok=True)
            np.savez(kept, **_encoded(folder))
        arrays: Any = np.load(kept)
        self.rows, self.labels = arrays["xtrain"], arrays["ytrain"]
        self.test_rows, self.test_labels = arrays["xtest"], arrays["ytest"]

    def draw(self, shots: int | None, seed: int) -> np.ndarray:
        """Return rows of the training data: so many of each class, by chance."""
        order = np.random.default_rng(seed).permutation(len(self.labels))
        if shots is None:
            return order
        at = [order[self.labels[order] == label][:shots] for label in np.unique(self.labels)]
        return np.concatenate(at)


def _encoded(folder: Path) -> dict[str, np.ndarray]:
    encoder, arrays = Learner("minilm"), {}
    for part in ("train", "test"):
        (path,) = folder.glob(f"{part}.csv*")
        table = pd.read_csv(path, keep_default_na=False, dtype=str)
        arrays[f"x{part}"] = encoder.encode(table["text"].tolist())
        arrays[f"y{part}"] = table["label"].to_numpy().astype(str)
    return arrays


def quality(sets: list[DataSet]) -> None:
    """Print expected beside test accuracy, in per cent."""
    print("set shots draw expected low high test off")
    for one in sets:
        for shots in SHOTS:
            for draw in range(DRAWS):
                rows = one.draw(shots, draw)
                learner = Learner("minilm").learn_rows(one.rows[rows], one.labels[rows])
                said = learner.quality()
                test = np.mean(learner.predict_rows(one.test_rows) == one.test_labels)
                numbers = (said.accuracy, said.low, said.high, test, said.accuracy - test)
                shown = " ".join(f"{100 * value:.1f}" for value in numbers)
                print(one.name, shots or "all", draw, shown, flush=True)


def main() -> None:
    """Run one of the measurements."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["quality"])
    parser.add_argument("data", type=Path)
    parser.add_argument("--features", type=Path, required=True)
    parser.add_argument("--sets", nargs="*", help="names of data sets (all)")
    given = parser.parse_args()
    folders = sorted(path.parent for path in given.data.rglob("train.csv*"))
    chosen = [at for at in folders if not given.sets or at.name in given.sets]
    {"quality": quality}[given.what]([DataSet(at, given.features) for at in chosen])


if __name__ == "__main__":
    main()
