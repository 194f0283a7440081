"""A model and its solution, kept in step: what an estimator holds once it is fitted."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Self

import numpy as np

from klda.engine.arrays import Backend, is_finite
from klda.engine.evidence import Evidence, judge
from klda.engine.feature_map import KernelMap
from klda.engine.few_samples import solve_few
from klda.engine.interrupts import held_back
from klda.engine.model import HalfChangedError, Model
from klda.engine.rule import Settings
from klda.engine.solution import Solution
from klda.engine.solve import solve
from klda.errors import KldaError


class PredictionOnlyError(KldaError):
    """A classifier that can only predict was asked to learn."""


class DamagedModelError(KldaError):
    """What was stored for learning is damaged."""

    def __init__(self, reason: str) -> None:
        super().__init__(
            f"What was stored for learning is damaged: {reason}. Restore the model from a copy."
        )


class Fitted:
    """A model and its solution, solved when asked for; any number of threads may ask."""

    def __init__(
        self,
        model: Model | None,  # None if there is only a solution
        solution: Solution | None = None,  # the model's, as solved before
        solved_with: Settings | None = None,  # the settings of that
        # A packed model, read when something is to be learned.
        stored: tuple[Mapping[str, np.ndarray], Mapping[str, Any]] | None = None,
    ) -> None:
        self._model, self._solution, self._stored = model, solution, stored
        self._solved_with = self._judged_with = solved_with
        self._lock = threading.RLock()  # many threads may ask for the first answer

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_lock"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._lock = threading.RLock()

    @property
    def model(self) -> Model:
        """All that was learned; one that was stored is read when first needed."""
        if self._model is None:
            if self._stored is None or self._solution is None:
                raise PredictionOnlyError(
                    "This model was saved compact: it can predict but not learn, remove or merge. "
                    "Use a model saved without compact=True."
                )
            with self._lock:
                self._model = self._model or _read(*self._stored, self._solution.backend)
        if self._model.is_half_changed:
            raise HalfChangedError
        return self._model

    @property
    def known(self) -> Model | Solution:
        """What knows classes, counts and feature maps: a stored model is not read for these."""
        return self._solution or self.model

    @property
    def predicts_only(self) -> bool:
        """Whether there is no model to learn with."""
        return self._model is None and self._stored is None

    @property
    def holds_samples(self) -> bool:
        """Whether there are the samples themselves, without reading a stored model."""
        if self._model is not None:
            return self._model.is_holding
        if self._stored is not None:
            return bool(self._stored[1].get("held"))
        return isinstance(self.known.maps[0], KernelMap)

    @contextmanager
    def changing(self) -> Iterator[Model]:
        """Change the model within this block: the solution is made again when it is asked for.

        Ctrl-C is delivered before the change, where it can be undone, or after the block.
        """
        model = self.model
        with held_back():
            try:
                yield model
            finally:
                self._solution = None

    def copy(self) -> Fitted:
        """Return an independent copy; the solution, which never changes, is shared."""
        with self._lock:  # solving borrows the diagonal of the scatter for a moment
            twin = Fitted(self.model.copy(), self._solution, self._solved_with)
            twin._judged_with = self._judged_with
        return twin

    def solution(self, settings: Settings) -> Solution:
        """Return the solution: labels are current, probabilities and thresholds may be stale."""
        with self._lock:
            if self._solution is None or self._solved_with != settings:
                solved = solve_few if self.model.is_holding else solve
                self._solution, self._solved_with = solved(self.model, settings), settings
            return self._solution

    def calibrated_solution(self, settings: Settings) -> Solution:
        """Return the solution with all the evidence there is."""
        with self._lock:
            solution, model = self.solution(settings), self._model
            if model is None or model.is_holding or not settings.calibrated:
                return solution
            before, self._judged_with = self._judged_with, settings
            if before is not None and _judging(before) != _judging(settings):
                model.evidence = Evidence()
            if model.waiting.labels and len(solution.classes) > 1:  # one class tells nothing
                self.ensure_solved(settings)
                solution, nothing = self.solution(settings), model.waiting.empty()
                model.evidence, model.waiting = judge(model, solution), nothing
            if solution.evidence is not model.evidence:
                self._solution = solution = replace(solution, evidence=model.evidence)
            return solution

    def ensure_solved(self, settings: Settings) -> None:
        """Solve from the statistics unless that was done here: a stored solution is not enough."""
        with self._lock:
            solved = [member.solved for member in self.model.members]
            if None in solved and not self.model.is_holding:
                self._solution = None
            self.solution(settings)

    def weighed_counts(self) -> np.ndarray:
        """Return the samples of each class that has some, as the ridge depends on them.

        What can only predict does not know which hints counted: it has the samples alone.
        """
        if not self.predicts_only:
            return self.model.weighed_counts
        counts = self.known.class_counts
        return counts[counts > 0]

    def covariance(self) -> list[np.ndarray]:
        """Return the shared covariance of each member, without the ridge."""
        with self._lock:
            model = self.model.folded()
            every = [member.statistics for member in model.members]
            if not model.statistics.with_scatter:
                raise KldaError("A model of class means alone has no covariance. Use LDA or KLDA.")
            found = [each.scatter() for each in every]
        return [each / max(model.statistics.n_scattered, 1) for each in found]

    def pack(
        self, settings: Settings, *, compact: bool = False, solved: bool = True
    ) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """Return named arrays and JSON-able values: ``compact`` without the model.

        Not ``solved``, the model alone, without the time that solving takes.
        """
        with self._lock:
            if not solved:
                arrays, meta = self.model.pack()
                return arrays, meta | {"compact": False, "keeps": self.model.keeps}
            solution = self.calibrated_solution(settings)
            arrays, meta = solution.pack()
            keeps = solution.keeps if compact else self.model.keeps
            if not compact:
                learned, of_model = self.model.pack()
                arrays = learned | arrays
                if self.model.is_holding:
                    meta = of_model | {"few": meta["members"]}
                else:
                    members = zip(meta["members"], of_model["members"], strict=True)
                    meta |= of_model | {"members": [rule | known for rule, known in members]}
            return arrays, meta | {"compact": compact, "keeps": keeps}

    @classmethod
    def unpack(
        cls,
        arrays: Mapping[str, np.ndarray],
        meta: Mapping[str, Any],
        settings: Settings,
        backend: Backend,
    ) -> Self:
        """Return what `pack` described, or `Model.pack`: a model that was not solved."""
        if "predict/0/weights" not in arrays:
            return cls(Model.unpack(arrays, meta, backend), None, settings)
        solution = Solution.unpack(arrays, meta, backend, settings)
        return cls(None, solution, settings, None if meta["compact"] else (arrays, meta))


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


def _judging(settings: Settings) -> tuple:
    """Return what the user chose of all that the scores depend on."""
    return (settings.ridge, settings.priors, settings.small_sample_correction, settings.rule)
