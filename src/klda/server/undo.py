"""Undoing a forget: what a class leaves in the model, set aside and brought back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from klda.classifiers import KINDS
from klda.learner import Learner
from klda.schema import DamagedStateError
from klda.server.changes import Label
from klda.server.memory import Dropped
from klda.state import unpack_progress

_CALIBRATION = "predict/calibration/"


def set_aside(learner: Learner, labels: Sequence[Label]) -> list[Dropped]:
    """Copy what will be gone with some classes.

    Parameters
    ----------
    learner : Learner
        Which has them. If its ledger has all samples of a class, forgetting it will leave no trace,
        and its samples are set aside; otherwise what is dropped from the answers.
    labels : sequence of label
        The classes.

    Returns
    -------
    list of Dropped
        In the order of `labels`.
    """
    ledger, counts = learner.ledger, learner.classes
    found = []
    for label in labels:
        if ledger is not None and ledger.counts.get(label) == counts[label]:
            rows = ledger.rows_at(ledger.of_class(label))
            found.append(Dropped(label, counts[label], {"rows": rows}))
        else:
            found.append(_drop(learner.classifier, label))
    return found


def bring_back(learner: Learner, template: Any, dropped: Dropped) -> None:
    """Undo a forget.

    Parameters
    ----------
    learner : Learner
        Which forgot it.
    template : estimator
        With the learner's feature map, and at least one class.
    dropped : Dropped
        What `set_aside` returned.
    """
    rows = dropped.arrays.get("rows")
    if rows is not None:
        learner.learn(rows, [dropped.label] * len(rows), source="undo")
    else:
        learner.classifier.merge(revive(template, dropped))


def _drop(classifier: Any, label: Label) -> Dropped:
    arrays, meta = classifier.to_state(compact=True)
    at = meta["classes"].index(label)
    own = {"means": np.array(classifier.means_[..., at, :])}
    if _CALIBRATION + "labels" in arrays:
        mine = np.flatnonzero(arrays[_CALIBRATION + "labels"] == at)
        for name in ("filed", "novelty", "losses"):
            own[name] = arrays[_CALIBRATION + name][mine]
    return Dropped(label, int(meta["counts"][at]), own)


def revive(template: Any, dropped: Dropped) -> Any:
    """Return a model with one class that has a mean and a count but adds nothing to the scatter.

    Merged into the model that it was dropped from, whose scatter still has its trace, it undoes
    the drop exactly.

    Parameters
    ----------
    template : estimator
        With the same feature map and parameters, and at least one class.
    dropped : Dropped
        The class.

    Returns
    -------
    estimator
        To be merged.
    """
    packed, meta = template.to_state(compact=True)
    own = dropped.arrays
    means = np.atleast_2d(own["means"])[:, None]
    if len(means) != len(meta["members"]):
        raise DamagedStateError(f"{dropped.label!r} was set aside by a model of other members")
    arrays: dict[str, np.ndarray] = {}
    members = []
    for i, entry in enumerate(meta["members"]):
        for name in ("frequencies", "phases"):
            if f"predict/{i}/{name}" in packed:
                arrays[f"progress/{i}/{name}"] = packed[f"predict/{i}/{name}"]
        arrays[f"progress/{i}/means"] = means[i]
        numbers: dict[str, Any] = {"n_scattered": 0}
        if "filed" in own:  # what is calibrated has a scatter, too
            arrays[f"progress/{i}/rows"] = np.empty((0, means.shape[-1]), means.dtype)
            arrays[f"progress/{i}/signs"] = np.empty(0, np.int8)
            numbers["turnover"] = 0.0
        members.append({**entry, **numbers})
    one = {"classes": [dropped.label], "counts": [dropped.count], "compact": False}
    state = {**meta, **one, "members": members}
    if "filed" in own:
        arrays |= {_CALIBRATION + name: own[name] for name in ("filed", "novelty", "losses")}
        arrays[_CALIBRATION + "labels"] = np.zeros(len(own["filed"]), np.int64)
        state["judging"] = {"seen": 0, "pending": []}
    return unpack_progress(KINDS, arrays, state, None)
