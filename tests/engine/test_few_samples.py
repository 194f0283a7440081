"""The exact kernel while there are few samples."""

import json
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from klda import KLDA, LDA, KLDAEnsemble, KldaError
from klda.classifiers import unpack
from klda.engine import few_evidence
from klda.engine.arrays import NumpyBackend
from klda.engine.feature_map import FeatureMap
from klda.engine.few_samples import ExactFit, Kernels, choose_weight
from klda.engine.held_rows import NotLearnedError
from klda.engine.model import Model
from klda.engine.rule import Settings
from klda.engine.solve import RidgeRaisedWarning
from tests import reference
from tests.reference import DEVICE


def make(kind=KLDA, **parameters):
    options = {"n_components": 400, "gamma": 0.05, "random_state": 0, "device": DEVICE}
    return kind(**options | {"dtype": "float64"} | parameters)


def fit(kernel, y, **chosen):
    options = {"ridge": 0.1, "small_sample_correction": False, "priors": "uniform"}
    return ExactFit(kernel, y, Settings(**options | chosen), 50, np.ones(len(y), bool))


def kernels_of(rows, blocks=()):
    own_map = FeatureMap(NumpyBackend("float64"), rows.shape[1], 50, gamma=0.05, blocks=blocks)
    return Kernels(rows, own_map)


def sorted_blobs(*arguments, **keywords):
    X, y = reference.blobs(*arguments, **keywords)
    order = np.argsort(y, kind="stable")
    return X[order], y[order]


def test_scores_are_those_of_lda_in_the_space_that_the_samples_span():
    X, y = sorted_blobs(60, 6, 4)
    kernels = kernels_of(X)
    kernel = kernels.matrix(1.0) + 1
    ours = fit(kernels.matrix(1.0), y)
    Z = np.linalg.cholesky(kernel + 1e-12 * np.eye(60))
    theirs = reference.scores(Z[:20], Z, y, ridge=1, rho=ours.rho)
    scores = (kernel - 1)[:20] @ ours.weights.T + ours.rule(NumpyBackend("float64")).biases
    ours_centred, theirs_centred = (s - s.mean(1, keepdims=True) for s in (scores, theirs))
    np.testing.assert_allclose(ours_centred, theirs_centred, rtol=1e-5, atol=1e-5)


def test_scores_left_out_equal_those_of_a_fit_that_never_saw_the_sample():
    X, y = sorted_blobs(60, 6, 4)
    kernel = kernels_of(X).matrix(1.0)
    ours = fit(kernel, y)
    Z = np.linalg.cholesky(kernel + 1 + 1e-12 * np.eye(60))
    for i in range(0, 60, 7):
        rest = np.arange(60) != i
        theirs = reference.scores(Z[i : i + 1], Z[rest], y[rest], ridge=1, rho=ours.rho)[0]
        mine = ours.scores_left_out[1][i] * 59 / 60
        np.testing.assert_allclose(mine - mine.mean(), theirs - theirs.mean(), atol=1e-5)


def test_a_kernel_that_is_not_positive_definite_gets_a_larger_ridge():
    X, y = sorted_blobs(60, 6, 4)
    kernel = kernels_of(X).matrix(1.0)
    usual = fit(kernel, y).rho
    broken = kernel - 2 * usual * np.eye(60)  # its smallest eigenvalues are below minus the ridge
    with pytest.warns(RidgeRaisedWarning, match="60 samples .* ridge raised to"):
        assert fit(broken, y).rho > 5 * usual


@pytest.mark.parametrize("kind", [KLDA, KLDAEnsemble])
@given(seed=st.integers(0, 10_000), n_cuts=st.integers(0, 4), n=st.sampled_from([60, 150]))
@settings(max_examples=8, deadline=None)
def test_order_batches_removal_and_merging_change_nothing(kind, seed, n_cuts, n):
    """Up to the border, at 200 samples here; across it in one direction only: see below."""
    X, y = reference.blobs(n + 30, 6, 5, seed=seed % 5)
    rng = np.random.default_rng(seed)
    expected = make(kind).partial_fit(X[:n], y[:n])
    order, cuts = rng.permutation(n + 30), np.sort(rng.integers(0, n + 30, n_cuts))
    parts = [part for part in np.split(order, cuts) if len(part)]
    piecewise, merged = make(kind), make(kind)
    for part in parts:
        piecewise.partial_fit(X[part], y[part])
        merged.merge(make(kind).partial_fit(X[part], y[part]))
    for model in (piecewise, merged):
        model.remove(X[n:], y[n:])
        np.testing.assert_array_equal(model.scores(X), expected.scores(X))
        assert model.temperature_ == expected.temperature_
        assert model.threshold() == expected.threshold()


