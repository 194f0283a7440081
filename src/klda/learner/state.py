"""All that a learner knows but its foundation model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from klda.checks import REFUSED, check_fraction
from klda.engine.arrays import Packed, on_cpu
from klda.engine.checks import check_calibrated, check_rows
from klda.engine.engine import Engine
from klda.engine.model import Model
from klda.engine.parameters import Parameters
from klda.engine.rows import Rows
from klda.engine.solution import Solution
from klda.errors import KldaError
from klda.inspection.quality import quality_of
from klda.inspection.refusal import Refusal
from klda.learner.class_names import ClassNames
from klda.storage import folder, former_versions
from klda.undo.change import Named
from klda.undo.log import KEPT_SECONDS, UndoLog

# A fraction of known inputs that may be rejected; None or True: as tuned, or 0.05; False: none.
Reject = float | bool | None


def check_reject(reject: Reject) -> None:
    """Raise if this can't be a fraction of known inputs to reject."""
    if reject is not None and not isinstance(reject, bool):
        check_fraction("reject", reject)


@dataclass(kw_only=True)
class State:
    """What was learned and set, and how it came about.

    A learner's state is never changed: a `Draft` of it is, which then takes its place.
    """

    engine: Engine
    names: ClassNames = field(default_factory=ClassNames)
    undo: UndoLog = field(default_factory=UndoLog)
    history: list[dict[str, Any]] = field(default_factory=list)
    refusal: Refusal | None = None
    next_number: int = 1  # of a change

    @property
    def model(self) -> Model | None:
        """What was learned; None before anything was."""
        return None if self.engine.is_new else self.engine.model

    @property
    def ledger(self) -> Rows | None:
        """Features, labels and ids of the samples learned, if all are kept."""
        if not self.engine.keep_all or self.engine.predicts_only:
            return None
        return Rows.halved() if self.engine.is_new else self.engine.model.rows

    @property
    def contents(self) -> dict[str, str]:
        """Ids of the learns and files in the history, each with where it came from."""
        return {
            key: entry.get("source", "some files")
            for entry in self.history
            if "undone_by" not in entry
            for key in (entry.get("run"), *entry.get("contents", ()))
            if key
        }

    def has_same_samples(self, other: State) -> bool:
        """Whether another one has learned the same, to the last bit."""
        if self.engine.counts != other.engine.counts or not any(self.engine.counts.values()):
            return False
        return self.engine.model.has_same_samples(other.engine.model)

    # ---------------------------------------------------------------- answers

    def solved(self, *, calibrated: bool = False) -> Solution:
        """Return the classifier."""
        if not self.engine.counts:
            raise KldaError("This learner has no classes yet: learn something before asking it.")
        return self.engine.calibrated() if calibrated else self.engine.solution()

    def limits(
        self, solution: Solution, labels: np.ndarray, reject: Reject, *, by_class: bool = False
    ) -> float | np.ndarray:
        """Return the novelty beyond which inputs answered with some labels are unknown."""
        if reject is False:
            return np.inf
        if reject is not None and reject is not True:
            return solution.limits(labels, reject, by_class=by_class)
        if self.refusal is None or solution.calibration is None:
            return solution.limits(labels, REFUSED, by_class=by_class)
        if by_class and not self.refusal.classes:
            raise KldaError(
                "by_class=True can't be used: tune_unknown has fitted one threshold for all "
                "classes. Give a fraction, such as reject=0.05, or call tune_unknown with "
                "by_class=True."
            )
        return self.refusal.limits(labels, solution.calibration.unit)

    # ---------------------------------------------------------------- checks

    def check_can_reject(self, reject: Reject) -> None:
        """Raise if nothing tells known inputs from unknown ones."""
        check_reject(reject)
        check_calibrated(self.engine.parameters)

    def checked_rows(self, rows: Any) -> np.ndarray:
        """Return feature rows in the learner's precision; raise if they can't be used."""
        try:
            rows = np.asarray(on_cpu(rows), self.engine.parameters.dtype)
        except (TypeError, ValueError) as error:
            raise KldaError(f"rows can't be used: {error}; give rows of numbers.") from error
        if rows.ndim != 2 or not len(rows):
            raise KldaError(
                f"rows has the shape {rows.shape}; give one row of features per sample, and at "
                "least one."
            )
        if (width := self.engine.width) not in (None, rows.shape[1]):
            raise KldaError(
                f"inputs has rows of {rows.shape[1]} features, but this learner's have {width}: "
                "compute them with the same foundation model."
            )
        check_rows(rows, "inputs")
        return rows

    # ---------------------------------------------------------------- storage

    def pack(
        self, foundation: Mapping[str, Any], *, compact: bool = False, solved: bool = True
    ) -> Packed:
        """Return the arrays and the document that a model folder holds; see `Learner.pack`."""
        packed = Packed({}, {"compact": compact, "keeps": {}})
        if not self.engine.is_new:
            packed = self.engine.pack(compact=compact, solved=solved)
        counts = self.engine.counts
        document = {
            "compact": compact,
            "samples": sum(counts.values()),
            "classes": {str(label): count for label, count in counts.items()},
            "parameters": self.engine.parameters.stored(),
            "engine": packed.meta,
            "history": list(self.history),
            "names": self.names.pack(),
            "keep": "features" if self.engine.keep_all else None,
            "foundation_model": foundation,
        }
        if self.refusal is not None:
            document["refusal"] = self.refusal.pack()
        packed, undo = Packed(packed.arrays, document), self.undo.expired()
        if (undo.changes or undo.seconds != KEPT_SECONDS) and not compact:
            packed.put("undo", undo.pack())
        if solved:
            document["quality"] = quality_of(self.engine.calibrated()).summary()
        return packed

    @classmethod
    def unpack(
        cls, content: folder.StoredModel, device: str | None = None
    ) -> tuple[State, dict[str, Any]]:
        """Return what a folder holds, and the document in the form of this version."""
        document, arrays = former_versions.current(content)
        here = {} if device is None else {"device": device}
        parameters = Parameters.of_stored(document["parameters"] | here)
        keep_all = document["keep"] is not None
        engine = Engine(parameters, keep_all=keep_all)
        if {"model", "solution"} & document["engine"].keys():  # it has learned something
            engine = Engine.unpack(arrays, document["engine"], parameters, keep_all=keep_all)
        counts = engine.counts
        named = {str(label): count for label, count in counts.items()}
        found = (document["classes"], document["samples"], document["compact"])
        if found != (named, sum(counts.values()), document["engine"]["compact"]):
            raise ValueError("its parts do not agree with each other")
        rows = document["engine"].get("model", {}).get("name_rows", {})
        names = ClassNames.unpack(document.get("names"), rows.get("labels", ()))
        refusal = None
        if "refusal" in document:
            refusal = Refusal.unpack(document["refusal"]).only(counts)
        undo = UndoLog(first=Named(names.declared, refusal))
        if "undo" in document:
            undo = UndoLog.unpack(*Packed(arrays, document).part("undo"), undo.first)
        history = document["history"]
        state = cls(
            engine=engine,
            names=names,
            undo=undo,
            history=history,
            refusal=refusal,
            next_number=int(history[-1]["number"]) + 1 if history else 1,
        )
        return state, document


def chosen_parameters(classifier: Any, default: Parameters, **changes: Any) -> Parameters:
    """Return the parameters of a classifier, of None the default, with changes."""
    found = default
    if isinstance(classifier, Mapping):
        changes = {**classifier, **changes}
    elif isinstance(classifier, Parameters):
        found = classifier
    elif type(classifier).__name__ in ("KLDA", "LDA") and hasattr(classifier, "get_params"):
        found = Parameters.of(classifier.get_params())
    elif classifier is not None:
        raise KldaError(
            f"classifier={classifier!r} can't be used; give a klda.KLDA or klda.LDA, whose "
            "parameters are taken."
        )
    for name in changes.keys() - (known := list(vars(found))):
        raise KldaError(f"{name} is not a parameter of the classifier; use {', '.join(known)}.")
    return replace(found, **changes)
