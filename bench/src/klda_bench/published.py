"""The paper's own figures, as reference data.

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

from typing import NamedTuple


class Figure(NamedTuple):
    """A published accuracy in per cent, the model it was measured with, and where it stands."""

    value: float
    backbone: str
    source: str
    spread: float | None = None


SOURCES = {
    "AAAI": "Momeni et al., AAAI 2025, arXiv:2412.15571 (BART-base; one decimal, from a summary)",
    "SURVEY": "Momeni and Liu, arXiv:2502.12388v2, Table 2 (DINOv2-base)",
}

_BART = {
    "clinc": {"ncm": 83.6, "lda": 93.7, "klda": 95.9, "klda-e": 96.6, "joint": 95.3},
    "banking": {"ncm": 71.1, "lda": 89.1, "klda": 92.2, "klda-e": 93.0, "joint": 91.4},
}
_DINO = {
    "cifar10": {"joint": (98.54, 0.06), "klda": (98.45, 0.04)},
    "cifar100": {"joint": (90.30, 0.09), "klda": (88.81, 0.07)},
    "tiny-imagenet": {"joint": (86.43, 0.14), "klda": (83.18, 0.11)},
}

FIGURES: dict[tuple[str, str, str], Figure] = {
    **{
        ("bart-base", dataset, method): Figure(value, "bart-base", "AAAI")
        for dataset, row in _BART.items()
        for method, value in row.items()
    },
    **{
        ("dinov2-base", dataset, method): Figure(value, "dinov2-base", "SURVEY", spread)
        for dataset, row in _DINO.items()
        for method, (value, spread) in row.items()
    },
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
