"""What each method has to keep: as the paper counts it, and as this program holds it."""

from __future__ import annotations

import re

import pandas as pd

from klda_bench.methods import registry
from klda_bench.results import Results

BYTES = 4  # float32
# Nothing here runs QDA, because one covariance per class is the cost that LDA and KLDA avoid.
_QDA = {"method": "qda", "title": "QDA", "formula": "M d + M d^2", "D": 0}


def evaluate(formula: str, **sizes: int) -> int:
    """Evaluate a formula as it is printed: ``M d + d^2`` with M = 2 and d = 3 is 15."""
    product = re.sub(r"(?<=[\w)]) (?=[\w(])", "*", formula)
    return int(eval(product.replace("^", "**"), {"__builtins__": {}}, sizes))


def count(dimension: int, classes: int, held: dict[str, int] | None = None) -> pd.DataFrame:
    """Count the numbers and float32 bytes that every closed-form method keeps.

    `held` are the measured bytes of all arrays of a fitted method, by method.
    """
    rows = []
    for name, spec in registry().items():
        if spec.keeps:
            components = spec.options("minilm").get("n_components", 0)
            row = {"method": name, "title": spec.title, "formula": spec.keeps, "D": components}
            rows += [row, _QDA] if name == "lda" else [row]
    frame = pd.DataFrame(rows, dtype=object)
    frame["parameters"] = [
        evaluate(row.formula, d=dimension, M=classes, D=row.D) for row in frame.itertuples()
    ]
    frame["bytes"] = frame.parameters * BYTES
    frame["held_bytes"] = pd.Series([(held or {}).get(name) for name in frame.method], dtype=object)
    return frame.drop(columns="D")


def held(results: Results, dataset: str, backbone: str) -> dict[str, int]:
    """Measured bytes of each method at its default settings, on all of a data set."""
    known, found = registry(), {}
    place = {"dataset": dataset, "backbone": backbone, "layers": "last", "subset": ""}
    for row in results.latest().values():
        settings = row["settings"]
        spec = known.get(settings["method"])
        if spec is None or spec.needs != "features":
            continue
        usual = place | {"options": spec.options(backbone)}
        if usual == {name: settings[name] for name in usual}:
            found[spec.name] = row["held_bytes"]
    return found
