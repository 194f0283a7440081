"""What the default settings do beyond the paper, measured on its text sets.

Run as ``klda bench beyond EXPERIMENT``; one JSON line a run goes to ``--output``.

- ``accuracy``: final accuracy, calibration error, share of known inputs refused and, on CLINC150,
  how well out-of-scope queries are told from known ones, with the default settings.
- ``few-shot``: recall of one class taught from k samples among full ones, default settings beside
  the paper's formula at the same number of components and beside plain LDA.
- ``gamma``: accuracy with ``gamma="auto"`` beside a grid of nine, and for scaled features.
- ``stream``: accuracy after each step beside plain LDA and fixed ridges, the number of samples
  passing through the number of components.
- ``ensemble``: one model beside the ensemble of five.
- ``forget``: a fifth of the classes, forgotten one by one with the ledger, beside a model that
  never learned them.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from klda.benchmarks import datasets, protocol
from klda.benchmarks.resources import versions
from klda.classifiers import KLDA, LDA, KLDAEnsemble
from klda.data import open_table
from klda.evaluation import Reliability
from klda.kernel import GAMMA_SCALE
from klda.learner import Learner

SETS = ("clinc", "banking", "hwu", "dbpedia")
GRID = tuple(0.15 * 2.0**k for k in range(-4, 5))
RIDGES = (1e-3, 1e-2, 1e-1, 1.0)
PLAIN: dict[str, Any] = {"small_sample_correction": False, "priors": "uniform"}
Line = dict[str, Any]


class Data:
    """Features of the paper's text sets, encoded once and cached."""

    def __init__(self, folder: str | None, layers: str) -> None:
        from klda import encoders

        self.folder, self.layers = folder, layers
        self.encoder = encoders.load("minilm", layers=layers, cache=True)

    def load(self, name: str) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Return training features and labels, test features and labels."""
        data = datasets.load(name, data=self.folder)
        X, X_test = self.encoder.encode(data.train.X), self.encoder.encode(data.test.X)
        return X, np.asarray(data.train.y), X_test, np.asarray(data.test.y)

    def out_of_scope(self) -> np.ndarray | None:
        """Features of CLINC150's out-of-scope test queries, if they are here."""
        folder = self.folder or os.environ.get("KLDA_DATA")
        path = Path(folder or ".") / "clinc150_oos" / "oos_test.csv.gz"
        if not path.exists():
            return None
        batches = open_table(path).batches(labels=False)
        return self.encoder.encode([text for batch in batches for text in batch.inputs])


def accuracy(data: Data, sets: list[str], seeds: int) -> Iterator[Line]:
    """Accuracy, calibration and refusals of the default settings."""
    from sklearn.metrics import roc_auc_score

    unknown = data.out_of_scope()
    for name in sets:
        X, y, X_test, y_test = data.load(name)
        for seed in range(seeds):
            model = KLDA(random_state=seed, device="cpu").fit(X, y)
            probabilities = model.predict_proba(X_test)
            answers = model.classes_[probabilities.argmax(axis=1)]
            line: Line = {
                "dataset": name,
                "seed": seed,
                "accuracy": float(np.mean(answers == y_test)),
                "calibration_error": float(
                    Reliability.of(probabilities.max(axis=1), answers == y_test).error
                ),
                "refused_known": float(1 - model.is_known(X_test).mean()),
                "temperature": model.temperature_,
                "gamma": model.gamma_,
            }
            if name == "clinc" and unknown is not None:
                novelty = np.concatenate([model.novelty(X_test), model.novelty(unknown)])
                truth = np.repeat([0, 1], [len(X_test), len(unknown)])
                line["auroc_unknown"] = float(roc_auc_score(truth, novelty))
                line["refused_unknown"] = float(1 - model.is_known(unknown).mean())
            yield line


def few_shot(data: Data, sets: list[str], seeds: int, n_classes: int = 50) -> Iterator[Line]:
    """Recall of a class taught from few samples, among all others taught in full."""
    for name in sets:
        X, y, X_test, y_test = data.load(name)
        for seed in range(seeds):
            rng = np.random.default_rng(seed)
            chosen = rng.permutation(np.unique(y))[:n_classes]
            plans = {
                label: rng.permutation(np.flatnonzero(y == label)) for label in chosen.tolist()
            }
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
                for k, found in _taught_from(model, X, y, X_test, y_test, plans).items():
                    yield {"dataset": name, "seed": seed, "model": kind, "k": k, **found}


def _taught_from(
    model: KLDA | LDA,
    X: np.ndarray,
    y: np.ndarray,
    X_test: np.ndarray,
    y_test: np.ndarray,
    plans: dict[Any, np.ndarray],
    sizes: tuple[int, ...] = (1, 5),
) -> dict[int, dict[str, float]]:
    recalls: dict[int, list[float]] = {k: [] for k in sizes}
    overall: dict[int, list[float]] = {k: [] for k in sizes}
    for label, rows in plans.items():
        model.remove(X[rows], y[rows])
        unused = rows[max(sizes) :]  # not taught at any size: more to test on
        test = np.concatenate([X_test, X[unused]])
        truth = np.concatenate([y_test, y[unused]])
        for k in sizes:
            model.partial_fit(X[rows[:k]], y[rows[:k]])
            answers = model.predict(test)
            recalls[k].append(float(np.mean(answers[truth == label] == label)))
            overall[k].append(float(np.mean(answers[: len(y_test)] == y_test)))
            model.remove(X[rows[:k]], y[rows[:k]])
        model.partial_fit(X[rows], y[rows])
    return {
        k: {
            "recall": float(np.mean(recalls[k])),
            "accuracy": float(np.mean(overall[k])),
            "classes": len(plans),
        }
        for k in sizes
    }


