"""Many classes: answers in blocks are those of all at once, and growing copies nothing."""

from __future__ import annotations

import numpy as np
import pytest

from klda import KLDA, LDA, NCM, KLDAEnsemble
from klda.engine import evidence, shrinkage, solution, statistics
from klda.engine.arrays import NumpyBackend
from klda.engine.model import choose_backend
from klda.engine.statistics import ClassStatistics
from klda.errors import KldaError
from klda.labels import grouped

MODELS = {
    "KLDA": lambda: KLDA(n_components=96, gamma=0.1, random_state=0),
    "scores": lambda: KLDAEnsemble(n_components=64, n_members=2, gamma=0.1, random_state=0),
    "probabilities": lambda: KLDAEnsemble(
        n_components=64, n_members=2, gamma=0.1, random_state=0, combine="probabilities"
    ),
    "LDA": LDA,
    "NCM": NCM,
}


def samples(n_classes=23, rows=6, d=8, seed=0):
    rng = np.random.default_rng(seed)
    labels = np.repeat(rng.permutation(n_classes), rows)
    X = rng.normal(size=(n_classes, d))[labels] + 0.6 * rng.normal(size=(len(labels), d))
    return X, np.array([f"class {i:02d}" for i in labels])


@pytest.fixture(params=MODELS)
def model(request):
    return MODELS[request.param]().fit(*samples())


@pytest.fixture
def small_blocks(monkeypatch):
    monkeypatch.setattr(solution, "BLOCK_BYTES", {"cpu": 1, "gpu": 1})
    monkeypatch.setattr(solution, "FEWEST_ROWS", 40)
    monkeypatch.setattr(solution, "ANSWERED_BYTES", {"cpu": 7 * 23 * 4, "gpu": 7 * 23 * 4})


def dense_top(scores, k):
    return np.argsort(-scores, axis=1, kind="stable")[:, :k]


# ---------------------------------------------------------------- the best of scores


@pytest.mark.parametrize("device", ["cpu", "cpu:0"])
@pytest.mark.parametrize("k", [1, 2, 5, 9, 30])
def test_the_top_of_scores_with_many_ties_is_that_of_a_stable_sort(device, k):
    if device != "cpu":
        pytest.importorskip("torch")
    backend, rng = choose_backend(device, "float32"), np.random.default_rng(k)
    scores = rng.integers(0, 4, (200, 9)).astype(np.float32)  # hardly any row without a tie
    values, columns = backend.top(backend.asarray(scores), k)
    expected = dense_top(scores, k)
    np.testing.assert_array_equal(columns, expected)
    np.testing.assert_array_equal(values, np.take_along_axis(scores, expected, axis=1))


# ---------------------------------------------------------------- answers in blocks


@pytest.mark.parametrize("k", [1, 3, 100])
@pytest.mark.parametrize("among", [None, [f"class {i:02d}" for i in (7, 2, 19, 0, 11, 3)]])
@pytest.mark.usefixtures("small_blocks")
def test_top_classes_in_blocks_are_those_of_all_probabilities(model, k, among):
    X, _ = samples(seed=1)
    probabilities = model.predict_proba(X, among=among)
    names = model.classes_ if among is None else np.array(among)
    labels, shares = model.predict_top(X, k, among=among)
    expected = dense_top(probabilities, k)
    assert labels.shape == shares.shape == (len(X), min(k, len(names)))
    found = np.take_along_axis(probabilities, expected, axis=1)
    np.testing.assert_allclose(shares, found, rtol=1e-4, atol=1e-7)
    # Rounding may swap classes that are as good as equally likely, and no others.
    ranked = -np.sort(-probabilities, axis=1)
    gaps = np.pad(ranked[:, :-1] - ranked[:, 1:] > 1e-6, ((0, 0), (1, 1)), constant_values=True)
    clear = (gaps[:, :-1] & gaps[:, 1:])[:, :k]
    assert clear.mean() > 0.3
    np.testing.assert_array_equal(labels[clear], names[expected][clear])


