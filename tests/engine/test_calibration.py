"""What leaving samples out tells: honest probabilities, and what is unknown."""

from __future__ import annotations

import numpy as np
import pytest

from klda import KLDA, LDA
from klda.engine.calibration import OCTAVES, Evidence
from klda.inspection.evaluation import Reliability
from klda.inspection.quality import quality_of
from tests import reference
from tests.reference import DEVICE


def make(kind=KLDA, **given):
    options = {} if kind is LDA else {"n_components": 64, "gamma": 0.03, "random_state": 0}
    return kind(**(options | {"dtype": "float64", "device": DEVICE} | given))


BINS = 10


def error_of(model, X, y):
    found = model.predict_proba(X)
    correct = model.classes_[found.argmax(axis=1)] == y
    return Reliability.of(found.max(axis=1), correct, BINS).error


def error_by_chance(model, n_test):
    """Bound the mean calibration error of a model whose probabilities are right on average.

    How often it is right is known from the samples left out, and in each bin from those of the
    test. Such a rate has a standard deviation of at most 1/2 over the root of its samples, and the
    mean size of a normal number is sqrt(2 / pi) deviations.
    """
    n_left_out = len(model.solution_.calibration.right)
    return np.sqrt(2 / np.pi) / 2 * (1 / np.sqrt(n_left_out) + np.sqrt(BINS / n_test))


@pytest.mark.parametrize("kind", [KLDA, LDA])
@pytest.mark.parametrize("n", [60, 400, 2000])
def test_probabilities_are_honest_without_held_out_data(kind, n):
    errors = []
    for seed in range(4):
        X, y = reference.blobs(n + 2000, 10, 12, spread=2.5, seed=seed)
        model = make(kind).fit(X[:n], y[:n])
        errors.append(error_of(model, X[n:], y[n:]))
    assert np.mean(errors) < error_by_chance(model, 2000)


@pytest.mark.parametrize("kind", [KLDA, LDA])
@pytest.mark.parametrize("n", [300, 2000])
def test_unknown_inputs_are_told_from_known_ones_at_the_asked_rate(kind, n):
    X, y = reference.blobs(n + 4000, 10, 12, spread=0.8)
    known = y < 8
    model = make(kind).partial_fit(X[:n][known[:n]], y[:n][known[:n]])
    test, fresh = X[n:], known[n:]
    for reject in (0.05, 0.2):
        refused = 1 - model.is_known(test[fresh], reject=reject).mean()
        assert reject / 3 < refused < reject + 0.05  # with few samples, rather too few
    assert np.median(model.novelty(test[~fresh])) > np.median(model.novelty(test[fresh]))
    assert 1 - model.is_known(test[fresh], by_class=True).mean() == pytest.approx(0.05, abs=0.05)


@pytest.mark.parametrize("k", [3, 5, 8])
def test_samples_left_out_look_as_novel_as_new_ones(k):
    beyond = []
    for seed in range(30):
        X, y = reference.blobs(1000, 10, 8, spread=0.8, seed=seed)
        few = np.concatenate([np.flatnonzero(y == label)[:k] for label in range(8)])
        model = make(n_components=256).fit(X[few], y[few])
        left_out = model.solution_.calibration.novelty
        limit = np.quantile(left_out, 0.95, method="weibull")  # a new one is beyond it in 5%
        fresh = model.novelty(X[np.setdiff1d(np.arange(1000), few)])
        beyond.append((fresh > limit).mean())
    assert np.mean(beyond) == pytest.approx(0.05, abs=3 * np.std(beyond) / np.sqrt(30))


def test_expected_accuracy_is_that_of_new_samples():
    X, y = reference.blobs(4000, 10, 12, spread=2.5)
    for n in (120, 600, 2000):
        model = make().fit(X[:n], y[:n])
        quality = quality_of(model.solution_)
        expected = quality.accuracy
        assert quality.low < expected < quality.high
        samples = np.array([len(model.solution_.calibration.right), len(X) - n])
        deviation = np.sqrt(np.sum(expected * (1 - expected) / samples))  # of both rates
        assert model.score(X[n:], y[n:]) == pytest.approx(expected, abs=3 * deviation)


