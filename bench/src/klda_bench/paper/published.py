"""The paper's own figures: every accuracy of its three tables, from a CSV file.

None was measured by this project. Accuracies are final accuracies in per cent, mean and standard
deviation over three seeds. Table 1 compares methods on BART-base, Table 2 KLDA-E with joint
fine-tuning over text models, and Table 3 KLDA, without an ensemble, with it over image models.
"""

from __future__ import annotations

from importlib.resources import files

import pandas as pd

from klda.encoders import MODELS
from klda_bench.runs.metrics import spread

SOURCE = (
    "S. Momeni, S. Mazumder and B. Liu, Continual Learning Using a Kernel-Based Method Over "
    "Foundation Models, AAAI 2025 (arXiv:2412.15571), Tables 1 to 3"
)
_TABLE = pd.read_csv(str(files(__package__) / "published.csv"), keep_default_na=False)
BACKBONES = tuple(_TABLE.backbone.unique())
(MAIN_MODEL,), TEXT_MODELS, IMAGE_MODELS = (
    tuple(_TABLE[_TABLE.table == number].backbone.unique()) for number in (1, 2, 3)
)
FIGURES = {
    (row.backbone, row.method, row.dataset): {
        "paper": row.mean,
        "paper_text": spread(row.mean, row.std, n=3),
    }
    for row in _TABLE.itertuples()
}
"""By foundation model, method and data set; no model is in two tables."""


def title(backbone: str) -> str:
    """Return a foundation model's published name."""
    if backbone == "smollm2":
        return "SmolLM2-135M"
    info = MODELS.get(backbone)
    return info.hub_id.rpartition("/")[2] or backbone if info is not None else backbone


def is_stand_in(backbone: str) -> bool:
    """Check whether a foundation model is none of the paper's."""
    return backbone not in BACKBONES