@pytest.mark.usefixtures("small_blocks")
def test_predictions_in_blocks_are_the_largest_scores(model):
    X, _ = samples(seed=2)
    best = model.classes_[model.scores(X).argmax(axis=1)]
    np.testing.assert_array_equal(model.predict(X), best)
    few = ["class 09", "class 01", "class 20", "class 04", "class 13"]
    chosen = model.scores(X, few).argmax(axis=1)
    np.testing.assert_array_equal(model.predict(X, among=few), np.array(few)[chosen])


@pytest.mark.parametrize("name", ["KLDA", "scores", "LDA"])
def test_novelty_in_blocks_is_that_of_all_scores(name, request):
    model = MODELS[name]().fit(*samples())
    X = np.concatenate([samples(seed=3)[0], 9 * np.ones((5, 8))])
    expected = model.solution_.novelty(X)
    known = model.is_known(X, by_class=True)
    request.getfixturevalue("small_blocks")
    np.testing.assert_allclose(model.novelty(X), expected, rtol=1e-3)
    np.testing.assert_array_equal(model.is_known(X, by_class=True), known)


def test_classes_that_tie_come_in_the_order_of_their_labels():
    X = np.repeat(np.eye(4), 2, axis=0)
    model = NCM().fit(np.concatenate([X, X]), ["b"] * 8 + ["a"] * 8)
    labels, shares = model.predict_top(X, 2)
    assert (labels == ["a", "b"]).all()
    np.testing.assert_allclose(shares, 0.5)


@pytest.mark.parametrize("k", [0, -1, 2.5, True, "3"])
def test_a_bad_k_is_named(k):
    with pytest.raises(KldaError, match="k="):
        NCM().fit(*samples()).predict_top(samples()[0], k)


# ---------------------------------------------------------------- solving in blocks


@pytest.mark.parametrize("n_anchors", [1024, 9])
@pytest.mark.parametrize("priors", ["uniform", "empirical"])
def test_solving_in_blocks_gives_what_solving_at_once_gives(n_anchors, priors, monkeypatch):
    monkeypatch.setattr(shrinkage, "MOST_ANCHORS", n_anchors)
    X, y = samples()
    y[:4] = "class 50"  # a class of few rows

    def solved(at_once):
        monkeypatch.setattr(statistics, "CLASSES_AT_ONCE", at_once)
        model = KLDA(
            n_components=48, gamma=0.1, random_state=0, priors=priors, dtype="float64", ridge=1e-2
        )
        model.fit(X[:80], y[:80]).predict(X[:1])
        model.partial_fit(X[80:], y[80:])  # brought in from an older factor
        return model.scores(X), model.temperature_, model.novelty(X)

    for ours, theirs in zip(solved(2), solved(4096), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-7)


def test_judging_in_blocks_gives_what_judging_at_once_gives(monkeypatch):
    whole = MODELS["KLDA"]().fit(*samples())
    monkeypatch.setattr(evidence, "PROBED_AT_ONCE", 60)
    parts = MODELS["KLDA"]().fit(*samples())
    assert len(parts.model_.evidence) == len(whole.model_.evidence) == 138
    np.testing.assert_allclose(
        parts.model_.evidence.losses, whole.model_.evidence.losses, rtol=1e-3, atol=1e-9
    )


def test_with_many_classes_fewer_samples_are_judged(monkeypatch):
    monkeypatch.setattr(evidence, "MOST_PROBED", 23 * 40)
    model = MODELS["KLDA"]().fit(*samples())
    assert 30 <= len(model.model_.evidence) <= 40
    assert len(set(model.model_.evidence.labels)) > 10  # not of the first classes alone


# ---------------------------------------------------------------- growing


def test_a_new_class_moves_no_mean_that_is_there_already():
    known = ClassStatistics(16, NumpyBackend("float32"))
    rng = np.random.default_rng(0)
    moves, address = 0, None
    for label in range(1000):
        known.change(rng.normal(size=(2, 16)).astype(np.float32), np.array([2]), [label], 1)
        here = known.means.__array_interface__["data"][0]
        moves += here != address
        address = here
    assert moves <= 11  # doubled each time: 1, 2, 4, ... 1024
    assert known.counts.tolist() == [2] * 1000


