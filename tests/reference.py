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


def estimated_means(means, P, counts, spread, inflation):
    """Empirical-Bayes means, class by class: bordered ridge regression on the other means.

    Returns the matrix F with ``estimated = F means`` and the shares w of the residuals kept.
    """
    M = len(counts)
    K = means @ P @ means.T
    C = np.zeros((M, M))
    for m in range(M):
        others = np.array([j for j in range(M) if j != m])
        system = np.zeros((M, M))
        system[: M - 1, : M - 1] = K[np.ix_(others, others)]
        system[: M - 1, : M - 1] += M * inflation / counts[m] * np.eye(M - 1)
        system[: M - 1, M - 1] = system[M - 1, : M - 1] = 1
        C[m, others] = np.linalg.solve(system, np.append(K[others, m], 1))[: M - 1]
    noise = spread / counts
    residual = np.diag((np.eye(M) - C) @ K @ (np.eye(M) - C).T)
    signal = max(np.average(residual - noise - C**2 @ noise, weights=counts), 0)
    w = signal / (signal + noise)
    return C + w[:, None] * (np.eye(M) - C), w


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
        F, w = estimated_means(means - g, P, counts, inside * inflation, inflation)
        means = g + F @ (means - g)
        extra = w**2 * inside * inflation / counts / 2
    W = (means - g) @ P
    b = -0.5 * np.einsum("md,md->m", W, means + g) + extra
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
