"""Learning and answering, whatever the kind of classifier."""

from __future__ import annotations

import numbers
import threading
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self

import numpy as np
from sklearn.utils.validation import validate_data

from klda import state
from klda._interrupts import held_back
from klda.backend import Array, choose_backend
from klda.calibration import Calibration
from klda.checks import check_number, checked_label
from klda.classifiers.blocks import class_tiles, row_blocks
from klda.classifiers.guarded import GuardedClassifier
from klda.decisions import RunningTop, softmax
from klda.discriminant import Solution
from klda.errors import KldaError
from klda.learned import check_learned
from klda.member import Member
from klda.statistics import ClassStatistics, Label


class ContinualClassifier(GuardedClassifier):
    """What all classifiers share: learning, removing, merging, answers."""

    _keeps_scatter: ClassVar[bool] = True

    _solutions: list[Solution] | None
    _lock: threading.RLock  # held while solving: many threads may ask for the first answer

    # ---------------------------------------------------------------- learning

    def fit(self, X: Any, y: Any) -> Self:
        """Learn from scratch, forgetting whatever was learned before.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Samples: NumPy array, torch tensor, pandas or polars frame.
        y : array-like of shape (n_samples,)
            Labels, strings or integers.

        Returns
        -------
        self
        """
        self._check_parameters()
        samples, groups, labels = self._check_batch(X, y, fresh=True)
        members = self._draw_members(samples)
        self._change(members, samples, groups, labels, 1)
        validate_data(self, X=X, reset=True, skip_check_array=True)
        self._members = members
        self._start_anew()
        self._note_learned(samples, groups, labels)
        self._settle()
        return self

    def partial_fit(self, X: Any, y: Any, classes: Any = None) -> Self:
        """Learn more samples, of known classes or of new ones, at any time.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Samples.
        y : array-like of shape (n_samples,)
            Labels; labels never seen before start new classes.
        classes : ignored
            Taken so that code written for scikit-learn's ``partial_fit`` runs; not needed.

        Returns
        -------
        self
        """
        self._check_parameters()
        fresh = not hasattr(self, "_members")
        if not fresh:
            self._check_whole()
        samples, groups, labels = self._check_batch(X, y, fresh=fresh)
        members = self._draw_members(samples) if fresh else self._members
        self._change(members, samples, groups, labels, 1)
        if fresh:
            validate_data(self, X=X, reset=True, skip_check_array=True)
            self._members = members
            self._start_anew()
        self._solutions = None
        self._note_learned(samples, groups, labels)
        return self

    def remove(self, X: Any, y: Any) -> Self:
        """Undo what learning these samples did, exactly.

        A class without samples left is dropped.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Samples that were learned before.
        y : array-like of shape (n_samples,)
            Their labels.

        Returns
        -------
        self
        """
        samples, groups, labels = self._check_removal(X, y)
        before = self._counts()
        self._change(self._members, samples, groups, labels, -1)
        self._solutions = None
        removed = zip(labels, np.bincount(groups).tolist(), strict=True)
        self._note_removed({label: n / before[label] for label, n in removed})
        self._note_gone(samples, groups, labels)
        return self

    def check_learned(self, X: Any, y: Any) -> None:
        """Raise if samples can't have been learned, as far as the statistics tell.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Samples.
        y : array-like of shape (n_samples,)
            Their labels.

        Raises
        ------
        NotLearnedError
            If removing them would leave statistics of nothing that ever was.
        """
        samples, groups, labels = self._check_removal(X, y)
        self._solve()
        check_learned(self._solved_members(), samples, groups, labels)

    def forget(self, label: Label) -> Self:
        """Drop a class from the answers.

        The shared covariance keeps its trace; with the samples at hand, `remove` leaves none.

        Parameters
        ----------
        label : str or int
            The class.

        Returns
        -------
        self
        """
        self._check_has_classes()
        self._check_known([label], "label")
        for member in self._members:
            member.statistics.drop([label])
            if member.statistics.has_scatter:
                member.discriminant.note_reorder()
        self._solutions = None
        self._note_removed({label: 1.0})
        return self

    def rename(self, old: Label, new: Label) -> Self:
        """Give a class another name.

        Parameters
        ----------
        old, new : str or int
            The class, and a name no other class has.

        Returns
        -------
        self
        """
        self._check_has_classes()
        self._check_known([old], "old")
        new = checked_label("new", new)
        self._check_label_kind([new])
        if new in self._counts():
            raise KldaError(f"new={new!r} is a class already; merge by learning, or use another.")
        for member in self._members:
            member.statistics.rename(old, new)
        self._solutions = None
        self._note_renamed(old, new)
        return self

    def merge(self, other: Self) -> Self:
        """Add all that another model learned, as if its samples had been learned here.

        Parameters
        ----------
        other : estimator of the same kind
            A model with the same random features: the same ``gamma``, ``random_state``,
            ``n_components`` and number of input features. It is left as it is.

        Returns
        -------
        self
        """
        if type(other) is not type(self):
            raise KldaError(
                f"other is a {type(other).__name__}; a {type(self).__name__} merges with its kind."
            )
        self._check_whole()
        other._check_whole()
        if not hasattr(other, "_members"):
            return self
        if not hasattr(self, "_members"):
            self._check_same_parameters(other)
            self._members = [member.copy() for member in other._members]
            self.n_features_in_ = other.n_features_in_
            self._start_anew()
            self._note_merged(other)
            return self
        self._check_mergeable(other)
        for mine, theirs in zip(self._members, other._members, strict=True):
            added = theirs.statistics.copy() if other is self else theirs.statistics
            mine.statistics.merge(added)
            if mine.statistics.has_scatter:
                mine.discriminant.reset()
        self._solutions = None
        self._note_merged(other)
        return self

    # ---------------------------------------------------------------- answers

    def scores(self, X: Any, among: Sequence[Label] | None = None) -> np.ndarray:
        """Scores of samples, one column a class also where there are two.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Samples.
        among : list of labels, optional
            Answer within these classes only; columns follow this list.

        Returns
        -------
        ndarray of shape (n_samples, n_classes)
            Columns follow ``classes_``.
        """
        self._check_has_classes()
        columns = self._columns(among)
        samples = self._check_samples(X, fresh=False)
        backend = self._members[0].backend
        parts = []
        for part in row_blocks(len(samples), self._width(), backend):
            rows = backend.asarray(samples[part])
            parts.append(backend.to_numpy(self._block_scores(rows, columns)))
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def decision_function(self, X: Any, among: Sequence[Label] | None = None) -> np.ndarray:
        """Scores of samples: the larger, the likelier the class.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Samples.
        among : list of labels, optional
            Answer within these classes only; columns follow this list.

        Returns
        -------
        ndarray of shape (n_samples, n_classes)
            Columns follow ``classes_``. For two classes, as scikit-learn has it, shape
            ``(n_samples,)``: the second class's score minus the first's.
        """
        scores = self.scores(X, among)
        return scores[:, 1] - scores[:, 0] if scores.shape[1] == 2 else scores

    def predict_proba(self, X: Any, among: Sequence[Label] | None = None) -> np.ndarray:
        """Probabilities of the classes.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Samples.
        among : list of labels, optional
            Answer within these classes only; columns follow this list.

        Returns
        -------
        ndarray of shape (n_samples, n_classes)
            Columns follow ``classes_``; rows sum to one.
        """
        scores = self.scores(X, among)
        return softmax(scores.astype(np.float64) / self._temperature())

    def predict(self, X: Any, among: Sequence[Label] | None = None) -> np.ndarray:
        """Labels of the likeliest classes.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Samples.
        among : list of labels, optional
            Answer within these classes only.

        Returns
        -------
        ndarray of shape (n_samples,)
        """
        return self._best(X, among, 1)[0][:, 0]

    def predict_top(
        self, X: Any, k: int = 5, among: Sequence[Label] | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Labels and probabilities of the likeliest classes.

        Classes are gone through a tile at a time: memory does not grow with samples times classes.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Samples.
        k : int
            How many classes; all of them, if there are fewer.
        among : list of labels, optional
            Answer within these classes only.

        Returns
        -------
        labels : ndarray of shape (n_samples, k)
            The likeliest first; of equally likely classes, the first in ``classes_``.
        probabilities : ndarray of shape (n_samples, k)
            Shares of all classes' probability, not only of these k.
        """
        check_number("k", k, kind=numbers.Integral)
        self._check_has_classes()
        temperature = self._temperature()
        labels, scores, log_total = self._best(X, among, int(k), temperature)
        scores = scores.astype(np.float64)  # float32 would tell some probabilities above one
        return labels, np.exp(scores / temperature - log_total[:, None])

    # ---------------------------------------------------------------- fitted attributes

    @property
    def classes_(self) -> np.ndarray:
        """Labels of the classes known now, sorted."""
        self._check_started()
        return self._members[0].classes.copy()

    @property
    def n_classes_(self) -> int:
        """Number of classes known now; costs the same however many there are."""
        self._check_started()
        return len(self._members[0].labels)

    @property
    def class_count_(self) -> np.ndarray:
        """Samples learned of each class, in the order of ``classes_``."""
        counts = self._counts()
        return np.array([counts[label] for label in self.classes_.tolist()], np.int64)

    @property
    def means_(self) -> np.ndarray:
        """Class means in feature space, one row a class, in the order of ``classes_``."""
        statistics = self._fitted()
        at = statistics.locate(sorted(statistics.labels))
        return statistics.backend.to_numpy(statistics.means)[at]

    def _counts(self) -> dict[Label, int]:
        self._check_started()
        return self._members[0].counts

    def _fitted(self) -> ClassStatistics:
        self._check_started()
        return self._members[0].statistics

    # ---------------------------------------------------------------- state

    def to_state(self, compact: bool = False) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """Return all that the model knows as arrays and JSON-able values.

        Parameters
        ----------
        compact : bool
            Leave out what only learning needs: the state can answer but not learn.

        Returns
        -------
        arrays : dict of str to ndarray
            ``predict/...`` is needed to answer, ``learn/...`` to learn.
        meta : dict
            Kind, parameters, labels and counts.
        """
        return state.pack(self, compact)

    def _start_anew(self) -> None:
        """Forget what followed from an earlier model."""
        self._solutions = None
        self._lock = threading.RLock()

    def _restore(self, solutions: list[Solution], calibration: Calibration | None) -> None:
        """Take over what was solved and found before."""
        self._start_anew()
        self._solutions = solutions

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in super().__getstate__().items() if name != "_lock"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        if hasattr(self, "_members"):
            self._lock = threading.RLock()

    # ---------------------------------------------------------------- how a batch is learned

    def _change(
        self, members: list[Member], samples: Array, groups: np.ndarray, labels: list, sign: int
    ) -> None:
        """Let all members learn or remove a batch, a block of rows at a time.

        What stops it before a block has changed anything, an interrupt or a lack of memory, leaves
        the model as it was: the blocks before are undone. What stops it within a block leaves a
        model that says so.
        """
        done: list[slice] = []
        # What is read from a store is read before anything changes.
        size = {member.statistics.n_components for member in members}.pop()
        parts = list(row_blocks(len(groups), size, members[0].backend))
        room = members[0].backend.room(parts[0].stop, size) if members[0].kernel else None
        whole = _sizes(members)
        self._torn = members is getattr(self, "_members", None)
        try:
            for part in parts:
                with held_back():
                    self._change_block(members, samples[part], groups[part], labels, sign, room)
                    done.append(part)
                    whole = _sizes(members)
        except BaseException:
            if _sizes(members) == whole:
                with held_back():
                    for part in reversed(done):
                        rows, own = samples[part], groups[part]
                        self._change_block(members, rows, own, labels, -sign, room)
                    self._torn = False
            raise
        self._torn = False

    def _change_block(
        self,
        members: list[Member],
        samples: Array,
        groups: np.ndarray,
        labels: list,
        sign: int,
        room: Array | None,
    ) -> None:
        backend = members[0].backend
        rows = backend.asarray(samples)  # moved to the device once for all members
        place = np.empty(len(labels), np.int64)
        present = np.flatnonzero(np.bincount(groups, minlength=len(labels)))
        place[present] = np.arange(len(present))
        grouping, names = (
            backend.grouping(place[groups], len(present)),
            [labels[i] for i in present],
        )
        backend.each([member.change(rows, grouping, names, sign, room) for member in members])

    # ---------------------------------------------------------------- how samples are scored

    def _best(
        self, X: Any, among: Sequence[Label] | None, k: int, temperature: float | None = None
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Labels and scores of the k best classes; with a temperature, the softmax's log-total."""
        self._check_has_classes()
        columns = self._columns(among)
        samples = self._check_samples(X, fresh=False)
        backend = self._members[0].backend
        found = []
        for part in row_blocks(len(samples), self._width(), backend):
            lifted = self._lifted(backend.asarray(samples[part]))
            found.append(self._best_of_block(lifted, columns, k, temperature))
        labels = self._members[0].classes if among is None else np.array(list(among))
        positions = np.concatenate([top.positions for top in found])
        scores = np.concatenate([top.scores for top in found])
        return labels[positions], scores, np.concatenate([top.log_total for top in found])

    def _best_of_block(
        self,
        lifted: Sequence[Array],
        columns: np.ndarray | None,
        k: int,
        temperature: float | None,
    ) -> RunningTop:
        backend = self._members[0].backend
        n_classes = len(self._members[0].labels) if columns is None else len(columns)
        running = RunningTop(len(lifted[0]), k)
        slices = class_tiles(len(lifted[0]), n_classes, backend)
        tiles = [part if columns is None else columns[part] for part in slices]
        log_totals = self._log_totals(lifted, tiles)
        for part, tile in zip(slices, tiles, strict=True):
            scores = self._combined(self._part_scores(lifted, tile), log_totals)
            total = None if temperature is None else backend.log_total(scores, temperature)
            running.add(part.start, *backend.top(scores, k), total)
        return running

    def _block_scores(self, samples: Array, columns: np.ndarray | None) -> Array:
        chosen = slice(None) if columns is None else columns
        return self._combined(self._part_scores(self._lifted(samples), chosen))

    def _part_scores(self, lifted: Sequence[Array], columns: slice | np.ndarray) -> list[Array]:
        """Scores of some classes, one array a member."""
        parts = []
        for member, features, solution in zip(self._members, lifted, self._solve(), strict=True):
            at = columns if isinstance(columns, slice) else member.backend.index(columns)
            weights, biases = solution.weights[at], solution.biases[at]
            parts.append(member.backend.linear(features, weights, biases))
        return parts

    def _width(self) -> int:
        return int(self._solve()[0].weights.shape[1])

    # ---------------------------------------------------------------- each kind in its own way

    def _draw_members(self, samples: Array) -> list[Member]:
        backend = choose_backend(self.device, self.dtype, samples)
        statistics = ClassStatistics(
            int(samples.shape[1]), backend, with_scatter=self._keeps_scatter
        )
        return [Member(backend, None, statistics)]

    def _solve(self) -> list[Solution]:
        raise NotImplementedError

    def _solved_members(self) -> list[Member]:
        """Members whose solver has solved, if they have one."""
        return self._members

    def _settle(self) -> None:
        """Bring everything that follows from the statistics up to date."""
        self._check_started()
        if self._members[0].labels:
            self._solve()

    def _lifted(self, samples: Array) -> list[Array]:
        """Features of samples, one array a member."""
        return [member.transform(samples) for member in self._members]

    def _combined(
        self, parts: Sequence[Array], log_totals: Sequence[np.ndarray] | None = None
    ) -> Array:
        """One score a class from those of all members."""
        (scores,) = parts
        return scores

    def _log_totals(
        self, lifted: Sequence[Array], tiles: Sequence[slice | np.ndarray]
    ) -> Sequence[np.ndarray] | None:
        """Return what combining the scores of a tile needs to know of all classes, if anything."""
        return None

    def _temperature(self) -> float:
        return 1.0

    def _note_learned(self, samples: Array, groups: np.ndarray, labels: list) -> None:
        """Take note of a batch that was learned."""

    def _note_removed(self, shares: Mapping[Label, float]) -> None:
        """Take note that a share of some classes was removed."""

    def _note_gone(self, samples: Array, groups: np.ndarray, labels: list) -> None:
        """Take note of a batch that was removed."""

    def _note_renamed(self, old: Label, new: Label) -> None:
        """Take note of a new name."""

    def _note_merged(self, other: Any) -> None:
        """Take note of a model that was merged."""


def _sizes(members: Sequence[Member]) -> list[tuple[int, int, int]]:
    """Return classes and samples of each member: they tell whether a change has begun."""
    found = [member.statistics for member in members]
    return [(len(each.labels), each.n_samples, each.n_scattered) for each in found]
