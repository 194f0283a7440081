from __future__ import annotations

import numpy as np
import pytest
from scipy.special import ndtr

from klda import KLDA, LDA
from klda.inspection import label_set
from tests.factories import clouds


def test_distances_are_mahalanobis_distances_of_the_means():
    """One scale for all: the ratios are those of the inverse covariance."""
    rng = np.random.default_rng(0)
    X, y = clouds(rng.normal(size=(6, 5)) * 2, 200)
    model = LDA(ridge=1e-8, dtype="float64", small_sample_correction=False).fit(X, y)
    delta = model.means_[:, None] - model.means_
    expected = np.einsum("ijk,kl,ijl->ij", delta, np.linalg.inv(model.covariance_), delta)
    found = label_set.ClassDistances.of(model.solution_).squared
    np.testing.assert_array_equal(found, found.T)
    upper = np.triu_indices(6, 1)
    ratios = found[upper] / expected[upper]
    np.testing.assert_allclose(ratios, ratios[0], rtol=1e-6)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_expected_confusion_of_normal_classes_is_what_fresh_samples_show(seed):
    """Two classes at a known distance: Phi(-d/2) of each is on the wrong side."""
    distance = 2.0
    centres = np.zeros((2, 4))
    centres[1, 0] = distance
    X, y = clouds(centres, 1500, seed)
    model = LDA().fit(X, y)
    (pair,) = label_set.confusable(model.solution_)
    assert (pair.first, pair.second) == ("c00", "c01")
    expected = ndtr(-distance / 2)
    # The confusion is the rate of errors among the samples that were left out.
    of = len(model.solution_.calibration.right)
    deviation = np.sqrt(expected * (1 - expected) / of)
    assert pair.confusion == pytest.approx(expected, abs=3 * deviation)
    assert pair.confusion == pytest.approx(ndtr(-pair.distance / 2))
    fresh, truth = clouds(centres, 5000, seed + 100)
    wrong = (model.predict(fresh) != truth).mean()
    assert pair.confusion == pytest.approx(wrong, abs=3 * deviation * np.sqrt(1 + of / 10_000))


@pytest.mark.parametrize(
    "model",
    [
        KLDA(n_components=400, gamma=0.01, random_state=0),
        LDA(),
    ],
    ids=lambda model: type(model).__name__,
)
def test_the_closest_pair_comes_first_and_predicts_the_real_confusions(model):
    rng = np.random.default_rng(3)
    centres = rng.normal(size=(20, 12)) * 1.6
    centres[7] = centres[4] + 0.3 * rng.normal(size=12)
    X, y = clouds(centres, 60)
    model.fit(X, y)
    pairs = label_set.confusable(model.solution_, limit=None, at_least=0)
    assert (pairs[0].first, pairs[0].second) == ("c04", "c07")
    confusions = [pair.confusion for pair in pairs]
    assert confusions == sorted(confusions, reverse=True)
    assert len(pairs) == 190
    fresh, truth = clouds(centres, 500, seed=9)
    wrong = model.predict(fresh) != truth
    # The confusions add up to the errors among the samples that were left out.
    error, of = wrong.mean(), len(model.solution_.calibration.right)
    deviation = np.sqrt(error * (1 - error) * (1 / of + 1 / len(wrong)))
    assert sum(confusions) * 2 / 20 == pytest.approx(error, abs=3 * deviation)


def test_limits_of_the_list():
    X, y = clouds(np.eye(4) * 3, 50)
    model = LDA().fit(X, y)
    assert len(label_set.confusable(model.solution_, limit=2, at_least=0)) == 2
    assert label_set.confusable(model.solution_, at_least=0.49) == []
    assert label_set.confusable(LDA().fit(X[:50], y[:50]).solution_) == []


def test_a_model_without_probes_has_distances_too():
    X, y = clouds(np.eye(3) * 5, 30)
    assert label_set.ClassDistances.of(LDA(calibrated=False).fit(X, y).solution_).squared[0, 1] > 0


def test_small_classes_are_listed_the_smallest_first():
    X, y = clouds(np.eye(4) * 5, 30)
    keep = np.r_[0:30, 30:34, 60:90, 90:92]
    model = LDA().fit(X[keep], y[keep])
    found = label_set.small_classes(model.counts_)
    assert found == [("c03", 2), ("c01", 4)]
    assert label_set.small_classes(model.counts_, below=3) == found[:1]


def test_classes_with_the_same_mean_leave_the_distances_as_they_are():
    """No scale makes so many confusions as few as the error: the distances are not scaled."""
    squared = np.array([[0.0, 0.0, 9.0], [0.0, 0.0, 9.0], [9.0, 9.0, 0.0]])
    assert label_set.distance_scale(squared, error=0.1) == 1.0
    assert label_set.distance_scale(squared, error=0.4) != 1.0
