"""How exact forgetting is on real data."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import numpy as np
import typer

from klda import KLDA, Learner, encoders
from klda_bench import data as datasets_
from klda_bench.measure.common import GAMMA, Data, Names, Seeds, names
from klda_bench.models.feature_cache import CachedEncoder
from klda_bench.results import Row


def forget(
    datasets: Names = "clinc",
    data: Data = None,
    backbone: Annotated[str, typer.Option(help="Foundation model of texts.")] = "minilm",
    seeds: Seeds = 3,
) -> Iterator[Row]:
    """Forget a fifth of the classes one by one; compare with a model that never learned them."""
    encoder = CachedEncoder(encoders.load(backbone))
    for name in names(datasets):
        found = datasets_.load(name, data=data)
        X, X_test, y = encoder.encode(found.train.X), encoder.encode(found.test.X), found.train.y
        for seed in range(seeds):
            gone = np.random.default_rng(seed).permutation(found.classes)[: len(found.classes) // 5]
            learner, never = (
                Learner(
                    "features", classifier=KLDA(gamma=GAMMA, random_state=seed), keep="features"
                )
                for _ in range(2)
            )
            learner.learn(X, y).predict(X_test)
            for label in gone.tolist():
                learner.forget(label)
            rest = ~np.isin(y, gone)
            ours, theirs = learner.scores(X_test), never.learn(X[rest], y[rest]).scores(X_test)
            yield {
                "what": "forget",
                "dataset": name,
                "seed": seed,
                "classes": len(found.classes),
                "forgotten": len(gone),
                "relative_error": float(np.abs(ours - theirs).max() / np.abs(theirs).max()),
                "same_labels": float(np.mean(ours.argmax(axis=1) == theirs.argmax(axis=1))),
            }
