"""One-shot float64 computations that the engine's answers are compared with."""

from __future__ import annotations

import numpy as np


def random_features(X, frequencies, phases):
    frequencies, phases = np.asarray(frequencies, np.float64), np.asarray(phases, np.float64)
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


def scores(Z_test, Z, y, *, ridge, correct=False, priors="uniform"):
    """LDA scores by a dense solve, relative to a class at the mean of the class means."""
    _, counts, means, scatter = statistics(Z, y)
    n, D = Z.shape
    rho = on_grid(ridge * np.trace(scatter) / D)
    P = n * np.linalg.inv(scatter + rho * np.eye(D))
    g = means.mean(axis=0)
    W = (means - g) @ P
    b = -0.5 * np.einsum("md,md->m", W, means + g)
    if correct:
        inside = D - rho * np.trace(P) / n
        freedom = n - len(counts)
        b = b + inside / max(1 - inside / freedom, 0.05) / (2 * counts)
    if priors == "empirical":
        b = b + np.log(counts / n)
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