def test_weights_of_old_classes_stay_where_they_are_when_a_class_is_added():
    X, y = samples(n_classes=40, rows=60)
    model = KLDA(n_components=128, gamma=0.1, random_state=0, ridge=1e-2, device="cpu").fit(X, y)
    base = model.model_.members[0].precision._weights
    model.partial_fit(X[:5] + 1, ["new 0"] * 5).predict(X[:1])
    before = base.values.__array_interface__["data"][0]
    model.partial_fit(X[:5] + 2, ["new 1"] * 5).predict(X[:1])
    assert base.values.__array_interface__["data"][0] == before
    assert len(base.values) == 42
    fresh = KLDA(n_components=128, gamma=0.1, random_state=0, ridge=1e-2, device="cpu")
    fresh.fit(X, y).partial_fit(X[:5] + 1, ["new 0"] * 5).partial_fit(X[:5] + 2, ["new 1"] * 5)
    scores, expected = model.scores(X), fresh.scores(X)
    assert np.abs(scores - expected).max() < 1e-4 * np.abs(expected).max()


def test_classes_are_sorted_again_only_when_their_labels_change():
    X, y = samples()
    model = NCM().fit(X, y)
    order, classes = model.model_.statistics.order, model.model_.classes
    model.partial_fit(X, y)
    assert model.model_.statistics.order is order
    assert model.model_.classes is classes
    model.rename("class 00", "zebra")
    assert model.classes_[-1] == "zebra"
    model.partial_fit(X[:2], ["aardvark"] * 2)
    assert model.classes_[0] == "aardvark"
    model.forget("aardvark")
    assert model.classes_.tolist() == sorted(model.model_.counts)
    changed = model.classes_
    changed[:] = "x"  # a copy: a user may do with it as he likes
    assert model.classes_[-1] == "zebra"


# ---------------------------------------------------------------- on torch


@pytest.mark.parametrize("name", ["KLDA", "scores", "probabilities", "NCM"])
@pytest.mark.usefixtures("small_blocks")
def test_torch_and_numpy_give_the_same_top_and_novelty(name, monkeypatch):
    torch = pytest.importorskip("torch")
    X, y = samples(n_classes=40, rows=10)
    asked = samples(n_classes=40, seed=1)[0]
    monkeypatch.setattr(shrinkage, "MOST_ANCHORS", 16)
    monkeypatch.setattr(statistics, "CLASSES_AT_ONCE", 7)

    def answers(convert, device):
        model = MODELS[name]().set_params(device=device).fit(convert(X), y)
        model.partial_fit(convert(X[:6] + 1), ["one more"] * 6)
        labels, shares = model.predict_top(convert(asked), 3)
        novelty = model.novelty(convert(asked)) if name != "NCM" else np.zeros(1)
        return model.predict(convert(asked)), labels, shares, novelty

    expected = answers(np.asarray, "cpu")
    found = answers(torch.tensor, "cpu:0")
    assert (found[0] == expected[0]).mean() > 0.99
    assert (found[1] == expected[1]).mean() > 0.98
    np.testing.assert_allclose(found[2], expected[2], rtol=0.02, atol=1e-3)
    assert np.abs(found[3] - expected[3]).max() <= 1e-2 * np.abs(expected[3]).max()


# ---------------------------------------------------------------- labels


@pytest.mark.parametrize(
    "values",
    [
        np.random.default_rng(0).integers(-5, 900, 3000),
        np.random.default_rng(1).integers(-128, 128, 60).astype(np.int8),
        np.random.default_rng(2).integers(0, 2**40, 100),
        np.array([-(2**63), 2**63 - 1, 0]),
        np.array([3]),
        np.array(["b", "a", "b"]),
    ],
)
def test_labels_are_grouped_as_sorting_would_group_them(values):
    names, groups = grouped(values)
    expected = np.unique(values, return_inverse=True)
    assert names == expected[0].tolist()
    assert groups.tolist() == expected[1].tolist()
