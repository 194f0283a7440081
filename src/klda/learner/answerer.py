"""What answers: a frozen foundation model, and what was learned of its features."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from klda import encoders
from klda.checks import REFUSED, check_count, check_fraction
from klda.data import Layout
from klda.engine.engine import Engine
from klda.engine.parameters import Parameters
from klda.engine.rows import Rows
from klda.engine.solution import Answer, Answers, Solution
from klda.errors import KldaError
from klda.inspection.evaluation import Evaluation
from klda.inspection.explanation import Explanation, explain_rows
from klda.inspection.quality import Quality, quality_of
from klda.inspection.refusal import Refusal, Tuning, fit_refusal
from klda.inspection.suggestions import Suggestion, find_suggestions
from klda.inspection.suspects import Suspect, find_suspects
from klda.inspection.tables import html_table, text_table
from klda.labels import (
    Label,
    as_python,
    check_label_kind,
    check_one_each,
    label_list,
    similar_names,
    unknown_like,
)
from klda.learner.inputs import EncodedSamples, InputEncoder, Labels
from klda.learner.state import Reject, State, check_reject
from klda.progress import Show


class Answerer:
    """Answers as a learner did at one moment: :meth:`klda.Learner.frozen` makes it.

    It shares the solved classifier, which never changes, whatever the learner learns later.
    """

    def __init__(self, inputs: InputEncoder, state: State) -> None:
        self.inputs, self._state = inputs, state

    def __repr__(self) -> str:
        return (
            f"<{type(self).__name__} {self.foundation['name']}: {len(self.classes)} classes, "
            f"{self.samples} samples>"
        )

    def __str__(self) -> str:
        rows = [(label, f"{count:,}") for label, count in self.classes.items()]
        return f"{self!r}\n{text_table(('class', 'samples'), rows)}"

    def _repr_html_(self) -> str:
        rows = [(label, f"{count:,}") for label, count in self.classes.items()]
        return html_table(repr(self), ("class", "samples"), rows)

    @property
    def engine(self) -> Engine:
        """All that was learned."""
        return self._state.engine

    @property
    def parameters(self) -> Parameters:
        """How it is solved."""
        return self.engine.parameters

    @property
    def refusal(self) -> Refusal | None:
        """Thresholds fitted by `tune_unknown`; None for the default."""
        return self._state.refusal

    @property
    def encoder(self) -> encoders.Encoder:
        """The frozen foundation model; a loaded learner opens it when first needed."""
        return self.inputs.encoder

    @property
    def foundation(self) -> dict[str, Any]:
        """Fingerprint of the foundation model."""
        return dict(self.inputs.fingerprint)

    @property
    def options(self) -> dict[str, Any]:
        """How the foundation model is opened."""
        return dict(self.inputs.options)

    @property
    def modality(self) -> str:
        """What it takes: ``"text"``, ``"image"`` or ``"features"``."""
        return self.inputs.modality

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
        return self.engine.width

    @property
    def ledger(self) -> Rows | None:
        """Features, labels and ids of the samples learned, if it keeps them all."""
        return self._state.ledger

    @property
    def leaves_trace(self) -> bool:
        """Whether a class that is forgotten leaves a trace in the covariance."""
        return not self.engine.keeps_rows

    @property
    def declared(self) -> dict[Label, str | None]:
        """Classes that were declared, each with its description, if it was given one."""
        return dict(self._state.names.declared)

    @property
    def history(self) -> list[dict[str, Any]]:
        """What was learned, forgotten and merged, and when; the latest last.

        Each entry has a ``number``, and whether it is ``undoable``.
        """
        state = self._state
        undoable = state.undo.expired().undoable
        return [{**entry, "undoable": entry["number"] in undoable} for entry in state.history]

    def similar_classes(self, labels: Iterable[Label]) -> dict[Label, Label]:
        """Return labels that look like a class written differently, each with that class.

        As ``{"card arival": "card_arrival"}``: learned or declared, they would be new classes.
        """
        return similar_names(map(as_python, labels), self.classes)

    def traces_of(self, labels: Iterable[Label]) -> list[Label]:
        """Return those of some classes that would leave a trace in the covariance if forgotten."""
        known = self.classes
        found = [label for label in labels if known[label]] if self.leaves_trace else []
        return list(dict.fromkeys(found))

    @property
    def solution(self) -> Solution:
        """The solved classifier, with all that the evidence says: immutable."""
        return self._state.solved(calibrated=True)

    # ---------------------------------------------------------------- answers

    def encode(
        self, inputs: Any, *, text: str | Sequence[str] | None = None, progress: bool = False
    ) -> np.ndarray:
        """Turn inputs into the feature rows ``(n, d)`` that methods named ``..._rows`` take.

        Parameters
        ----------
        inputs : sequence or table
            Texts, images or feature rows.
        text : str, optional
            Column of a table, or columns to be joined; found by name or content without it.
        progress : bool
            Show a progress bar if standard error is a terminal.
        """
        return self._state.checked_rows(self.inputs.encode(inputs, text=text, progress=progress))

    def _samples(
        self, rows: Any, labels: Any, ids: Sequence[str | None] | None = None
    ) -> EncodedSamples:
        """Check feature rows and their labels where they come in."""
        rows, names = self._state.checked_rows(rows), label_list(labels)
        check_one_each(rows, names, "rows")
        return EncodedSamples(rows, names, ids)

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
        inputs, text, progress
            As for :meth:`encode`.
        reject : float or True, optional
            Answer ``"unknown"`` (-1 where classes are integers) for inputs unlike anything
            learned, at the cost of refusing this fraction of the known ones. True is as
            :meth:`tune_unknown` chose, or 0.05.
        by_class : bool
            Reject by a threshold for each class, where enough of it was learned.
        """
        how: Any = {"text": text, "progress": progress}
        if reject is None or reject is False:
            solution = self._state.solved()
            return solution.answer(self.encode(inputs, **how)).labels[:, 0]
        answers, limits = self._judged(inputs, reject, by_class=by_class, **how)
        labels = answers.labels[:, 0]
        return np.where(answers.novelty <= limits, labels, unknown_like(labels[0]))

    def _judged(
        self, inputs: Any, reject: Reject, top: int = 1, *, by_class: bool = False, **how: Any
    ) -> tuple[Answers, float | np.ndarray]:
        """Answer for inputs; also return the novelty beyond which each is unknown."""
        state = self._state
        state.check_can_reject(reject)
        solution = state.solved(calibrated=True)
        answers = solution.answer(self.encode(inputs, **how), top, novelty=True)
        return answers, state.limits(solution, answers.labels[:, 0], reject, by_class=by_class)

    def predict_rows(self, rows: np.ndarray) -> np.ndarray:
        """Answer with the likeliest class of each feature row, as `encode` returns them."""
        return self._state.solved().answer(self._state.checked_rows(rows)).labels[:, 0]

    def predict_top(
        self, inputs: Any, k: int = 3, *, reject: Reject = None, progress: bool = False
    ) -> list[list[tuple[Label, float]]]:
        """Answer with the k likeliest classes and their probabilities, the likeliest first.

        With `reject`, as for :meth:`predict`, the first answer for an input that is refused is
        ``"unknown"`` (or -1), with NaN for a probability; the likeliest classes follow.
        """
        check_count("k", k)
        limits: float | np.ndarray = np.inf
        if reject is None or reject is False:
            answers = self.solution.answer(self.encode(inputs, progress=progress), k)
        else:
            answers, limits = self._judged(inputs, reject, k, progress=progress)
        unknown = unknown_like(answers.labels[0, 0]), float("nan")
        return [
            one.top if one.known is not False else [unknown, *one.top[: k - 1]]
            for one in answers.each(limits)
        ]

    def predict_proba(self, inputs: Any, *, progress: bool = False) -> np.ndarray:
        """Return the probability ``(n, n_classes)`` of every class, in the order of `classes`."""
        return self.solution.probabilities(self.encode(inputs, progress=progress))

    def scores(self, inputs: Any, *, progress: bool = False) -> np.ndarray:
        """Return the score ``(n, n_classes)`` of every class: the larger, the likelier."""
        return self._state.solved().scores(self.encode(inputs, progress=progress))

    def answer(self, inputs: Any, *, top: int = 5, reject: Reject = None) -> list[Answer]:
        """Answer for inputs as :meth:`answer_rows` does for feature rows."""
        return self.answer_rows(self.encode(inputs), top=top, reject=reject)

    def answer_rows(self, rows: np.ndarray, *, top: int = 5, reject: Reject = None) -> list[Answer]:
        """Answer for feature rows, as `encode` returns them, in one pass.

        An answer has the `top` likeliest classes, whether the input is like anything learned, and
        how unlike; `reject` as for :meth:`is_known`.
        """
        check_count("top", top)
        check_reject(reject)
        state = self._state
        solution = state.solved(calibrated=True)
        answers = solution.answer(self._state.checked_rows(rows), top, novelty=True)
        return answers.each(state.limits(solution, answers.labels[:, 0], reject))

    # ---------------------------------------------------------------- known and unknown

    def novelty(self, inputs: Any, *, progress: bool = False) -> np.ndarray:
        """Say how unlike anything learned inputs are; the larger, the less known.

        The distance from the nearest class, less that from all classes together.
        """
        return self._state.solved().novelty(self.encode(inputs, progress=progress))

    def threshold(self, reject: Reject = None) -> float | None:
        """Return the novelty beyond which an input is taken for unknown; see :meth:`is_known`.

        None if too little was learned to have one, or with ``calibrated=False``. Classes
        may have been given thresholds of their own by :meth:`tune_unknown`.
        """
        check_reject(reject)
        state = self._state
        no_class = np.array([None])  # which has no threshold of its own
        limit = float(np.max(state.limits(state.solved(calibrated=True), no_class, reject)))
        return limit if np.isfinite(limit) else None

    def is_known(
        self, inputs: Any, *, reject: Reject = None, by_class: bool = False, progress: bool = False
    ) -> np.ndarray:
        """Say whether inputs are like anything learned.

        The threshold needs no examples of unknown inputs: it comes from the samples learned, each
        judged as if it had not been. `reject` is the fraction of inputs of known classes that may
        be taken for unknown, by default as :meth:`tune_unknown` chose, or 0.05; False is none.
        `by_class` uses a threshold for each class, where enough of it was learned or tuned.
        """
        answers, limits = self._judged(inputs, reject, by_class=by_class, progress=progress)
        return answers.novelty <= limits

    def fit_refusal(
        self,
        known: np.ndarray,
        unknown: np.ndarray,
        *,
        reject: float | None = None,
        by_class: bool = False,
    ) -> tuple[Refusal, Tuning]:
        """Fit thresholds to feature rows of both kinds; see `Learner.tune_unknown`."""
        state = self._state
        state.check_can_reject(None)
        if reject is not None:
            check_fraction("reject", reject)
        solution, answered = state.solved(calibrated=True), []
        if solution.calibration is None or not np.isfinite(solution.threshold(REFUSED)):
            raise KldaError(
                "Too little was learned to tell known inputs from unknown ones: learn at least two "
                "samples in each of two classes."
            )
        for rows in (known, unknown):
            found = solution.answer(self._state.checked_rows(rows), novelty=True)
            answered += [found.novelty / solution.calibration.unit, found.labels[:, 0]]
        return fit_refusal(*answered[::2], *answered[1::2], reject=reject, by_class=by_class)

    # ---------------------------------------------------------------- why, and how well

    def explain(
        self, value: Any, *, top: int = 5, samples: int = 5, reject: Reject = None
    ) -> Explanation:
        """Say why an input gets the answer it gets: one text, image or feature row.

        It names the `top` likeliest classes and, if the learner keeps a ledger, so many learned
        `samples` like it; `reject` as for :meth:`is_known`.
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
        check_reject(reject)
        state = self._state
        solution, rows = state.solved(calibrated=True), self.encode(inputs)
        limits = state.limits(solution, solution.answer(rows).labels[:, 0], reject)
        limits = np.broadcast_to(limits, len(rows))
        return explain_rows(solution, rows, state.ledger, limits, top, samples)

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

        Parameters are those of :meth:`klda.Learner.learn`; classes never learned count as wrong.
        """
        solution, layout = self.solution, Layout(text, label)
        found: list[tuple[np.ndarray, ...]] = []  # labels, answers, probabilities
        for rows, names, _ in self.inputs.encoded_batches(
            inputs, labels, layout, self.classes, progress=progress
        ):
            answers = solution.answer(self._state.checked_rows(rows))
            found.append((np.asarray(names), answers.labels[:, 0], answers.probabilities[:, 0]))
        if not found:
            raise KldaError("inputs is empty: there is nothing to evaluate.")
        return Evaluation.of(*map(np.concatenate, zip(*found, strict=True)))

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
        the other samples. That takes a copy that learns them: a compact model or a frozen view
        can't. A learner that knows nothing yet will do.

        Parameters are those of :meth:`klda.Learner.learn`; the samples may be learned or not. If a
        model does not keep samples, give all that were learned, or only new ones. Unlikely labels
        come first, the least likely at the top; then near-duplicates with different labels; then
        duplicates.
        """
        layout, known = Layout(text, label), self.classes
        parts = list(self.inputs.encoded_batches(inputs, labels, layout, known, progress=progress))
        if not parts:
            raise KldaError("inputs is empty: there is nothing to check.")
        rows = np.concatenate([rows for rows, _, _ in parts])
        return self.suspects_rows(rows, [name for _, names, _ in parts for name in names])

    def suspects_rows(self, rows: np.ndarray, labels: Labels) -> list[Suspect]:
        """Find suspected samples among feature rows; see :meth:`suspects`."""
        rows, names, _ = self._samples(rows, labels)
        state = self._state
        check_label_kind(state.engine.counts, names, "labels")
        return find_suspects(state.engine.copy(), rows, names)

    def suggest(
        self,
        inputs: Any,
        n: int = 20,
        *,
        text: str | Sequence[str] | None = None,
        progress: bool = False,
    ) -> list[Suggestion]:
        """Find the inputs to label next: uncertain, and unlike what is known and each other.

        A learner that knows nothing yet will do: then they are typical inputs of all kinds. There
        are fewer than `n` if more would be near-duplicates of others; other parameters as for
        :meth:`encode`. The most telling come first, each with the inputs like it.
        """
        check_count("n", n)  # before the inputs are encoded, which may take long
        return self.suggest_rows(self.encode(inputs, text=text, progress=progress), n)

    def suggest_rows(self, rows: np.ndarray, n: int = 20) -> list[Suggestion]:
        """Find the inputs to label next among feature rows; see :meth:`suggest`."""
        check_count("n", n)
        rows, state = self._state.checked_rows(rows), self._state
        if len(state.engine.counts) < 2:
            return find_suggestions(rows, n)
        solution = state.solved(calibrated=True)
        answers = solution.answer(rows, novelty=True)
        limits = state.limits(solution, answers.labels[:, 0], reject=None)
        return find_suggestions(rows, n, answers, limits)

    def export_onnx(self, folder: str | Path, *, reject: Reject = None) -> dict[str, Any]:
        """Write the learner as ONNX, for programs in other languages.

        The new or empty `folder` gets ``head.onnx`` (features in; label, probabilities, scores and
        known out), ``klda.json`` (classes, and how inputs are prepared), and where the foundation
        model is like BERT, ``model.onnx`` (tokens in) with its ``tokenizer.json``. The output
        ``known`` goes by `reject`, as for :meth:`is_known`. Returns what ``klda.json`` says, and
        the files' names.
        """
        from klda.export.onnx import export_onnx

        check_reject(reject)
        state = self._state
        solution = state.solved(calibrated=True)
        limits = state.limits(solution, solution.classes, reject)
        return export_onnx(folder, self.encoder, solution, limits)
