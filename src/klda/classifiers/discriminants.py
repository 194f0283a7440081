"""Classifiers that solve for weights: answers, probabilities, and what is unknown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np

from klda.backend import Array, Steps
from klda.calibration import Calibration, Pending, Scale
from klda.checks import check_choice, check_number
from klda.classifiers.blocks import class_tiles, row_blocks
from klda.classifiers.continual import ContinualClassifier
from klda.decisions import Familiarity
from klda.discriminant import Solution
from klda.errors import KldaError
from klda.member import Member
from klda.statistics import Label

PRIORS = ("auto", "uniform", "empirical")
AUTO_RIDGES = (1e-1, 1e-2)  # at as many samples as components, and from twice as many on
# Of the mean squared distance of the classes from their middle. On CLINC150, with one sample of
# each of 2 to 150 classes, the mean confidence is then at most 0.04 above the accuracy.
GUESSED_TEMPERATURE = 1 / 16
MOST_PROBED = 1 << 24  # probes times classes
PROBED_AT_ONCE = 1 << 21


def _known(solution: Solution) -> Familiarity:
    assert solution.familiarity is not None
    return solution.familiarity


class DiscriminantClassifier(ContinualClassifier):
    """Classifiers that solve for weights from means and scatter."""

    ridge: float | str
    priors: str
    small_sample_correction: bool
    calibrated: bool
    _solved_with: tuple
    _calibration: Calibration
    _judged_with: tuple
    _pending: Pending

    def _check_parameters(self) -> None:
        super()._check_parameters()
        if isinstance(self.ridge, str):
            check_choice("ridge", self.ridge, ("auto",))
        else:
            check_number("ridge", self.ridge)
        check_choice("priors", self.priors, PRIORS)

    @property
    def ridge_(self) -> float:
        """The ridge in use, relative to the mean diagonal of the covariance."""
        self._check_started()
        if not isinstance(self.ridge, str):
            return self.ridge
        ratio = max(self._members[0].n_samples, 1) / self._solution_size()
        first, last = AUTO_RIDGES
        if ratio < 1:  # worth D / 10 samples whose scatter is alike in all directions
            return first / ratio
        return float(first * (last / first) ** min(np.log2(ratio), 1.0))

    def _solution_size(self) -> int:
        kernel = self._members[0].kernel
        return self.n_features_in_ if kernel is None else kernel.n_components

    def _solve(self) -> list[Solution]:
        settings = (self.ridge_, self.priors, self.small_sample_correction)
        with self._lock:
            if self._solutions is None or self._solved_with != settings:
                self._check_parameters()
                ridge, backend = self.ridge_, self._members[0].backend
                jobs = [self._solve_member(member, ridge) for member in self._members]
                self._solutions = backend.each(jobs)
                self._solved_with = settings
            return self._solutions

    def _solve_member(self, member: Member, ridge: float) -> Steps[Solution]:
        return member.discriminant.solve(
            ridge=ridge, priors=self.priors, correct=self.small_sample_correction
        )

    def _restore(self, solutions: list[Solution], calibration: Calibration | None) -> None:
        super()._restore(solutions, calibration)
        self._solved_with = (self.ridge_, self.priors, self.small_sample_correction)
        if calibration is not None:
            self._calibration = calibration

    # ------------------------------------------------------- probabilities and unknown inputs

    def novelty(self, X: Any) -> np.ndarray:
        """Say how unlike anything learned samples are.

        The relative Mahalanobis distance: from the nearest class, less the distance from all
        classes together. The larger, the less known.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Samples.

        Returns
        -------
        ndarray of shape (n_samples,)
        """
        self._check_has_classes()
        samples = self._check_samples(X, fresh=False)
        return self._novelty(samples)

    def assess(self, X: Any) -> tuple[np.ndarray, np.ndarray]:
        """Scores and novelty of samples, for the cost of one of them.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Samples.

        Returns
        -------
        scores : ndarray of shape (n_samples, n_classes)
            As :meth:`scores` has them.
        novelty : ndarray of shape (n_samples,)
            As :meth:`novelty` has it.
        """
        self._check_has_classes()
        samples = self._check_samples(X, fresh=False)
        backend = self._members[0].backend
        scores, novelty = [], []
        for part in row_blocks(len(samples), self._width(), backend):
            rows = backend.asarray(samples[part])
            scored = self._part_scores(self._lifted(rows), slice(None))
            parts = [backend.to_numpy(each) for each in scored]
            scores.append(backend.to_numpy(self._combined([backend.asarray(p) for p in parts])))
            novelty.append(self._mean_novelty(parts))
        return np.concatenate(scores), np.concatenate(novelty)

    def threshold(self, refused: float = 0.05) -> float:
        """Novelty beyond which a sample is taken for unknown.

        Parameters
        ----------
        refused : float
            Share of samples of known classes that may be taken for unknown.

        Returns
        -------
        float
            Infinity while too little was learned to say.
        """
        self._check_has_classes()
        self._check_refused(refused)
        self._check_judges()
        self._settle()
        if self._is_guessing():
            undecided = np.mean([_known(solution).undecided for solution in self._solve()])
            return float((1 - refused) * undecided)
        return self._calibration.threshold(refused, self._scale())

    def _check_judges(self) -> None:
        if not self.calibrated:
            raise KldaError(
                "calibrated=False: without it nothing is kept that tells known inputs from unknown "
                "ones. Make the model with calibrated=True."
            )

    def _check_refused(self, refused: float) -> None:
        if not 0 < refused < 1:
            raise KldaError(f"refused={refused!r} can't be used; give a share between 0 and 1.")

    def is_known(self, X: Any, *, refused: float = 0.05, by_class: bool = False) -> np.ndarray:
        """Say whether samples are like anything learned.

        The threshold comes from the samples learned, each judged as if it had not been.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Samples.
        refused : float
            Share of samples of known classes that may be taken for unknown.
        by_class : bool
            Use the threshold of the class that a sample would be given, where enough of it was
            learned to have one.

        Returns
        -------
        ndarray of bool, shape (n_samples,)
        """
        self._check_has_classes()
        limit: Any = self.threshold(refused)
        samples = self._check_samples(X, fresh=False)
        novelty = self._novelty(samples)
        if by_class:
            own = self._calibration.class_thresholds(refused, self._scale())
            answers = self.predict(X).tolist()
            limit = np.array([own.get(label, limit) for label in answers])
        return novelty <= limit

    @property
    def temperature_(self) -> float:
        """What scores are divided by before they become probabilities."""
        self._check_started()
        return self._temperature()

    def _novelty(self, samples: Array) -> np.ndarray:
        """Novelty of samples that were checked, a tile of classes at a time."""
        backend = self._members[0].backend
        found = []
        for part in row_blocks(len(samples), self._width(), backend):
            lifted = self._lifted(backend.asarray(samples[part]))
            known = [_known(solution) for solution in self._solve()]
            nearest = np.full((len(known), len(lifted[0])), np.inf)
            for tile in class_tiles(len(lifted[0]), len(self._members[0].labels), backend):
                for i, scores in enumerate(self._part_scores(lifted, tile)):
                    near = known[i].nearest(backend.to_numpy(scores), tile)
                    nearest[i] = np.minimum(nearest[i], near)
            scores = self._part_scores(lifted, known[0].anchors)
            for i, of_anchors in enumerate(scores):
                nearest[i] += known[i].beyond_nearest(backend.to_numpy(of_anchors))
            found.append(nearest.mean(axis=0))
        return np.concatenate(found)

    def _mean_novelty(self, parts: Sequence[np.ndarray]) -> np.ndarray:
        total = np.zeros(len(parts[0]))
        for solution, scores in zip(self._solve(), parts, strict=True):
            total += _known(solution).novelty(scores)
        return total / len(parts)

    def _temperature(self) -> float:
        if not self.calibrated:
            return 1.0
        self._settle()
        if self._is_guessing():
            scale = np.mean([_known(solution).scale for solution in self._solve()])
            return float(GUESSED_TEMPERATURE * scale) or 1.0
        return self._calibration.temperature(self._scale())

    def _is_guessing(self) -> bool:
        """Whether there is one sample of each class: no sample tells how far others may be.

        Distances between the classes are all that is known then. They set the temperature, so that
        answers are not surer than they are right, and the threshold: what leans to no class is
        unknown.
        """
        return 1 < self.n_classes_ == self._members[0].n_samples

    def _start_anew(self) -> None:
        super()._start_anew()
        self._calibration, self._judged_with = Calibration(), self._judging
        self._pending = Pending()

    def _note_learned(self, samples: Array, groups: np.ndarray, labels: list) -> None:
        if self.calibrated:
            self._pending.offer(samples, lambda i: labels[groups[i]])

    def _note_removed(self, shares: Mapping[Label, float]) -> None:
        self._calibration.drop(shares)
        self._pending.drop({label for label, share in shares.items() if share >= 1})

    def _note_gone(self, samples: Array, groups: np.ndarray, labels: list) -> None:
        self._pending.remove(samples, [labels[group] for group in groups.tolist()])

    def _note_renamed(self, old: Label, new: Label) -> None:
        self._calibration.rename(old, new)
        self._pending.rename(old, new)

    def _note_merged(self, other: Self) -> None:
        self._calibration.merge(other._calibration)
        self._pending.merge(other._pending)

    def _settle(self) -> None:
        """Solve, and judge the samples learned since as if they had not been.

        What tells labels and scores does not need it; what tells probabilities, and known from
        unknown, does, and so does what stores the model.
        """
        self._check_started()
        with self._lock:
            if self._judged_with != self._judging:  # what was judged belongs to another model
                self._calibration, self._judged_with = Calibration(), self._judging
            # One class tells nothing; the next may.
            if self._pending.labels and len(self._members[0].labels) > 1:
                self._judge()
            super()._settle()

    @property
    def _judging(self) -> tuple:
        """What the user chose of all that scores depend on."""
        return (self.ridge, self.priors, self.small_sample_correction)

    def _judge(self) -> None:
        pending, self._pending = self._pending, Pending()
        counts = self._counts()
        chosen = [i for i, label in enumerate(pending.labels) if counts.get(label, 0) > 1]
        chosen = chosen[:: -(-len(chosen) * len(counts) // MOST_PROBED) or 1]
        if not chosen:
            return
        labels = [pending.labels[i] for i in chosen]
        rows = np.stack([pending.samples[i] for i in chosen])
        truth = np.searchsorted(self._members[0].classes, np.array(labels))
        self._solve()
        backend, step = self._members[0].backend, max(1, PROBED_AT_ONCE // len(counts))
        for start in range(0, len(labels), step):
            some = slice(start, start + step)
            parts = [
                member.discriminant.leave_one_out(member.transform(rows[some]), labels[some])
                for member in self._solved_members()
            ]
            combined = backend.to_numpy(self._combined([backend.asarray(part) for part in parts]))
            novelty = self._mean_novelty(parts)
            self._calibration.add(self._scale(), labels[some], combined, truth[some], novelty)

    def _scale(self) -> Scale:
        """On what scale the scores are now."""
        solutions, n_samples = self._solve(), self._members[0].n_samples
        spread = np.mean([solution.spread for solution in solutions])
        inflation = np.mean([solution.inflation for solution in solutions])
        noise = float(spread) * self.n_classes_ / max(n_samples, 1)
        return Scale(n_samples, float(inflation), noise)

    def _solved_members(self) -> list[Member]:
        """Members whose solver has solved, also after a solution was read from a store."""
        if any(member.discriminant.unsolved for member in self._members):
            self._solutions = None
            self._solve()
        return self._members

    @property
    def covariance_(self) -> np.ndarray:
        """The covariance shared by all classes, without the ridge."""
        statistics = self._fitted()
        with self._lock:  # solving borrows the diagonal for a moment
            return statistics.scatter.dense() / max(statistics.n_scattered, 1)

    @property
    def coef_(self) -> np.ndarray:
        """Weights, one row a class, in the order of ``classes_``."""
        self._check_started()
        return self._members[0].backend.to_numpy(self._solve()[0].weights)

    @property
    def intercept_(self) -> np.ndarray:
        """Biases, in the order of ``classes_``."""
        self._check_started()
        return self._members[0].backend.to_numpy(self._solve()[0].biases)