def test_learning_in_pieces_across_the_border_gives_what_learning_at_once_gives():
    X, y = reference.blobs(500, 6, 5)
    once, piecewise = make().partial_fit(X, y), make()
    assert not once.model_.is_holding
    for start in range(0, 500, 90):
        piecewise.partial_fit(X[start : start + 90], y[start : start + 90])
        piecewise.predict(X[:2])
    assert reference.relative_error(piecewise.scores(X), once.scores(X)) < 1e-6


@pytest.mark.parametrize("kind", [KLDA, KLDAEnsemble])
def test_a_model_that_holds_its_samples_is_stored_whole(kind):
    X, y = reference.blobs(80, 6, 4)
    model = make(kind).partial_fit(X, y)
    for compact in (True, False):
        arrays, meta = model.pack(compact=compact)
        twin = unpack(arrays, json.loads(json.dumps(meta)), device=DEVICE)
        np.testing.assert_array_equal(twin.scores(X), model.scores(X))
        np.testing.assert_array_equal(twin.is_known(X), model.is_known(X))
        np.testing.assert_array_equal(twin.predict_proba(X), model.predict_proba(X))
    more, labels = reference.blobs(20, 6, 4, seed=1)
    twin.partial_fit(more, labels), model.partial_fit(more, labels)
    np.testing.assert_array_equal(twin.scores(X), model.scores(X))


def test_a_class_that_is_dropped_leaves_no_trace_and_can_be_brought_back():
    X, y = reference.blobs(80, 6, 4)
    model, before = make().partial_fit(X, y), make().partial_fit(X, y).scores(X)
    part = model.detach(2)
    never = make().partial_fit(X[y != 2], y[y != 2])
    np.testing.assert_array_equal(model.scores(X), never.scores(X))
    np.testing.assert_array_equal(model.attach(part).scores(X), before)


def test_samples_that_were_never_learned_can_not_be_removed():
    X, y = reference.blobs(80, 6, 4)
    model = make().partial_fit(X, y)
    before = model.scores(X)
    with pytest.raises(NotLearnedError, match="as class 1"):
        model.remove(X[:1] + 5, [1])
    np.testing.assert_array_equal(model.scores(X), before)


def test_the_block_that_tells_classes_apart_gets_the_weight():
    rng = np.random.default_rng(0)
    y = np.repeat(np.arange(8), 12)
    signal = rng.normal(size=(8, 10))[y] + 0.3 * rng.normal(size=(96, 10))
    noise = 2 * rng.normal(size=(96, 10))
    hashes, ones = rng.permutation(96).astype(np.uint64), np.ones(96, bool)
    for rows, expected in (((noise, signal), 0.0), ((signal, noise), 1.4)):
        kernels = kernels_of(np.concatenate(rows, axis=1), (10, 10))
        chosen = choose_weight(kernels, hashes, y, ones, Settings(rule="auto"), 400)
        assert chosen == expected


def test_blocks_that_do_not_fit_are_named():
    X, y = reference.blobs(30, 6, 3)
    with pytest.raises(KldaError, match=r"blocks=\(4, 4\)"):
        make(blocks=(4, 4)).partial_fit(X, y)


def test_a_kernel_of_equal_samples_can_be_solved():
    X, y = np.ones((6, 4)), [0, 0, 1, 1, 2, 2]
    assert np.isfinite(make().partial_fit(X, y).predict_proba(X)).all()


@pytest.mark.parametrize(("m", "per_class", "most"), [(2, 20, 0.75), (5, 5, 0.4), (5, 20, 0.35)])
def test_labels_that_say_nothing_make_no_answer_sure(m, per_class, most):
    confidence = []
    for seed in range(5):
        rng = np.random.default_rng(seed)
        X, y = rng.normal(size=(per_class * m + 300, 12)), np.tile(np.arange(m), per_class)
        model = make().fit(X[: len(y)], y)
        confidence.append(model.predict_proba(X[len(y) :]).max(axis=1).mean())
    assert np.mean(confidence) < most