@pytest.mark.parametrize("k", [2, 3, 5])
def test_expected_accuracy_from_few_samples_is_right_on_average(k):
    gaps, of_hits = [], []
    for seed in range(40):
        X, y = reference.blobs(1000, 10, 8, spread=1.5, seed=seed)
        few = np.concatenate([np.flatnonzero(y == label)[:k] for label in range(8)])
        model = make(n_components=256).fit(X[few], y[few])
        rest = np.setdiff1d(np.arange(1000), few)
        accuracy, found = model.score(X[rest], y[rest]), model.solution_.calibration
        gaps.append(quality_of(model.solution_).accuracy - accuracy)
        of_hits.append(found.right.mean() - accuracy)
    assert abs(np.mean(gaps)) < 0.02 + 2.5 * np.std(gaps) / np.sqrt(40)
    assert np.std(gaps) < np.std(of_hits)  # of which there are few


def test_a_sample_that_was_left_out_is_missed_more_the_fewer_there_are():
    n = 20_000  # so many that the mean probability hardly counts
    evidence = Evidence(
        labels=["a", "b"] * (n // 2),
        sizes=np.full(n, n),
        novelty=np.zeros(n),
        behind=np.where(np.arange(n) % 4, 0.0, 1.0),  # three of four are right
        doubts=np.full((n, len(OCTAVES)), 0.3, np.float32),
    )
    hits = [evidence.calibration("ab", np.array([k, k]), 1.0).hits for k in (2, 5, 1000)]
    assert hits[0] > hits[1] + 0.01 > hits[2] + 0.02
    assert hits[2] == pytest.approx(0.75, abs=0.003)


def test_a_range_holds_the_accuracy_as_often_as_it_says():
    inside = []
    for seed in range(60):
        X, y = reference.blobs(1500, 10, 6, spread=2.5, seed=seed)
        n = (24, 60, 150)[seed % 3]
        model = make().fit(X[:n], y[:n])
        quality = quality_of(model.solution_)
        inside.append(quality.low <= model.score(X[n:], y[n:]) <= quality.high)
    assert np.mean(inside) >= 0.8  # 90% of sixty, give or take two and a half deviations


def test_with_one_sample_of_each_class_nothing_is_refused():
    X, y = reference.blobs(6, 10, 6)
    model = make().fit(X, y)
    assert model.threshold() == np.inf
    assert all(answer.known is None for answer in model.answer(X))
    assert model.predict_proba(X).max() < 0.95


def test_predicting_labels_leaves_no_sample_out(monkeypatch):
    X, y = reference.blobs(900, 10, 6)
    model = make().partial_fit(X, y)
    monkeypatch.setattr(Evidence, "add", lambda *args: pytest.fail("a sample was left out"))
    model.predict(X[:3])
    model.scores(X[:3])


def test_evidence_follows_a_stream_and_survives_merging_renaming_and_removing():
    X, y = reference.blobs(3000, 10, 12, spread=2.5)
    model = make()
    for start in range(0, 2000, 500):
        model.partial_fit(X[start : start + 500], y[start : start + 500]).predict_proba(X[:1])
    half = make().partial_fit(X[2000:2400], y[2000:2400])
    half.predict_proba(X[:1])
    model.merge(half).rename(3, 33)
    y = np.where(y == 3, 33, y)
    assert 33 in model.model_.evidence.labels
    assert 3 not in model.model_.evidence.labels
    assert error_of(model, X[2400:], y[2400:]) < error_by_chance(model, 600)
    model.forget(33)
    assert 33 not in model.model_.evidence.labels
    rest = y != 33
    test = 2400 + np.flatnonzero(rest[2400:])
    assert error_of(model, X[test], y[test]) < error_by_chance(model, len(test))


def test_a_model_without_calibration_keeps_nothing_to_tell_by():
    X, y = reference.blobs(900, 10, 6)
    model = make(calibrated=False).fit(X, y)
    model.merge(make(calibrated=False).fit(X[:50], y[:50]))
    assert model.model_.keeps == {}
    assert model.temperature_ == 1.0
    with pytest.raises(ValueError, match="calibrated=False"):
        model.threshold()
