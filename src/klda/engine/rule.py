"""The decision rule: LDA's scores plus ridge regression, both from inner products of class means.

Scores are relative to a class at the mean of the class means: the constant that all classes share
is left out, so that float32 spends its digits on the differences between classes.

With the linear scores ``s_m = (z - g)^T P (mu_m - g)`` and the inner products ``K`` of the class
means, LDA's scores are ``s_m - K_mm / 2``: it answers with the nearest class mean.

Ridge regression onto one-hot targets models instead how much of each class is in a sample. It needs
no statistics beyond LDA's: by the Woodbury identity it is

    f = s G,      G = (diag(1 / p) + K)^-1,

where p are the class fractions. Plain counts would favour large classes and equal ones would trust
small classes too much, so p is proportional to the square roots of the counts. The outputs of rare
classes are still too small; they are divided by the output of a new sample at the class mean,
``[K G]_mm``, fully for the rarest classes and not at all from the median count on.

LDA and regression make different errors, and their sum is better than either:

    scores = s_LDA + a f,      a = k / 4,

where k is the median squared length of a class mean. The sum of two linear scores is a linear
score, so predicting costs the same.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from klda.engine import sizes
from klda.engine.arrays import Array, Backend, product
from klda.engine.inverse import InverseScatter
from klda.engine.means import ClassMeans, Mixing, log_priors, mix_means
from klda.engine.novelty import RelativeMahalanobis, inverted
from klda.engine.parameters import Parameters
from klda.engine.ridge import RidgeChoice
from klda.engine.rows import Rows
from klda.engine.solution import Solution

PRIOR_SCALE = 2.0  # of log priors, times inflation: scores have a larger scale than likelihoods
# Weight of LDA's scores, in units of k, beside the regression's outputs. Within the training rows
# of fourteen sets, 2 instead gains 0.4 points with two samples per class, loses 0.2 with sixteen,
# and is level with one, three, five and all.
LDA_PART = 4.0
LEAST_OF_OWN = 0.25  # of an output at the mean of a class is signal, however noisy the mean is
SMALLEST_OUTPUT = 1e-3  # a guard: nothing is divided by less


@dataclass(frozen=True, eq=False)
class Rule:
    """A solution and what it was made of, classes in the order of their sorted labels.

    The next solve starts from it, and samples are left out of it.
    """

    solution: Solution  # not calibrated
    rho: float  # the ridge of the inverse, before it was raised, if it had to be
    choice: RidgeChoice | None  # of that; None if it was given as a number
    inverse: InverseScatter  # of the scatter in the features of the solution
    origin: Array  # (D,): what it was applied to, class means and names, is relative to this row
    name_rows: Rows  # the names
    names: Array  # the same lifted
    lifted: Array | None  # the samples, where the features are those that they span
    # Means relative to ``centre``; those times R are multiplied by the number of samples N.
    classes: ClassMeans
    centre: Array  # (D,): g, the mean of the estimated class means
    mixing: Mixing  # how the means of rare classes are improved with the help of the others
    # (M, M): what linear scores are multiplied by, where regression is added.
    blend: np.ndarray | None
    unit: float  # what scores and novelty grow with
    n_samples: int  # samples behind the scatter, at least one


def linear_rule(
    classes: ClassMeans, parameters: Parameters, d_out: float, inflation: float, backend: Backend
) -> tuple[Array, RelativeMahalanobis, Mixing, np.ndarray | None]:
    """Return weights, how novelty follows from scores, and how means were mixed and blended."""
    if not parameters.small_sample_correction:
        d_out, inflation = 0.0, 1.0
    worth, compared = classes.worth, largest_classes(classes.worth)
    are_all = len(compared) == len(worth)
    inner = _inner_products(classes, compared, backend)
    lengths = squared_lengths(classes.means, classes.means_r, backend)
    mixing, blending = mix_means(inner if are_all else None, classes, d_out, inflation), None
    gram, weights = mixing.gram(inner), classes.means_r
    if mixing.combination is not None:
        weights = product(backend.asarray(mixing.combination), weights)
    if are_all and parameters.rule == "auto" and len(worth) > 1:
        blending = blend(gram, worth, float(np.median(lengths)), mixing.excess)
        weights = product(backend.asarray(blending.T), weights)

    squares = gram.diagonal() if are_all else lengths
    if worth.max(initial=0) <= 1:  # the length of a single sample says nothing about its class
        squares = np.full_like(squares, squares.mean())
    priors = _log_priors(worth, inflation, parameters.priors)
    offsets = mixing.correction - 0.5 * squares + priors
    distance = RelativeMahalanobis.of(gram, compared, squares, offsets, worth, blending)
    return weights, distance, mixing, blending


def squared_lengths(rows: Array, times_r: Array, backend: Backend) -> np.ndarray:
    """Return the squared lengths of rows in the whitened space."""
    return backend.to_numpy((times_r * rows).sum(1), np.float64)


def _inner_products(classes: ClassMeans, compared: np.ndarray, backend: Backend) -> np.ndarray:
    """Return those of some class means with each other."""
    at = backend.index(compared)
    inner = backend.to_numpy(product(classes.means_r[at], classes.means[at].T), np.float64)
    return np.asarray((inner + inner.T) / 2)  # rounding made them uneven


def _log_priors(counts: np.ndarray, inflation: float, priors: str) -> np.ndarray:
    """Return what priors add to the scores."""
    if priors == "uniform":
        return np.zeros(len(counts))
    if priors == "empirical":
        return np.asarray(np.log(counts / counts.sum()))
    return PRIOR_SCALE * inflation * log_priors(counts)


def largest_classes(counts: np.ndarray) -> np.ndarray:
    """Return the positions of the classes whose means are compared with each other."""
    if len(counts) <= sizes.MOST_COMPARED:
        return np.arange(len(counts))
    return np.sort(np.argsort(-counts, kind="stable")[: sizes.MOST_COMPARED])


def blend(inner: np.ndarray, counts: np.ndarray, scale: float, excess: np.ndarray) -> np.ndarray:
    """Return ``B = I + a G / outputs``: blended linear scores are ``s B``.

    Parameters
    ----------
    inner : ndarray of shape (M, M)
        Inner products, in the whitened space, of the class means as estimated.
    counts : ndarray of shape (M,)
        Samples of each class.
    scale : float
        Median squared length of the plain means.
    excess : ndarray of shape (M,)
        Noise in the squared lengths: a new sample does not share it.
    """
    roots = np.sqrt(counts)
    inverse = inverted(np.diag(roots.sum() / roots) + inner)
    inverse = (inverse + inverse.T) / 2
    own = np.einsum("ij,ji->i", inner, inverse)
    of_new = np.maximum(own - excess * inverse.diagonal(), LEAST_OF_OWN * own)
    of_new, usual = np.maximum(of_new, SMALLEST_OUTPUT), max(own.mean(), SMALLEST_OUTPUT)
    enough = np.minimum(counts / np.median(counts), 1.0)
    outputs = of_new ** (1 - enough) * usual**enough
    # Linear scores add up to zero, because the means do. Where they don't (a sample left out, means
    # that were estimated), that is noise, which the inverse would multiply.
    regression = (inverse - inverse.mean(axis=0)) / outputs
    return np.asarray(np.eye(len(inner)) + scale / LDA_PART * regression)


def unit_of(squares: np.ndarray) -> float:
    """Return half the typical squared distance between two class means."""
    n_classes = len(squares)
    return float(np.median(squares)) * n_classes / max(n_classes - 1, 1) or 1.0


def unit_of_samples(squares: np.ndarray, classes: ClassMeans, backend: Backend) -> float:
    """Return the unit that samples have, given the squared lengths of the class means.

    Names shrink the estimated means, but not the samples: it is the geometric mean of the two.
    """
    estimated = squared_lengths(classes.means, classes.means_r, backend)
    of_samples = squared_lengths(classes.of_samples, classes.of_samples_r, backend)
    usual = max(float(np.median(estimated)), np.finfo(float).tiny)
    shorter = float(np.sqrt(np.median(of_samples) / usual))
    return unit_of(squares) * (shorter or 1.0)  # one class is the average
