"""From inputs to feature rows: the encoder of a learner, and what is checked before it is used."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, get_args

import numpy as np

from klda import encoders
from klda.checks import Modality, checked_inputs
from klda.data.threads import map_behind
from klda.encoders.progress import Show
from klda.errors import KldaError
from klda.labels import Label, check_one_each, plain_labels

ENCODER_MEMBERS = [name for name in vars(encoders.Encoder) if not name.startswith("_")]
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
        model: str | Path | encoders.Encoder | None,
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
            self._encoder = self._opened(self.fingerprint["name"])
        return self._encoder

    def _opened(self, model: str | Path | encoders.Encoder) -> encoders.Encoder:
        """Open a foundation model as the fingerprint says, and compare it with that."""
        fixed = {name: self.fingerprint[name] for name in ("layers", "modality")}
        encoder = open_encoder(model, fixed | self.options)
        check_same_features(self.fingerprint, encoder.fingerprint(), "the one at hand")
        return encoder

    def encode(self, inputs: Any, *, progress: bool = False) -> np.ndarray:
        """Check and encode inputs."""
        return self.encoder.encode(checked_inputs(inputs, self.modality), progress=progress)

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
        inputs, labels = checked_inputs(batch[0], self.modality), plain_labels(batch[1])
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


def open_encoder(model: str | Path | encoders.Encoder, options: dict[str, Any]) -> encoders.Encoder:
    """Open a foundation model, by name unless it is one."""
    if not isinstance(model, str | Path):
        _check_encoder(model)
        return model
    try:
        if str(model) not in encoders.MODELS and Path(model).is_dir():
            model = Path(model).resolve()  # a model folder must find it from any working directory
        return encoders.load(model, **({"layers": "auto"} | options))
    except OSError as error:  # such as a name that is too long for a file
        reason = error.strerror or error
        raise FoundationModelError(f"model={str(model)!r} can't be opened: {reason}.") from error


def _check_encoder(model: Any) -> None:
    """Raise if an object that is given as a foundation model can't be one."""
    lacks = [name for name in ENCODER_MEMBERS if not hasattr(model, name)]
    if not lacks:
        described = model.fingerprint()
        lacks = [f"{key!r} in its fingerprint" for key in FINGERPRINT_KEYS if key not in described]
    if lacks:
        raise FoundationModelError(
            f"model={model!r:.80} can't be used: it has no {', '.join(lacks)}. Give the name of a "
            "foundation model, a folder, 'features' for rows that you have computed, or an object "
            "with the members of klda.encoders.Encoder."
        )
