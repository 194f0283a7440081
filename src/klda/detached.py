"""Undoing a forget: what a class leaves in the model, set aside and brought back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from klda.classifiers import from_state
from klda.labels import Label

_CALIBRATION = "predict/calibration/"


@dataclass(frozen=True)
class Detached:
    """A class that was forgotten and can be brought back.

    Attributes
    ----------
    label : label
        Its name.
    count : int
        Its samples.
    arrays : dict of str to ndarray
        ``means`` by member and its part of the calibration, or ``rows`` where a ledger had them.
    """

    label: Label
    count: int
    arrays: dict[str, np.ndarray]


def set_aside(learner: Any, labels: Sequence[Label]) -> list[Detached]:
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
    list of Detached
        In the order of `labels`.
    """
    ledger, counts = learner.ledger, learner.classes
    found = []
    for label in labels:
        if ledger is not None and ledger.counts.get(label) == counts[label]:
            rows = ledger.rows_at(ledger.of_class(label))
            found.append(Detached(label, counts[label], {"rows": rows}))
        else:
            found.append(_drop(learner.classifier, label))
    return found


def bring_back(learner: Any, template: Any, dropped: Detached) -> None:
    """Undo a forget.

    Parameters
    ----------
    learner : Learner
        Which forgot it.
    template : estimator
        With the learner's feature map, and at least one class.
    dropped : Detached
        What `set_aside` returned.
    """
    rows = dropped.arrays.get("rows")
    if rows is not None:
        learner.learn(rows, [dropped.label] * len(rows), source="undo")
    else:
        learner.classifier.merge(revive(template, dropped))


def _drop(classifier: Any, label: Label) -> Detached:
    arrays, meta = classifier.to_state(compact=True)
    at = meta["classes"].index(label)
    own = {"means": np.array(classifier.means_[..., at, :])}
    if _CALIBRATION + "labels" in arrays:
        mine = np.flatnonzero(arrays[_CALIBRATION + "labels"] == at)
        for name in ("filed", "novelty", "losses"):
            own[name] = arrays[_CALIBRATION + name][mine]
    return Detached(label, int(meta["counts"][at]), own)


def revive(template: Any, dropped: Detached) -> Any:
    """Return a model with one class that has a mean and a count but adds nothing to the scatter.

    Merged into the model that it was dropped from, whose scatter still has its trace, it undoes
    the drop exactly.

    Parameters
    ----------
    template : estimator
        With the same feature map and parameters, and at least one class.
    dropped : Detached
        The class.

    Returns
    -------
    estimator
        To be merged.
    """
    arrays, meta = template.to_state(compact=True)
    arrays = {name: array for name, array in arrays.items() if not name.startswith(_CALIBRATION)}
    own = dropped.arrays
    means = own["means"].reshape(len(meta["members"]), 1, -1)
    members = []
    for i, entry in enumerate(meta["members"]):
        width = means.shape[-1]
        arrays |= {
            f"predict/{i}/weights": np.zeros((1, width), means.dtype),
            f"predict/{i}/biases": np.zeros(1, means.dtype),
            f"learn/{i}/means": means[i],
            f"learn/{i}/rows": np.empty((0, width), means.dtype),
            f"learn/{i}/signs": np.empty(0, np.int8),
        }
        members.append({**entry, "n_scattered": 0, "turnover": 0.0})
    if "filed" in own:
        arrays |= {_CALIBRATION + name: own[name] for name in ("filed", "novelty", "losses")}
        arrays[_CALIBRATION + "labels"] = np.zeros(len(own["filed"]), np.int64)
    one: dict[str, Any] = {"classes": [dropped.label], "counts": [dropped.count]}
    return from_state(arrays, {**meta, **one, "compact": False, "members": members})
