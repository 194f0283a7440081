"""The paper's own figures: every accuracy of its three tables (published.csv), memory, run time.

None was measured by this project. Accuracies are final accuracies in per cent, mean and standard
deviation over three seeds. Table 1 compares methods on BART-base, Table 2 KLDA-E with joint
fine-tuning over text models, and Table 3 KLDA, without an ensemble, with it over image models.
"""

from __future__ import annotations

from importlib.resources import files

import pandas as pd

from klda_bench.engine import MODELS
from klda_bench.runs.metrics import Spread

SOURCE = (
    "S. Momeni, S. Mazumder and B. Liu, Continual Learning Using a Kernel-Based Method Over "
    "Foundation Models, AAAI 2025 (arXiv:2412.15571), Tables 1 to 3"
)


SEEDS = 3
_TABLE = pd.read_csv(str(files("klda_bench") / "published.csv"))
FIGURES = {
    (row.backbone, row.method, row.dataset): Spread(row.mean, row.std, SEEDS)
    for row in _TABLE.itertuples()
}
"""By foundation model, method and data set; no model is in two tables."""
MEANS = _TABLE.set_index(["backbone", "method", "dataset"])["mean"]

MAIN_MODEL, TEXT_MODELS, IMAGE_MODELS = (
    tuple(_TABLE[_TABLE.table == number].backbone.unique()) for number in (1, 2, 3)
)

MEMORY = pd.DataFrame(
    [
        ("Joint: head alone", "M d", 0.1),
        ("LDA: covariance", "d^2", 0.6),
        ("KLDA: random features", "D d", 3.8),
        ("KLDA: means", "M D", 0.75),
        ("KLDA: covariance", "D^2", 25.0),
        ("KLDA: in all", "D d + M D + D^2", 29.5),
        ("LAMOL, VAG: head of the language model", "", 38.5),
        ("BART-base, which all of them need", "", 139.5),
    ],
    columns=["what is kept", "numbers", "millions"],
)
"""The paper's count for d = 768, M = 150 classes and D = 5000; KLDA-E keeps five times as much."""

RUNTIME = pd.DataFrame(
    [
        ("KLDA", "about 10 seconds, like extracting the features"),
        ("Joint", "about 4 minutes"),
        ("fine-tuned baselines", "11 to 23 minutes"),
    ],
    columns=["CLINC, BART-base, one NVIDIA A100", "the paper"],
)


def title(backbone: str) -> str:
    """Return a foundation model's published name."""
    if backbone == "smollm2":
        return "SmolLM2-135M"
    info = MODELS.get(backbone)
    return info.hub_id.rpartition("/")[2] or backbone if info is not None else backbone


def is_stand_in(backbone: str) -> bool:
    """Check whether a foundation model is none of the paper's."""
    return backbone not in (*MAIN_MODEL, *TEXT_MODELS, *IMAGE_MODELS)
