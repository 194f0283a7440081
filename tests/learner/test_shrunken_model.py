"""A model that lost most of its classes is judged by what it learns afterwards."""

from __future__ import annotations

import numpy as np
import pytest

from klda import KLDA, LDA

CENTRES = np.random.default_rng(3).normal(size=(40, 8)) * 6
LEFT = 4  # classes that stay


def drawn(n, *, classes, spread, seed):
    rng = np.random.default_rng(seed)
    labels = np.arange(n) % classes
    return CENTRES[labels] + spread * rng.normal(size=(n, 8)), labels


@pytest.mark.parametrize(
    "model",
    [LDA(), KLDA(n_components=200, gamma=0.003, random_state=0)],
    ids=["LDA", "KLDA"],
)
def test_the_threshold_follows_what_is_learned_after_a_model_shrank(model):
    batches = [drawn(n, classes=40, spread=0.3, seed=n) for n in (1600, 1600, 3200, 6400)]
    for X, y in batches:
        model.partial_fit(X, y).threshold()
    for X, y in batches:
        model.remove(X[y >= LEFT], y[y >= LEFT])
    for seed in range(2):
        model.partial_fit(*drawn(60, classes=LEFT, spread=2.0, seed=seed)).threshold()
    fresh, _ = drawn(400, classes=LEFT, spread=2.0, seed=99)
    assert 1 - model.is_known(fresh).mean() < 0.15
