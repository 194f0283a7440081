"""A user's own data set of feature rows, and a small plan: no foundation model is needed."""

from __future__ import annotations

import numpy as np

from klda_bench.methods.registry import select
from klda_bench.runs.grid import GridPlan

SMALL = {
    "klda": {"n_components": 150, "gamma": 0.05},
    "klda-e": {"n_components": 60, "gamma": 0.05},
}


def write_features(folder, n_classes=8, dimension=6):
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(n_classes, dimension)) * 1.3
    names = np.asarray([f"class {i}" for i in range(n_classes)])
    folder.mkdir()
    for part, rows in (("train", 40), ("test", 20)):
        X = np.concatenate([c + rng.normal(size=(rows, dimension)) for c in centres])
        np.savez(
            folder / f"{part}.npz", features=X.astype(np.float32), labels=np.repeat(names, rows)
        )
    return folder


def plan(folder, methods="ncm,lda,klda,klda-e", **changes):
    chosen = select(methods)
    options = {spec.name: SMALL[spec.name] for spec in chosen if spec.name in SMALL}
    settings = {"seeds": 2, "device": "cpu", "tasks": 4, "options": options}
    return GridPlan(chosen, [str(folder)], **(settings | changes))
