"""What is drawn from a data set to be learned, and features that no network made."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import pandas as pd
from sklearn.datasets import load_digits

from klda_bench.data import MORE_SETS, TEXT_SETS, Dataset, Samples

ALL = "all"
Shots = int | str
RARE = 0.1  # fraction of the classes
NOISY = 0.2  # fraction of the labels
DECLARED, DECLARED_OUT_OF = 5, 25  # classes


@dataclass(frozen=True)
class Task:
    """Training rows with their labels, and the classes whose recall is told."""

    rows: np.ndarray
    labels: np.ndarray
    special: np.ndarray = field(default_factory=partial(np.empty, 0, "U1"))


def _first(y: np.ndarray, order: np.ndarray, shots: Shots, few: np.ndarray) -> np.ndarray:
    """Return rows in an order: of some classes the first so many, of the others all."""
    drawn = y[order]
    rank = pd.Series(drawn).groupby(drawn).cumcount().to_numpy()
    limit = np.inf if shots == ALL else int(shots)
    return np.asarray(order[(rank < limit) | ~np.isin(drawn, few)])


def few_of_all(y: np.ndarray, shots: Shots, rng: np.random.Generator) -> Task:
    """Draw k samples of every class; a draw of more contains that of fewer."""
    rows = _first(y, rng.permutation(len(y)), shots, np.unique(y))
    return Task(rows, y[rows])


def rare(y: np.ndarray, shots: Shots, rng: np.random.Generator) -> Task:
    """Draw k samples of a tenth of the classes, and take all of the others."""
    order, classes = rng.permutation(len(y)), np.unique(y)
    few = rng.permutation(classes)[: max(1, round(RARE * len(classes)))]
    rows = _first(y, order, shots, few)
    return Task(rows, y[rows], few)


def noisy(y: np.ndarray, shots: Shots, rng: np.random.Generator) -> Task:
    """Draw k samples of every class, and replace a fifth of their labels by others of them."""
    task = few_of_all(y, shots, rng)
    wrong = rng.random(len(task.rows)) < NOISY
    return Task(task.rows, np.where(wrong, rng.choice(task.labels, len(wrong)), task.labels))


def declared(y: np.ndarray, shots: Shots, rng: np.random.Generator) -> Task:
    """Draw k samples of 20 of the first 25 classes by name; the other five have a name alone."""
    order, classes = rng.permutation(len(y)), np.unique(y)[:DECLARED_OUT_OF]
    by_name = rng.permutation(classes)[:DECLARED]
    rows = _first(y, order, shots, classes)
    rows = rows[np.isin(y[rows], np.setdiff1d(classes, by_name))]
    return Task(rows, y[rows], by_name)


@dataclass(frozen=True)
class Kind:
    """A kind of benchmark: what is drawn, and what is measured by default."""

    heading: str
    draw: Callable[[np.ndarray, Shots, np.random.Generator], Task]
    datasets: str
    shots: str
    methods: str


KINDS = {
    "shots": Kind(
        "k samples of every class",
        few_of_all,
        ",".join((*TEXT_SETS, *MORE_SETS)),
        "1,2,3,5,8,16,32,64,all",
        "ours,ncm-last,ncm,lr-last,lr",
    ),
    "rare": Kind(
        "A tenth of the classes has k samples, the others have all of theirs",
        rare,
        ",".join(TEXT_SETS),
        "1,2,5,10",
        "ours,ncm-last,ncm,lr-last,lr",
    ),
    "noisy": Kind(
        "k samples of every class, a fifth of them with a label drawn at random",
        noisy,
        "banking,hwu,emotion,agnews",
        "16,all",
        "ours,lr-last,lr",
    ),
    "made": Kind(
        "k samples of every class, features that no network made",
        few_of_all,
        "gaussian,digits",
        "5,10,all",
        "ours,ncm,lr",
    ),
    "names": Kind(
        "k samples of every class and its name; k = 0 is the names alone",
        few_of_all,
        ",".join(TEXT_SETS),
        "0,1,2,5",
        "ours,names",
    ),
    "declared": Kind(
        "Five classes are known by name alone, among 20 with k samples each",
        declared,
        "banking",
        "80",
        "names",
    ),
}


# ---------------------------------------------------------------- features that no network made


def _named(numbers: np.ndarray) -> np.ndarray:
    return np.array([f"class {number}" for number in numbers.tolist()])


def gaussian() -> Dataset:
    """Return ten classes in 50 dimensions, alike and round: no rule beats the nearest mean."""
    rng, y = np.random.default_rng(0), np.arange(5000) // 2 % 10
    centres = 0.5 * rng.standard_normal((10, 50))
    return _made("gaussian", centres[y] + rng.standard_normal((5000, 50)), y)


def digits() -> Dataset:
    """Return scikit-learn's handwritten digits, 8 x 8 pixels; every second one is a test row."""
    X, y = load_digits(return_X_y=True)
    return _made("digits", X, y)


def _made(name: str, X: np.ndarray, y: np.ndarray) -> Dataset:
    rows, labels = X.astype(np.float32), _named(y)
    train, test = (Samples(rows[start::2], labels[start::2]) for start in (0, 1))
    return Dataset(name, name, "features", "made", train, test, 5, "made")


MADE = {"gaussian": gaussian, "digits": digits}
