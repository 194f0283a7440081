"""The fine-tuned methods that the KLDA paper compares with.

Each one trains a network, task after task, and fits the benchmark's protocol: ``learn_task`` sees
one task's texts and labels once, ``predict`` answers without a task id, and no real sample of an
earlier task is kept.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from klda.errors import KldaError, require

if TYPE_CHECKING:
    from klda.baselines.training import Baseline

__all__ = ["METHODS", "UnsuitableBackboneError", "defaults", "make"]

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


class UnsuitableBackboneError(KldaError):
    """A method was asked to train a model that it can't use, or for inputs it can't read.

    Parameters
    ----------
    message : str
        What was asked for and what would do.
    gap : str
        The same in two or three words, for a table.
    """

    def __init__(self, message: str, gap: str) -> None:
        super().__init__(message)
        self.gap = gap


def _class(name: str) -> type[Baseline]:
    require("torch", "baselines")
    require("transformers", "baselines")
    kind: type[Baseline] = getattr(
        importlib.import_module(f"klda.baselines.{name}"), _CLASSES[name]
    )
    return kind


def defaults(name: str) -> dict[str, Any]:
    """Every option of a fine-tuned method with its default, the shared ones included.

    Parameters
    ----------
    name : str
        One of `METHODS`.
    """
    found: dict[str, Any] = {}
    for part in reversed(_class(name).__mro__):
        init = vars(part).get("__init__")
        parameters = inspect.signature(init).parameters.values() if init is not None else ()
        found.update({p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY})
    return found


def _factory(name: str) -> Callable[..., Baseline]:
    def create(backbone: str, **options: Any) -> Baseline:
        return _class(name)(backbone, **options)

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
