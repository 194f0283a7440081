"""On real features: expected accuracy, suspected labels, what to label next, exact forgetting."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from functools import partial
from statistics import NormalDist
from typing import Annotated

import numpy as np
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import average_precision_score, f1_score
from sklearn.model_selection import StratifiedKFold, cross_val_predict

from klda import KLDA, Learner
from klda.cli.options import option
from klda.inspection.quality import LEVEL
from klda.inspection.suspects import label_chances
from klda_bench.data import datasets as sets
from klda_bench.data.catalog import MORE_SETS, TEXT_SETS
from klda_bench.data.datasets import Samples
from klda_bench.environment import require
from klda_bench.methods.registry import PROTOCOL_GAMMA
from klda_bench.options import Backbone, Data, Names, Output, Seeds, names
from klda_bench.results import Row
from klda_bench.runs.features import features, load_encoder
from klda_bench.runs.metrics import accuracy, accuracy_as_learned
from klda_bench.shots.tasks import few_of_all, parse_shots

ALL_SETS = ",".join((*TEXT_SETS, *MORE_SETS))
GAMMA = PROTOCOL_GAMMA["minilm"]
FLIPPED = 0.05  # fraction of the labels
FOLDS = 5
TINY = 1e-300
REACHED = 0.9  # of the accuracy that all labels give
RANGE_ERRORS = 2 * NormalDist().inv_cdf((1 + LEVEL) / 2)  # standard errors that a range is wide
MOST = 1500  # labels that are asked for


def _sets(
    what: str, datasets: str, data: str | None, backbone: str, seeds: int, layers: str = "auto"
) -> Iterator[tuple[Row, int, Samples, Samples, Callable[[], Learner]]]:
    """Yield each data set with each seed, and what makes a learner that knows nothing."""
    sets.check(names(datasets, "datasets"), data=data)
    for name, seed in itertools.product(names(datasets, "datasets"), range(seeds)):
        if seed == 0:
            train, test = features(sets.load(name, data=data), backbone, layers)
        make = partial(Learner, load_encoder(backbone, layers))
        yield {"what": what, "dataset": name, "seed": seed}, seed, train, test, make


def quality(
    datasets: Names = ALL_SETS,
    shots: Annotated[str, option("Samples per class.", show_default=True)] = "5,20,all",
    data: Data = None,
    backbone: Backbone = "minilm",
    seeds: Seeds = 3,
    output: Output = None,
) -> Iterator[Row]:
    """Compare the accuracy that klda expects of itself with that on test rows, in per cent.

    What was learned can't tell how frequent the classes are in a test file. `as learned` is the
    accuracy if they were as frequent as among the learned rows, `off` how far klda is from that,
    and `by chance` the standard error of `off`, from the numbers of rows. `tested` is the accuracy
    on the file as it is, and `shift` by how much that differs from `as learned`.
    """
    for row, seed, train, test, make in _sets("quality", datasets, data, backbone, seeds):
        for k in parse_shots(shots):
            task = few_of_all(train.y, k, np.random.default_rng(seed))
            learner = make().learn_rows(train.X[task.rows], task.labels)
            said, answers = learner.quality(), learner.predict_rows(test.X)
            as_learned, error = accuracy_as_learned(answers, test.y, task.labels)
            tested, own = accuracy(test.y, answers), (said.high - said.low) / RANGE_ERRORS
            numbers = {
                "expected": 100 * said.accuracy,
                "low": 100 * said.low,
                "high": 100 * said.high,
                "as_learned": as_learned,
                "off": 100 * said.accuracy - as_learned,
                "by_chance": math.hypot(error, 100 * own),
                "tested": tested,
                "shift": as_learned - tested,
            }
            yield row | {"shots": k} | {name: round(value, 2) for name, value in numbers.items()}


def suspects(
    datasets: Names = "banking,clinc,hwu,agnews",
    data: Data = None,
    backbone: Backbone = "minilm",
    seeds: Seeds = 3,
    times: Annotated[
        str,
        option("Instead: F1 of what is listed where another label is so many times as likely."),
    ] = "",
    output: Output = None,
) -> Iterator[Row]:
    """Change 5% of the labels; find them, and let cleanlab find them, with the same features.

    cleanlab judges by out-of-fold probabilities of scikit-learn's logistic regression. `klda at its
    recall` is klda's precision where it has found as many changed labels as cleanlab; `ranking` is
    the average precision of all labels, the least likely first.
    """
    if not times:
        require("cleanlab", "peers")  # said before the work begins
    for row, seed, train, _, make in _sets("suspects", datasets, data, backbone, seeds):
        labels, wrong = _flipped(train.y, seed)
        learner = make().learn_rows(train.X, labels)
        chance, _, other = label_chances(learner.engine, train.X, labels.tolist())
        if times:
            likely = np.array([value or 0.0 for value in other])
            found = {n: (likely > 0) & (likely >= float(n) * chance) for n in times.split(",")}
            yield row | {f"f1 at {n}": f1_score(wrong, listed) for n, listed in found.items()}
            continue
        listed = learner.suspects_rows(train.X, labels)
        chosen = np.zeros(len(labels), bool)
        chosen[[one.row for one in listed if one.problem == "label"]] = True
        theirs, judged = _cleanlab(train.X, labels)
        hits = int((theirs & wrong).sum())
        order = np.argsort(chance, kind="stable")
        needed = int(np.searchsorted(np.cumsum(wrong[order]), hits)) + 1
        row |= _found("", chosen, wrong, chance) | _found("cleanlab_", theirs, wrong, judged)
        yield row | {"klda_at_its_recall": hits / needed}


def _found(who: str, listed: np.ndarray, wrong: np.ndarray, chance: np.ndarray) -> Row:
    """Compare labels that are listed, and how likely each label is, with those that are wrong."""
    hits = int((listed & wrong).sum())
    return {
        f"{who}listed": int(listed.sum()),
        f"{who}recall": hits / wrong.sum(),
        f"{who}precision": hits / max(int(listed.sum()), 1),
        f"{who}ranking": average_precision_score(wrong, -np.log(chance + TINY)),
    }


def _flipped(y: np.ndarray, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Change some labels to others by chance; return all labels, and which are wrong."""
    rng, classes, labels = np.random.default_rng(seed), np.unique(y), y.copy()
    wrong = np.zeros(len(y), bool)
    wrong[rng.permutation(len(y))[: round(FLIPPED * len(y))]] = True
    for i in np.flatnonzero(wrong):
        labels[i] = rng.choice(classes[classes != y[i]])
    return labels, wrong


def _cleanlab(X: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return which labels cleanlab lists, and how likely logistic regression finds each."""
    folds = StratifiedKFold(FOLDS, shuffle=True, random_state=0)
    model = LogisticRegression(max_iter=200)
    found = cross_val_predict(model, X, labels, cv=folds, method="predict_proba")
    numbers = np.unique(labels, return_inverse=True)[1]
    issues = require("cleanlab.filter", "peers").find_label_issues(numbers, found)
    return issues, found[np.arange(len(found)), numbers]


def suggest(
    datasets: Names = "clinc,banking",
    data: Data = None,
    backbone: Backbone = "minilm",
    seeds: Seeds = 3,
    step: Annotated[int, option("Labels asked for at once.", min=1, show_default=True)] = 20,
    output: Output = None,
) -> Iterator[Row]:
    """Count the labels it takes to 90% of the accuracy that all labels give.

    From no labels on: by `Learner.suggest`, by chance, and those least likely to be answered right.
    """
    for row, seed, train, test, make in _sets("suggest", datasets, data, backbone, seeds):
        pool = train.take(np.random.default_rng(seed).permutation(len(train)))
        best = accuracy(test.y, make().learn_rows(pool.X, pool.y).predict_rows(test.X))
        row |= {"all": len(pool), "accuracy": round(best, 2)}
        for way, choose in WAYS.items():
            learner, left = make(), pool
            while len(left) and len(pool) - len(left) < MOST:
                chosen = choose(learner, left.X, step, np.random.default_rng(seed))
                asked, left = left.take(chosen), left.take(np.delete(np.arange(len(left)), chosen))
                learner.learn_rows(asked.X, asked.y)
                if accuracy(test.y, learner.predict_rows(test.X)) >= REACHED * best:
                    break
            row[way] = len(pool) - len(left)
        yield row | {"random_over_suggest": round(row["random"] / row["suggest"], 2)}


Rng = np.random.Generator


def _uncertain(learner: Learner, X: np.ndarray, n: int, rng: Rng) -> np.ndarray:
    if len(learner.classes) < 2:
        return rng.permutation(len(X))[:n]
    return np.argsort(learner.solution.answer(X).probabilities[:, 0], kind="stable")[:n]


WAYS: dict[str, Callable[[Learner, np.ndarray, int, Rng], np.ndarray]] = {
    "suggest": lambda learner, X, n, rng: np.array([s.row for s in learner.suggest_rows(X, n)]),
    "random": lambda learner, X, n, rng: rng.permutation(len(X))[:n],
    "uncertain": _uncertain,
}


def forget(
    datasets: Names = "clinc",
    data: Data = None,
    backbone: Backbone = "minilm",
    seeds: Seeds = 3,
    output: Output = None,
) -> Iterator[Row]:
    """Forget a fifth of the classes one by one; compare with a model that never learned them."""
    for row, seed, train, test, _ in _sets("forget", datasets, data, backbone, seeds, "last"):
        classes = np.unique(train.y)
        gone = np.random.default_rng(seed).permutation(classes)[: len(classes) // 5]
        learner, never = (
            Learner(
                "features",
                classifier=KLDA(gamma=GAMMA, random_state=seed),
                keep="features",
            )
            for _ in range(2)
        )
        learner.learn(train.X, train.y).predict(test.X)
        for label in gone.tolist():
            learner.forget(label)
        rest = ~np.isin(train.y, gone)
        ours = learner.scores(test.X)
        theirs = never.learn(train.X[rest], train.y[rest]).scores(test.X)
        yield row | {
            "classes": len(classes),
            "forgotten": len(gone),
            "relative_error": float(np.abs(ours - theirs).max() / np.abs(theirs).max()),
            "same_labels": float(np.mean(ours.argmax(axis=1) == theirs.argmax(axis=1))),
        }
