from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy.spatial.distance import pdist
from scipy.special import ndtr, xlogy

from klda import KLDA, LDA, NCM, KLDAEnsemble, KldaError
from klda.learner import label_set, plane_layout
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
    found = label_set.squared_distances(model)
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
    (pair,) = label_set.confusable(model)
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
    pairs = label_set.confusable(model, limit=None, at_least=0)
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
    assert len(label_set.confusable(model, limit=2, at_least=0)) == 2
    assert label_set.confusable(model, at_least=0.49) == []
    assert label_set.confusable(LDA().fit(X[:50], y[:50])) == []


def test_a_model_without_probes_has_distances_too():
    X, y = clouds(np.eye(3) * 5, 30)
    assert label_set.squared_distances(LDA(calibrated=False).fit(X, y))[0, 1] > 0


def test_nearest_means_have_no_whitened_space():
    X, y = clouds(np.eye(3) * 5, 30)
    with pytest.raises(KldaError, match="NCM"):
        label_set.confusable(NCM().fit(X, y))


def test_small_classes_are_listed_the_smallest_first():
    X, y = clouds(np.eye(4) * 5, 30)
    keep = np.r_[0:30, 30:34, 60:90, 90:92]
    model = LDA().fit(X[keep], y[keep])
    found = label_set.small_classes(model)
    assert [(one.label, one.samples) for one in found] == [("c03", 2), ("c01", 4)]
    assert label_set.small_classes(model, below=3) == found[:1]


# ------------------------------------------------------------------------------- two in one


def test_classes_put_together_look_like_two_and_single_ones_do_not():
    rng = np.random.default_rng(0)
    X, y = clouds(rng.normal(size=(12, 24)) * 1.5, 80)
    names = y.astype(object)
    names[(y == "c03") | (y == "c08")] = "both"
    ledger, _ = Ledger().add(X.astype(np.float32), names.tolist())
    found = label_set.two_in_one(ledger)
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
    assert label_set.two_in_one(ledger) == []


def test_few_samples_tell_nothing_of_two():
    X, y = clouds(np.eye(3) * 20, 8)
    ledger, _ = Ledger().add(X.astype(np.float32), ["a"] * 16 + ["b"] * 8)
    assert label_set.two_in_one(ledger) == []
    assert len(y) == 24


# ------------------------------------------------------------------------------- the map


def test_principal_axes_restore_points_of_a_plane():
    rng = np.random.default_rng(0)
    points = rng.normal(size=(9, 2)) * (3, 1)
    squared = ((points[:, None] - points) ** 2).sum(axis=-1)
    places = plane_layout.principal_axes(squared)
    found = ((places[:, None] - places) ** 2).sum(axis=-1)
    scale = squared.sum() / found.sum()
    np.testing.assert_allclose(found * scale, squared, atol=1e-9)


@pytest.mark.parametrize("seed", range(5))
def test_rounding_does_not_choose_the_sides_of_two_classes(seed):
    """Both are equally far out; the first is the one to the right."""
    wobble = 1 + 1e-12 * np.random.default_rng(seed).normal(size=(2, 2))
    places = plane_layout.principal_axes(np.array([[0.0, 4.0], [4.0, 0.0]]) * (wobble + wobble.T))
    np.testing.assert_allclose(places, [[1, 0], [-1, 0]], atol=1e-5)


def test_the_gradient_of_an_arrangement_is_its_slope():
    rng = np.random.default_rng(0)
    points = rng.normal(size=(20, 5))
    neighbours = plane_layout.affinities(((points[:, None] - points) ** 2).sum(axis=-1))
    assert neighbours.sum() == pytest.approx(1)
    places, step = rng.uniform(-1, 1, (20, 2)), 1e-5 * rng.normal(size=(20, 2))
    _, gradient = plane_layout.cross_entropy(neighbours, places)
    ahead, behind = (plane_layout.cross_entropy(neighbours, places + s)[0] for s in (step, -step))
    # What is left of the central difference is of the third order in the step.
    assert (ahead - behind) / 2 == pytest.approx((gradient * step).sum(), rel=1e-5)


@pytest.mark.parametrize("scale", [1e-9, 1.0, 1e9])
def test_neighbours_depend_on_the_order_of_distances_more_than_on_their_size(scale):
    points = np.random.default_rng(0).normal(size=(60, 5)) * np.geomspace(0.01, 100, 60)[:, None]
    squared = ((points[:, None] - points) ** 2).sum(axis=-1)
    weights = plane_layout.affinities(squared * scale)
    assert weights.sum() == pytest.approx(1)
    np.testing.assert_array_equal(weights, weights.T)
    np.testing.assert_allclose(weights, plane_layout.affinities(squared), rtol=1e-6)
    alike = plane_layout.affinities(np.ones((5, 5)) - np.eye(5))
    np.testing.assert_allclose(alike, (1 - np.eye(5)) / 20)


