"""What klda says about labels: expected accuracy, suspected labels, what to label next."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Annotated

import numpy as np
import typer
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import average_precision_score
from sklearn.model_selection import StratifiedKFold, cross_val_predict

from klda import Learner, encoders
from klda.inspection.suspects import label_chances
from klda_bench import data as datasets_
from klda_bench.data import MORE_SETS, TEXT_SETS
from klda_bench.environment import require
from klda_bench.measure.common import Data, Names, Seeds, names
from klda_bench.models.feature_cache import CachedEncoder
from klda_bench.results import Row
from klda_bench.shots.draws import parse_shots
from klda_bench.shots.tasks import few_of_all

Backbone = Annotated[str, typer.Option(help="Foundation model of texts.")]
ALL_SETS = ",".join((*TEXT_SETS, *MORE_SETS))
FLIPPED = 0.05  # fraction of the labels
FOLDS = 5
TINY = 1e-300
REACHED = 0.9  # of the accuracy that all labels give


class _Encoded:
    """A data set and its features."""

    def __init__(self, name: str, data: str | None, encoder: CachedEncoder) -> None:
        found = datasets_.load(name, data=data)
        self.X, self.y = encoder.encode(found.train.X), found.train.y
        self.X_test, self.y_test = encoder.encode(found.test.X), found.test.y


def _sets(
    datasets: str, data: str | None, backbone: str
) -> Iterator[tuple[str, _Encoded, Callable[[], Learner]]]:
    encoder = CachedEncoder(encoders.load(backbone, layers="auto"))
    for name in names(datasets):
        yield name, _Encoded(name, data, encoder), lambda: Learner(encoder)


def quality(
    datasets: Names = ALL_SETS,
    shots: Annotated[str, typer.Option(help="Samples per class: numbers and 'all'.")] = "5,20,all",
    data: Data = None,
    backbone: Backbone = "minilm",
    seeds: Seeds = 3,
) -> Iterator[Row]:
    """Compare the accuracy that klda expects of itself with that on test rows, in per cent."""
    for name, found, make in _sets(datasets, data, backbone):
        for k in parse_shots(shots):
            for seed in range(seeds):
                task = few_of_all(found.y, k, np.random.default_rng(seed))
                learner = make().learn_rows(found.X[task.rows], task.labels)
                said = learner.quality()
                tested = float(np.mean(learner.predict_rows(found.X_test) == found.y_test))
                numbers = {"expected": said.accuracy, "low": said.low, "high": said.high}
                numbers |= {"tested": tested, "off": said.accuracy - tested}
                shown = {key: round(100 * value, 2) for key, value in numbers.items()}
                yield {"what": "quality", "dataset": name, "shots": k, "seed": seed, **shown}


def suspects(
    datasets: Names = "banking,clinc,hwu,agnews",
    data: Data = None,
    backbone: Backbone = "minilm",
    seeds: Seeds = 1,
) -> Iterator[Row]:
    """Change 5% of the labels; find them, and let cleanlab find them, with the same features.

    cleanlab judges by out-of-fold probabilities of scikit-learn's logistic regression. `klda at its
    recall` is klda's precision where it has found as many changed labels as cleanlab; `ranking` is
    the average precision of all labels, the least likely first.
    """
    for name, found, make in _sets(datasets, data, backbone):
        for seed in range(seeds):
            labels, wrong = _flipped(found.y, seed)
            learner = make().learn_rows(found.X, labels)
            listed = [
                one for one in learner.suspects_rows(found.X, labels) if one.problem == "label"
            ]
            hits = int(sum(wrong[one.row] for one in listed))
            chance, *_ = label_chances(learner.engine, learner.parameters, found.X, labels.tolist())
            row: Row = {"what": "suspects", "dataset": name, "seed": seed, "listed": len(listed)}
            row |= {"recall": hits / wrong.sum(), "precision": hits / max(len(listed), 1)}
            row |= {"ranking": average_precision_score(wrong, -np.log(chance + TINY))}
            yield row | _beside_cleanlab(found.X, labels, wrong, chance)


def _flipped(y: np.ndarray, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Change some labels to others by chance; return all labels, and which are wrong."""
    rng, classes, labels = np.random.default_rng(seed), np.unique(y), y.copy()
    wrong = np.zeros(len(y), bool)
    wrong[rng.permutation(len(y))[: round(FLIPPED * len(y))]] = True
    for i in np.flatnonzero(wrong):
        labels[i] = rng.choice(classes[classes != y[i]])
    return labels, wrong


def _beside_cleanlab(
    X: np.ndarray, labels: np.ndarray, wrong: np.ndarray, chance: np.ndarray
) -> Row:
    """Return what cleanlab finds, and how precise klda is where it has found as many."""
    folds = StratifiedKFold(FOLDS, shuffle=True, random_state=0)
    model = LogisticRegression(max_iter=200)
    found = cross_val_predict(model, X, labels, cv=folds, method="predict_proba")
    numbers = np.unique(labels, return_inverse=True)[1]
    issues = require("cleanlab.filter", "peers").find_label_issues(numbers, found)
    hits = int((issues & wrong).sum())
    needed = int(np.searchsorted(np.cumsum(wrong[np.argsort(chance, kind="stable")]), hits)) + 1
    own = found[np.arange(len(found)), numbers]
    return {
        "cleanlab_listed": int(issues.sum()),
        "cleanlab_recall": hits / wrong.sum(),
        "cleanlab_precision": hits / max(int(issues.sum()), 1),
        "klda_at_its_recall": hits / needed,
        "cleanlab_ranking": average_precision_score(wrong, -np.log(own + TINY)),
    }


def suggest(
    datasets: Names = "clinc,banking",
    data: Data = None,
    backbone: Backbone = "minilm",
    seeds: Seeds = 3,
    step: Annotated[int, typer.Option(help="Labels asked for at once.", min=1)] = 20,
    part: Annotated[
        str, typer.Option(help="Rows to test on: test, or train for a part of the training rows.")
    ] = "test",
    most: Annotated[int, typer.Option(help="Labels at most.", min=1)] = 1500,
) -> Iterator[Row]:
    """Count the labels it takes to 90% of the accuracy that all labels give.

    From no labels on: by `Learner.suggest`, by chance, and those least likely to be answered right.
    """
    for name, found, make in _sets(datasets, data, backbone):
        for seed in range(seeds):
            rng = np.random.default_rng(seed)
            order = rng.permutation(len(found.y))
            pool, X_test, y_test = order, found.X_test, found.y_test
            if part == "train":
                cut = len(order) * 3 // 4
                pool, X_test, y_test = order[:cut], found.X[order[cut:]], found.y[order[cut:]]
            final = make().learn_rows(found.X[pool], found.y[pool])
            best = float(np.mean(final.predict_rows(X_test) == y_test))
            row: Row = {"what": "suggest", "dataset": name, "seed": seed, "all": len(pool)}
            row |= {"accuracy": round(100 * best, 2)}
            for way in WAYS:
                learner, left = make(), pool
                while len(left) and len(pool) - len(left) < most:
                    chosen = WAYS[way](learner, found.X[left], step, np.random.default_rng(seed))
                    asked, left = left[chosen], np.delete(left, chosen)
                    learner.learn_rows(found.X[asked], found.y[asked])
                    accuracy = float(np.mean(learner.predict_rows(X_test) == y_test))
                    if accuracy >= REACHED * best:
                        break
                row[way] = len(pool) - len(left)
            yield row | {"random_over_suggest": round(row["random"] / row["suggest"], 2)}


def _suggested(learner: Learner, X: np.ndarray, n: int, rng: np.random.Generator) -> np.ndarray:
    return np.array([one.row for one in learner.suggest_rows(X, n)])


def _by_chance(learner: Learner, X: np.ndarray, n: int, rng: np.random.Generator) -> np.ndarray:
    return rng.permutation(len(X))[:n]


def _uncertain(learner: Learner, X: np.ndarray, n: int, rng: np.random.Generator) -> np.ndarray:
    if len(learner.classes) < 2:
        return _by_chance(learner, X, n, rng)
    return np.argsort(learner.solution.answer(X).probabilities[:, 0], kind="stable")[:n]


WAYS = {"suggest": _suggested, "random": _by_chance, "uncertain": _uncertain}
