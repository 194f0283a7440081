"""The engine: a model, its verbs, its cached solution and a lock.

`klda.KLDA` and `klda.Learner` each hold one. Any number of threads may use it. A change makes
another model, which replaces the old one in a single step: a change that fails leaves the model as
it was.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np

from klda.engine.arrays import Array, Backend, choose_backend, is_finite
from klda.engine.calibration import Evidence
from klda.engine.check_learned import check_learned
from klda.engine.checks import check_label_kind, check_same_map
from klda.engine.feature_map import FeatureMap, FourierMap, KernelMap
from klda.engine.leave_one_out import leave_one_out
from klda.engine.model import EXACT_KERNEL_ROWS, Model
from klda.engine.parameters import Parameters
from klda.engine.rows import NotLearnedError, Rows
from klda.engine.solution import Solution, softmax
from klda.engine.solve import Factored, Names, Solved, solve
from klda.engine.statistics import ClassStatistics
from klda.errors import KldaError
from klda.labels import Label, group_labels

# Weight of the blocks before the last at one sample of each class; it grows with the root of their
# number, to one. Mean accuracy over fifteen sets with weights of 0.4, 0.7 and 1: 56.2, 56.2, 55.6
# with two samples of each class, 68.3, 68.8, 68.8 with five, 77.3, 78.1, 78.4 with sixteen.
WEIGHT_OF_ONE = 0.4


class PredictionOnlyError(KldaError):
    """A classifier that can only predict was asked to learn."""


class DamagedModelError(KldaError):
    """What was stored for learning is damaged."""

    def __init__(self, reason: str) -> None:
        super().__init__(
            f"What was stored for learning is damaged: {reason}. Restore the model from a copy."
        )


class Engine:
    """A model, its solution and the lock."""

    def __init__(
        self,
        model: Model | None = None,  # None if nothing was learned yet, or there is only a solution
        solution: Solution | None = None,  # the model's, as solved before
        solved_for: Parameters | None = None,
        # A packed model, read when something is to be learned.
        stored: tuple[Mapping[str, np.ndarray], Mapping[str, Any]] | None = None,
    ) -> None:
        self._model, self._solution, self._stored = model, solution, stored
        self._solved_for = self._calibrated_for = solved_for
        self._solved: Solved | None = None  # what the solution was made of; leaving out needs it
        self._factored: Factored | None = None  # what the next solve can use
        self._lock = threading.RLock()

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_lock"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._lock = threading.RLock()

    # ---------------------------------------------------------------- what it knows

    @property
    def is_new(self) -> bool:
        """Whether it has never learned anything: not even the width of a row is known."""
        return self._model is None and self._solution is None and self._stored is None

    @property
    def predicts_only(self) -> bool:
        """Whether there is a solution, but no model to learn with."""
        return not self.is_new and self._model is None and self._stored is None

    @property
    def model(self) -> Model:
        """All that was learned; one that was stored is read when first needed."""
        if self._model is None:
            if self._stored is None:
                raise PredictionOnlyError(
                    "This model was saved compact: it can predict but not learn, remove or merge. "
                    "Use a model saved without compact=True."
                )
            with self._lock:
                assert self._solved_for is not None
                backend = choose_backend(self._solved_for.device, self._solved_for.dtype)
                self._model = self._model or _read(*self._stored, backend)
        return self._model

    @property
    def known(self) -> Model | Solution:
        """What knows classes and counts: a stored model is not read for these."""
        return self._solution or self.model

    @property
    def counts(self) -> dict[Label, int]:
        """Samples learned of each class, sorted by label."""
        if self.is_new:
            return {}
        known = self.known
        return dict(zip(known.classes.tolist(), known.class_counts.tolist(), strict=True))

    @property
    def keeps_rows(self) -> bool:
        """Whether all samples learned are kept, so that forgetting them leaves no trace."""
        if self.is_new:
            return False
        if self._model is None and self._stored is not None:
            return "rows" in self._stored[1]
        return self._model is not None and self._model.rows is not None

    # ---------------------------------------------------------------- verbs

    def add(
        self,
        rows: Array,
        labels: Sequence[Label],
        ids: Sequence[str | None] | None = None,
        *,
        parameters: Parameters,
        keep_all: bool = False,
    ) -> None:
        """Learn samples, row i of the class ``labels[i]``; the first ones fix the feature map."""
        with self._lock:
            model = self._model_for(rows, parameters, keep_all).add(rows, labels, ids)
            if not parameters.calibrated:  # no sample will ever be left out
                model = replace(model, pending=Rows())
            self._commit(model)

    def _model_for(self, rows: Array, parameters: Parameters, keep_all: bool) -> Model:
        """Return the model; if there is none yet, an empty one for rows like these."""
        if not self.is_new:
            return self.model
        backend = choose_backend(parameters.device, parameters.dtype, rows)
        return Model.new(parameters.feature_map(rows, backend), keep_all=keep_all)

    def hint(
        self,
        rows: np.ndarray,
        labels: Sequence[Label],
        *,
        parameters: Parameters,
        keep_all: bool = False,
    ) -> None:
        """Take other hints, one row per class, in the place of all before."""
        with self._lock:
            if self.is_new and not len(rows):
                return
            model = self._model_for(rows, parameters, keep_all)
            hints = Rows.of(np.asarray(rows, model.backend.dtype), labels) if len(rows) else Rows()
            self._commit(replace(model, hints=hints))

    def remove(self, rows: Array, labels: Sequence[Label]) -> None:
        """Forget samples that were learned; a class without samples left is dropped."""
        with self._lock:
            self._commit(self.model.remove(rows, labels))

    def remove_at(self, positions: np.ndarray) -> None:
        """Forget samples given by their positions among those kept."""
        with self._lock:
            self._commit(self.model.remove_at(positions))

    def check_learned(self, rows: Array, labels: Sequence[Label], parameters: Parameters) -> None:
        """Raise `NotLearnedError` if samples can't have been learned with these labels."""
        with self._lock:
            model = self.model
            if model.rows is not None:
                model.rows.find(rows, labels)
                return
            self._solve(parameters)
            assert self._solved is not None
            check_learned(model, self._solved, rows, labels)

    def has_learned(
        self, rows: Array, labels: Sequence[Label], parameters: Parameters
    ) -> np.ndarray:
        """Return which samples were learned with these labels.

        Without the samples themselves the statistics tell, of all those of a class together.
        """
        kept = self.model.rows
        if kept is not None:
            return kept.holds(rows, labels)
        found, counts = np.zeros(len(labels), bool), self.counts
        names, groups = group_labels(np.asarray(labels))
        for i, label in enumerate(names):
            at = np.flatnonzero(groups == i)
            if len(at) <= counts.get(label, 0):
                with suppress(NotLearnedError):
                    self.check_learned(rows[at], [label] * len(at), parameters)
                    found[at] = True
        return found

    def drop(self, label: Label) -> Model:
        """Drop a class; return what `merge` brings it back with."""
        with self._lock:
            left, gone = self.model.drop(label)
            self._commit(left)
            return gone

    def merge(self, other: Model) -> None:
        """Add all that another model learned; raise if its features or labels are others."""
        with self._lock:
            check_same_map(self.model.map, other.map)
            check_label_kind(self.model.classes, other.classes[:1].tolist(), "other")
            self._commit(self.model.merge(other))

    def rename(self, old: Label, new: Label) -> None:
        """Give a class another name; that of another class joins the two, exactly."""
        with self._lock:
            self._commit(self.model.rename(old, new))

    def become(self, model: Model) -> None:
        """Take another model, made from this engine's."""
        with self._lock:
            self._commit(model)

    def _commit(self, model: Model) -> None:
        """Take another model; in one step, so that an interrupt comes before it or after."""
        vars(self).update(_model=model, _solution=None, _solved=None, _stored=None)

    def copy(self) -> Engine:
        """Return an independent copy; models and solutions, which never change, are shared."""
        with self._lock:
            twin = Engine(self._model, self._solution, self._solved_for, self._stored)
            twin._calibrated_for, twin._factored = self._calibrated_for, self._factored
            twin._solved = self._solved
            return twin

    def frozen(self, parameters: Parameters) -> Engine:
        """Return an engine that answers as this one does now, by the same solution, forever."""
        return Engine(None, self.calibrated(parameters), parameters)

    # ---------------------------------------------------------------- solving

    def solution(self, parameters: Parameters) -> Solution:
        """Return the solution: labels are current, probabilities and thresholds may be missing."""
        with self._lock:
            if self._solution is None or self._solved_for != parameters:
                self._solve(parameters)
            assert self._solution is not None
            return self._solution

    def _solve(self, parameters: Parameters) -> None:
        """Solve the model as it is now, unless that was done here."""
        if self._solved is not None and self._solved_for == parameters:
            return
        model = self.model
        kept, self._factored = self._factored, None
        own_map, statistics, names = solving_form(model, parameters, kept)
        uses_kernel, size = own_map is not model.map, model.map.n_components
        solved = solve(
            statistics,
            parameters,
            size,
            names,
            None if uses_kernel else kept,  # it is of the map's own features
            random_features=isinstance(own_map, FourierMap),
        )
        self._factored = None if uses_kernel else solved.factored
        solution = Solution.of(solved, own_map, model.counts)
        vars(self).update(_solved=solved, _solution=solution, _solved_for=parameters)

    def calibrated(self, parameters: Parameters) -> Solution:
        """Return the solution with all that the evidence says about it."""
        with self._lock:
            solution = self.solution(parameters)
            if not parameters.calibrated or solution.calibration is not None:
                return solution
            if self._model is None and self._stored is None:
                return solution
            self._solve(parameters)
            assert self._solution is not None
            assert self._solved is not None
            model, solved, own_map = self.model, self._solved, self._solution.map
            if (
                self._calibrated_for is not None
                and self._calibrated_for.scoring() != parameters.scoring()
            ):
                model = replace(model, evidence=Evidence())
            if model.is_few:
                evidence = Evidence().add(solved, own_map, model.rows or Rows())
            else:
                evidence = model.evidence.add(solved, own_map, model.pending)
                pending = Rows() if len(solved.labels) > 1 else model.pending  # one tells nothing
                model = replace(model, evidence=evidence, pending=pending, counted=model.statistics)
            found = evidence.calibration(solved.labels, solved.counts, solved.unit)
            solution = replace(self._solution, calibration=found)
            vars(self).update(_model=model, _solution=solution, _calibrated_for=parameters)
            return solution

    def left_out(
        self, rows: Array, labels: Sequence[Label], parameters: Parameters
    ) -> tuple[np.ndarray, np.ndarray]:
        """Answer for learned samples as if each had not been learned.

        Returns the position of their class among all, and the probabilities ``(n, M)``. Their
        classes have two samples or more.
        """
        with self._lock:
            temperature = self.calibrated(parameters).temperature
            self._solve(parameters)
            assert self._solution is not None
            assert self._solved is not None
            lifted = self._solution.map.lift(rows)
            own, scores, _ = leave_one_out(self._solved, lifted, labels)
            return own, softmax(scores / temperature)

    # ---------------------------------------------------------------- storage

    def pack(
        self, parameters: Parameters, *, compact: bool = False, solved: bool = True
    ) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """Return named arrays and JSON-able values: ``compact`` without the model.

        Not ``solved``, the model alone, without the time that solving takes.
        """
        with self._lock:
            arrays: dict[str, np.ndarray] = {}
            meta: dict[str, Any] = {"compact": compact, "keeps": {}}
            if solved:
                solution = self.calibrated(parameters)
                own, meta["solution"] = solution.pack()
                arrays |= own
                if isinstance(solution.map, KernelMap):  # answers are computed from samples
                    meta["keeps"] = {"rows": solution.map.n_components}
            if not compact:
                own, meta["model"] = self.model.pack()
                arrays |= own
                meta["keeps"] = self.model.keeps
            return arrays, meta

    @classmethod
    def unpack(
        cls, arrays: Mapping[str, np.ndarray], meta: Mapping[str, Any], parameters: Parameters
    ) -> Engine:
        """Return what `pack` described; a model is read when it is needed."""
        backend, solution = choose_backend(parameters.device, parameters.dtype), None
        if "solution" in meta:
            solution = Solution.unpack(arrays, meta["solution"], backend)
        stored = None if meta["compact"] else (arrays, meta["model"])
        engine = cls(None, solution, parameters, stored)
        if solution is None:
            engine.model  # noqa: B018  (read now: there is nothing else to know classes by)
        return engine