def gamma(data: Data, sets: list[str], seeds: int) -> Iterator[Line]:
    """Automatic gamma beside a grid, and for scaled features."""
    for name in sets:
        X, y, X_test, y_test = data.load(name)
        for seed in range(seeds):
            for scale in (1.0, 100.0, 0.01, 3.7):
                model = KLDA(random_state=seed, device="cpu", calibrated=False)
                model.fit(scale * X, y)
                found = model.score(scale * X_test, y_test)
                line = {"dataset": name, "seed": seed, "gamma": "auto", "scale": scale}
                yield line | {"accuracy": found, "used": model.gamma_}
                if scale == 1.0:
                    base = model.gamma_ / GAMMA_SCALE
            for c in GRID:
                model = KLDA(random_state=seed, device="cpu", calibrated=False, gamma=c * base)
                found = model.fit(X, y).score(X_test, y_test)
                line = {"dataset": name, "seed": seed, "gamma": c * base, "scale": 1.0}
                yield line | {"accuracy": found}


def stream(data: Data, sets: list[str], seeds: int) -> Iterator[Line]:
    """Accuracy after each step: tasks of new classes, or (dbpedia) batches of all classes."""
    for name in sets:
        X, y, X_test, y_test = data.load(name)
        for seed in range(seeds):
            models: dict[str, KLDA | LDA] = {"default": KLDA(random_state=seed, device="cpu")}
            models["plain LDA"] = LDA(device="cpu", **PLAIN, ridge=1e-2)
            for ridge in RIDGES:
                models[f"ridge {ridge:g}"] = KLDA(random_state=seed, device="cpu", ridge=ridge)
            for model in models.values():
                model.set_params(calibrated=False)
            learned = 0
            for step, rows in enumerate(_steps(name, y, seed)):
                learned += len(rows)
                for model in models.values():
                    model.partial_fit(X[rows], y[rows])
                seen = np.isin(y_test, models["default"].classes_)
                found = {
                    kind: float(model.score(X_test[seen], y_test[seen]))
                    for kind, model in models.items()
                }
                yield {"dataset": name, "seed": seed, "step": step, "samples": learned, **found}


def _steps(name: str, y: np.ndarray, seed: int) -> list[np.ndarray]:
    if name == "dbpedia":
        return np.array_split(np.random.default_rng(seed).permutation(len(y)), 20)
    tasks = protocol.split_classes(np.unique(y).tolist(), datasets.DATASETS[name].tasks, seed)
    return [np.flatnonzero(np.isin(y, list(task))) for task in tasks]


def ensemble(data: Data, sets: list[str], seeds: int) -> Iterator[Line]:
    """One model beside five."""
    for name in sets:
        X, y, X_test, y_test = data.load(name)
        for seed in range(seeds):
            for kind in (KLDA, KLDAEnsemble):
                model = kind(random_state=seed, device="cpu", calibrated=False).fit(X, y)
                line = {"dataset": name, "seed": seed, "model": kind.__name__}
                yield line | {"accuracy": model.score(X_test, y_test)}


def forget(data: Data, sets: list[str], seeds: int) -> Iterator[Line]:
    """Forget classes exactly."""
    for name in sets:
        X, y, X_test, _ = data.load(name)
        gamma = KLDA(random_state=0, device="cpu").fit(X[:2000], y[:2000]).gamma_
        for seed in range(seeds):
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
                "dataset": name,
                "seed": seed,
                "classes": len(chosen),
                "forgotten": len(gone),
                "relative_error": float(np.abs(ours - theirs).max() / np.abs(theirs).max()),
                "same_labels": float(np.mean(ours.argmax(axis=1) == theirs.argmax(axis=1))),
            }


EXPERIMENTS: dict[str, Callable[..., Iterator[Line]]] = {
    "accuracy": accuracy,
    "few-shot": few_shot,
    "gamma": gamma,
    "stream": stream,
    "ensemble": ensemble,
    "forget": forget,
}


def main(arguments: list[str] | None = None) -> None:
    """Run one experiment."""
    from rich.console import Console

    parser = argparse.ArgumentParser(prog="klda bench beyond", description=__doc__)
    parser.add_argument("experiment", choices=list(EXPERIMENTS))
    parser.add_argument("--datasets", default=",".join(SETS))
    parser.add_argument("--data", help="folder of data sets (default: KLDA_DATA)")
    parser.add_argument("--layers", default="auto")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--classes", type=int, help="few-shot: how many classes to try a seed")
    parser.add_argument("--output", type=Path, help="file to append JSON lines to")
    chosen = parser.parse_args(arguments)
    data = Data(chosen.data, chosen.layers)
    console = Console(soft_wrap=True)
    extra = {"n_classes": chosen.classes} if chosen.classes else {}
    run = EXPERIMENTS[chosen.experiment]
    for line in run(data, chosen.datasets.split(","), chosen.seeds, **extra):
        line = {"experiment": chosen.experiment, "layers": chosen.layers, **line}
        text = json.dumps(line | {"versions": versions()})
        console.print(json.dumps(line))
        if chosen.output:
            chosen.output.parent.mkdir(parents=True, exist_ok=True)
            with chosen.output.open("a") as stream_:
                stream_.write(text + "\n")


if __name__ == "__main__":
    main()
