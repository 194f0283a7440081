"""Class means estimated from samples and names."""

from __future__ import annotations

import numpy as np
import pytest

from klda.engine import names as naming
from klda.engine.engine import Engine
from klda.engine.names import fit_names
from klda.engine.parameters import Parameters
from tests.reference import DEVICE

PARAMETERS = Parameters(n_components=400, gamma=0.001, device=DEVICE, random_state=0)


def made(n_classes, n, slope=0.5, noise=0.3, *, seed=0, width=40):
    """Names, true means that follow them by a slope, samples and their labels."""
    rng = np.random.default_rng(seed)
    names = rng.normal(size=(n_classes, width))
    means = 1.0 + slope * names + noise * rng.normal(size=names.shape)
    y = np.repeat(np.arange(n_classes), n)
    return names, means, means[y] + rng.normal(size=(len(y), width)), y


def gram_of(X, y, names, n_taught):
    means = np.stack([X[y == i].mean(axis=0) for i in range(n_taught)])
    rows = [means - means.mean(axis=0), names - names[:n_taught].mean(axis=0)]
    stacked = np.concatenate(rows)
    return stacked @ stacked.T, float(((X - means[y]) ** 2).sum())


def test_slope_and_worth_are_those_that_the_data_were_made_with():
    names, _, X, y = made(60, 8, slope=0.5, noise=0.5)
    gram, within = gram_of(X, y, names, 60)
    fit = fit_names(gram, np.full(60, 8), within, len(y))
    assert fit.slope == pytest.approx(0.5, abs=0.03)
    assert 2 <= fit.worth <= 8  # one over the variance beside the slope: 4


def test_names_that_say_nothing_have_no_slope():
    names, _, X, y = made(60, 8, slope=0.0, noise=1.0)
    gram, within = gram_of(X, y, names, 60)
    assert fit_names(gram, np.full(60, 8), within, len(y)).slope < 0.03


def test_without_shared_residuals_a_name_counts_as_so_many_samples(monkeypatch):
    monkeypatch.setattr(naming, "SHARED", 0.0)
    names, _, X, y = made(20, 3)
    gram, within = gram_of(X, y, names, 20)
    fit = fit_names(gram, np.full(20, 3), within, len(y))
    np.testing.assert_allclose(fit.gains, np.eye(20) * 3 / (3 + fit.worth), atol=1e-12)


@pytest.mark.parametrize("n", [3, 60])  # by the kernel and by random features
def test_a_class_that_is_only_declared_is_found(n):
    names, means, X, y = made(12, n, slope=1.0, noise=0.1)
    taught = y < 10
    engine = Engine()
    engine.add(X[taught].astype("f4"), y[taught].tolist(), parameters=PARAMETERS)
    engine.hint(names.astype("f4"), list(range(12)), parameters=PARAMETERS)
    new = np.random.default_rng(1).normal(size=(50, 40)) * 0.5 + means[10]
    answers = engine.solution(PARAMETERS).answer(new.astype("f4")).labels[:, 0]
    assert np.mean(answers == 10) > 0.9
    others = engine.solution(PARAMETERS).answer(X[taught].astype("f4")).labels[:, 0]
    assert np.mean(others == y[taught]) > 0.9


def test_names_help_a_class_with_one_sample_among_large_ones():
    names, means, X, y = made(12, 60, slope=1.0, noise=0.1)
    kept = (y < 11) | (np.arange(len(y)) == 11 * 60)
    new = np.random.default_rng(1).normal(size=(200, 40)) + means[11]
    recall = {}
    for named in (False, True):
        engine = Engine()
        engine.add(X[kept].astype("f4"), y[kept].tolist(), parameters=PARAMETERS)
        if named:
            engine.hint(names.astype("f4"), list(range(12)), parameters=PARAMETERS)
        found = engine.solution(PARAMETERS).answer(new.astype("f4")).labels[:, 0]
        recall[named] = np.mean(found == 11)
    assert recall[True] >= recall[False]
    assert recall[True] > 0.9


def test_more_names_than_can_be_compared_count_for_classes_without_samples(monkeypatch):
    monkeypatch.setattr(naming, "MOST_NAMES", 5)
    names, _, X, y = made(12, 60, slope=1.0, noise=0.1)
    engine = Engine()
    engine.add(X[y < 10].astype("f4"), y[y < 10].tolist(), parameters=PARAMETERS)
    alone = engine.solution(PARAMETERS)
    engine.hint(names.astype("f4"), list(range(12)), parameters=PARAMETERS)
    assert engine.solution(PARAMETERS).classes.tolist() == list(range(12))
    found = engine.solution(PARAMETERS).answer(X[y < 10].astype("f4")).labels[:, 0]
    before = alone.answer(X[y < 10].astype("f4")).labels[:, 0]
    assert np.mean(found == before) > 0.9
