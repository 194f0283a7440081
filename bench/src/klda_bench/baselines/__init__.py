"""The fine-tuned methods that the KLDA paper compares with.

Each one trains a network, task after task: ``learn_task`` sees one task's texts and labels once,
``predict`` answers without a task id, and no real sample of an earlier task is kept.
"""

from __future__ import annotations

import dataclasses
import importlib
from typing import Any

from klda.errors import KldaError
from klda_bench.environment import require

METHODS = {
    "joint": ("classifiers", "Joint", "all classes at once: the upper bound of continual learning"),
    "vanilla": (
        "classifiers",
        "Vanilla",
        "fine-tuned on task after task, with nothing against forgetting",
    ),
    "ewc": ("ewc", "EWC", "Kirkpatrick et al. 2017: elastic weight consolidation"),
    "kd": (
        "classifiers",
        "KD",
        "Hinton et al. 2015, Li and Hoiem 2017: distillation from the old model",
    ),
    "l2p": ("l2p", "L2P", "Wang et al. 2022: prompts from a learned pool steer a frozen model"),
    "lamol": ("lamol", "LAMOL", "Sun et al. 2020: a language model rewrites samples of old tasks"),
    "vag": ("vag", "VAG", "Shao et al. 2023: labels are written, their vocabulary is guided"),
}
"""Name of every fine-tuned method -> its module, its class and title, and what it does."""


def _class(name: str) -> Any:
    if name not in METHODS:
        raise KldaError(f"name={name!r} is no fine-tuned method; choose one of {sorted(METHODS)}.")
    # Named, not imported: torch and transformers are loaded when a method is made.
    require("torch", "baselines")
    require("transformers", "baselines")
    module, title, _ = METHODS[name]
    return getattr(importlib.import_module(f"klda_bench.baselines.{module}"), title)


def defaults(name: str) -> dict[str, Any]:
    """Every option of a fine-tuned method with its default, the shared ones included."""
    declared = dataclasses.fields(_class(name))
    return {f.name: f.default for f in declared if f.init and f.name != "backbone"}


def make(name: str, backbone: str = "minilm", device: str = "auto", **options: Any) -> Any:
    """Make a fine-tuned method by name, with nothing learned.

    `backbone` is a klda model name, a hub name, a local folder, or a ``.gguf`` file; ``lamol`` and
    ``vag`` need a model that writes text (BART, T5, or decoder-only, such as ``smollm2``).
    `options` are the method's own hyper-parameters; see its class.
    """
    return _class(name)(backbone, device=device, **options)
