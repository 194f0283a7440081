"""What the default settings do beyond the paper, measured on its text sets."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

import numpy as np
import pandas as pd
import typer

from klda import KLDA, LDA, Learner, encoders
from klda.engine.feature_map import GAMMA_SCALE
from klda.learner.evaluation import Reliability
from klda_bench import data as datasets_
from klda_bench.measure.common import Data, Names, Seeds
from klda_bench.results import Row
from klda_bench.runs.protocol import split_classes

SETS = "clinc,banking,hwu,dbpedia"
GRID = tuple(0.15 * 2.0**k for k in range(-4, 5))
RIDGES = (1e-3, 1e-2, 1e-1, 1.0)
PLAIN: dict[str, Any] = {"small_sample_correction": False, "priors": "uniform"}

Layers = Annotated[str, typer.Option(help="Layers whose features are used.")]
Parts = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]


class Features:
    """Features of the paper's text sets, encoded once and cached."""

    def __init__(self, folder: str | None, layers: str) -> None:
        self.folder = folder
        self.encoder = encoders.load("minilm", layers=layers, cache=True)

    def load(self, name: str) -> Parts:
        """Return training features and labels, test features and labels."""
        found = datasets_.load(name, data=self.folder)
        X, X_test = self.encoder.encode(found.train.X), self.encoder.encode(found.test.X)
        return X, found.train.y, X_test, found.test.y

    def out_of_scope(self) -> np.ndarray | None:
        """Features of CLINC150's out-of-scope test queries, if they are here."""
        texts = datasets_.out_of_scope(self.folder)
        return self.encoder.encode(texts) if texts else None

    def each(self, sets: str, seeds: int) -> Iterator[tuple[Row, int, Parts]]:
        """Yield the first columns of a row, the seed and the rows of every set and seed."""
        for name in sets.split(","):
            parts = self.load(name)
            for seed in range(seeds):
                yield {"dataset": name, "seed": seed}, seed, parts


def accuracy(
    datasets: Names = SETS, data: Data = None, layers: Layers = "auto", seeds: Seeds = 3
) -> Iterator[Row]:
    """Measure accuracy, calibration error, and refusals of known and out-of-scope inputs."""
    from sklearn.metrics import roc_auc_score

    features = Features(data, layers)
    unknown = features.out_of_scope()
    for place, seed, (X, y, X_test, y_test) in features.each(datasets, seeds):
        model = KLDA(random_state=seed, device="cpu").fit(X, y)
        probabilities = model.predict_proba(X_test)
        answers = model.classes_[probabilities.argmax(axis=1)]
        error = Reliability.of(probabilities.max(axis=1), answers == y_test).error
        row: Row = {"what": "accuracy", **place, "accuracy": float(np.mean(answers == y_test))}
        row |= {"calibration_error": float(error)}
        row |= {"refused_known": float(1 - model.is_known(X_test).mean())}
        row |= {"temperature": model.temperature_, "gamma": model.gamma_}
        if place["dataset"] == "clinc" and unknown is not None:
            novelty = np.concatenate([model.novelty(X_test), model.novelty(unknown)])
            truth = np.repeat([0, 1], [len(X_test), len(unknown)])
            row["auroc_unknown"] = float(roc_auc_score(truth, novelty))
            row["refused_unknown"] = float(1 - model.is_known(unknown).mean())
        yield row


def few_shot(
    datasets: Names = SETS,
    data: Data = None,
    layers: Layers = "auto",
    seeds: Seeds = 3,
    classes: Annotated[int, typer.Option(help="How many classes to try per seed.")] = 50,
) -> Iterator[Row]:
    """Measure the recall of a class taught from few samples, among all others taught in full.

    The default settings stand beside the paper's formula and plain LDA.
    """
    for place, seed, parts in Features(data, layers).each(datasets, seeds):
        X, y = parts[:2]
        rng = np.random.default_rng(seed)
        chosen = rng.permutation(np.unique(y))[:classes]
        plans = {label: rng.permutation(np.flatnonzero(y == label)) for label in chosen.tolist()}
        gamma = KLDA(random_state=seed, device="cpu").fit(X[:2000], y[:2000]).gamma_
        options: dict[str, Any] = {"calibrated": False, "device": "cpu"}
        drawn = options | {"random_state": seed, "gamma": gamma}
        for kind, model in {
            "default": KLDA(**drawn),
            "the paper's formula": KLDA(**drawn, **PLAIN, ridge=1e-3),
            "default without correction": KLDA(**drawn, small_sample_correction=False),
            "plain LDA": LDA(**options, **PLAIN, ridge=1e-2),
            "LDA with correction": LDA(**options),
        }.items():
            model.partial_fit(X, y)
            for k, found in taught_from(model, *parts, plans).items():
                yield {"what": "few-shot", **place, "model": kind, "k": k, **found}


