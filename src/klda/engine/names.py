"""Class means estimated from samples and names together.

The name of a class, encoded like a sample, says something about the mean of the class before there
are samples, and about classes with few samples afterwards. How much, the classes show that have
both. Their means m are a regression on their names h (both relative to their averages) plus a
residual, and a class mean of n samples carries noise on top:

    m = b h + e,    cov(e) = s (a C + (1 - a) I) / w,    cov(noise) = s diag(1 / n),

C being the cosines of the names: classes with similar names have similar residuals. This is a
Gaussian process over the classes, and its posterior means are the estimates. With a = 0, a name
counts as w samples at ``b h``. The slope b is a least-squares fit, and w, the *worth* of a name in
samples, has the highest marginal likelihood; names that say nothing get a slope near zero. A class
without samples gets its estimate from its name and from the residuals of classes with similar ones.

Inner products are all this needs. They are plain ones while samples are few; later they are those
of the whitened space, in which distances between classes are judged.

The constants were chosen by cross-validation within the training rows of fourteen sets of texts,
from no samples of a class to eighty.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import scipy

from klda.engine.arrays import Array
from klda.engine.statistics import ClassStatistics
from klda.labels import Label

MOST_NAMES = 2048  # that are compared with each other; of more, only those without samples count
SHARED = 0.65  # a: part of the residuals' variance that classes with similar names share
USUAL_SLOPE = 0.4  # where fewer than two classes have both a name and samples
USUAL_WORTH = 4.0  # samples
WORTHS = USUAL_WORTH * 2.0 ** np.arange(-3.0, 5.1, 0.5)
PRIOR_WEIGHT = 0.005  # of log2(w / 4)^2 beside the marginal likelihood of one dimension


@dataclass(frozen=True, eq=False)
class Names:
    """Features of the names of classes, with samples or without."""

    labels: tuple[Label, ...] = ()
    rows: Array = None  # one per label
    source: object = None  # what the features were computed from
    whitened: bool = True  # which inner products tell how names and class means are related


@dataclass(frozen=True, eq=False)
class ClassMeans:
    """The means of all classes, sorted by label: those of their samples, and the estimates.

    Attributes
    ----------
    labels : tuple
        The classes.
    counts : ndarray of shape (M,)
        Samples of each class; zero for a class that is known by its name alone.
    worth : ndarray of shape (M,)
        How many samples each estimate is worth, the name counted.
    own, own_plain : array of shape (M, D)
        The means of the samples, or the name where there are none; and these times R.
    means, plain : array of shape (M, D)
        The estimates, and these times R.
    pull : ndarray of shape (M,)
        How far an estimate moves with the mean of its samples.
    """

    labels: tuple[Label, ...]
    counts: np.ndarray
    worth: np.ndarray
    own: Array
    own_plain: Array
    means: Array
    plain: Array
    pull: np.ndarray

    def centred(self, n_samples: int) -> ClassMeans:
        """Return them relative to the average estimate; those times R, times N."""
        centre, of_plain = self.means.mean(0), self.plain.mean(0)
        return replace(
            self,
            own=self.own - centre,
            own_plain=(self.own_plain - of_plain) * n_samples,
            means=self.means - centre,
            plain=(self.plain - of_plain) * n_samples,
        )


def class_means(
    statistics: ClassStatistics, names: Names, means: list[Array], said: list[Array], spread: float
) -> ClassMeans:
    """Estimate the means of all classes.

    Parameters
    ----------
    statistics : ClassStatistics
        Of the samples.
    names : Names
        Of classes with samples and without.
    means, said : list of two arrays
        Class means and names relative to one row, and both times R.
    spread : float
        ``tr(P Sigma)`` as a new sample sees it.
    """
    backend, n = statistics.backend, statistics.n_scattered
    labels = tuple(sorted({*statistics.labels, *names.labels}))
    place = {label: i for i, label in enumerate(labels)}
    taught = np.array([place[label] for label in statistics.labels], np.int64)
    counts = np.zeros(len(labels), np.int64)
    counts[taught] = statistics.counts
    own = [backend.zeros((len(labels), *rows.shape[1:])) for rows in means]
    for whole, rows in zip(own, means, strict=True):
        whole[backend.index(taught)] = rows
    if not names.labels:
        ones = np.ones(len(labels))
        return ClassMeans(labels, counts, counts, own[0], own[1], own[0], own[1], ones)
    # Names of classes with samples come first, then those of declared ones.
    declared = [i for i, label in enumerate(names.labels) if not counts[place[label]]]
    both = sorted({*range(len(names.labels))} - {*declared}) if len(labels) <= MOST_NAMES else []
    k, chosen = len(both), [*both, *declared]
    at = backend.index(np.array([place[names.labels[i]] for i in chosen], np.int64))
    parts = []
    for mine, rows in zip(own, said, strict=True):
        name = rows[backend.index(np.array(chosen, np.int64))]
        known = mine[at[:k]] if k else mine[backend.index(taught)]
        average = known.mean(0) if len(known) else name.mean(0)
        # Names have an average of their own: they differ from samples in all classes alike.
        parts.append((mine[at[:k]] - average, name - (name[:k].mean(0) if k else average), average))
    fit = NameFit(USUAL_SLOPE, USUAL_WORTH, np.eye(len(chosen), k))
    if k > 1:
        rows, times_r = (backend.concatenate([mean, name]) for mean, name, _ in parts)
        left = times_r * n if names.whitened else rows
        gram = backend.to_numpy(backend.linear(left, rows), np.float64)
        within = max(statistics.scatter.trace, 0.0)
        if names.whitened:
            within = spread * (n - len(statistics.labels))
        fit = fit_names(gram, counts[backend.to_numpy(at[:k])], within, n)
    gains, estimates = backend.asarray(fit.gains), [backend.copy(rows) for rows in own]
    for (mean, name, average), mine, estimate in zip(parts, own, estimates, strict=True):
        mine[at[k:]] = average + name[k:]
        estimate[at] = average + fit.slope * name + gains @ (mean - fit.slope * name[:k])
    worth, pull = counts + 0.0, np.ones(len(labels))
    # A class without samples is taken for one of average size: its estimate has no sample's noise.
    worth[counts == 0] = np.floor(statistics.counts.mean()) + 1 if len(taught) else 1.0
    worth[backend.to_numpy(at)] += fit.worth
    pull[backend.to_numpy(at[:k])] = fit.gains.diagonal()
    rows = (own[0], own[1], estimates[0], estimates[1])
    return ClassMeans(labels, counts, worth, *rows, pull)


@dataclass(frozen=True)
class NameFit:
    """How class means follow from names, and from the means of classes with samples.

    Attributes
    ----------
    slope : float
        b.
    worth : float
        w, in samples.
    gains : ndarray of shape (H, T)
        What each of H named classes takes of the residuals of the T that have samples.
    """

    slope: float
    worth: float
    gains: np.ndarray


def fit_names(gram: np.ndarray, counts: np.ndarray, within: float, n_samples: int) -> NameFit:
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
    """
    n_taught, n_names = len(counts), len(gram) - len(counts)
    means, cross = gram[:n_taught, :n_taught], gram[:n_taught, n_taught : 2 * n_taught]
    names = gram[n_taught:, n_taught:]
    own = names[:n_taught, :n_taught]
    tiny = np.finfo(float).tiny
    slope = max(float(cross.trace()) / max(float(own.trace()), tiny), 0.0)
    residuals = means - slope * (cross + cross.T) + slope**2 * own
    lengths = np.sqrt(np.maximum(names.diagonal(), tiny))
    shared = SHARED * names / lengths[:, None] / lengths + (1 - SHARED) * np.eye(n_names)
    best, worth, gains = np.inf, USUAL_WORTH, np.zeros((n_names, n_taught))
    for w in WORTHS.tolist():
        system = shared[:n_taught, :n_taught] / w + np.diag(1 / counts)
        factor = scipy.linalg.cho_factor(system, lower=True, check_finite=False)
        distance = float(scipy.linalg.cho_solve(factor, residuals, check_finite=False).trace())
        loss = 2 * float(np.log(factor[0].diagonal()).sum()) + PRIOR_WEIGHT * np.log2(w / 4) ** 2
        loss += (n_samples - 1) * float(np.log(max(within + distance, tiny)))
        if loss < best:
            solved = scipy.linalg.cho_solve(factor, shared[:n_taught] / w, check_finite=False)
            best, worth, gains = loss, w, solved.T
    return NameFit(slope, worth, gains)
