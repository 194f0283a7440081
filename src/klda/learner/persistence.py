"""How a learner is kept in a model folder."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
from sklearn.utils import check_random_state

from klda import classifiers, encoders
from klda.engine.fitted import PredictionOnlyError
from klda.errors import KldaError
from klda.labels import Label
from klda.learner import folder
from klda.learner.class_names import ClassNames
from klda.learner.inputs import InputEncoder
from klda.learner.ledger import Ledger
from klda.learner.prediction import AnsweringLearner


@dataclass(frozen=True)
class Detached:
    """A class that was forgotten, with all that `Learner.attach` needs to bring it back."""

    label: Label
    count: int  # its samples
    # A packed model of the class alone, or ``rows`` if a ledger had its samples.
    arrays: dict[str, np.ndarray]
    meta: dict[str, Any]  # what came with them, JSON-able


class StoredLearner(AnsweringLearner):
    """A learner as arrays and values, and in a model folder.

    Attributes
    ----------
    extras : dict
        JSON-able values of others, saved in the folder beside the model and kept by later saves.
    """

    extras: dict[str, Any]
    _history: list[dict[str, Any]]
    _origin: tuple[Path, str] | None

    @property
    def history(self) -> list[dict[str, Any]]:
        """What was learned, forgotten and merged, and when; the latest last."""
        return [dict(entry) for entry in self._history]

    @property
    def origin(self) -> Path | None:
        """The model folder that this learner was loaded from or last saved to."""
        return None if self._origin is None else self._origin[0]

    def pack(
        self, *, compact: bool = False, solved: bool = True
    ) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """Return the arrays and the document that :meth:`save` writes.

        Later changes leave them alone, so another thread can write them with
        `klda.learner.folder.save`. With ``solved=False`` they hold only what learning needs, and
        nothing is solved.
        """
        arrays, meta = self.classifier.pack(compact=compact, solved=solved)
        counts = self.classes
        document = {
            "compact": compact,
            "foundation_model": dict(self._inputs.fingerprint),
            "samples": sum(counts.values()),
            "classes": {str(label): count for label, count in counts.items()},
            "classifier": meta,
            "history": list(self._history),
            "names": self._names.pack(),
        }
        if self._ledger is not None and not compact:
            pages, document["ledger"] = self._ledger.pack()
            arrays |= pages
        return arrays, document

    @classmethod
    def unpack(
        cls,
        stored: folder.StoredModel,
        *,
        model: str | Path | encoders.Encoder | None = None,
        **options: Any,
    ) -> Self:
        """Return the learner that `pack` described; parameters as for :meth:`load`."""
        document, learner = stored.document, object.__new__(cls)
        fingerprint = dict(document["foundation_model"])
        learner._history = [{**entry} for entry in document["history"]]
        learner._ledger = None
        if "ledger" in document:
            learner._ledger = Ledger.unpack(stored.arrays, document["ledger"])
        meta, device = document["classifier"], options.get("device")
        learner.classifier = classifiers.unpack(stored.arrays, meta, device=device)
        counts = learner.classes
        named = {str(label): count for label, count in counts.items()}
        found = (document["classes"], document["samples"], document["compact"])
        if found != (named, sum(counts.values()), meta["compact"]) or not meta["members"]:
            raise ValueError("its parts do not agree with each other")
        learner.extras = dict(document.get("extras", {}))
        learner._origin = None
        learner._inputs = InputEncoder.of_stored(fingerprint, options, model)
        learner._names = ClassNames.unpack(document.get("names"), meta.get("hints", ()))
        return learner

    def save(self, path: str | Path, *, compact: bool = False, overwrite: bool = False) -> None:
        """Save to a model folder, atomically.

        Parameters
        ----------
        path : str or Path
            The folder; created if it does not exist.
        compact : bool
            Write only what answering needs: small, but it can't learn any more. A ledger is left
            out too. Not to a folder that holds a model that can learn.
        overwrite : bool
            Replace whatever model the folder holds. By default only the one that this learner was
            loaded from or saved as, and not if someone else has saved it since.
        """
        at = Path(path).resolve()
        if not self.classes:
            raise KldaError("This learner has no classes: learn something before saving it.")
        if compact and folder.exists(at) and not folder.load(at).document.get("compact"):
            raise folder.ModelExistsError(
                f"compact=True: {at} holds a model that can learn, and a compact one in its place "
                "could not. Save the compact one to another folder."
            )
        from_here = self.origin == at
        replaces = None if overwrite else folder.NOTHING
        if self._origin and from_here and not overwrite:
            replaces = self._origin[1]
        folder.check_replaceable(at, replaces)
        arrays, document = self.pack(compact=compact)
        if from_here and not compact and self.extras:
            document["extras"] = self.extras
        stored = folder.save(at, arrays, document, replaces=replaces)
        if compact:
            return
        if not from_here:  # what others keep in the folder that it came from stays there
            self.extras = {}
        self._origin = (at, stored.generation)

    @classmethod
    def load(
        cls,
        path: str | Path,
        *,
        model: str | Path | encoders.Encoder | None = None,
        verify: bool = False,
        **options: Any,
    ) -> Self:
        """Load a model folder. Fast: arrays are mapped, the foundation model is opened when used.

        Parameters
        ----------
        path : str or Path
            The folder.
        model : str, Path or Encoder, optional
            Where to find the foundation model, if not where the model folder says. It must be the
            same one: its weights are compared.
        verify : bool
            Read every file and compare its checksum; by default files of up to 1 MiB only.
        **options
            Passed to :func:`klda.encoders.load`: ``device``, ``batch_size``, ``cache``,
            ``trust_remote_code`` (never taken from the model folder).

        Returns
        -------
        Learner
            As it was saved.
        """
        stored = folder.load(path, verify=verify)
        with folder.damage_named(Path(path)):
            learner = cls.unpack(stored, model=model, **options)
            if not stored.has_checksum:
                learner._try_out()
        learner._origin = (Path(path).resolve(), stored.generation)
        return learner

    def _try_out(self) -> None:
        """Use all that was stored, in copies, so that values that can't be right raise here."""
        label, width = self.classifier.classes_.tolist()[0], self.classifier.n_features_in_
        row, rows = np.zeros((1, width), np.float32), np.zeros((2, width), np.float32)
        check_random_state(getattr(self.classifier, "random_state", None))
        frozen = self.classifier.frozen()
        for some in (row, rows):  # an array of a wrong shape may fit one of them
            frozen.answer(some)
            frozen.predict_proba(some)
            if hasattr(frozen, "novelty"):
                frozen.novelty(some)
        with suppress(PredictionOnlyError):
            twin = self.classifier.copy().partial_fit(rows, [label] * 2)
            twin.answer(rows)
            twin.forget(label)
        if self._ledger:
            self._ledger.rows_at(np.arange(len(self._ledger)))
            self._ledger.of_ids(self._ledger.ids)
            self._ledger.add(row, [label])
