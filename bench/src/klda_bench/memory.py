"""What each method has to keep: as the paper counts it, and as this program holds it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

BYTES = 4  # float32
N_MEMBERS = 5


@dataclass(frozen=True)
class Count:
    """Numbers that a method keeps.

    Parameters
    ----------
    method, title : str
        Name on the command line and in tables.
    formula : str
        As the paper writes it: d features, D random features, M classes.
    parameters : int
        Numbers kept.
    held_bytes : int or None
        Bytes of all arrays of the fitted method, measured; ``None`` where nothing was run.
    """

    method: str
    title: str
    formula: str
    parameters: int
    held_bytes: int | None = None

    @property
    def bytes(self) -> int:
        """Bytes of the parameters in float32."""
        return self.parameters * BYTES


# d: features, M: classes, D: random features
_Formula = tuple[str, str, Callable[[int, int, int], int], int]
_FORMULAS: dict[str, _Formula] = {
    "ncm": ("NCM", "M d", lambda d, M, D: M * d, 0),
    "lda": ("LDA", "M d + d^2", lambda d, M, D: M * d + d * d, 0),
    "qda": ("QDA", "M d + M d^2", lambda d, M, D: M * d + M * d * d, 0),
    "klda": ("KLDA", "D (d + 1) + M D + D^2", lambda d, M, D: _klda(d, M, D), 5000),
    "klda-e": (
        "KLDA-E",
        "5 (D (d + 1) + M D + D^2)",
        lambda d, M, D: N_MEMBERS * _klda(d, M, D),
        5000,
    ),
    "klda-default": (
        "KLDA (our default)",
        "D (d + 1) + M D + D^2",
        lambda d, M, D: _klda(d, M, D),
        5000,
    ),
    "slda": ("Deep SLDA", "M d + d^2", lambda d, M, D: M * d + d * d, 0),
    "ranpac": ("RanPAC", "D d + M D + D^2", lambda d, M, D: D * d + M * D + D * D, 10_000),
    "gacl": ("GACL / ACIL", "D d + M D + D^2", lambda d, M, D: D * d + M * D + D * D, 5000),
    "fecam": ("FeCAM", "M d + M d^2", lambda d, M, D: M * d + M * d * d, 0),
    "anacp": (
        "AnaCP (head)",
        "4 D d + 3 (D^2 + M D) + M d + d^2",
        lambda d, M, D: 4 * D * d + 3 * (D * D + M * D) + M * d + d * d,
        5000,
    ),
}


def _klda(d: int, M: int, D: int) -> int:
    return D * (d + 1) + M * D + D * D


def count(
    dimension: int,
    classes: int,
    *,
    n_components: int | None = None,
    held: dict[str, int] | None = None,
) -> list[Count]:
    """Count every closed-form method's numbers.

    Parameters
    ----------
    dimension : int
        Length of a feature row, d.
    classes : int
        Number of classes, M.
    n_components : int, optional
        Number of random features, D; each method's own default when not given.
    held : dict of str to int, optional
        Measured bytes by method.

    Returns
    -------
    list of Count
        QDA's line is its figure only: nothing here runs it, because one covariance for each class
        is the cost that LDA and KLDA avoid.
    """
    return [
        Count(
            name,
            title,
            formula,
            numbers(dimension, classes, n_components or own),
            (held or {}).get(name),
        )
        for name, (title, formula, numbers, own) in _FORMULAS.items()
    ]
