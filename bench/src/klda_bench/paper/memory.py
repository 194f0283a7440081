"""What each method has to keep: as the paper counts it, and as this program holds it."""

from __future__ import annotations

import re

import pandas as pd

from klda_bench.methods import Context, protocol_gamma, registry
from klda_bench.results import Results

BYTES = 4  # float32
_KLDA = "D (d + 1) + M D + D^2"
_RIDGE = "D d + M D + D^2"
# What a method keeps, in numbers, and D. d: features, M: classes, D: random features. QDA is a
# figure only: nothing here runs it, because one covariance per class is the cost that LDA and KLDA
# avoid.
_FORMULAS = {
    "ncm": ("M d", 0),
    "lda": ("M d + d^2", 0),
    "qda": ("M d + M d^2", 0),
    "klda": (_KLDA, 5000),
    "klda-e": (f"5 ({_KLDA})", 5000),
    "klda-default": (_KLDA, 5000),
    "slda": ("M d + d^2", 0),
    "ranpac": (_RIDGE, 10_000),
    "gacl": (_RIDGE, 5000),
    "fecam": ("M d + M d^2", 0),
    "anacp": ("4 D d + 3 (D^2 + M D) + M d + d^2", 5000),
}


def evaluate(formula: str, **sizes: int) -> int:
    """Evaluate a formula as it is printed: ``M d + d^2`` with M = 2 and d = 3 is 15."""
    product = re.sub(r"(?<=[\w)]) (?=[\w(])", "*", formula)
    return int(eval(product.replace("^", "**"), {"__builtins__": {}}, sizes))


def count(dimension: int, classes: int, held: dict[str, int] | None = None) -> pd.DataFrame:
    """Count the numbers and float32 bytes that every closed-form method keeps.

    `held` are the measured bytes of all arrays of a fitted method, by method.
    """
    rows, known = [], registry()
    for method, (formula, components) in _FORMULAS.items():
        parameters = evaluate(formula, d=dimension, M=classes, D=components)
        title = known[method].title if method in known else method.upper()
        row = {"method": method, "title": title, "formula": formula, "parameters": parameters}
        kept = (held or {}).get(method)
        rows.append(row | {"bytes": parameters * BYTES, "held_bytes": kept})
    return pd.DataFrame(rows, dtype=object)


def held(results: Results, dataset: str, backbone: str) -> dict[str, int]:
    """Measured bytes of each method at its default settings, on all of a data set."""
    known, gamma = registry(), protocol_gamma(backbone)
    found = {}
    for row in results.latest().values():
        settings = row["settings"]
        spec = known.get(settings["method"])
        if spec is None or spec.needs != "features" or settings["split"] == "official":
            continue
        place = (settings["dataset"], settings["backbone"], settings["layers"], settings["subset"])
        usual = settings["options"] == spec.options(Context(backbone, gamma))
        if usual and place == (dataset, backbone, "last", ""):
            found[spec.name] = row["held_bytes"]
    return found
