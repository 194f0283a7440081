"""From inputs to feature rows: the encoder of a learner, and what is checked before it is used."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, get_args

import numpy as np

from klda import encoders
from klda.checks import Modality, checked_inputs
from klda.data import GUESSED, Batch, Layout, open_tables, read
from klda.data.frames import is_frame, open_frame
from klda.data.threads import map_behind
from klda.errors import KldaError
from klda.labels import Label, check_one_each, plain_labels
from klda.progress import Show

FINGERPRINT_KEYS = ("name", "modality", "revision", "pooling", "layers", "dimension")
Labels = Sequence[Label] | np.ndarray
EncodedBatch = tuple[np.ndarray, Labels, Sequence[str] | None]


class FoundationModelError(KldaError):
    """The foundation model at hand is not the one that a model was made with."""


class InputEncoder:
    """The frozen foundation model that a fingerprint describes, opened when it is first needed."""

    def __init__(
        self,
        fingerprint: dict[str, Any],
        options: dict[str, Any],
        encoder: encoders.Encoder | None = None,
    ) -> None:
        self.fingerprint, self.options = fingerprint, options
        self._encoder = encoder

    @classmethod
    def of_stored(
        cls,
        fingerprint: dict[str, Any],
        options: dict[str, Any],
        model: Any,
    ) -> InputEncoder:
        """Return the encoder of a stored model; given a model, it is opened and compared now."""
        name, modality, _ = (fingerprint[key] for key in ("name", "modality", "layers"))
        if not isinstance(name, str) or modality not in get_args(Modality):
            raise ValueError(f"a foundation model {name!r} for {modality!r}")
        stored = cls(fingerprint, options)
        if model is not None:
            stored._encoder = stored._opened(model)
        return stored

    @property
    def modality(self) -> str:
        """What it takes: ``"text"``, ``"image"`` or ``"features"``."""
        return str(self.fingerprint["modality"])

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
            self._encoder = self._opened(None)
        return self._encoder

    def _opened(self, model: Any) -> encoders.Encoder:
        """Open the foundation model that the fingerprint describes, and compare it with that."""
        encoder = encoders.reopen(self.fingerprint, model, **self.options)
        check_same_features(self.fingerprint, encoder.fingerprint(), "the one at hand")
        return encoder

    def encode(
        self, inputs: Any, *, text: str | Sequence[str] | None = None, progress: bool = False
    ) -> np.ndarray:
        """Check and encode inputs: a sequence, or columns of a table, those of the `text`."""
        return self.encoder.encode(self._taken(inputs, text), progress=progress)

    def _taken(self, inputs: Any, text: str | Sequence[str] | None = None) -> Any:
        is_table = isinstance(inputs, Path) or (is_frame(inputs) and self.modality == "text")
        if text is not None or is_table:
            batches = self._of_table(inputs, Layout(text), labels=False)
            inputs = [value for some, _ in batches for value in some]
        return checked_inputs(inputs, self.modality)

    def given(
        self,
        inputs: Any,
        labels: Any,
        layout: Layout = GUESSED,
        classes: Collection[Label] = (),
        ids: Sequence[str] | None = None,
    ) -> Iterable[Any]:
        """Return batches of inputs and labels: as they are, of a table, or all in one."""
        if labels is not None:
            if layout.label is not None:
                raise KldaError("labels and label both say which labels: leave out one of them.")
            return [
                (inputs if layout.input is None else self._taken(inputs, layout.input), labels, ids)
            ]
        if ids is not None:
            raise KldaError("ids goes with labels; batches are (inputs, labels, ids).")
        if layout == GUESSED and not is_frame(inputs) and not isinstance(inputs, Path):
            return inputs
        return self._of_table(inputs, layout, classes)

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

    def batches(self, batches: Iterable[Any], *, progress: Show = False) -> Iterator[EncodedBatch]:
        """Encode batches of (inputs, labels) or (inputs, labels, ids), one at a time.

        A function that shows the progress is called with the inputs encoded so far, of all batches.
        """
        if isinstance(batches, str | bytes | np.ndarray):
            raise KldaError("labels is missing: give one label for each input.")
        # Features are not encoded, and a stream may reuse the memory of this batch for the next.
        reused = self.modality == "features" and not isinstance(batches, Sequence)
        ready: Iterator[tuple] = map(self._checked, batches)
        prepare = getattr(self.encoder, "prepare", None)
        if prepare is not None:
            ready = map_behind(lambda batch: (prepare(batch[0]), *batch[1:]), ready)
        done = 0
        for inputs, labels, ids in ready:
            rows = self.encoder.encode(inputs, progress=_after(done, progress))
            done += len(rows)
            if callable(progress):
                progress(done)
            check_one_each(rows, labels)
            yield rows.copy() if reused else rows, labels, ids

    def _checked(self, batch: Any) -> tuple[Any, Labels, Sequence[str] | None]:
        if not isinstance(batch, tuple | list) or len(batch) not in (2, 3):
            raise KldaError(
                "labels is missing: give one label for each input, or an iterable of "
                "(inputs, labels) pairs."
            )
        ids = list(batch[2]) if len(batch) == 3 and batch[2] is not None else None
        inputs, labels = self._taken(batch[0]), plain_labels(batch[1])
        # A copy: the caller may use its list again for the next batch.
        return list(inputs) if self.modality == "text" else inputs, labels, ids


def _after(before: int, progress: Show) -> Show:
    """Return what shows the progress of one batch, after so many inputs in others."""
    return (lambda done, note="": progress(before + done)) if callable(progress) else progress


def check_same_features(ours: dict[str, Any], theirs: dict[str, Any], what: str) -> None:
    """Raise if two fingerprints are of different features."""
    if not encoders.same_features(ours, theirs):
        raise FoundationModelError(
            f"This model was made with the foundation model {_described(ours)}, but {what} is "
            f"{_described(theirs)}. Its features would mean nothing to the classifier; use the "
            "same foundation model."
        )


def _described(fingerprint: dict[str, Any]) -> str:
    parts = ", ".join(
        f"{key} {fingerprint.get(key)}" for key in ("revision", "pooling", "layers", "dimension")
    )
    return f"{fingerprint.get('name')!r} ({parts})"


def open_encoder(model: Any, options: dict[str, Any]) -> encoders.Encoder:
    """Open a foundation model: a name, a folder, a URL, a function, or an object that encodes."""
    encoder = encoders.load(model, **({"layers": "auto"} | options))
    described = encoder.fingerprint()
    if lacks := [repr(key) for key in FINGERPRINT_KEYS if key not in described]:
        raise FoundationModelError(
            f"model={model!r:.80} can't be used: its fingerprint has no {', '.join(lacks)}."
        )
    return encoder
