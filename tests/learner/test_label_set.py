from __future__ import annotations

import numpy as np
import pytest
from scipy.special import ndtr

from klda import KLDA, LDA, NCM, KLDAEnsemble, KldaError
from klda.learner import label_set as labelset
from klda.learner.ledger import Ledger


def clouds(centres, n, seed=0):
    rng = np.random.default_rng(seed)
    rows = np.repeat(centres, n, axis=0) + rng.normal(size=(n * len(centres), centres.shape[1]))
    return rows, np.repeat([f"c{i:02}" for i in range(len(centres))], n)


def test_distances_are_mahalanobis_distances_of_the_means():
    """One scale for all: the ratios are those of the inverse covariance."""
    rng = np.random.default_rng(0)
    X, y = clouds(rng.normal(size=(6, 5)) * 2, 200)
    model = LDA(ridge=1e-8, dtype="float64", small_sample_correction=False).fit(X, y)
    delta = model.means_[:, None] - model.means_
    expected = np.einsum("ijk,kl,ijl->ij", delta, np.linalg.inv(model.covariance_), delta)
    found = labelset.squared_distances(model)
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
    (pair,) = labelset.confusable(model)
    assert (pair.first, pair.second) == ("c00", "c01")
    assert pair.confusion == pytest.approx(ndtr(-distance / 2), abs=0.03)
    assert pair.confusion == pytest.approx(ndtr(-pair.distance / 2))
    fresh, truth = clouds(centres, 5000, seed + 100)
    assert pair.confusion == pytest.approx((model.predict(fresh) != truth).mean(), abs=0.03)


@pytest.mark.parametrize(
    "model",
    [
        KLDA(n_components=400, gamma=0.01, random_state=0),
        KLDAEnsemble(n_components=200, gamma=0.01, n_members=3, random_state=0),
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
    pairs = labelset.confusable(model, limit=None, at_least=0)
    assert (pairs[0].first, pairs[0].second) == ("c04", "c07")
    confusions = [pair.confusion for pair in pairs]
    assert confusions == sorted(confusions, reverse=True)
    assert len(pairs) == 190
    fresh, truth = clouds(centres, 500, seed=9)
    wrong = model.predict(fresh) != truth
    expected = sum(confusions) * 2 / 20
    assert expected == pytest.approx(wrong.mean(), rel=0.6)


def test_limits_of_the_list():
    X, y = clouds(np.eye(4) * 3, 50)
    model = LDA().fit(X, y)
    assert len(labelset.confusable(model, limit=2, at_least=0)) == 2
    assert labelset.confusable(model, at_least=0.49) == []
    assert labelset.confusable(LDA().fit(X[:50], y[:50])) == []


def test_a_model_without_probes_has_distances_too():
    X, y = clouds(np.eye(3) * 5, 30)
    assert labelset.squared_distances(LDA(calibrated=False).fit(X, y))[0, 1] > 0


def test_nearest_means_have_no_whitened_space():
    X, y = clouds(np.eye(3) * 5, 30)
    with pytest.raises(KldaError, match="NCM"):
        labelset.confusable(NCM().fit(X, y))


def test_small_classes_are_listed_the_smallest_first():
    X, y = clouds(np.eye(4) * 5, 30)
    keep = np.r_[0:30, 30:34, 60:90, 90:92]
    model = LDA().fit(X[keep], y[keep])
    found = labelset.small_classes(model)
    assert [(one.label, one.samples) for one in found] == [("c03", 2), ("c01", 4)]
    assert labelset.small_classes(model, below=3) == found[:1]


# ------------------------------------------------------------------------------- two in one


def test_classes_put_together_look_like_two_and_single_ones_do_not():
    rng = np.random.default_rng(0)
    X, y = clouds(rng.normal(size=(12, 24)) * 1.5, 80)
    names = y.astype(object)
    names[(y == "c03") | (y == "c08")] = "both"
    ledger, _ = Ledger().add(X.astype(np.float32), names.tolist())
    found = labelset.two_in_one(ledger)
    assert [one.label for one in found] == ["both"]
    assert sorted(found[0].sizes) == pytest.approx([80, 80], abs=6)
    # One typical sample of each of the two classes.
    assert {y[number] for number in found[0].ids} == {"c03", "c08"}


@pytest.mark.parametrize("seed", range(3))
def test_stretched_clouds_do_not_look_like_two(seed):
    """A long normal cloud is halved well by 2-means; only the comparison tells it is one."""
    rng = np.random.default_rng(seed)
    X, y = clouds(rng.normal(size=(8, 10)) * 3, 100, seed)
    X[y == "c02"] += rng.normal(size=(100, 1)) * 6 * np.eye(10)[0]
    ledger, _ = Ledger().add(X.astype(np.float32), y.tolist())
    assert labelset.two_in_one(ledger) == []


def test_few_samples_tell_nothing_of_two():
    X, y = clouds(np.eye(3) * 20, 8)
    ledger, _ = Ledger().add(X.astype(np.float32), ["a"] * 16 + ["b"] * 8)
    assert labelset.two_in_one(ledger) == []
    assert len(y) == 24


# ------------------------------------------------------------------------------- the map


def test_classical_scaling_restores_points_of_a_plane():
    rng = np.random.default_rng(0)
    points = rng.normal(size=(9, 2)) * (3, 1)
    squared = ((points[:, None] - points) ** 2).sum(axis=-1)
    places = labelset.classical_scaling(squared)
    found = ((places[:, None] - places) ** 2).sum(axis=-1)
    scale = squared.sum() / found.sum()
    np.testing.assert_allclose(found * scale, squared, atol=1e-9)


@pytest.mark.parametrize("n_classes", [1, 2, 3, 12, 40])
def test_a_map_keeps_neighbours_together_and_is_the_same_each_time(n_classes):
    rng = np.random.default_rng(1)
    centres = rng.normal(size=(n_classes, 16)) * 2
    if n_classes >= 12:
        centres[1::2] = centres[::2] + 0.4 * rng.normal(size=centres[::2].shape)  # couples
    X, y = clouds(centres, 30)
    model = LDA().fit(X, y)
    found = labelset.class_map(model)
    assert found.labels == model.classes_.tolist()
    assert found.places.shape == (n_classes, 2)
    assert np.abs(found.places).max() <= 1 + 1e-9
    np.testing.assert_array_equal(found.places, labelset.class_map(model).places)
    if n_classes >= 12:
        apart = ((found.places[:, None] - found.places) ** 2).sum(axis=-1)
        np.fill_diagonal(apart, np.inf)
        nearest = apart.argmin(axis=1)
        assert (nearest == np.arange(n_classes) ^ 1).mean() > 0.7


def test_classes_stay_about_where_they_were_when_one_is_added():
    X, y = clouds(np.random.default_rng(2).normal(size=(30, 16)), 20)
    model = LDA().fit(X, y)
    first = labelset.Neighbourhood.of(model).map()
    model.partial_fit(X[:10] + 3, ["new"] * 10)
    looked = labelset.Neighbourhood.of(model)
    moved = {
        name: np.median(np.linalg.norm(found.places[:30] - first.places, axis=1))
        for name, found in (("anew", looked.map()), ("from before", looked.map(first)))
    }
    assert looked.labels == [*first.labels, "new"]
    assert moved["from before"] < min(0.2, moved["anew"]), moved
