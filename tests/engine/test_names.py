"""Class means estimated from samples and names."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from klda.engine import means as naming
from klda.engine import sizes
from klda.engine.engine import Engine
from klda.engine.means import fit_names
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
    slope, worth, _ = fit_names(gram, np.full(60, 8), within, len(y))
    # A regression on 60 x 40 numbers: the noise is that of the means and of eight samples.
    deviation = np.sqrt((0.5**2 + 1 / 8) / (60 * 40))
    assert slope == pytest.approx(0.5, abs=2.5 * deviation)
    assert 2 <= worth <= 8  # one over the variance beside the slope: 4


def test_names_that_say_nothing_have_no_slope():
    names, _, X, y = made(60, 8, slope=0.0, noise=1.0)
    gram, within = gram_of(X, y, names, 60)
    assert fit_names(gram, np.full(60, 8), within, len(y))[0] < 0.03


def test_without_shared_residuals_a_name_counts_as_so_many_samples(monkeypatch):
    monkeypatch.setattr(naming, "SHARED", 0.0)
    names, _, X, y = made(20, 3)
    gram, within = gram_of(X, y, names, 20)
    _, worth, gains = fit_names(gram, np.full(20, 3), within, len(y))
    np.testing.assert_allclose(gains, np.eye(20) * 3 / (3 + worth), atol=1e-12)


@pytest.mark.parametrize("n", [3, 60])  # by the kernel and by random features
def test_a_class_that_is_only_declared_is_found(n):
    names, means, X, y = made(12, n, slope=1.0, noise=0.1)
    taught = y < 10
    engine = Engine(PARAMETERS)
    engine.add(X[taught].astype("f4"), y[taught].tolist())
    engine.set_name_rows(names.astype("f4"), list(range(12)))
    new = np.random.default_rng(1).normal(size=(50, 40)) * 0.5 + means[10]
    answers = engine.solution().answer(new.astype("f4")).labels[:, 0]
    assert np.mean(answers == 10) > 0.9
    others = engine.solution().answer(X[taught].astype("f4")).labels[:, 0]
    assert np.mean(others == y[taught]) > 0.9


def test_names_alone_answer_with_the_name_nearest_in_the_last_block():
    rng = np.random.default_rng(3)
    names = rng.normal(size=(30, 40))
    names[:5] *= 2.0  # they are far out, which must not make them more likely
    X = names[np.arange(300) % 30] + 0.5 * rng.normal(size=(300, 40))
    X[:, :24] = rng.normal(size=(300, 24))
    parameters = replace(PARAMETERS, blocks=(24, 16), rule="auto")
    engine = Engine(parameters)
    engine.set_name_rows(names.astype("f4"), list(range(30)))
    answers = engine.solution().answer(X.astype("f4")).labels[:, 0]
    distances = ((X[:, None, 24:] - names[:, 24:]) ** 2).sum(axis=2)
    assert np.mean(answers == distances.argmin(axis=1)) > 0.95


def test_names_help_a_class_with_one_sample_among_large_ones():
    names, means, X, y = made(12, 60, slope=1.0, noise=0.1)
    kept = (y < 11) | (np.arange(len(y)) == 11 * 60)
    new = np.random.default_rng(1).normal(size=(200, 40)) + means[11]
    recall = {}
    for named in (False, True):
        engine = Engine(PARAMETERS)
        engine.add(X[kept].astype("f4"), y[kept].tolist())
        if named:
            engine.set_name_rows(names.astype("f4"), list(range(12)))
        found = engine.solution().answer(new.astype("f4")).labels[:, 0]
        recall[named] = np.mean(found == 11)
    assert recall[True] >= recall[False]
    assert recall[True] > 0.9


@pytest.mark.parametrize("few, many", [(1, 2), (2, 5)])
def test_classes_with_fewer_samples_are_not_lost_where_names_count(few, many):
    recall = []
    for seed in range(5):
        names, means, X, y = made(16, many, slope=0.15, noise=0.4, seed=seed)
        kept = (np.arange(len(y)) % many < few) | (y >= 4)
        engine = Engine(PARAMETERS)
        engine.add(X[kept].astype("f4"), y[kept].tolist())
        engine.set_name_rows(names.astype("f4"), list(range(16)))
        truth = np.repeat(np.arange(16), 50)
        new = np.random.default_rng(seed).normal(size=(len(truth), 40)) + means[truth]
        right = engine.solution().answer(new.astype("f4")).labels[:, 0] == truth
        recall.append((right[truth < 4].mean(), right[truth >= 4].mean()))
    of_few, of_many = np.mean(recall, axis=0)
    assert of_few > 0.3 * of_many


def test_too_many_names_to_compare_count_only_for_classes_without_samples(monkeypatch):
    monkeypatch.setattr(sizes, "MOST_NAMED", 5)
    names, _, X, y = made(12, 60, slope=1.0, noise=0.1)
    engine = Engine(PARAMETERS)
    engine.add(X[y < 10].astype("f4"), y[y < 10].tolist())
    alone = engine.solution()
    engine.set_name_rows(names.astype("f4"), list(range(12)))
    assert engine.solution().classes.tolist() == list(range(12))
    found = engine.solution().answer(X[y < 10].astype("f4")).labels[:, 0]
    before = alone.answer(X[y < 10].astype("f4")).labels[:, 0]
    assert np.mean(found == before) > 0.9
