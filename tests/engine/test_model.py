"""A model's verbs: exact, all or nothing, across the switches between rows and statistics."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from klda import KLDA, KldaError
from klda.engine import sizes
from klda.engine.arrays import choose_backend
from klda.engine.engine import Engine, PredictionOnlyError
from klda.engine.feature_map import Draw, FourierMap, IdentityMap
from klda.engine.model import Model
from klda.engine.parameters import Parameters
from klda.engine.rows import NotLearnedError, Rows
from tests import reference
from tests.reference import DEVICE

X, Y = reference.blobs(120, 6, 4)
FEW, MOST = 20, 40  # samples with the exact kernel, and with rows at hand
PARAMETERS = Parameters(
    n_components=2 * MOST, gamma=0.05, ridge=1e-2, dtype="float64", device=DEVICE
)


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setattr(sizes, "EXACT_KERNEL_ROWS", FEW)


def make(kind="KLDA", keep_all=False):
    backend = choose_backend(DEVICE, "float64")
    if kind == "LDA":
        return Model.new(IdentityMap(backend, backend.zeros((6,))), keep_all=keep_all)
    own_map = FourierMap(backend, 6, 2 * MOST, 0.05, Draw("gaussian", 0))
    return Model.new(own_map, keep_all=keep_all)


def learn(model, at):
    return model.add(X[at], Y[at].tolist())


def scores(model):
    parameters = PARAMETERS if isinstance(model.map, FourierMap) else LDA_PARAMETERS
    return Engine(parameters, model).solution().scores(X)


LDA_PARAMETERS = Parameters.of({"ridge": 1e-2, "dtype": "float64", "device": DEVICE})


def assert_same(model, expected):
    assert model.counts == expected.counts
    assert (model.rows is None) == (expected.rows is None)
    assert reference.relative_error(scores(model), scores(expected)) < 1e-7


@pytest.mark.parametrize("keep_all", [False, True])
@given(data=st.data())
@settings(max_examples=25, deadline=None)
def test_any_sequence_of_changes_equals_learning_only_what_is_left(keep_all, data):
    """Learning, removing, merging, renaming and storing, across 20 and 40 samples."""
    model, left = make(keep_all=keep_all), []
    for _ in range(data.draw(st.integers(1, 6))):
        verb = data.draw(st.sampled_from(["add", "merge", "remove", "rename", "store"]))
        free = np.setdiff1d(np.arange(len(X)), left)
        some = data.draw(st.integers(1, 45))
        if verb in ("add", "merge") and len(free):
            new = free[:some]
            part = learn(make(keep_all=keep_all), new)
            model = model.merge(part) if verb == "merge" else learn(model, new)
            left += new.tolist()
        elif verb == "remove" and len(left) > 1:
            gone, left = left[:some], left[some:] or left[-1:]
            gone = [i for i in gone if i not in left]
            model = model.remove(X[gone], Y[gone].tolist()) if gone else model
        elif verb == "rename" and left:
            label = int(Y[left[0]])
            model = model.rename(label, 99).rename(99, label)
        elif verb == "store":
            model = Model.unpack(*model.pack(), model.backend)
    if not left:
        return
    expected = learn(make(keep_all=keep_all), np.array(left))
    assert model.counts == expected.counts
    if (model.rows is None) == (expected.rows is None):  # with its rows, it is the same model
        error = reference.relative_error(scores(model), scores(expected))
        assert error < 1e-7
    else:
        assert model.rows is None


@pytest.mark.parametrize("n", [15, 30, 100])
@pytest.mark.parametrize("kind", ["KLDA", "LDA"])
def test_merging_what_was_dropped_brings_it_back(kind, n):
    model = learn(make(kind), np.arange(n))
    rest, gone = model.split(2)
    assert 2 not in rest.counts
    assert gone.counts == {2: model.counts[2]}
    assert_same(rest.merge(gone), model)
    again = Model.unpack(*gone.pack(with_map=False), model.backend, model.map)
    assert_same(rest.merge(again), model)


@pytest.mark.parametrize("n", [15, 30])
def test_a_class_that_is_dropped_leaves_no_trace_while_rows_are_kept(n):
    model = learn(make(), np.arange(n))
    others = np.flatnonzero(Y[:n] != 2)
    assert_same(model.split(2)[0], learn(make(), others))


def test_lda_merges_models_that_began_with_other_samples():
    backend = choose_backend(DEVICE, "float64")
    parts = [np.arange(60), np.arange(60, 120)]
    models = []
    for at in parts:
        centre = backend.asarray(X[at]).mean(0)
        models.append(learn(Model.new(IdentityMap(backend, centre)), at))
    whole = learn(Model.new(models[0].map), np.arange(120))
    assert_same(models[0].merge(models[1]), whole)


def test_verbs_leave_the_model_as_it_was():
    model = learn(make(), np.arange(100))
    before = scores(model)
    learn(model, np.arange(100, 120))
    model.remove(X[:5], Y[:5].tolist())
    model.split(1)
    model.rename(1, 7)
    model.merge(learn(make(), np.arange(100, 110)))
    np.testing.assert_array_equal(scores(model), before)


def test_a_change_that_fails_leaves_the_engine_as_it_was(monkeypatch):
    engine = Engine(PARAMETERS, learn(make(), np.arange(100)))
    before, model = engine.solution().scores(X), engine.model
    for error in (MemoryError, KeyboardInterrupt):

        def failing(*args, error=error, **kwargs):
            raise error

        with monkeypatch.context() as broken:
            broken.setattr(type(model.backend), "sum_of_squares", failing)
            with pytest.raises(error):
                engine.add(X[100:], Y[100:].tolist())
        assert engine.model is model
    np.testing.assert_array_equal(engine.solution().scores(X), before)


def test_rows_that_were_never_learned_are_refused():
    few = learn(make(), np.arange(30))
    with pytest.raises(NotLearnedError):
        few.remove(X[50:51], [int(Y[50])])
    engine = Engine(PARAMETERS, learn(make(), np.arange(100)))
    engine.copy().remove(X[:9], Y[:9].tolist())
    strangers = np.random.default_rng(0).normal(size=(30, 6)) * 9
    with pytest.raises(NotLearnedError):
        engine.remove(strangers[:9], [0] * 9)


def test_a_model_that_keeps_all_rows_can_take_no_others():
    whole, without = learn(make(keep_all=True), np.arange(20)), learn(make(), np.arange(100))
    with pytest.raises(KldaError, match="keeps no ledger"):
        whole.merge(without)


def test_hints_are_classes_without_samples():
    engine = Engine(PARAMETERS, learn(make(), np.arange(100)))
    engine.set_name_rows(X[:1] * 0 + 9, [77])
    assert engine.counts[77] == 0
    solution = engine.solution()
    assert solution.answer(X[:1] * 0 + 9).labels[0, 0] == 77
    assert solution.class_counts[solution.classes == 77] == 0


def test_an_engine_with_a_solution_alone_answers_and_does_not_learn():
    engine = Engine(PARAMETERS, learn(make(), np.arange(100)))
    frozen = engine.frozen()
    engine.add(X[100:], Y[100:].tolist())
    assert frozen.counts != engine.counts
    assert frozen.solution().answer(X[:3]).labels.shape == (3, 1)
    with pytest.raises(PredictionOnlyError):
        frozen.rename(0, 9)


@pytest.mark.parametrize("compact", [True, False])
@pytest.mark.parametrize("n", [15, 30, 100])
def test_an_engine_survives_storing(n, compact):
    engine = Engine(PARAMETERS, learn(make(), np.arange(n)))
    solution = engine.calibrated()
    again = Engine.unpack(*engine.pack(compact=compact), PARAMETERS)
    loaded = again.calibrated()
    np.testing.assert_array_equal(loaded.scores(X), solution.scores(X))
    assert loaded.temperature == solution.temperature
    assert loaded.threshold(0.05) == solution.threshold(0.05)
    if not compact:
        again.add(X[n:], Y[n:].tolist())
        assert_same(again.model, learn(make(), np.arange(120)))


def test_a_given_ridge_does_not_change_the_automatic_one_of_a_loaded_model():
    automatic, given = replace(PARAMETERS, ridge="auto"), replace(PARAMETERS, ridge=0.01)
    engine = Engine(automatic, learn(make(), np.arange(100)))
    again = Engine.unpack(*engine.pack(), automatic)
    again.parameters = given
    assert again.solution().rho != engine.solution().rho
    again.parameters = automatic
    assert again.solution().rho == engine.solution().rho


def test_a_loaded_engine_does_not_keep_the_packed_model():
    engine = Engine(PARAMETERS, learn(make(), np.arange(100)))
    arrays, meta = engine.pack()
    again = Engine.unpack(arrays, meta, PARAMETERS)
    assert again.counts == engine.counts
    again.add(X[:1], Y[:1].tolist())
    again.solution()
    assert not any(value is meta["model"] for value in _reachable(vars(again)))


def _reachable(value):
    yield value
    if isinstance(value, dict):
        for each in value.values():
            yield from _reachable(each)
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _reachable(each)
    elif hasattr(value, "__dataclass_fields__"):
        yield from _reachable(vars(value))


def test_ids_and_numbers_name_kept_rows():
    rows = Rows.halved().add(X[:3], ["a", "b", "a"], ["x", None, "y"]).add(X[3:5], ["b", "b"])
    assert rows.ids_at(np.arange(5)) == ["x", 1, "y", 3, 4]
    rest = rows.without(rows.of_ids(["x", 3]))
    assert rest.ids_at(np.arange(3)) == [1, "y", 4]
    assert rest.add(X[:1], ["a"]).numbers.tolist() == [1, 2, 4, 5]
    again = Rows.unpack(*rest.pack())
    assert again.ids_at(np.arange(3)) == [1, "y", 4]
    np.testing.assert_array_equal(again.values, rest.values)
    for wrong in (["x"], [7], ["y", 2], []):
        with pytest.raises(KldaError):
            rest.of_ids(wrong)


def test_forgotten_rows_are_not_pending_any_more():
    """Rows that were encoded in another batch differ a little; they are gone all the same."""
    rng = np.random.default_rng(0)
    rows, labels = rng.normal(size=(320, 16)).astype("f4"), [f"c{i % 4}" for i in range(320)]
    model = KLDA(n_components=128, gamma=0.02, random_state=0).fit(rows[:300], labels[:300])
    model.partial_fit(rows[300:], labels[300:])
    assert model.model_.rows is None
    assert len(model.model_.pending) == 20
    model.remove(rows[300:] * (1 + 1e-5 * rng.normal(size=(20, 16))), labels[300:])
    assert len(model.model_.pending) == 0
    assert not any(
        np.isin(rows[300:], array).any()
        for array in model.model_.pack()[0].values()
        if array.shape[1:] == (16,)
    )


def test_the_same_samples_are_the_same_however_they_are_stored():
    rows, labels = np.random.default_rng(0).normal(size=(5000, 6)), ["a", "b"] * 2500
    at_once = make("LDA", keep_all=True).add(rows, labels)
    others = make("LDA", keep_all=True).add(rows[:7] + 9, ["b"] * 7)
    later = others.add(rows[:11], labels[:11]).add(rows[11:], labels[11:])
    later = later.remove_at(np.arange(7))
    assert at_once.has_same_samples(later)
    assert not at_once.has_same_samples(later.remove_at(np.arange(1)))