def test_classes_that_are_far_apart_make_answers_sure():
    X, y = reference.blobs(400, 12, 5, spread=0.3)
    model = make().fit(X[:50], y[:50])
    assert (model.predict(X[50:]) == y[50:]).mean() > 0.98
    assert model.predict_proba(X[50:]).max(axis=1).mean() > 0.95


def test_a_stored_model_says_that_it_holds_its_samples_whatever_it_was_solved_by():
    X, y = reference.blobs(30, 8, 3)
    model = make().fit(X, y).set_params(rule="lda")
    assert unpack(*model.pack()).holds_samples
    assert not unpack(*make(n_components=40).fit(X, y).pack()).holds_samples


def test_what_is_usual_for_few_classes_is_no_unit_of_stored_evidence(monkeypatch):
    X, y = reference.blobs(600, 12, 3, spread=1.0)
    model = make(n_components=100).fit(X, y)
    assert not model.holds_samples
    stored, before = model.pack(), model.temperature_
    monkeypatch.setattr(few_evidence, "WIDE_HEAT", 0.0)
    assert unpack(*stored).temperature_ == pytest.approx(before)


# ---------------------------------------------------------------- LDA's rule


def of_statistics(monkeypatch, make, X, y):
    """A model with the same samples in its statistics."""
    with monkeypatch.context() as patch:
        patch.setattr(Model, "is_holding", False)
        model = make().fit(X, y)
        model.is_known(X)
        return model


LDA_MODELS = {
    "LDA": lambda: LDA(dtype="float64"),
    "KLDA": lambda: KLDA(n_components=400, rule="lda", random_state=0, dtype="float64"),
    "ensemble": lambda: KLDAEnsemble(
        n_components=400, n_members=2, combine="probabilities", rule="lda", random_state=0
    ),
}


@pytest.mark.parametrize("kind", LDA_MODELS)
@pytest.mark.parametrize(("offset", "scale"), [(0, 1), (1e4, 1), (0, 1e-10), (0, 1e10)])
@pytest.mark.parametrize("per_class", [2, 3, 10])
def test_ldas_rule_is_the_same_from_samples_and_from_statistics(
    kind, offset, scale, per_class, monkeypatch
):
    rng = np.random.default_rng(0)
    centres, y = rng.normal(size=(10, 220)), np.repeat(np.arange(10), per_class)
    X, inputs = (scale * (centres[y] + rng.normal(size=(len(y), 220)) + offset) for _ in range(2))
    held = LDA_MODELS[kind]().fit(X, y)
    assert held.model_.is_holding
    theirs = of_statistics(monkeypatch, LDA_MODELS[kind], X, y)
    assert (held.predict(inputs) == theirs.predict(inputs)).all()
    assert reference.relative_error(held.scores(inputs), theirs.scores(inputs)) < 1e-3
    np.testing.assert_allclose(held.predict_proba(X), theirs.predict_proba(X), atol=0.01)
    assert (held.is_known(inputs) == theirs.is_known(inputs)).mean() > 0.9
    again = unpack(*held.pack())
    np.testing.assert_array_equal(again.is_known(inputs), held.is_known(inputs))
    np.testing.assert_allclose(again.predict_proba(inputs), held.predict_proba(inputs), atol=1e-6)


@pytest.mark.parametrize("kind", LDA_MODELS)
@pytest.mark.parametrize("value", [0.0, 1.0])
def test_ldas_rule_does_not_take_rounding_for_spread(kind, value, monkeypatch):
    own = np.random.default_rng(0).normal(size=(5, 220))
    for X in (np.full((20, 220), value), np.repeat(own, 4, axis=0)):
        y = np.repeat(np.arange(5), 4)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            held = LDA_MODELS[kind]().fit(X, y)
            scores = held.scores(X)
        theirs = of_statistics(monkeypatch, LDA_MODELS[kind], X, y)
        np.testing.assert_allclose(scores, theirs.scores(X), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(
    "make",
    [lambda: KLDA(n_components=200, random_state=0), lambda: LDA()],
    ids=["KLDA", "LDA"],
)
def test_single_samples_of_more_classes_than_are_held_are_no_reason_to_be_sure(make):
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(250, 64))
    X, inputs = (centres + 1.5 * rng.normal(size=centres.shape) for _ in range(2))
    model = make().fit(X, np.arange(250))
    assert not model.model_.is_holding
    sure = model.predict_proba(inputs).max(axis=1).mean()
    assert sure < (model.predict(inputs) == np.arange(250)).mean() + 0.05
    assert np.isfinite(model.solution_.threshold(0.05))
