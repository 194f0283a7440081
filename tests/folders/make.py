"""Make the model folders beside this file, with the version of klda whose name they bear.

git worktree add ../klda-0.2.0 2b83bdd
PYTHONPATH=../klda-0.2.0/src:. python tests/folders/make.py
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from tests.factories import LetterCounts

from klda import KLDA, LDA, Learner, __version__

HERE = Path(__file__).parent / __version__
PROBE = np.array([[0, 0, 0], [2, 1, 2], [2.5, 2.5, 2.5], [5, 5, 4], [9, -9, 0]], np.float32)
TEXTS = ["aa bb", "eels", "a day by the sea", "zoo"]


def rows(n):
    rng = np.random.default_rng(n)
    labels = ["ant", "bee", "cät"] * (n // 3)
    centres = np.repeat([[0.0], [2.5], [5.0]], 3, axis=1)
    return (np.tile(centres, (n // 3, 1)) + rng.normal(size=(n, 3))).astype(np.float32), labels


def features(n, classifier, keep=None):
    learner = Learner("features", classifier=classifier, keep=keep)
    return learner.learn(*rows(n), source="made.csv").rename("bee", "wasp")


def klda(size, **changes):
    return KLDA(n_components=size, gamma=0.1, random_state=0, device="cpu", **changes)


def by_number(size):
    return klda(size, rule="lda", ridge=0.1, dtype="float64")


def with_ledger():
    learner = Learner("features", classifier=by_number(12), keep="features")
    learner.learn(*rows(12), ids=[f"n{i}" for i in range(12)]).learn(*rows(9))
    return learner.forget(ids=["n4", 14])


def with_names():
    learner = Learner(LetterCounts(), classifier=klda(64))
    learner.declare({"beach": None, "night": "dark and late"})
    return learner.learn(["a day at the sea", "sand and sea", "old zoo"], ["beach", "beach", "zoo"])


MODELS = {
    "few samples": lambda: features(12, klda(64)),
    "few samples, by number": lambda: features(12, by_number(64)),
    "many samples": lambda: features(30, klda(12)),
    "many samples, by number": lambda: features(30, by_number(12)),
    "ledger": with_ledger,
    "names": with_names,
    "LDA": lambda: features(30, LDA(ridge=0.1, dtype="float64", device="cpu")),
    "compact": lambda: features(30, klda(12)),
    "compact of few samples": lambda: features(12, klda(64)),
}


def main():
    """Save the folders, and what their models say."""
    said = {}
    for name, make in MODELS.items():
        learner = make()
        probe = TEXTS if name == "names" else PROBE.tolist()
        learner.save(HERE / name.replace(",", "").replace(" ", "-"), compact="compact" in name)
        said[name] = {
            "probe": probe,
            "classes": learner.classes,
            "declared": learner.declared,
            "ids": None if learner.ledger is None else learner.ledger.ids,
            "history": learner.history,
            "labels": learner.predict(probe).tolist(),
            "scores": learner.scores(probe).tolist(),
        }
    (HERE / "said.json").write_text(json.dumps(said, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