def taught_from(
    model: KLDA | LDA,
    X: np.ndarray,
    y: np.ndarray,
    X_test: np.ndarray,
    y_test: np.ndarray,
    plans: dict[Any, np.ndarray],
    sizes: tuple[int, ...] = (1, 5),
) -> dict[int, Row]:
    """Recall and accuracy by number of samples: each class is removed, taught, and put back."""
    found = []
    for label, rows in plans.items():
        model.remove(X[rows], y[rows])
        unused = rows[max(sizes) :]  # not taught at any size: more to test on
        test = np.concatenate([X_test, X[unused]])
        truth = np.concatenate([y_test, y[unused]])
        for k in sizes:
            model.partial_fit(X[rows[:k]], y[rows[:k]])
            right = model.predict(test) == truth
            overall = right[: len(y_test)].mean()
            found.append({"k": k, "recall": right[truth == label].mean(), "accuracy": overall})
            model.remove(X[rows[:k]], y[rows[:k]])
        model.partial_fit(X[rows], y[rows])
    means = pd.DataFrame(found).groupby("k").mean().assign(classes=len(plans))
    return {k: means.loc[[k]].to_dict("records")[0] for k in sizes}


def gamma(
    datasets: Names = SETS, data: Data = None, layers: Layers = "auto", seeds: Seeds = 3
) -> Iterator[Row]:
    """Compare gamma="auto" with a grid of nine, and on scaled features."""
    for place, seed, (X, y, X_test, y_test) in Features(data, layers).each(datasets, seeds):
        row: Row = {"what": "gamma", **place}
        options: dict[str, Any] = {"random_state": seed, "device": "cpu", "calibrated": False}
        for scale in (1.0, 100.0, 0.01, 3.7):
            model = KLDA(**options).fit(scale * X, y)
            found = {"accuracy": model.score(scale * X_test, y_test), "used": model.gamma_}
            yield row | {"gamma": "auto", "scale": scale} | found
            if scale == 1.0:
                base = model.gamma_ / GAMMA_SCALE
        for c in GRID:
            score = KLDA(**options, gamma=c * base).fit(X, y).score(X_test, y_test)
            yield row | {"gamma": c * base, "scale": 1.0, "accuracy": score, "used": c * base}


def stream(
    datasets: Names = SETS, data: Data = None, layers: Layers = "auto", seeds: Seeds = 3
) -> Iterator[Row]:
    """Measure accuracy after each step, beside plain LDA and fixed ridges.

    A step is a task of new classes, or (dbpedia) a batch of all classes; the number of samples
    passes through the number of components.
    """
    for place, seed, (X, y, X_test, y_test) in Features(data, layers).each(datasets, seeds):
        models: dict[str, KLDA | LDA] = {"default": KLDA(random_state=seed, device="cpu")}
        models["plain LDA"] = LDA(device="cpu", **PLAIN, ridge=1e-2)
        for ridge in RIDGES:
            models[f"ridge {ridge:g}"] = KLDA(random_state=seed, device="cpu", ridge=ridge)
        for model in models.values():
            model.set_params(calibrated=False)
        learned = 0
        for step, rows in enumerate(_steps(place["dataset"], y, seed)):
            learned += len(rows)
            for model in models.values():
                model.partial_fit(X[rows], y[rows])
            seen = np.isin(y_test, models["default"].classes_)
            found = {
                kind: float(model.score(X_test[seen], y_test[seen]))
                for kind, model in models.items()
            }
            yield {"what": "stream", **place, "step": step, "samples": learned, **found}


def _steps(name: str, y: np.ndarray, seed: int) -> list[np.ndarray]:
    if name == "dbpedia":
        return np.array_split(np.random.default_rng(seed).permutation(len(y)), 20)
    tasks = split_classes(np.unique(y).tolist(), datasets_.DATASETS[name].tasks, seed)
    return [np.flatnonzero(np.isin(y, list(task))) for task in tasks]


def forget(
    datasets: Names = SETS, data: Data = None, layers: Layers = "auto", seeds: Seeds = 3
) -> Iterator[Row]:
    """Forget a fifth of the classes one by one; compare with a model that never learned them."""
    for place, seed, (X, y, X_test, _) in Features(data, layers).each(datasets, seeds):
        gamma = KLDA(random_state=0, device="cpu").fit(X[:2000], y[:2000]).gamma_
        chosen = np.random.default_rng(seed).permutation(np.unique(y))
        gone = chosen[: len(chosen) // 5]
        rest = ~np.isin(y, gone)
        parameters: dict[str, Any] = {"gamma": gamma, "random_state": seed, "device": "cpu"}
        learner = Learner("features", classifier=KLDA(**parameters), keep="features")
        never = Learner("features", classifier=KLDA(**parameters), keep="features")
        learner.learn(X, y).predict(X_test)
        for label in gone.tolist():
            learner.forget(label)
        ours, theirs = learner.scores(X_test), never.learn(X[rest], y[rest]).scores(X_test)
        yield {
            "what": "forget",
            **place,
            "classes": len(chosen),
            "forgotten": len(gone),
            "relative_error": float(np.abs(ours - theirs).max() / np.abs(theirs).max()),
            "same_labels": float(np.mean(ours.argmax(axis=1) == theirs.argmax(axis=1))),
        }


COMMANDS = (accuracy, few_shot, gamma, stream, forget)
