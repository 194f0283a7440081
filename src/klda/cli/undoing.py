"""``klda forget --rows``: undoing what a file taught, and telling whether it ever did."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from klda.discriminant import RidgeRaisedWarning
from klda.errors import KldaError
from klda.learner import Learner

if TYPE_CHECKING:
    from klda.statistics import Scatter

# How far the mean of a class may be from that of the rows that it was learned from, relative to its
# length: encoded in other batches or on another machine, rows differ a little.
TOLERANCE = 0.01


class Undoing:
    """Takes the rows of a file out of a learner that is dropped if they turn out to be others.

    A ledger holds the features that were learned, so that each row can be compared. Without one,
    the statistics tell: the rows of a whole class have its mean, and what is left of the scatter
    after some rows are gone is that of the others, hence positive definite with the ridge.

    Parameters
    ----------
    learner : Learner
        Changed as rows are taken.
    names : sequence of labels
        Classes to forget.
    path : Path
        The file, for messages.
    """

    def __init__(self, learner: Learner, names: Sequence[Any], path: Path) -> None:
        self.learner, self.path = learner, path
        self.before = learner.classes
        for name in names:
            if name not in self.before:
                raise KldaError(f"{name!r} is not a class of this model: nothing was forgotten.")
        self.taken = dict.fromkeys(names, 0)
        self._sums: dict[Any, np.ndarray] = {}
        self._means = {} if learner.ledger is not None else _means(learner, list(self.taken))

    def take(self, inputs: Any, labels: Sequence[Any]) -> None:
        """Undo those of some rows that belong to the classes.

        Parameters
        ----------
        inputs : sequence
            Texts, image paths or feature rows.
        labels : sequence
            Their labels.
        """
        chosen = [i for i, label in enumerate(labels) if label in self.taken]
        if not chosen:
            return
        names = [labels[i] for i in chosen]
        for name in names:
            self.taken[name] += 1
            if self.taken[name] > self.before[name]:
                raise KldaError(
                    f"{self.path} has more rows of class {name!r} than the "
                    f"{self.before[name]:,} that were learned: nothing was forgotten."
                )
        some = inputs[chosen] if hasattr(inputs, "shape") else [inputs[i] for i in chosen]
        rows = self.learner._encode(some)
        if self._means:
            self._add_up(rows, names)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RidgeRaisedWarning)  # `finish` looks into it
            self.learner._forget_rows(rows, names)

    def finish(self, folder: Path, *, partly: bool) -> None:
        """Check that the rows taken are all, and that they were learned.

        Parameters
        ----------
        folder : Path
            Where the model as it was can be read.
        partly : bool
            Whether samples of the classes may be left.
        """
        self._check_complete(partly)
        self._check_means()
        if not self.learner.classes:
            return  # nothing is left to look at
        self._check_scatter(folder)
        self.learner._record("forget", self.before, self.path.name)

    def _add_up(self, rows: np.ndarray, names: list[Any]) -> None:
        member = self.learner.classifier._members[0]
        lifted = member.backend.to_numpy(member.transform(rows)).astype(np.float64)
        of = np.array(names)
        for name in dict.fromkeys(names):
            self._sums[name] = self._sums.get(name, 0.0) + lifted[of == name].sum(0)

    def _check_complete(self, partly: bool) -> None:
        for name, count in self.taken.items():
            if not count:
                raise KldaError(
                    f"{self.path} has no rows of class {name!r}: nothing was forgotten. Give the "
                    "file that it was learned from, or leave the class out."
                )
            if count < self.before[name] and not partly:
                raise KldaError(
                    f"{self.path} has {count:,} of the {self.before[name]:,} samples of class "
                    f"{name!r}, which would still be known: nothing was forgotten. Give all rows "
                    "that were learned, or --partly to forget just these."
                )

    def _check_means(self) -> None:
        for name, mean in self._means.items():
            if self.taken[name] < self.before[name]:
                continue  # the others may be anywhere
            off = np.linalg.norm(self._sums[name] / self.taken[name] - mean)
            if off > TOLERANCE * np.linalg.norm(mean):
                raise self._strangers(name)

    def _check_scatter(self, folder: Path) -> None:
        if not self._means or _is_definite(self.learner):
            return
        # A model may have been in need of a larger ridge before: then this tells nothing.
        if _is_definite(Learner.load(folder)):
            raise self._strangers(next(iter(self.taken)))

    def _strangers(self, name: Any) -> KldaError:
        return KldaError(
            f"{self.path}: the rows of class {name!r} are not those that were learned, so that "
            "taking them away would leave a model of nothing that ever was: nothing was forgotten. "
            "Give the file that was learned, with the same columns, or leave out --rows."
        )


def _means(learner: Learner, names: list[Any]) -> dict[Any, np.ndarray]:
    """Means of classes, as learned."""
    statistics = learner.classifier._members[0].statistics
    at = statistics.backend.index(statistics.locate(names))
    found = statistics.backend.to_numpy(statistics.means[at]).astype(np.float64)
    return dict(zip(names, found, strict=True))


def _is_definite(learner: Learner) -> bool:
    """Whether the scatter could be that of samples: it has a factor with the ridge asked for."""
    if not learner.classifier._keeps_scatter:
        return True
    with warnings.catch_warnings():
        warnings.simplefilter("error", RidgeRaisedWarning)
        try:
            # A copy is solved from the statistics alone, not from a factor that was changed.
            classifier = learner.copy().classifier
            solutions = classifier._solve()
        except (RidgeRaisedWarning, ArithmeticError):
            return False
    return all(
        _rows_are_definite(member.statistics.scatter, solution.rho)
        for member, solution in zip(classifier._members, solutions, strict=True)
        if member.statistics.scatter.is_thin
    )


def _rows_are_definite(scatter: Scatter, rho: float) -> bool:
    """Whether ``P^T P - N^T N + rho I`` is positive definite, of rows P added and N taken away.

    It is if, and only if, ``rho I - N N^T + N P^T (P P^T + rho I)^-1 P N^T`` is (the Schur
    complement and Woodbury's identity).
    """
    rows = scatter.backend.to_numpy(scatter.rows).astype(np.float64)
    added, gone = rows[scatter.signs > 0], rows[scatter.signs < 0]
    if not len(gone):
        return True
    across = added @ gone.T
    known = across.T @ np.linalg.solve(added @ added.T + rho * np.eye(len(added)), across)
    try:
        np.linalg.cholesky(rho * np.eye(len(gone)) - gone @ gone.T + known)
    except np.linalg.LinAlgError:
        return False
    return True