@pytest.mark.parametrize("n_classes", [1, 2, 3, 12, 40])
def test_a_map_keeps_neighbours_together_and_is_the_same_each_time(n_classes):
    rng = np.random.default_rng(1)
    centres = rng.normal(size=(n_classes, 16)) * 2
    if n_classes >= 12:
        centres[1::2] = centres[::2] + 0.4 * rng.normal(size=centres[::2].shape)  # couples
    X, y = clouds(centres, 30)
    model = LDA().fit(X, y)
    found = label_set.Neighbourhood.of(model).map()
    assert found.labels == model.classes_.tolist()
    assert found.places.shape == (n_classes, 2)
    assert np.abs(found.places).max() <= 1 + 1e-9
    np.testing.assert_array_equal(found.places, label_set.Neighbourhood.of(model).map().places)
    if n_classes >= 12:
        apart = ((found.places[:, None] - found.places) ** 2).sum(axis=-1)
        np.fill_diagonal(apart, np.inf)
        nearest = apart.argmin(axis=1)
        assert (nearest == np.arange(n_classes) ^ 1).mean() > 0.7


@pytest.mark.parametrize("n_classes", [5, 13, 30, 60])
def test_rounding_does_not_move_a_map(n_classes):
    """Distances of a model in float32, off by as much as another CPU's rounding makes them."""
    X, y = clouds(np.random.default_rng(2).normal(size=(n_classes, 16)), 20)
    looked = label_set.Neighbourhood.of(LDA().fit(X, y))
    wobble = 1e-6 * np.random.default_rng(0).normal(size=looked.squared.shape)
    other = replace(looked, squared=looked.squared * (1 + (wobble + wobble.T) / 2))
    moved = np.linalg.norm(other.map().places - looked.map().places, axis=1)
    pixel = 2 / 560  # where a picture is 560 pixels wide, as on the page
    assert np.median(moved) < pixel


def grown(n_classes, samples=20):
    """Map a model; teach it one class more; return that map and the new distances."""
    X, y = clouds(np.random.default_rng(2).normal(size=(n_classes, 16)), samples)
    model = LDA().fit(X, y)
    first = label_set.Neighbourhood.of(model).map()
    model.partial_fit(X[:10] + 3, ["new"] * 10)
    looked = label_set.Neighbourhood.of(model)
    assert looked.labels == [*first.labels, "new"]
    return first, looked


def test_classes_move_only_as_far_as_it_makes_a_better_map():
    """The cost falls from the start on: what the ways cost is at most what the map gains."""
    first, looked = grown(30)
    second = looked.map(first)
    neighbours = plane_layout.affinities(looked.squared)
    nearest = looked.squared[30, :30].argmin()
    start = np.vstack([first.places, first.places[nearest]])
    before, after = (plane_layout.cross_entropy(neighbours, p)[0] for p in (start, second.places))
    ways = ((second.places[:30] - first.places) ** 2).sum(axis=1)
    assert 0 < label_set.PULL_TO_EARLIER * ways.sum() / 31 <= before - after
    divergence = before + xlogy(neighbours, neighbours).sum()
    assert np.sqrt(ways.mean()) <= np.sqrt(divergence / label_set.PULL_TO_EARLIER * 31 / 30)
    assert np.linalg.norm(second.places[30] - start[30]) > 0  # the new one is free to go


@pytest.mark.parametrize("n_classes", [5, 30])
def test_a_map_stays_turned_and_mirrored_as_it_was(n_classes):
    first, looked = grown(n_classes)
    mirrored = replace(first, places=first.places[:, ::-1] * (-1, 1))
    places = looked.map(mirrored).places[:n_classes]
    moved = np.linalg.norm(places - mirrored.places, axis=1)
    for rotation in (np.diag([-1, 1]), np.diag([1, -1]), np.eye(2)[::-1], -np.eye(2)):
        assert moved.mean() < np.linalg.norm(places @ rotation - mirrored.places, axis=1).mean() / 2


@pytest.mark.parametrize("left", [1, 2, 3])
@pytest.mark.parametrize("new", [1, 2, 5])
def test_classes_that_take_the_place_of_others_are_not_on_top_of_each_other(left, new):
    X, y = clouds(np.random.default_rng(0).normal(size=(10, 6)) * 4, 30)
    before = label_set.Neighbourhood.of(LDA().fit(X[:90], y[:90])).map()
    some = np.isin(y, [*before.labels[:left], *(f"c{i:02}" for i in range(3, 3 + new))])
    places = label_set.Neighbourhood.of(LDA().fit(X[some], y[some])).map(before).places
    assert pdist(places).min() > 0.1


def test_a_map_of_other_classes_is_no_start():
    first, looked = grown(30)
    other = replace(first, labels=[f"other {label}" for label in first.labels])
    np.testing.assert_array_equal(looked.map(other).places, looked.map().places)
