"""Answers: what a frozen foundation model and an engine say about inputs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from klda import encoders
from klda.checks import REFUSED, check_count, check_fraction
from klda.data import Layout
from klda.engine.checks import check_label_kind, check_rows
from klda.engine.engine import Engine
from klda.engine.parameters import Parameters
from klda.engine.rows import Rows
from klda.engine.solution import Answer, Answers, Solution, softmax
from klda.errors import KldaError
from klda.inspection.evaluation import Evaluation
from klda.inspection.explanation import Explanation, explain_rows
from klda.inspection.quality import Quality, quality_of
from klda.inspection.refusal import Refusal
from klda.inspection.suggestions import Suggestion, find_suggestions
from klda.inspection.suspects import Suspect, find_suspects
from klda.labels import Label, check_one_each, label_list
from klda.learner.inputs import InputEncoder, Labels
from klda.progress import Show

# What `predict` answers for inputs that are rejected, where classes are strings or integers. -1 is
# what scikit-learn's outlier detectors say.
UNKNOWN = "unknown"
UNKNOWN_INTEGER = -1
# A fraction of known inputs that may be refused; None or True: as tuned, or 0.05.
Reject = float | bool | None


class Answering:
    """An encoder and an engine: all that a question needs. `Learner` adds all that changes them."""

    engine: Engine
    parameters: Parameters
    keeps_all: bool
    refusal: Refusal | None = None  # thresholds fitted by `tune_unknown`
    _inputs: InputEncoder

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
        return self.engine.counts

    @property
    def samples(self) -> int:
        """Number of samples learned."""
        return sum(self.classes.values())

    @property
    def width(self) -> int | None:
        """Features of a row; None before anything was learned."""
        return None if self.engine.is_new else self.engine.known.n_features

    @property
    def ledger(self) -> Rows | None:
        """Features, labels and ids of the samples learned, if it keeps them all."""
        if not self.keeps_all or self.engine.predicts_only:
            return None
        return Rows.halved() if self.engine.is_new else self.engine.model.rows

    @property
    def leaves_trace(self) -> bool:
        """Whether a class that is forgotten leaves a trace in the covariance."""
        return not self.engine.keeps_rows

    @property
    def solution(self) -> Solution:
        """The solved classifier, with all that the evidence says: immutable."""
        self._check_has_classes()
        return self.engine.calibrated(self.parameters)

    # ---------------------------------------------------------------- answers

    def encode(
        self, inputs: Any, *, text: str | Sequence[str] | None = None, progress: bool = False
    ) -> np.ndarray:
        """Turn inputs into the feature rows that the row-level verbs take.

        Parameters
        ----------
        inputs : sequence or table
            Texts, images or feature rows.
        text : str, optional
            Column of a table, or columns to be joined; found by name or content without it.
        progress : bool
            Show a progress bar if standard error is a terminal, here and in all other methods.

        Returns
        -------
        ndarray of shape (n, d), float32
        """
        return self._checked_rows(self._inputs.encode(inputs, text=text, progress=progress))

    def _checked_rows(self, rows: np.ndarray) -> np.ndarray:
        expected = self.width
        if expected is not None and rows.shape[1] != expected:
            raise KldaError(
                f"inputs has rows of {rows.shape[1]} features, but this learner's have {expected}: "
                "compute them with the same foundation model."
            )
        rows = np.asarray(rows, self.parameters.dtype)
        check_rows(rows, "inputs")
        return rows

    def _check_has_classes(self) -> None:
        # Not `self.classes`: that names every class, and one answer needs none of their names.
        if self.engine.is_new or not len(self.engine.known.classes):
            raise KldaError("This learner has no classes yet: learn something before asking it.")

    def _limits(
        self, solution: Solution, answers: Answers, reject: Reject, *, by_class: bool = False
    ) -> float | np.ndarray:
        """Return the novelty beyond which inputs are unknown: as tuned, or for a fraction."""
        unset = reject is None or reject is True
        if unset and self.refusal is not None and solution.calibration is not None:
            return self.refusal.limits(answers.labels[:, 0], solution.calibration.unit)
        return solution.limits(answers, _fraction(reject), by_class=by_class)

    def _check_can_reject(self, reject: Reject) -> None:
        check_fraction("reject", _fraction(reject))
        if not self.parameters.calibrated:
            raise KldaError(
                "calibrated=False: without it nothing tells known inputs from unknown ones. Make "
                "the learner with calibrated=True."
            )

    def predict(
        self,
        inputs: Any,
        *,
        text: str | Sequence[str] | None = None,
        reject: Reject = None,
        by_class: bool = False,
        progress: bool = False,
    ) -> np.ndarray:
        """Answer with the likeliest class of each input.

        Parameters
        ----------
        inputs : sequence or table
            Texts, images or feature rows.
        text : str, optional
            Column of a table, or columns to be joined; found by name or content without it.
        reject : float or True, optional
            Answer ``"unknown"`` (-1 where classes are integers) for inputs unlike anything
            learned, at the cost of refusing this fraction of the known ones. True is as
            :meth:`tune_unknown` chose, or 0.05.
        by_class : bool
            Reject by a threshold for each class, where enough of it was learned.

        Returns
        -------
        ndarray of shape (n,)
            Labels.
        """
        self._check_has_classes()
        rejects = reject is not None and reject is not False
        if rejects:
            self._check_can_reject(reject)
        rows = self.encode(inputs, text=text, progress=progress)
        if not rejects:
            return self.predict_rows(rows)
        solution = self.solution
        answers = solution.answer(rows, novelty=True)
        known = answers.novelty <= self._limits(solution, answers, reject, by_class=by_class)
        return np.where(known, answers.labels[:, 0], _unknown(solution))

    def predict_rows(self, rows: np.ndarray) -> np.ndarray:
        """Answer with the likeliest class of each feature row, as `encode` returns them."""
        self._check_has_classes()
        rows = self._checked_rows(rows)
        return self.engine.solution(self.parameters).answer(rows).labels[:, 0]

    def predict_top(
        self, inputs: Any, k: int = 3, *, reject: Reject = None, progress: bool = False
    ) -> list[list[tuple[Label, float]]]:
        """Answer with the k likeliest classes and their probabilities, the likeliest first.

        With `reject`, as for :meth:`predict`, the first answer for an input that is refused is
        ``"unknown"`` (or -1), with NaN for a probability; the likeliest classes follow.
        """
        check_count("k", k)
        rejects = reject is not None and reject is not False
        if rejects:
            self._check_can_reject(reject)
        solution = self.solution
        rows = self.encode(inputs, progress=progress)
        answers = solution.answer(rows, k, novelty=rejects)
        limit = self._limits(solution, answers, reject) if rejects else np.inf
        refusal = (_unknown(solution), float("nan"))
        return [
            one.top if one.known is not False else [refusal, *one.top[: k - 1]]
            for one in answers.each(limit)
        ]

    def predict_proba(self, inputs: Any, *, progress: bool = False) -> np.ndarray:
        """Return the probability ``(n, n_classes)`` of every class, in the order of `classes`."""
        solution = self.solution
        scores = solution.scores(self.encode(inputs, progress=progress))
        return softmax(scores.astype(np.float64) / solution.temperature)

    def scores(self, inputs: Any, *, progress: bool = False) -> np.ndarray:
        """Return the score ``(n, n_classes)`` of every class: the larger, the likelier."""
        self._check_has_classes()
        rows = self.encode(inputs, progress=progress)
        return self.engine.solution(self.parameters).scores(rows)

    def answer(self, inputs: Any, *, top: int = 5, reject: Reject = None) -> list[Answer]:
        """Answer for inputs as :meth:`answer_rows` does for feature rows."""
        return self.answer_rows(self.encode(inputs), top=top, reject=reject)

    def answer_rows(self, rows: np.ndarray, *, top: int = 5, reject: Reject = None) -> list[Answer]:
        """Answer for feature rows, as `encode` returns them, in one pass.

        An answer has the `top` likeliest classes, whether the input is like anything learned, and
        how unlike; `reject` as for :meth:`is_known`.
        """
        check_fraction("reject", _fraction(reject))
        solution = self.solution
        answers = solution.answer(self._checked_rows(rows), top, novelty=True)
        return answers.each(self._limits(solution, answers, reject))

    # ---------------------------------------------------------------- known and unknown

    def novelty(self, inputs: Any, *, progress: bool = False) -> np.ndarray:
        """Say how unlike anything learned inputs are; the larger, the less known.

        The distance from the nearest class, less that from all classes together.
        """
        self._check_has_classes()
        rows = self.encode(inputs, progress=progress)
        return self.engine.solution(self.parameters).novelty(rows)

    def threshold(self, reject: Reject = None) -> float | None:
        """Return the novelty beyond which an input is taken for unknown; see :meth:`is_known`.

        None if that can't be told: too little was learned, or with ``calibrated=False``. Classes
        may have been given thresholds of their own by :meth:`tune_unknown`.
        """
        check_fraction("reject", _fraction(reject))
        solution, tuned = self.solution, self.refusal if reject in (None, True) else None
        limit = solution.threshold(_fraction(reject))
        if tuned is not None and solution.calibration is not None:
            limit = tuned.limit * solution.calibration.unit
        return float(limit) if np.isfinite(limit) else None

    def is_known(
        self,
        inputs: Any,
        *,
        reject: Reject = None,
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
        reject : float, optional
            Fraction of inputs of known classes that may be taken for unknown; by default as
            :meth:`tune_unknown` chose, or 0.05.
        by_class : bool
            Use a threshold for each class, where enough of it was learned.
        """
        self._check_can_reject(reject)
        solution = self.solution
        answers = solution.answer(self.encode(inputs, progress=progress), novelty=True)
        return answers.novelty <= self._limits(solution, answers, reject, by_class=by_class)

    # ---------------------------------------------------------------- why, and how well

    def explain(
        self, value: Any, *, top: int = 5, samples: int = 5, reject: Reject = None
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
        reject : float
            Fraction of known inputs that may be taken for unknown.
        """
        if self.modality == "text" and not isinstance(value, str):
            raise KldaError(f"value={value!r} is not a text; explain_all takes several inputs.")
        inputs = np.atleast_2d(np.asarray(value)) if self.modality == "features" else [value]
        if len(inputs) != 1:
            raise KldaError(f"value holds {len(inputs)} rows; explain_all takes several inputs.")
        return self.explain_all(inputs, top=top, samples=samples, reject=reject)[0]

    def explain_all(
        self, inputs: Any, *, top: int = 5, samples: int = 5, reject: Reject = None
    ) -> list[Explanation]:
        """Say for each of several inputs why it gets its answer; see :meth:`explain`."""
        check_count("top", top)
        check_count("samples", samples, least=0)
        check_fraction("reject", _fraction(reject))
        solution, rows = self.solution, self.encode(inputs)
        limits = self._limits(solution, solution.answer(rows, novelty=True), reject)
        limits = np.broadcast_to(limits, len(rows))
        return explain_rows(solution, rows, self.ledger, limits, top, samples)

    def quality(self) -> Quality:
        """Say how accurate it is expected to be on new inputs, without a test file.

        The samples learned are each answered as if they had not been; see
        :class:`klda.inspection.quality.Quality`.
        """
        return quality_of(self.solution)

    def evaluate(
        self,
        inputs: Any,
        labels: Labels | None = None,
        *,
        text: str | Sequence[str] | None = None,
        label: str | None = None,
        progress: Show = False,
    ) -> Evaluation:
        """Compare the answers with the true labels.

        Parameters
        ----------
        inputs : sequence, table, or iterable of (inputs, labels)
            Texts, images or feature rows; without `labels`, a table that has them, or an iterable
            of batches.
        labels : sequence of str or int, optional
            One label per input; classes never learned count as wrong.
        text, label : str, optional
            Columns of a table, as for :meth:`learn`.
        """
        solution = self.solution
        batches = self._inputs.given(inputs, labels, Layout(text, label), self.classes)
        truth: list[np.ndarray] = []
        answers: list[np.ndarray] = []
        sure: list[np.ndarray] = []
        for rows, names, _ in self._inputs.batches(batches, progress=progress):
            found = solution.answer(self._checked_rows(rows))
            truth.append(np.asarray(names))
            answers.append(found.labels[:, 0])
            sure.append(found.probabilities[:, 0])
        if not truth:
            raise KldaError("inputs is empty: there is nothing to evaluate.")
        return Evaluation.of(np.concatenate(truth), np.concatenate(answers), np.concatenate(sure))

    def suspects(
        self,
        inputs: Any,
        labels: Labels | None = None,
        *,
        text: str | Sequence[str] | None = None,
        label: str | None = None,
        progress: Show = False,
    ) -> list[Suspect]:
        """Find samples whose labels are probably wrong, and samples that are there twice.

        Each sample is answered as if it had not been learned, by what was learned so far and all
        the other samples; nothing is learned. A learner that knows nothing yet will do.

        Parameters
        ----------
        inputs : sequence, table, or iterable of (inputs, labels)
            Texts, images or feature rows, as for :meth:`evaluate`; learned before or not.
        labels : sequence of str or int, optional
            One label per input.
        text, label : str, optional
            Columns of a table, as for :meth:`learn`.

        Returns
        -------
        list of Suspect
            Unlikely labels first, the least likely at the top; then near-duplicates with different
            labels; then duplicates.
        """
        batches = self._inputs.given(inputs, labels, Layout(text, label), self.classes)
        parts = list(self._inputs.batches(batches, progress=progress))
        if not parts:
            raise KldaError("inputs is empty: there is nothing to check.")
        rows = np.concatenate([rows for rows, _, _ in parts])
        return self.suspects_rows(rows, [name for _, names, _ in parts for name in names])

    def suspects_rows(self, rows: np.ndarray, labels: Labels) -> list[Suspect]:
        """Find suspected samples among feature rows; see :meth:`suspects`."""
        check_one_each(rows, labels, "rows")
        names = label_list(labels)
        check_label_kind(np.array([*self.classes][:1]), names, "labels")
        return find_suspects(self.engine.copy(), self.parameters, self._checked_rows(rows), names)

    def suggest(
        self,
        inputs: Any,
        n: int = 20,
        *,
        text: str | Sequence[str] | None = None,
        progress: bool = False,
    ) -> list[Suggestion]:
        """Find the inputs to label next: uncertain, and unlike what is known and each other.

        A learner that knows nothing yet will do: then they are typical inputs of all kinds.

        Parameters
        ----------
        inputs : sequence or table
            Texts, images or feature rows without labels.
        n : int
            How many to find; there are fewer if more would be near-duplicates of others.
        text : str, optional
            Column of a table, or columns to be joined; found by name or content without it.

        Returns
        -------
        list of Suggestion
            The most telling first, each with the inputs like it.
        """
        check_count("n", n)
        return self.suggest_rows(self.encode(inputs, text=text, progress=progress), n)

    def suggest_rows(self, rows: np.ndarray, n: int = 20) -> list[Suggestion]:
        """Find the inputs to label next among feature rows; see :meth:`suggest`."""
        check_count("n", n)
        solution = self.solution if len(self.classes) > 1 else None
        return find_suggestions(solution, self._checked_rows(rows), n)

    def export_onnx(self, folder: str | Path, *, reject: Reject = None) -> dict[str, Any]:
        """Write the learner as ONNX, for programs in other languages.

        Parameters
        ----------
        folder : str or Path
            A new or empty folder. It gets ``head.onnx`` (features in; label, probabilities, scores
            and known out), ``klda.json`` (classes, and how inputs are prepared), and where the
            foundation model is like BERT, ``model.onnx`` (tokens in) with its ``tokenizer.json``.
        reject : float
            As for :meth:`is_known`: sets the output ``known``.

        Returns
        -------
        dict
            What ``klda.json`` says, and the files' names.
        """
        from klda.export.onnx import export_onnx

        return export_onnx(folder, self.encoder, self.solution, self.threshold(reject))


def _fraction(reject: Reject) -> float:
    return REFUSED if reject is None or reject is True else reject


def _unknown(solution: Solution) -> Label:
    return UNKNOWN if solution.classes.dtype.kind == "U" else UNKNOWN_INTEGER
