"""What is drawn from a data set to be learned, and features that no network made."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.resources import files

import numpy as np
import pandas as pd
from sklearn.datasets import load_digits

from klda.errors import KldaError
from klda_bench.data.datasets import Dataset, Samples

ALL = "all"
Shots = int | str
RARE = 0.1  # fraction of the classes
NOISY = 0.2  # fraction of the labels
DECLARED, DECLARED_OUT_OF = 5, 25  # classes


NONE = np.empty(0, "U1")


@dataclass(frozen=True)
class Task:
    """Training rows with their labels; classes that are rare in them, or known by name alone."""

    rows: np.ndarray
    labels: np.ndarray
    rare: np.ndarray = field(default_factory=NONE.copy)
    by_name: np.ndarray = field(default_factory=NONE.copy)


def parse_shots(text: str, least: int = 1) -> list[Shots]:
    """Read ``1,2,all``; `least` is the smallest number that there can be."""
    parts = [part.strip() for part in text.split(",") if part.strip()]
    found: list[Shots] = [int(part) if part.isdecimal() else part for part in parts]
    if not found or not all(k == ALL or (isinstance(k, int) and k >= least) for k in found):
        raise KldaError(
            f"shots={text!r} must be whole numbers from {least} on or 'all', separated by commas."
        )
    return found


def _first(y: np.ndarray, order: np.ndarray, shots: Shots, few: np.ndarray) -> np.ndarray:
    """Return rows in an order: of some classes the first so many, of the others all."""
    drawn = y[order]
    rank = pd.Series(drawn).groupby(drawn).cumcount().to_numpy()
    limit = np.inf if shots == ALL else int(shots)
    return np.asarray(order[(rank < limit) | ~np.isin(drawn, few)])


def few_of_all(y: np.ndarray, shots: Shots, rng: np.random.Generator) -> Task:
    """Draw k samples of every class; a draw of more contains that of fewer, and none is names."""
    rows = _first(y, rng.permutation(len(y)), shots, np.unique(y))
    return Task(rows, y[rows], by_name=np.unique(y) if shots == 0 else NONE)


def rare(y: np.ndarray, shots: Shots, rng: np.random.Generator) -> Task:
    """Draw k samples of a tenth of the classes, and take all of the others."""
    order, classes = rng.permutation(len(y)), np.unique(y)
    few = rng.permutation(classes)[: max(1, round(RARE * len(classes)))]
    rows = _first(y, order, shots, few)
    return Task(rows, y[rows], rare=few)


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
    return Task(rows, y[rows], by_name=by_name)


Draw = Callable[[np.ndarray, Shots, np.random.Generator], Task]


@dataclass(frozen=True)
class Kind:
    """A kind of benchmark: what is drawn, and what is measured by default.

    `least` is the smallest number of samples, and `classes` that of classes, which it needs.
    """

    heading: str
    draw: Draw
    datasets: str
    shots: str
    methods: str
    least: int = 1
    classes: int = 2


_DRAWS: tuple[Draw, ...] = (few_of_all, rare, noisy, declared)
_BY_NAME = {draw.__name__: draw for draw in _DRAWS}
KINDS = {
    name: Kind(**(row | {"draw": _BY_NAME[row["draw"]]}))
    for name, row in tomllib.loads(
        (files(__package__) / "kinds.toml").read_text(encoding="utf-8")
    ).items()
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
    return Dataset(name, name, "features", "made", train, test, 5)


MADE = {"gaussian": gaussian, "digits": digits}
