"""Class means, estimated from samples, from names, and from each other.

All of this needs inner products of class means and names only, no samples. They are plain ones
while samples are few; later they are those of the whitened space, in which distances between
classes are judged.

**Names.** The name of a class, encoded like a sample, says something about its mean before there
are samples, and while they are few. Classes that have both show how much. Their means m are a
regression on their names h (both relative to their averages) plus a residual, and a class mean of
n samples carries noise on top:

    m = b h + e,    cov(e) = s (a C + (1 - a) I) / w,    cov(noise) = s diag(1 / n),

C being the cosines of the names: classes with similar names have similar residuals. This is a
Gaussian process over the classes, and its posterior means are the estimates. With a = 0, a name
counts as w samples at ``b h``. The slope b is a least-squares fit, and w, the *worth* of a name in
samples, has the highest marginal likelihood; names that say nothing get a slope near zero.

**Rare classes without names.** In the space whitened by the precision P, noise makes the squared
length of a mean too large by ``D_out / n``, where ``D_out = tr(P Sigma)`` is in the thousands, and
keeps a class with a few samples from ever being predicted. Adding ``D_out / (2 n)`` to the bias
corrects this on average, but leaves the noise in the direction of the mean. Class means are alike,
though: much of what distinguishes a class lies in directions in which the other classes differ from
each other. So each mean, relative to the mean of all means, is replaced by its ridge regression on
the others,

    c_m = (K + r_m I)^-1 k_m,      r_m = M v (1 / n_m - 1 / n),

where K are the inner products of the other means and k_m those with class m: the posterior mean
under a normal prior with the covariance of the other means (empirical Bayes). ``v`` is the variance
of a new sample along a whitened direction and n the average number of samples per class: the other
means are noisy too, so only the noise beyond theirs counts, and a class with an average number of
samples or more keeps its mean.

The relative means add up to zero, so the part of a mean that the others do not explain is one more
direction of small variance. The fraction ``own_m`` of it is kept, which grows with n_m. With
``own = signal / (signal + noise)`` the scores are right on average; the noise that a larger
fraction lets through is corrected in the biases.

The constants were chosen by cross-validation within the training rows of fourteen sets of texts,
from no samples of a class to eighty.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import scipy

from klda.engine import sizes
from klda.engine.arrays import Array, product
from klda.engine.statistics import ClassStatistics
from klda.labels import Label

SHARED = 0.65  # a: part of the residuals' variance that classes with similar names share
USUAL_SLOPE = 0.4  # where fewer than two classes with different names have samples
USUAL_WORTH = 4.0  # samples
WORTHS = USUAL_WORTH * 2.0 ** np.arange(-3.0, 5.1, 0.5)
WORTH_PRIOR = 0.005  # of log2(w / 4)^2 beside the marginal likelihood of one dimension
NO_VARIANCE = 1e-6  # relative; the direction in which means add up to zero has less, and so have
# the names of classes that are all the same
ALMOST_NO_RIDGE = 1e-3  # of the largest eigenvalue: a guard against rounding
LEAST_OF_AVERAGE = 0.1  # of the average count: added to all counts, however uneven they are


@dataclass(frozen=True, eq=False)
class ClassMeans:
    """The means of all classes, sorted by label; arrays named ``..._r`` are times R."""

    labels: tuple[Label, ...]
    counts: np.ndarray  # (M,): samples of each; zero for a class known by its name alone
    worth: np.ndarray  # (M,): how many samples each estimate is worth, the name counted
    of_samples: Array  # (M, D): the means of the samples, or the name where there are none
    of_samples_r: Array
    means: Array  # (M, D): the estimates from samples and names
    means_r: Array
    # (M, M): how far each estimate moves with the mean of each class's samples; None without names,
    # where each moves with its own.
    pull: np.ndarray | None = None

    @property
    def noise(self) -> np.ndarray:
        """Variance that the estimates have from samples, in units of a sample's."""
        if self.pull is None:
            return 1 / self.worth
        return np.asarray((self.pull**2 / np.maximum(self.counts, 1)).sum(axis=1))

    def centred(self, n_samples: int) -> ClassMeans:
        """Return them relative to the average estimate; those times R, times N."""
        centre, centre_r = self.means.mean(0), self.means_r.mean(0)
        of_samples = means = self.means - centre
        of_samples_r = means_r = (self.means_r - centre_r) * n_samples
        if self.pull is not None:
            of_samples = self.of_samples - centre
            of_samples_r = (self.of_samples_r - centre_r) * n_samples
        changes = {"of_samples": of_samples, "of_samples_r": of_samples_r}
        return replace(self, means=means, means_r=means_r, **changes)


