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

from dataclasses import dataclass

import numpy as np
import scipy

SHARED = 0.65  # a: part of the residuals' variance that classes with similar names share
USUAL_SLOPE = 0.4  # where fewer than two classes have both a name and samples
USUAL_WORTH = 4.0  # samples
WORTHS = USUAL_WORTH * 2.0 ** np.arange(-3.0, 5.1, 0.5)
PRIOR_WEIGHT = 0.005  # of log2(w / 4)^2 beside the marginal likelihood of one dimension


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


def fit_names(
    means: np.ndarray,
    cross: np.ndarray,
    names: np.ndarray,
    counts: np.ndarray,
    within: float,
    n_samples: int,
) -> NameFit:
    """Fit class means to names; the first T of the H names are those of classes with samples.

    Parameters
    ----------
    means : ndarray of shape (T, T)
        Inner products of class means, relative to their average.
    cross : ndarray of shape (T, T)
        Inner products of class means and the names of these classes.
    names : ndarray of shape (H, H)
        Inner products of names, relative to the average of the first T.
    counts : ndarray of shape (T,)
        Samples of each class.
    within : float
        Sum of squared distances of all samples from the means of their classes.
    n_samples : int
        Number of samples.
    """
    n_taught, n_names = len(counts), len(names)
    if n_taught < 2:
        return NameFit(USUAL_SLOPE, USUAL_WORTH, np.eye(n_names, n_taught))
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
