"""From inputs to feature rows: the encoder of a learner, and what is checked before it is used."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, get_args

import numpy as np

from klda import encoders
from klda.checks import Modality, checked_inputs
from klda.data import GUESSED, Batch, Layout, open_tables, read
from klda.data.frames import is_frame, open_frame
from klda.errors import KldaError
from klda.labels import CaseFolder, Label, check_one_each, label_list
from klda.progress import Show

MOST_CHARACTERS = 6  # of a token: a text that has more is cut off, in any language
DETAILS = ("revision", "pooling", "layers", "dimension")  # of a foundation model
Labels = Sequence[Label] | np.ndarray


class EncodedSamples(NamedTuple):
    """Feature rows with their labels, checked where they came in."""

    rows: np.ndarray
    labels: list[Label]
    ids: Sequence[str | None] | None = None


class FoundationModelError(KldaError):
    """The foundation model at hand is not the one that a model was made with."""


class LongTextWarning(UserWarning):
    """The foundation model reads the beginning of a text only."""


class InputEncoder:
    """The frozen foundation model that a fingerprint describes, opened when it is first needed."""

    def __init__(
        self,
        fingerprint: dict[str, Any],
        options: dict[str, Any],
        encoder: encoders.Encoder | None = None,
    ) -> None:
        self.fingerprint, self.options = fingerprint, options
        self.modality: str = fingerprint["modality"]  # "text", "image" or "features"
        self._encoder = encoder
        self._warned = False  # that texts are too long

    @classmethod
    def open(cls, model: Any, options: dict[str, Any]) -> InputEncoder:
        """Open a foundation model: a name, a folder, a URL, a function, or an object."""
        _check_options(options)
        encoder = encoders.load(model, **({"layers": "auto"} | options))
        described = encoder.fingerprint()
        if lacks := [repr(key) for key in ("name", "modality", *DETAILS) if key not in described]:
            raise FoundationModelError(
                f"model={model!r:.80} can't be used: its fingerprint has no {', '.join(lacks)}."
            )
        return cls(described, options, encoder)

    @classmethod
    def of_stored(
        cls, fingerprint: dict[str, Any], options: dict[str, Any], model: Any
    ) -> InputEncoder:
        """Return the encoder of a stored model; given a model, it is opened and compared now."""
        _check_options(options)
        name, modality, _ = (fingerprint[key] for key in ("name", "modality", "layers"))
        if not isinstance(name, str) or modality not in get_args(Modality):
            raise ValueError(f"a foundation model {name!r} for {modality!r}")
        return cls(
            fingerprint, options, None if model is None else _reopen(fingerprint, model, options)
        )

    @property
    def blocks(self) -> tuple[int, ...] | None:
        """Widths of the earlier layers together and of the last, where there are several."""
        layers = self.fingerprint["layers"]
        if self.modality != "text" or isinstance(layers, str) or len(layers) < 2:
            return None
        last = int(self.fingerprint["dimension"]) // len(layers)
        return int(self.fingerprint["dimension"]) - last, last

    @property
    def encoder(self) -> encoders.Encoder:
        """The foundation model."""
        if self._encoder is None:
            self._encoder = _reopen(self.fingerprint, None, self.options)
        return self._encoder

    def encode(
        self, inputs: Any, *, text: str | Sequence[str] | None = None, progress: bool = False
    ) -> np.ndarray:
        """Check and encode inputs: a sequence, or columns of a table, those of the `text`."""
        return self.encoder.encode(self._taken(inputs, text), progress=progress)

    def _taken(self, inputs: Any, text: str | Sequence[str] | None = None) -> Any:
        is_table = isinstance(inputs, Path) or (self.modality == "text" and is_frame(inputs))
        if text is not None or is_table:
            batches = self._of_table(inputs, Layout(text), labels=False)
            inputs = [value for some, _ in batches for value in some]
        inputs = checked_inputs(inputs, self.modality)
        if self.modality == "text" and not self._warned:
            self._warn_of_long(inputs)
        return inputs

    def _of_table(
        self, table: Any, layout: Layout, classes: Collection[Label] = (), *, labels: bool = True
    ) -> Iterator[tuple[Any, list[Label] | None]]:
        if not is_frame(table) and not isinstance(table, Path):
            raise KldaError(
                f"text and label name columns of a table, and inputs is a {type(table).__name__}: "
                "leave them out."
            )
        options: Any = {"modality": self.modality, "layout": layout, "classes": classes}
        if isinstance(table, Path):
            batches: Iterator[Batch] = read(open_tables(table, **options), labels=labels)
        else:
            batches = open_frame(table, **options).batches(labels=labels)
        return ((batch.inputs, batch.labels) for batch in batches)

    def encoded_batches(
        self,
        inputs: Any,
        labels: Any = None,
        layout: Layout = GUESSED,
        classes: Collection[Label] = (),
        ids: Sequence[str] | None = None,
        *,
        ignore_case: bool = False,
        progress: Show = False,
    ) -> Iterator[EncodedSamples]:
        """Check and encode inputs and their labels, one batch at a time.

        Without labels: those of a table, or an iterable of (inputs, labels) or (inputs, labels,
        ids). With `ignore_case`, labels are written as those of the `classes`. A function that
        shows the progress is called with the inputs encoded so far, of all batches.
        """
        fold = CaseFolder(classes) if ignore_case else None
        batches = inputs
        if labels is not None:
            if layout.label is not None:
                raise KldaError("labels and label both say which labels: leave out one of them.")
            taken = inputs if layout.input is None else self._taken(inputs, layout.input)
            batches = [(taken, labels, ids)]
        elif ids is not None:
            raise KldaError("ids goes with labels; batches are (inputs, labels, ids).")
        elif layout != GUESSED or is_frame(inputs) or isinstance(inputs, Path):
            batches = self._of_table(inputs, layout, classes)
        elif isinstance(inputs, str) and _is_path(inputs):
            raise KldaError(f"inputs={inputs!r} is a text: to learn a file, give its pathlib.Path.")
        elif isinstance(inputs, str | bytes | np.ndarray):
            raise KldaError("labels is missing: give one label for each input.")
        # Features are not encoded, and a stream may reuse the memory of this batch for the next.
        reused = self.modality == "features" and not isinstance(batches, Sequence)
        done = 0
        show = (lambda n, note="": progress(done + n)) if callable(progress) else progress
        for given, names, own_ids in map(self._checked, batches):
            rows = self.encoder.encode(given, progress=show)
            check_one_each(rows, names)
            done += len(rows)
            if callable(progress):
                progress(done)
            found = names if fold is None else list(map(fold, names))
            yield EncodedSamples(rows.copy() if reused else rows, found, own_ids)

    def _checked(self, batch: Any) -> tuple[Any, list[Label], Sequence[str] | None]:
        if not isinstance(batch, tuple | list) or len(batch) not in (2, 3):
            raise KldaError(
                "labels is missing: give one label for each input, or an iterable of "
                "(inputs, labels) pairs."
            )
        ids = list(batch[2]) if len(batch) == 3 and batch[2] is not None else None
        inputs, labels = self._taken(batch[0]), label_list(batch[1])
        if self.modality != "features":  # whose shape is checked first
            check_one_each(inputs, labels)
        return inputs, labels, ids

    def _warn_of_long(self, texts: Sequence[str]) -> None:
        """Say once that of some texts only the beginning is read."""
        tokens = getattr(self.encoder, "max_length", None)
        if tokens is not None and (
            long := sum(len(text) > MOST_CHARACTERS * tokens for text in texts)
        ):
            self._warned = True
            warnings.warn(
                f"{self.fingerprint['name']} reads the first {tokens} tokens of a text, about "
                f"{4 * tokens:,} characters; longer than that: {long:,} of {len(texts):,} texts.",
                LongTextWarning,
                stacklevel=5,
            )


def _is_path(text: str) -> bool:
    try:
        return Path(text).exists()
    except (OSError, ValueError):  # too long, or no name of a file
        return False


def _check_options(options: dict[str, Any]) -> None:
    known = [*inspect.signature(encoders.load).parameters][1:]
    for name in options.keys() - known:
        raise KldaError(f"{name} is not an option; use {', '.join(known[:-1])} or {known[-1]}.")


def _reopen(fingerprint: dict[str, Any], model: Any, options: dict[str, Any]) -> encoders.Encoder:
    """Open the foundation model that a fingerprint describes, and compare it with that."""
    encoder = encoders.reopen(fingerprint, model, **options)
    check_same_features(fingerprint, encoder.fingerprint(), "the one at hand")
    return encoder


def check_same_features(ours: dict[str, Any], theirs: dict[str, Any], what: str) -> None:
    """Raise if two fingerprints are of different features."""
    if encoders.same_features(ours, theirs):
        return
    said = [repr(one["name"]) for one in (ours, theirs)]
    if said[0] == said[1]:  # what differs is in the details
        details = [", ".join(f"{key} {one.get(key)}" for key in DETAILS) for one in (ours, theirs)]
        said = [f"{name} ({some})" for name, some in zip(said, details, strict=True)]
    raise FoundationModelError(
        f"This model was made with the foundation model {said[0]}, but {what} is {said[1]}. Its "
        "features would mean nothing to the classifier; use the same foundation model."
    )