def class_means(
    statistics: ClassStatistics,
    name_labels: Sequence[Label],
    means: Array,
    names: Array,
    d_out: float | None,
) -> ClassMeans:
    """Estimate the means of all classes from samples and names.

    Along the first axis of all arrays of shape (2, n, D) are the plain rows and these times R.

    Parameters
    ----------
    statistics : ClassStatistics
        Of the samples.
    name_labels : sequence of labels
        The classes that names are of, with samples or without.
    means, names : array of shape (2, n, D)
        Class means and lifted names, relative to one row.
    d_out : float or None
        ``tr(P Sigma)`` as a new sample sees it; None if plain inner products tell how names and
        class means are related.
    """
    backend = statistics.backend
    labels = tuple(sorted({*statistics.labels, *name_labels}))
    place = {label: i for i, label in enumerate(labels)}
    taught = np.array([place[label] for label in statistics.labels], np.int64)
    counts = np.zeros(len(labels), np.int64)
    counts[taught] = statistics.counts
    of_samples = backend.zeros((2, len(labels), means.shape[2]))
    of_samples[:, backend.index(taught)] = means
    if not len(name_labels):
        return ClassMeans(labels, counts, counts, *of_samples, *of_samples)
    # The names of classes with samples come first, then those of declared ones.
    named = np.array([place[label] for label in name_labels], np.int64)
    order = np.argsort(counts[named] == 0, kind="stable")
    n_both = int((counts[named] > 0).sum())
    if len(labels) > sizes.MOST_NAMED:
        order, n_both = order[n_both:], 0
    places, at = named[order], backend.index(named[order])
    # Names have an average of their own: they differ from samples in all classes alike.
    names, both = names[:, backend.index(order)], of_samples[:, at[:n_both]]
    for_average = both if n_both else means if len(taught) else names
    average = for_average.mean(1)[:, None]
    average_name = names[:, :n_both].mean(1)[:, None] if n_both else average
    from_mean, from_name = both - average, names - average_name
    apart, lengths = (float((rows[0] ** 2).sum()) for rows in (from_name[:, :n_both], names))
    if apart > NO_VARIANCE * lengths:
        slope, name_worth, gains = _fit(
            statistics, counts[places[:n_both]], from_mean, from_name, d_out
        )
    else:  # names alone, or all the same, don't tell how means follow from them
        slope, name_worth = USUAL_SLOPE if len(taught) else 1.0, USUAL_WORTH
        gains = np.eye(len(order), n_both)
    estimates = backend.xp.asarray(of_samples, copy=True)
    residuals = from_mean - slope * from_name[:, :n_both]
    estimates[:, at] = average + slope * from_name + backend.asarray(gains) @ residuals
    of_samples[:, at[n_both:]] = average + from_name[:, n_both:]
    # A class without samples is taken for one of average size: its estimate has no sample's noise.
    worth = counts + 0.0
    worth[counts == 0] = np.floor(statistics.counts.mean()) + 1 if len(taught) else 1.0
    worth[places] += name_worth
    pull = np.diag(np.where(np.isin(np.arange(len(labels)), places), 0.0, 1.0))
    pull[np.ix_(places, places[:n_both])] = gains
    return ClassMeans(
        labels, counts, worth, of_samples[0], of_samples[1], estimates[0], estimates[1], pull
    )


