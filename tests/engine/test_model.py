"""A model's verbs: exact, and done completely or not at all."""

from __future__ import annotations

import itertools
import signal
from inspect import isfunction

import numpy as np
import pytest

from klda.engine import solution as engine_solution
from klda.engine.feature_map import Draw, FeatureMap
from klda.engine.fitted import Fitted
from klda.engine.model import Member, Model, choose_backend
from klda.engine.rule import Settings
from klda.labels import grouped
from tests import reference
from tests.reference import DEVICE

KINDS = ["KLDA", "ensemble", "LDA", "means"]
SIZES = {"held": 100, "square": 24}
X, Y = reference.blobs(80, 6, 4)


def make(kind="KLDA", n_components=24):
    """A model that holds up to half as many samples as it has components."""
    backend = choose_backend(DEVICE, "float64")
    if kind in ("LDA", "means"):
        return Model.of_maps([FeatureMap(backend, 6, 6)], with_scatter=kind == "LDA")
    n_maps = 2 if kind == "ensemble" else 1
    draws = [Draw("gaussian", key) for key in range(n_maps)]
    maps = [FeatureMap(backend, 6, n_components, 0.05, draw) for draw in draws]
    return Model.of_maps(maps)


def learn(model, rows, y):
    labels, groups = grouped(np.asarray(y))
    model.add(np.asarray(rows), groups, labels)
    return model


def remove(model, rows, y):
    labels, groups = grouped(np.asarray(y))
    model.remove(np.asarray(rows), groups, labels)
    return model


def settings(model):
    return Settings(ridge=1e-2, calibrated=True, nearest_mean=not model.statistics.with_scatter)


def solve(model):
    return Fitted(model).solution(settings(model))


def assert_same(model, expected, tolerance=1e-9):
    """Statistics, samples that wait, evidence and answers."""
    assert model.classes.tolist() == expected.classes.tolist()
    assert model.counts == expected.counts
    for mine, theirs in zip(model.members, expected.members, strict=True):
        own, other = mine.statistics, theirs.statistics
        assert len(own.means) == len(own.labels) == len(own.counts) == len(own.positions)
        assert own.n_scattered == other.n_scattered
        means = [model.backend.to_numpy(each.means)[each.order] for each in (own, other)]
        np.testing.assert_allclose(*means, rtol=tolerance, atol=tolerance)
        if own.with_scatter:
            found, wanted = own.scatter(), other.scatter()
            np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-9 * np.abs(wanted).max())
    assert sorted(kept(model.waiting)) == sorted(kept(expected.waiting))
    assert sorted(kept(model.held)) == sorted(kept(expected.held))
    assert sorted(model.evidence.labels) == sorted(expected.evidence.labels)
    if len(model.classes):
        found, wanted = (solve(each).scores(X) for each in (model, expected))
        assert reference.relative_error(found, wanted) < 1e-7


def kept(held):
    return [(row.tobytes(), label) for row, label in zip(held.rows, held.labels, strict=True)]


# ---------------------------------------------------------------- a lack of memory anywhere


class OutOfMemory:
    """Lets the n-th array operation fail, and no other."""

    def __init__(self, patch, backend, fails_at):
        self.calls, self.fails_at = 0, fails_at
        for name, operation in list(vars(type(backend)).items()):
            if isfunction(operation) and not name.startswith("_") and name != "side_by_side":
                patch.setattr(type(backend), name, self._counting(operation))

    def _counting(self, operation):
        def counted(*arguments, **options):
            self.calls += 1
            if self.calls == self.fails_at:
                raise MemoryError(f"{operation.__name__}, operation {self.calls}")
            return operation(*arguments, **options)

        return counted


def fails_everywhere(start, verb):
    """Yield a model for each array operation of a verb, after that operation failed."""
    for n in itertools.count(1):
        model = start()
        with pytest.MonkeyPatch.context() as patch:
            OutOfMemory(patch, model.backend, n)
            try:
                verb(model)
            except MemoryError:
                pass
            else:
                assert n > 1 or model.is_holding, "the verb has no array operation"
                return
        yield model


def started(kind, size):
    """A model that has a factor, rows since then, and samples that wait."""
    model = learn(make(kind, SIZES[size]), X[:40], Y[:40])
    solve(model)
    return learn(model, X[40:43], Y[40:43])


OF_CLASS_1 = np.flatnonzero(Y[:43] == 1)
VERBS = {
    "add": lambda model: learn(model, X[50:70], Y[50:70] + 2),
    "add a class": lambda model: learn(model, X[50:54], [9] * 4),
    "remove": lambda model: remove(model, X[:20], Y[:20]),
    "remove a class": lambda model: remove(model, X[OF_CLASS_1], Y[OF_CLASS_1]),
    "remove all": lambda model: remove(model, X[:43], Y[:43]),
    "merge": lambda model: model.merge(learn(model.empty(), X[50:70], Y[50:70] + 2)),
    "drop": lambda model: model.drop(2),
}


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize(
    ("kind", "size"),
    [
        ("KLDA", "held"),
        ("KLDA", "square"),
        ("ensemble", "held"),
        ("ensemble", "square"),
        ("LDA", "square"),
        ("means", "square"),
    ],
)
def test_a_lack_of_memory_anywhere_leaves_the_model_as_it_was(kind, size, verb, monkeypatch):
    monkeypatch.setattr(engine_solution, "BLOCK_ROWS", {"cpu": 15, "gpu": 15})
    before, after = started(kind, size), started(kind, size)
    VERBS[verb](after)
    for model in fails_everywhere(lambda: started(kind, size), VERBS[verb]):
        assert_same(model, before)
        VERBS[verb](model)  # and can be done afterwards
        assert_same(model, after)


