"""A learner as it is: what it holds, what it answers, and how it is kept in a model folder."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
from sklearn.utils import check_random_state

from klda import classifiers, encoders
from klda.encoders.progress import Show
from klda.engine.fitted import PredictionOnlyError
from klda.engine.solution import Answer
from klda.errors import REFUSED, KldaError, check_count, check_fraction
from klda.labels import Label
from klda.learner import folder
from klda.learner.class_names import ClassNames
from klda.learner.evaluation import Evaluation
from klda.learner.explanation import Explanation, explain_rows
from klda.learner.inputs import InputEncoder, Labels
from klda.learner.ledger import Ledger

# What `predict` answers for inputs that are refused, where classes are strings or integers. -1 is
# what scikit-learn's outlier detectors say.
UNKNOWN = "unknown"
UNKNOWN_INTEGER = -1


@dataclass(frozen=True)
class Detached:
    """A class that was forgotten, with all that `Learner.attach` needs to bring it back."""

    label: Label
    count: int  # its samples
    # A packed model of the class alone, or ``rows`` if a ledger had its samples.
    arrays: dict[str, np.ndarray]
    meta: dict[str, Any]  # what came with them, JSON-able


class ReadOnlyLearner:
    """What a learner holds, and all that can be asked of it; nothing here changes what it knows.

    Attributes
    ----------
    extras : dict
        JSON-able values of others, saved in the folder beside the model and kept by later saves.
    """

    classifier: classifiers.ContinualClassifier
    extras: dict[str, Any]
    _inputs: InputEncoder
    _ledger: Ledger | None
    _names: ClassNames
    _history: list[dict[str, Any]]
    _origin: tuple[Path, str] | None

    @property
    def encoder(self) -> encoders.Encoder:
        """The frozen foundation model; a loaded learner opens it when first needed."""
        return self._inputs.encoder

    @property
    def foundation(self) -> dict[str, Any]:
        """Fingerprint of the foundation model."""
        return dict(self._inputs.fingerprint)

    @property
    def options(self) -> dict[str, Any]:
        """How the foundation model is opened."""
        return dict(self._inputs.options)

    @property
    def modality(self) -> str:
        """What it takes: ``"text"``, ``"image"`` or ``"features"``."""
        return self._inputs.modality

    @property
    def classes(self) -> dict[Label, int]:
        """Number of samples learned of each class."""
        return self.classifier.counts_

    @property
    def declared(self) -> dict[Label, str | None]:
        """Classes that were declared, each with its description, if it was given one."""
        return dict(self._names.declared)

    @property
    def samples(self) -> int:
        """Number of samples learned."""
        return sum(self.classes.values())

    def traces_of(self, labels: Iterable[Label]) -> list[Label]:
        """Return those of some classes that would leave a trace in the covariance if forgotten."""
        if not self.classifier.leaves_trace:
            return []
        held, known = ({} if self._ledger is None else self._ledger.counts), self.classes
        return [label for label in labels if known[label] and held.get(label) != known[label]]

    @property
    def ledger(self) -> Ledger | None:
        """Features, labels and ids of the samples learned, if it keeps them."""
        return self._ledger

    @property
    def history(self) -> list[dict[str, Any]]:
        """What was learned, forgotten and merged, and when; the latest last."""
        return [dict(entry) for entry in self._history]

    @property
    def origin(self) -> Path | None:
        """The model folder that this learner was loaded from or last saved to."""
        return None if self._origin is None else self._origin[0]

    def encode(self, inputs: Any, *, progress: bool = False) -> np.ndarray:
        """Turn inputs into the feature rows that the row-level verbs take.

        Parameters
        ----------
        inputs : sequence
            Texts, images or feature rows.
        progress : bool
            Show a progress bar if standard error is a terminal, here and in all other methods.

        Returns
        -------
        ndarray of shape (n, d), float32
        """
        rows = self._inputs.encode(inputs, progress=progress)
        self._check_width(rows)
        return rows

    def _check_width(self, rows: np.ndarray) -> None:
        expected = getattr(self.classifier, "n_features_in_", rows.shape[1])
        if rows.shape[1] != expected:
            raise KldaError(
                f"inputs has rows of {rows.shape[1]} features, but this learner's have {expected}: "
                "compute them with the same foundation model."
            )

    def _encode_asked(
        self, inputs: Any, progress: bool = False, **fractions: float | None
    ) -> np.ndarray:
        """Encode what is asked about, if there is anything to answer with.

        Fractions, by their names, are of known inputs that may be taken for unknown.
        """
        self._check_has_classes()
        for parameter, fraction in fractions.items():
            if fraction is None and parameter == "reject":
                continue
            check_fraction(parameter, fraction)
            if not hasattr(self.classifier, "novelty"):
                raise KldaError(
                    f"{type(self.classifier).__name__} can't tell known inputs from unknown ones; "
                    "use a KLDA, KLDAEnsemble or LDA."
                )
        return self.encode(inputs, progress=progress)

    def _check_has_classes(self) -> None:
        # Not `self.classes`: that names every class, and one answer needs none of their names.
        if not getattr(self.classifier, "n_classes_", 0):
            raise KldaError("This learner has no classes yet: learn something before asking it.")

    # ---------------------------------------------------------------- classes

    def predict(
        self,
        inputs: Any,
        *,
        reject: float | None = None,
        by_class: bool = False,
        progress: bool = False,
    ) -> np.ndarray:
        """Answer with the likeliest class of each input.

        Parameters
        ----------
        inputs : sequence
            Texts, images or feature rows.
        reject : float, optional
            Answer ``"unknown"`` (-1 where classes are integers) for inputs unlike anything
            learned, at the cost of refusing this fraction of the known ones; 0.05 is a fair choice.
        by_class : bool
            Refuse by a threshold for each class, where enough of it was learned.

        Returns
        -------
        ndarray of shape (n,)
            Labels.
        """
        rows = self._encode_asked(inputs, progress, reject=reject)
        answers = self.classifier.predict(rows)
        if reject is None:
            return answers
        known = self.classifier.is_known(rows, refused=reject, by_class=by_class)
        return np.where(known, answers, UNKNOWN if answers.dtype.kind == "U" else UNKNOWN_INTEGER)

    def predict_top(
        self, inputs: Any, k: int = 3, *, reject: float | None = None, progress: bool = False
    ) -> list[list[tuple[Label, float]]]:
        """Answer with the k likeliest classes and their probabilities, the likeliest first.

        With `reject`, as for :meth:`predict`, the first answer for an input that is refused is
        ``"unknown"`` (or -1), with NaN for a probability; the likeliest classes follow.
        """
        check_count("k", k)
        rows = self._encode_asked(inputs, progress, reject=reject)
        labels, probabilities = self.classifier.predict_top(rows, k)
        answers = [
            list(zip(names, values, strict=True))
            for names, values in zip(labels.tolist(), probabilities.tolist(), strict=True)
        ]
        if reject is None:
            return answers
        refusal = (UNKNOWN if labels.dtype.kind == "U" else UNKNOWN_INTEGER, float("nan"))
        known = self.classifier.is_known(rows, refused=reject)
        return [
            answer if is_known else [refusal, *answer[: k - 1]]
            for answer, is_known in zip(answers, known, strict=True)
        ]

    def predict_proba(self, inputs: Any, *, progress: bool = False) -> np.ndarray:
        """Return the probability ``(n, n_classes)`` of every class, in the order of `classes`."""
        return self.classifier.predict_proba(self._encode_asked(inputs, progress))

    def scores(self, inputs: Any, *, progress: bool = False) -> np.ndarray:
        """Return the score ``(n, n_classes)`` of every class: the larger, the likelier."""
        return self.classifier.scores(self._encode_asked(inputs, progress))

    def answer_rows(
        self, rows: np.ndarray, *, top: int = 5, refused: float = REFUSED
    ) -> list[Answer]:
        """Answer for feature rows, as `encode` returns them, in one pass.

        An answer has the `top` likeliest classes, whether the input is like anything learned, and
        how unlike; `refused` as for :meth:`is_known`.
        """
        return self.classifier.answer(rows, top=top, refused=refused)

    # ---------------------------------------------------------------- known and unknown

    def novelty(self, inputs: Any, *, progress: bool = False) -> np.ndarray:
        """Say how unlike anything learned inputs are; the larger, the less known.

        The distance from the nearest class, less that from all classes together.
        """
        rows = self._encode_asked(inputs, progress, refused=REFUSED)
        return self.classifier.novelty(rows)

    def threshold(self, refused: float = REFUSED) -> float | None:
        """Return the novelty beyond which an input is taken for unknown; see :meth:`is_known`.

        None if the classifier can't tell: it knows no novelty, was made with ``calibrated=False``,
        or has learned too little.
        """
        check_fraction("refused", refused)
        if not getattr(self.classifier, "calibrated", False):
            return None
        limit = self.classifier.threshold(refused)
        return float(limit) if np.isfinite(limit) else None

    def is_known(
        self,
        inputs: Any,
        *,
        refused: float = REFUSED,
        by_class: bool = False,
        progress: bool = False,
    ) -> np.ndarray:
        """Say whether inputs are like anything learned.

        The threshold needs no examples of unknown inputs: it comes from the samples learned, each
        judged as if it had not been.

        Parameters
        ----------
        inputs : sequence
            Texts, images or feature rows.
        refused : float
            Fraction of inputs of known classes that may be taken for unknown. While the model still
            holds its samples, expect about 1.5 times this fraction.
        by_class : bool
            Use a threshold for each class, where enough of it was learned.
        """
        rows = self._encode_asked(inputs, progress, refused=refused)
        return self.classifier.is_known(rows, refused=refused, by_class=by_class)

    # ---------------------------------------------------------------- why, and how well

    def explain(
        self, value: Any, *, top: int = 5, samples: int = 5, refused: float = REFUSED
    ) -> Explanation:
        """Say why an input gets the answer it gets.

        Parameters
        ----------
        value : input
            One text, image or feature row.
        top : int
            How many classes to name.
        samples : int
            How many learned samples to name, if the learner keeps a ledger.
        refused : float
            Fraction of known inputs that may be taken for unknown.
        """
        if self.modality == "text" and not isinstance(value, str):
            raise KldaError(f"value={value!r} is not a text; explain_all takes several inputs.")
        inputs = np.atleast_2d(np.asarray(value)) if self.modality == "features" else [value]
        if len(inputs) != 1:
            raise KldaError(f"value holds {len(inputs)} rows; explain_all takes several inputs.")
        return self.explain_all(inputs, top=top, samples=samples, refused=refused)[0]

    def explain_all(
        self, inputs: Any, *, top: int = 5, samples: int = 5, refused: float = REFUSED
    ) -> list[Explanation]:
        """Say for each of several inputs why it gets its answer; see :meth:`explain`."""
        check_count("top", top)
        check_count("samples", samples, least=0)
        rows, threshold = self._encode_asked(inputs), self.threshold(refused)
        return explain_rows(self.classifier, rows, self._ledger, threshold, top, samples)

    def evaluate(
        self, inputs: Any, labels: Labels | None = None, *, progress: Show = False
    ) -> Evaluation:
        """Compare the answers with the true labels.

        Parameters
        ----------
        inputs : sequence, or iterable of (inputs, labels)
            Texts, images or feature rows; without `labels`, an iterable of batches.
        labels : sequence of str or int, optional
            One label per input; classes never learned count as wrong.
        """
        self._check_has_classes()
        batches: Iterable[Any] = inputs if labels is None else [(inputs, labels)]
        truth: list[np.ndarray] = []
        answers: list[np.ndarray] = []
        sure: list[np.ndarray] = []
        for rows, names, _ in self._inputs.batches(batches, progress=progress):
            self._check_width(rows)
            found, probabilities = self.classifier.predict_top(rows, 1)
            truth.append(np.asarray(names))
            answers.append(found[:, 0])
            sure.append(probabilities[:, 0])
        if not truth:
            raise KldaError("inputs is empty: there is nothing to evaluate.")
        return Evaluation.of(np.concatenate(truth), np.concatenate(answers), np.concatenate(sure))

    # ---------------------------------------------------------------- in a model folder

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
        own = self._origin[1] if self._origin and from_here else folder.NOTHING
        replaces = None if overwrite else own
        folder.check_replaceable(at, replaces)
        arrays, document = self.pack(compact=compact)
        if from_here and not compact and self.extras:
            document["extras"] = self.extras
        saved: folder.StoredModel | folder.UnconfirmedSaveError
        try:
            saved = folder.save(at, arrays, document, replaces=replaces)
        except folder.UnconfirmedSaveError as error:
            saved = error
        if not compact:
            if not from_here:  # what others keep in the folder that it came from stays there
                self.extras = {}
            self._origin = (at, saved.generation)
        if isinstance(saved, Exception):
            raise saved

    @classmethod
    def load(
        cls,
        path: str | Path,
        *,
        model: str | Path | encoders.Encoder | None = None,
        verify: bool = False,
        **options: Any,
    ) -> Self:
        """Load a learner as it was saved: arrays are mapped, and the encoder is opened when used.

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
            Passed to :func:`klda.encoders.load`: ``device``, ``batch_size``,
            ``trust_remote_code`` (never taken from the model folder).
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
