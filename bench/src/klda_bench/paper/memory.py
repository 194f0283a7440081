"""What each method has to keep: as the paper counts it, and as this program holds it."""

from __future__ import annotations

from collections.abc import Callable

import pandas as pd

from klda_bench.methods import Context, protocol_gamma, registry
from klda_bench.results import Results

BYTES = 4  # float32
N_MEMBERS = 5


def _klda(d: int, M: int, D: int) -> int:
    return D * (d + 1) + M * D + D * D


def _anacp(d: int, M: int, D: int) -> int:
    return 4 * D * d + 3 * (D * D + M * D) + M * d + d * d


# d: features, M: classes, D: random features. QDA is a figure only: nothing here runs it, because
# one covariance per class is the cost that LDA and KLDA avoid.
_FORMULAS: dict[str, tuple[str, str, Callable[[int, int, int], int], int]] = {
    "ncm": ("NCM", "M d", lambda d, M, D: M * d, 0),
    "lda": ("LDA", "M d + d^2", lambda d, M, D: M * d + d * d, 0),
    "qda": ("QDA", "M d + M d^2", lambda d, M, D: M * d + M * d * d, 0),
    "klda": ("KLDA", "D (d + 1) + M D + D^2", _klda, 5000),
    "klda-e": (
        *("KLDA-E", "5 (D (d + 1) + M D + D^2)"),
        *(lambda d, M, D: N_MEMBERS * _klda(d, M, D), 5000),
    ),
    "klda-default": ("KLDA (our default)", "D (d + 1) + M D + D^2", _klda, 5000),
    "slda": ("Deep SLDA", "M d + d^2", lambda d, M, D: M * d + d * d, 0),
    "ranpac": ("RanPAC", "D d + M D + D^2", lambda d, M, D: D * d + M * D + D * D, 10_000),
    "gacl": ("GACL / ACIL", "D d + M D + D^2", lambda d, M, D: D * d + M * D + D * D, 5000),
    "fecam": ("FeCAM", "M d + M d^2", lambda d, M, D: M * d + M * d * d, 0),
    "anacp": ("AnaCP (head)", "4 D d + 3 (D^2 + M D) + M d + d^2", _anacp, 5000),
}


def count(dimension: int, classes: int, held: dict[str, int] | None = None) -> pd.DataFrame:
    """Count the numbers and float32 bytes that every closed-form method keeps.

    `held` are the measured bytes of all arrays of a fitted method, by method.
    """
    rows = []
    for method, (title, formula, numbers, components) in _FORMULAS.items():
        parameters = numbers(dimension, classes, components)
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
