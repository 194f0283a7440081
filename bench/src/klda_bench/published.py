"""The paper's own figures, as reference data (published.csv).

Only figures with a source are here; a table shows "-" for the others. None was measured by this
project.

Sources
-------
AAAI
    S. Momeni, S. Mazumder and B. Liu, "Continual Learning Using a Kernel-Based Method Over
    Foundation Models", AAAI 2025 (arXiv:2412.15571), results with BART-base, as reported to one
    decimal by a reader's summary of its tables: CLINC and Banking, the rows NCM, LDA, KLDA,
    KLDA-E and Joint.
SURVEY
    S. Momeni and B. Liu, "Achieving Upper Bound Accuracy of Joint Training in Continual Learning"
    (arXiv:2502.12388v2), its Table 2, DINOv2-base: Joint and KLDA without an ensemble.
README
    Kernel parameters: the authors' program, github.com/SalehMomeni/KLDA.
"""

from __future__ import annotations

from importlib.resources import files
from typing import NamedTuple

import pandas as pd


class Figure(NamedTuple):
    """A published accuracy in per cent, the model it was measured with, and where it stands."""

    value: float
    backbone: str
    source: str


SOURCES = {
    "AAAI": "Momeni et al., AAAI 2025, arXiv:2412.15571 (BART-base; one decimal, from a summary)",
    "SURVEY": "Momeni and Liu, arXiv:2502.12388v2, Table 2 (DINOv2-base)",
}
FIGURES = {
    (row.backbone, row.dataset, row.method): Figure(row.value, row.backbone, row.source)
    for row in pd.read_csv(str(files("klda_bench") / "published.csv")).itertuples()
}
TEXT_MODELS = (
    *("paraphrase-minilm-l3", "bert-base", "bart-base"),
    *("roberta-large", "t5-3b", "mistral-7b"),
)
IMAGE_MODELS = ("dinov2-small", "dinov2-base")
MAIN_MODELS = MAIN_TEXT_MODEL, MAIN_IMAGE_MODEL = "bart-base", "dinov2-base"


def figure(dataset: str, method: str, backbone: str) -> Figure | None:
    """Look up the published figure of a cell.

    With the same model where published, else with the paper's main model: then the difference from
    a figure measured here is between models as much as between programs, and tables say so.
    """
    found = (FIGURES.get((model, dataset, method)) for model in (backbone, *MAIN_MODELS))
    return next((figure for figure in found if figure is not None), None)