# ---------------------------------------------------------------- interrupts


def interrupt(patch, calls):
    """Press Ctrl-C within the n-th change of a member."""
    change, left = Member.change, [calls]

    def counting(member, *arguments):
        left[0] -= 1
        if left[0] == 0:
            signal.raise_signal(signal.SIGINT)
        change(member, *arguments)

    patch.setattr(Member, "change", counting)


@pytest.mark.parametrize("verb", ["add", "add a class", "remove", "remove all"])
@pytest.mark.parametrize("kind", KINDS)
def test_an_interrupt_in_any_block_leaves_the_model_as_it_was(kind, verb, monkeypatch):
    monkeypatch.setattr(engine_solution, "BLOCK_ROWS", {"cpu": 15, "gpu": 15})
    before = started(kind, "square")
    for calls in itertools.count(1):
        model = started(kind, "square")
        with pytest.MonkeyPatch.context() as patch:
            interrupt(patch, calls)
            try:
                VERBS[verb](model)
            except KeyboardInterrupt:
                assert_same(model, before)
            else:
                break
    n_rows = {"add": 20, "add a class": 4, "remove": 20, "remove all": 43}[verb]
    assert calls - 1 == -(-n_rows // 15) * len(model.members)


# ---------------------------------------------------------------- a class dropped and back


@pytest.mark.parametrize("judged", [True, False])
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("kind", KINDS)
def test_merging_what_was_dropped_brings_it_back_exactly(kind, size, judged):
    model, before = (learn(make(kind, SIZES[size]), X, Y) for _ in range(2))
    if judged and kind != "means" and not model.is_holding:
        for each in (model, before):
            Fitted(each).calibrated_solution(settings(each))
        assert 2 in model.evidence.labels
    part = model.drop(2)
    assert part.classes.tolist() == [2]
    assert model.classes.tolist() == [0, 1, 3]
    assert not {2} & {*model.waiting.labels, *model.evidence.labels}
    model.merge(part)
    assert_same(model, before, tolerance=0)
    model.drop(2)
    model.merge(Model.unpack(*part.pack(), model.backend))  # a part may be stored meanwhile
    assert_same(model, before, tolerance=0)


@pytest.mark.parametrize("kind", KINDS)
def test_an_only_class_may_be_dropped_and_brought_back(kind):
    model, before = (learn(make(kind), X[:30], ["only"] * 30) for _ in range(2))
    part = model.drop("only")
    assert len(model.classes) == 0
    model.merge(part)
    assert_same(model, before, tolerance=0)
    learn(model, X[30:], Y[30:].astype(str))
    assert_same(model, learn(before, X[30:], Y[30:].astype(str)))


@pytest.mark.parametrize("kind", KINDS)
def test_a_dropped_class_may_come_back_to_a_model_that_went_on(kind):
    model = learn(make(kind), X[:50], Y[:50])
    part = model.drop(3)
    learn(model, X[50:], Y[50:])  # new samples of the class that was dropped, too
    model.merge(part)
    assert_same_but_for_the_scatter(model, learn(make(kind), X, Y))


def assert_same_but_for_the_scatter(model, expected):
    assert model.counts == expected.counts
    found, wanted = (
        each.backend.to_numpy(each.statistics.means)[each.statistics.order]
        for each in (model, expected)
    )
    np.testing.assert_allclose(found, wanted, rtol=1e-9, atol=1e-12)
    assert model.statistics.n_scattered == expected.statistics.n_scattered


# ---------------------------------------------------------------- copies and storage


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("kind", KINDS)
def test_copies_and_stored_models_are_the_same_and_independent(kind, size):
    model = started(kind, size)
    arrays, meta = model.pack()
    stored = {name: array.copy() for name, array in arrays.items()}
    twins = [model.copy(), Model.unpack(arrays, meta, model.backend)]
    for twin in twins:
        assert_same(twin, model)
    VERBS["add"](model)
    for twin in twins:
        assert_same(twin, started(kind, size))
    for name, array in arrays.items():
        np.testing.assert_array_equal(array, stored[name], err_msg=name)
    assert len(model.empty().classes) == 0
    assert model.empty().maps == model.maps


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("kind", KINDS)
def test_a_model_merged_with_itself_has_learned_all_twice(kind, size):
    model = learn(make(kind, SIZES[size]), X, Y)
    model.merge(model)
    assert_same(model, learn(learn(make(kind, SIZES[size]), X, Y), X, Y))


@pytest.mark.parametrize(("kind", "size"), [("KLDA", "square"), ("ensemble", "square")])
def test_a_solve_that_failed_halfway_leaves_nothing_to_the_next(kind, size):
    def weights(model):
        return [model.backend.to_numpy(rule.weights) for rule in solve(model).rules]

    start = lambda: learn(started(kind, size), X[50:54], [9] * 4)  # noqa: E731
    expected = weights(start())
    for model in fails_everywhere(start, solve):
        for found, wanted in zip(weights(model), expected, strict=True):
            np.testing.assert_allclose(found, wanted, rtol=1e-3, atol=1e-3 * abs(wanted).max())
