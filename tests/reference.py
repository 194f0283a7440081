"""One-shot float64 computations that the engine's answers are compared with."""

from __future__ import annotations

import os

import numpy as np

# The engine's tests run where this says: "cuda" on a GPU, "cpu:0" for torch on the CPU.
DEVICE = os.environ.get("KLDA_TEST_DEVICE", "cpu")


def lifted(own_map, X):
    """Features of a map in double precision."""
    if hasattr(own_map, "centre"):
        return np.asarray(X, np.float64) - own_map.backend.to_numpy(own_map.centre, np.float64)
    frequencies, phases = (own_map.backend.to_numpy(a, np.float64) for a in own_map.spectrum)
    D = frequencies.shape[1]
    return np.sqrt(2 / D) * np.cos(np.asarray(X, np.float64) @ frequencies + phases)


def statistics(Z, y):
    """Labels, counts, means and within-class scatter."""
    labels = np.unique(y)
    counts = np.array([(y == label).sum() for label in labels])
    means = np.stack([Z[y == label].mean(axis=0) for label in labels])
    centred = Z - means[np.searchsorted(labels, y)]
    return labels, counts, means, centred.T @ centred


def on_grid(value, steps=8):
    return 2.0 ** (np.round(np.log2(value) * steps) / steps)


def estimated_means(means, P, counts, spread, inflation):
    """Empirical-Bayes means, class by class: ridge regression of each mean on the others.

    Returns the matrix F with ``estimated = F means`` and what makes up for the noise left.
    """
    M = len(counts)
    K = means @ P @ means.T
    F, own = np.eye(M), np.ones(M)
    for m in np.flatnonzero(counts < counts.mean()):
        others = np.array([j for j in range(M) if j != m])
        ridge = M * inflation * (1 / counts[m] - 1 / counts.mean())
        system = K[np.ix_(others, others)] + ridge * np.eye(M - 1)
        F[m, m], F[m, others] = 0, np.linalg.solve(system, K[others, m])
        own[m] = np.clip(-F[m].sum() / (M - 1), 0, 1)
    noise = spread / counts
    values, vectors = np.linalg.eigh(K)
    used = values > 1e-6 * values.max()
    inverse = (vectors[:, used] / (values[used] + 1e-3 * values.max())) @ vectors[:, used].T
    signal = max(np.average(1 / np.diag(inverse) - noise, weights=counts), 0)
    return F, 0.5 * own * np.maximum(own * noise - (1 - own) * signal, 0)


def scores(Z_test, Z, y, *, ridge, correct=False, priors="uniform", rho=None):
    """LDA scores by a dense solve, relative to a class at the mean of the class means."""
    _, counts, means, scatter = statistics(Z, y)
    n, D = Z.shape
    if rho is None:
        rho = on_grid(ridge * np.trace(scatter) / D)
    P = n * np.linalg.inv(scatter + rho * np.eye(D))
    g = means.mean(axis=0)
    extra = np.zeros(len(counts))
    if correct:
        inside = D - rho * np.trace(P) / n
        inflation = 1 / max(1 - inside / (n - len(counts)), 0.05)
        F, extra = estimated_means(means - g, P, counts, inside * inflation, inflation)
        means = g + F @ (means - g)
    W = (means - g) @ P
    b = -0.5 * np.einsum("md,md->m", W, means + g) + extra
    if priors == "empirical":
        b = b + np.log(counts / n)
    assert priors != "auto", "its shares are tested by themselves"
    return Z_test @ W.T + b


def relative_error(ours, theirs):
    ours, theirs = np.asarray(ours, np.float64), np.asarray(theirs, np.float64)
    return np.abs(ours - theirs).max() / max(np.abs(theirs).max(), 1e-300)


def blobs(n, d, m, seed=0, spread=1.0):
    """Samples of m overlapping classes."""
    rng = np.random.default_rng(seed)
    y = rng.permutation(np.arange(n) % m)
    centres = rng.normal(size=(m, d))
    return spread * rng.normal(size=(n, d)) + 2 * centres[y], y
