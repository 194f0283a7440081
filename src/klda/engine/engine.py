"""The engine: parameters, a model, its verbs, its cached solution and a lock.

`klda.KLDA` and `klda.Learner` each hold one. Any number of threads may use it. A change makes
another model, which replaces the old one in a single step: a change that fails leaves the model as
it was.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np

from klda.engine.arrays import Array, Arrays, Backend, Meta, Packed, choose_backend
from klda.engine.calibration import Evidence
from klda.engine.check_learned import check_learned
from klda.engine.checks import check_same_map
from klda.engine.feature_map import KernelMap
from klda.engine.leave_one_out import evidence_of
from klda.engine.model import Model
from klda.engine.parameters import Parameters
from klda.engine.rows import Rows
from klda.engine.rule import Rule
from klda.engine.solution import Solution
from klda.engine.solve import solve
from klda.errors import KldaError
from klda.labels import Label, check_label_kind, check_removable


class PredictionOnlyError(KldaError):
    """A classifier that can only predict was asked to learn."""


# A packed model and its backend, to be read when something is to be learned.
Stored: TypeAlias = tuple[Arrays, Meta, Backend]


class Engine:
    """A model, how it is solved, its last solution and the lock.

    The model is None before the first samples, and in an engine that can only predict; one that was
    stored is read on first use. With ``keep_all`` the rows of all samples are kept. `parameters`
    may be replaced at any time.
    """

    def __init__(
        self,
        parameters: Parameters,
        model: Model | Stored | None = None,
        *,
        keep_all: bool = False,
        solution: Solution | None = None,  # the model's, as solved before
    ) -> None:
        self.parameters, self.keep_all = parameters, keep_all
        self._held, self._solution = model, solution
        self._rule: Rule | None = None  # what the solution was made of; None if that was stored
        # What the solution is of; what the evidence of the model is for.
        self._solved_for, self._calibrated_for = (model, parameters), parameters
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
        return self._held is None and self._solution is None

    @property
    def predicts_only(self) -> bool:
        """Whether there is a solution, but no model to learn with."""
        return self._held is None and self._solution is not None

    @property
    def model(self) -> Model:
        """All that was learned; one that was stored is read when first needed."""
        if isinstance(held := self._held, Model):
            return held
        with self._lock:
            if isinstance(held := self._held, Model):
                return held
            if self.is_new:
                raise KldaError("Nothing was learned yet: learn something first.")
            if held is None:
                raise PredictionOnlyError(
                    "This model can predict, but not learn, forget or merge: it was saved with "
                    "compact=True, or is the frozen view of another one. Use that one, or a model "
                    "saved without compact=True."
                )
            model = Model.unpack(*held)
            if self._solved_for[0] is held:
                self._solved_for = model, self._solved_for[1]
            self._held = model
            return model

    @model.setter
    def model(self, model: Model) -> None:
        with self._lock:
            if not self.parameters.calibrated:  # no sample will ever be left out
                model = replace(model, evidence=Evidence(), pending=Rows())
            self._held = model

    @property
    def _known(self) -> Model | Solution:
        """What tells counts and width: a stored model, which its solution is of, is not read."""
        held = self._held
        return held if isinstance(held, Model) else self._solution or self.model

    @property
    def counts(self) -> dict[Label, int]:
        """Samples learned of each class, sorted by label."""
        return {} if self.is_new else self._known.counts

    @property
    def width(self) -> int | None:
        """Features of a row; None before anything was learned."""
        return None if self.is_new else self._known.n_features

    @property
    def keeps_rows(self) -> bool:
        """Whether all samples learned are kept, so that forgetting them leaves no trace."""
        held = self._held
        if isinstance(held, Model):
            return held.rows is not None
        return held is not None and "rows" in held[1]

    # ---------------------------------------------------------------- verbs

    def add(
        self, rows: Array, labels: Sequence[Label], ids: Sequence[str | None] | None = None
    ) -> None:
        """Learn samples, row i of the class ``labels[i]``; the first ones fix the feature map."""
        with self._lock:
            self.model = self._model_for(rows).add(rows, labels, ids)

    def _model_for(self, rows: Array) -> Model:
        """Return the model; if there is none yet, an empty one for rows like these."""
        if not self.is_new:
            return self.model
        backend = choose_backend(self.parameters.device, self.parameters.dtype, rows)
        return Model.new(self.parameters.feature_map(rows, backend), keep_all=self.keep_all)

    def set_name_rows(self, rows: np.ndarray, labels: Sequence[Label]) -> None:
        """Take other features of class names, one row per class, in the place of all before."""
        with self._lock:
            if self.is_new and not len(rows):
                return
            model = self._model_for(rows)
            given = np.asarray(rows, model.backend.dtype)
            self.model = replace(model, name_rows=Rows.of(given, labels) if len(rows) else Rows())

    def remove(self, rows: Array, labels: Sequence[Label], *, verify: bool = True) -> None:
        """Forget samples that were learned; a class without samples left is dropped.

        Raises `NotLearnedError` if they can't have been learned with these labels. Where the
        samples are not kept, the statistics tell, unless they need not `verify` it.
        """
        with self._lock:
            check_removable(self.counts, labels)
            if verify and self.model.rows is None:
                check_learned(self.model, self.solved_rule(), rows, labels)
            self.model = self.model.remove(rows, labels)

    def drop(self, label: Label) -> Model:
        """Drop a class; return what `merge` brings it back with."""
        with self._lock:
            self.model, gone = self.model.split(label)
            return gone

    def merge(self, other: Model) -> None:
        """Add all that another model learned; raise if its features or labels are others."""
        with self._lock:
            check_same_map(self.model.map, other.map)
            check_label_kind(self.counts, other.counts, "other")
            self.model = self.model.merge(other)

    def rename(self, old: Label, new: Label) -> None:
        """Give a class another name; that of another class joins the two, exactly."""
        with self._lock:
            self.model = self.model.rename(old, new)

    def copy(self) -> Engine:
        """Return an independent copy; models and solutions, which never change, are shared."""
        with self._lock:
            twin = Engine(self.parameters, self._held, keep_all=self.keep_all)
            twin._solution, twin._rule = self._solution, self._rule
            twin._solved_for, twin._calibrated_for = self._solved_for, self._calibrated_for
            return twin

    def frozen(self) -> Engine:
        """Return an engine that answers as this one does now, by the same solution, forever."""
        return Engine(self.parameters, solution=self.calibrated())

    # ---------------------------------------------------------------- solving

    def solution(self) -> Solution:
        """Return the solution: labels are current, probabilities and thresholds may be missing."""
        with self._lock:
            if self._solution is None or self._solved_for != (self._held, self.parameters):
                return self.solved_rule().solution
            return self._solution

    def solved_rule(self) -> Rule:
        """Return what the solution is made of; a stored solution is solved again for it."""
        with self._lock:
            model, rule = self.model, self._rule
            if rule is None or self._solved_for != (model, self.parameters):
                rule = solve(model, self.parameters, rule)
                self._rule, self._solution = rule, rule.solution
                self._solved_for = model, self.parameters
            return rule

    def calibrated(self) -> Solution:
        """Return the solution with all that the evidence says about it."""
        with self._lock:
            solution, parameters = self.solution(), self.parameters
            if not parameters.calibrated or solution.calibration or self.predicts_only:
                return solution
            model, rule = self.model, self.solved_rule()
            if self._calibrated_for.scoring() != parameters.scoring():
                model = model.without_evidence()
            evidence = model.evidence
            if model.is_small:
                evidence = evidence_of(rule, model.rows or Rows())
            elif len(rule.classes.labels) > 1:  # a single class tells nothing yet
                evidence = evidence.add(evidence_of(rule, model.pending))
                model = replace(model, evidence=evidence, pending=Rows())
            found = evidence.calibration(rule.classes.labels, rule.classes.counts, rule.unit)
            self._solution = replace(solution, calibration=found)
            self._held, self._solved_for = model, (model, parameters)
            self._calibrated_for = parameters
            return self._solution

    # ---------------------------------------------------------------- storage

    def pack(self, *, compact: bool = False, solved: bool = True) -> Packed:
        """Return named arrays and JSON-able values: ``compact`` without the model.

        Not ``solved``, the model alone, without the time that solving takes.
        """
        with self._lock:
            arrays, meta = Packed({}, {"compact": compact, "keeps": {}})
            if solved:
                solution = self.calibrated()
                own, meta["solution"] = solution.pack()
                arrays |= own
                if isinstance(solution.map, KernelMap):  # answers are computed from samples
                    meta["keeps"] = {"rows": solution.map.n_components}
            if not compact:
                own, meta["model"] = self.model.pack()
                arrays |= own
                meta["keeps"] = self.model.keeps
            return Packed(arrays, meta)

    @classmethod
    def unpack(
        cls, arrays: Arrays, meta: Meta, parameters: Parameters, *, keep_all: bool = False
    ) -> Engine:
        """Return what `pack` described; a model is read when it is needed."""
        backend, solution = choose_backend(parameters.device, parameters.dtype), None
        if "solution" in meta:
            solution = Solution.unpack(arrays, meta["solution"], backend)
        stored = None if meta["compact"] else (arrays, meta["model"], backend)
        engine = cls(parameters, stored, keep_all=keep_all, solution=solution)
        if solution is None:
            engine.model  # noqa: B018  (read now: there is nothing else to know classes by)
        return engine
