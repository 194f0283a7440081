"""The fine-tuned methods that the KLDA paper compares with.

Each one trains a network, task after task, and fits the benchmark's protocol: ``learn_task`` sees
one task's texts and labels once, ``predict`` answers without a task id, and no real sample of an
earlier task is kept.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from klda._optional import require
from klda.errors import KldaError

if TYPE_CHECKING:
    from klda.baselines.training import Baseline

__all__ = ["METHODS", "make"]

# Classes are named, not imported: torch and transformers are loaded when a method is made.
_CLASSES = {
    "joint": "Joint",
    "vanilla": "Vanilla",
    "ewc": "EWC",
    "kd": "KD",
    "l2p": "L2P",
    "lamol": "LAMOL",
    "vag": "VAG",
}


def _factory(name: str) -> Callable[..., Baseline]:
    def create(backbone: str, **options: Any) -> Baseline:
        require("torch", "baselines")
        require("transformers", "baselines")
        module = importlib.import_module(f"klda.baselines.{name}")
        method: Baseline = getattr(module, _CLASSES[name])(backbone, **options)
        return method

    create.__name__ = f"make_{name}"
    create.__doc__ = f"Make the method {name!r} for a backbone; see `make`."
    return create


METHODS: dict[str, Callable[..., Baseline]] = {name: _factory(name) for name in _CLASSES}
"""Name of every fine-tuned method -> a function ``(backbone, **options)`` that makes it."""


def make(name: str, backbone: str = "minilm", device: str = "auto", **options: Any) -> Baseline:
    """Make a fine-tuned method by name.

    Parameters
    ----------
    name : str
        One of `METHODS`: ``joint``, ``vanilla``, ``ewc``, ``kd``, ``l2p``, ``lamol``, ``vag``.
    backbone : str, default="minilm"
        A klda model name, a hub name, a local folder, or a ``.gguf`` file. ``lamol`` and ``vag``
        need a model that writes text (BART, T5, or decoder-only, such as ``smollm2``).
    device : str, default="auto"
        ``auto`` takes a GPU where there is one.
    **options
        The method's own hyper-parameters; see its class.

    Returns
    -------
    Baseline
        The method, with nothing learned.
    """
    if name not in METHODS:
        raise KldaError(f"name={name!r} is no fine-tuned method; choose one of {sorted(METHODS)}.")
    return METHODS[name](backbone, device=device, **options)