def solving_form(
    model: Model, parameters: Parameters, kept: Factored | None
) -> tuple[FeatureMap | KernelMap, ClassStatistics, Names]:
    """Return the map, the statistics and the names that a model is solved with.

    Up to `EXACT_KERNEL_ROWS` samples, if they are kept, these are the exact kernel between samples
    and names, and statistics computed through it; from the next sample on, the random features of
    the model and its own statistics. All later steps are the same.
    """
    rows, own_map, hints = model.rows, model.map, model.hints
    labels = tuple(hints.labels.tolist())
    few = rows is not None and len(rows) <= EXACT_KERNEL_ROWS and len(model.counts)
    if parameters.rule == "lda" or not few or not isinstance(own_map, FourierMap):
        names = Names()
        if kept is not None and kept.names.source is hints:
            names = kept.names
        elif labels:
            names = Names(labels, own_map.lift(hints.values), hints)
        return own_map, model.statistics, names
    assert rows is not None
    # With few samples of a class, what the earlier blocks say is noise more than signal.
    weight = min(1.0, WEIGHT_OF_ONE * float(np.sqrt(len(rows) / len(model.counts))))
    scales = np.where(np.arange(model.n_features) < parameters.last_block, weight, 1.0)
    both = np.concatenate([kept.values for kept in (rows, hints) if len(kept)])
    kernel_map, features = KernelMap.of(both, own_map.gamma, scales, model.backend)
    backend = kernel_map.backend
    nothing = ClassStatistics.empty(kernel_map.n_components, backend)
    names = Names(labels, features[len(rows) :], hints, whitened=False) if labels else Names()
    if not len(rows):
        return kernel_map, nothing, names
    classes, groups = group_labels(np.array(rows.labels.tolist()))
    lifted = features[backend.index(np.argsort(groups, kind="stable"))]
    statistics = nothing.change([(lifted, np.bincount(groups), classes)], 1)
    return kernel_map, statistics, names


def _read(arrays: Mapping[str, np.ndarray], meta: Mapping[str, Any], backend: Backend) -> Model:
    """Return a stored model; its arrays may have been damaged since it was stored."""
    for name, array in arrays.items():
        if name.startswith(("learn/", "predict/")) and not is_finite(array):
            raise DamagedModelError(f"{name!r} holds values that are not finite")
    try:
        return Model.unpack(arrays, meta, backend)
    except MemoryError:
        raise
    except Exception as error:  # values that can't be right may raise anything
        raise DamagedModelError(f"{type(error).__name__}: {error}") from error