def _fit(
    statistics: ClassStatistics,
    counts: np.ndarray,
    from_mean: Array,
    from_name: Array,
    d_out: float | None,
) -> tuple[float, float, np.ndarray]:
    """Fit class means to names by inner products: plain ones, or with ``D_out`` whitened ones."""
    backend, n = statistics.backend, statistics.n_scattered
    rows, times_r = backend.xp.concat([from_mean, from_name], 1)
    left, within = rows, max(statistics.scatter.trace, 0.0)
    if d_out is not None:
        left, within = times_r * n, d_out * (n - len(statistics.labels))
    return fit_names(backend.to_numpy(product(left, rows.T), np.float64), counts, within, n)


def fit_names(
    gram: np.ndarray, counts: np.ndarray, within: float, n_samples: int
) -> tuple[float, float, np.ndarray]:
    """Fit class means to names.

    Parameters
    ----------
    gram : ndarray of shape (T + H, T + H)
        Inner products of T class means and H names, each relative to its average; the first T names
        are those of the same classes.
    counts : ndarray of shape (T,)
        Samples of each class.
    within : float
        Sum of squared distances of all samples from the means of their classes.
    n_samples : int
        Number of samples.

    Returns
    -------
    slope : float
        b.
    worth : float
        w, in samples.
    gains : ndarray of shape (H, T)
        What each named class takes of the residuals of those that have samples.
    """
    n_taught, n_names = len(counts), len(gram) - len(counts)
    means, cross = gram[:n_taught, :n_taught], gram[:n_taught, n_taught : 2 * n_taught]
    names = gram[n_taught:, n_taught:]
    taught_names = names[:n_taught, :n_taught]
    tiny = np.finfo(float).tiny
    slope = max(float(cross.trace()) / max(float(taught_names.trace()), tiny), 0.0)
    residuals = means - slope * (cross + cross.T) + slope**2 * taught_names
    lengths = np.sqrt(np.maximum(names.diagonal(), tiny))
    shared = SHARED * names / lengths[:, None] / lengths + (1 - SHARED) * np.eye(n_names)
    best, worth, gains = np.inf, USUAL_WORTH, np.zeros((n_names, n_taught))
    for w in WORTHS.tolist():
        system = shared[:n_taught, :n_taught] / w + np.diag(1 / counts)
        factor = scipy.linalg.cho_factor(system, lower=True, check_finite=False)
        distance = float(scipy.linalg.cho_solve(factor, residuals, check_finite=False).trace())
        loss = 2 * float(np.log(factor[0].diagonal()).sum()) + WORTH_PRIOR * np.log2(w / 4) ** 2
        loss += (n_samples - 1) * float(np.log(max(within + distance, tiny)))
        if loss < best:
            solved = scipy.linalg.cho_solve(factor, shared[:n_taught] / w, check_finite=False)
            best, worth, gains = loss, w, solved.T
    return slope, worth, gains


# ---------------------------------------------------------------- rare classes


@dataclass(frozen=True, eq=False)
class Mixing:
    """How the means of rare classes are made of all means."""

    # (M, M): F: mixed means are ``F means``. None if they are the means.
    combination: np.ndarray | None
    # (M,): what makes up for the noise left in the squared lengths, to be added to the biases.
    correction: np.ndarray
    # (M,): that noise beyond what an average class has: a new sample does not share it.
    excess: np.ndarray
    ridges: np.ndarray  # (M,): r_m; zero for a class that leans on no others
    # Eigenvalues and eigenvectors of the inner products.
    values: np.ndarray = field(default_factory=lambda: np.empty(0))
    basis: np.ndarray = field(default_factory=lambda: np.empty((0, 0)))

    def apply(self, values: np.ndarray) -> np.ndarray:
        """Mix values given per class along the last axis: ``values F^T``."""
        return values if self.combination is None else values @ self.combination.T

    def gram(self, inner: np.ndarray) -> np.ndarray:
        """Return the inner products of mixed means from those of the means."""
        if self.combination is None:
            return inner
        mixed = product(product(self.combination, inner), self.combination.T)
        return np.asarray((mixed + mixed.T) / 2)


def mix_means(
    inner: np.ndarray | None, classes: ClassMeans, d_out: float, inflation: float
) -> Mixing:
    """Return how to improve the means of rare classes that have no names.

    The leave-one-out identity gives the weights of the others without a solve for each class:
    ``c_j = -B_jm / B_mm`` with ``B = (K + r_m I)^-1`` over all classes.

    Parameters
    ----------
    inner : ndarray of shape (M, M), optional
        Inner products, in the whitened space, of the class means; without, means stay as they are.
    classes : ClassMeans
        The classes.
    d_out : float
        ``tr(P Sigma)`` as a new sample sees it; without any, means stay as they are.
    inflation : float
        Variance of a new sample along a whitened direction.
    """
    n_classes, noise = len(classes.worth), d_out * classes.noise
    beyond = np.maximum(1 / classes.worth - 1 / classes.worth.mean(), 0.0)
    if classes.pull is not None:
        beyond[classes.pull.diagonal() < 1] = 0.0  # names have improved these
    rare, none = np.flatnonzero(beyond), np.zeros(n_classes)
    if n_classes < 2 or d_out <= 0:
        return Mixing(None, none, none, none)
    if inner is None or not len(rare):  # as in most models
        return Mixing(None, 0.5 * noise, none, none)
    values, basis = scipy.linalg.eigh(inner, driver="evd", check_finite=False)
    signal = _signal(values, basis, noise, classes.worth)
    values, ridges = np.maximum(values, 0.0), n_classes * inflation * beyond
    inverse = 1 / (values[:, None] + ridges[rare])  # one column per rare class
    weights = basis @ (basis.T[:, rare] * inverse)
    weights /= -weights[rare, np.arange(len(rare))]
    weights[rare, np.arange(len(rare))] = 0.0
    predicted = weights.T
    # The means add up to zero, so a constant may be added to the weights. With a sum of one they
    # also say what becomes of the estimate when one of the means moves.
    combination, own = np.eye(n_classes), np.ones(n_classes)
    own[rare] = np.clip(-predicted.sum(axis=1) / (n_classes - 1), 0.0, 1.0)
    combination[rare] = predicted + (1 - predicted.sum(axis=1, keepdims=True)) / n_classes
    correction = 0.5 * own * np.maximum(own * noise - (1 - own) * signal, 0.0)
    part = np.clip(combination.diagonal(), 0.0, 1.0)
    excess = part * np.maximum(part * d_out * beyond - (1 - part) * signal, 0.0)
    return Mixing(combination, correction, excess, ridges, values, basis)


def _signal(values: np.ndarray, vectors: np.ndarray, noise: np.ndarray, worth: np.ndarray) -> float:
    """Squared length, less noise, of what the other classes can't say of a class, on average."""
    used = values > NO_VARIANCE * values[-1]
    if not used.any():
        return 0.0
    inverse = vectors[:, used] ** 2 @ (1 / (values[used] + ALMOST_NO_RIDGE * values[-1]))
    residual = np.divide(1, inverse, out=np.zeros_like(inverse), where=inverse > 0)
    return max(float(np.average(residual - noise, weights=worth)), 0.0)


def log_priors(counts: np.ndarray) -> np.ndarray:
    """Return logarithms of prior probabilities: class frequencies, smoothed by the evidence.

    If priors come from a Dirichlet distribution with parameter c, counts drawn from them vary more
    than by chance, by a factor ``1 + (N - 1) / (M c + 1)``. That determines c, and the expected
    priors are ``(n_m + c) / (N + M c)``. If almost all classes are of one size, c is large, and a
    class with only a few samples is not taken for a rare one.
    """
    n_classes, total = len(counts), float(counts.sum())
    if n_classes < 2 or total < 2:
        return np.zeros(n_classes)
    by_chance = total / n_classes * (1 - 1 / n_classes)
    uneven = (float(counts.var()) / by_chance - 1) / (total - 1)
    if uneven <= 0:
        return np.full(n_classes, -np.log(n_classes))
    c = max((1 / uneven - 1) / n_classes, LEAST_OF_AVERAGE * total / n_classes)
    return np.asarray(np.log((counts + c) / (total + n_classes * c)))
