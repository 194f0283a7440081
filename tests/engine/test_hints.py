"""Hints: what a class's name says counts as a sample while there are few."""

import json

import numpy as np
import pytest

from klda import KLDA
from klda.classifiers import unpack
from klda.engine.held_rows import NotLearnedError
from klda.engine.rule import Settings
from tests import reference
from tests.reference import DEVICE

N_COMPONENTS = {"held": 2000, "square": 60}  # whether the model holds its samples


def make(size="held"):
    options = {"gamma": 0.05, "random_state": 0, "device": DEVICE, "dtype": "float64"}
    return KLDA(n_components=N_COMPONENTS[size], **options)


def data(per_class=20, m=6):
    X, y = reference.blobs(per_class * m, 8, m, spread=0.5)
    hints = np.stack([X[y == c].mean(0) for c in range(m)])
    return X, y, hints


def test_a_class_is_known_by_its_hint_alone():
    X, y, hints = data()
    model = make().hint(hints, np.arange(6))
    assert model.counts_ == dict.fromkeys(range(6), 0)
    assert (model.predict(X) == y).mean() > 0.8


def test_a_hint_counts_as_a_sample_while_there_are_few():
    X, y, hints = data()
    some = np.concatenate([np.flatnonzero(y == c)[: 3 if c == 0 else 20] for c in range(6)])
    ours = make().partial_fit(X[some], y[some]).hint(hints, np.arange(6))
    theirs = make().partial_fit(X[some], y[some]).partial_fit(hints[:1], [0])
    np.testing.assert_allclose(ours.coef_[:, :40], theirs.coef_[:, :40], atol=1e-6)
    assert ours.counts_[0] == 3
    more = np.flatnonzero(y == 0)[3:]
    ours.partial_fit(X[more], y[more])
    never = make().partial_fit(X, y)
    assert reference.relative_error(ours.scores(X), never.scores(X)) < 1e-6


def test_a_large_model_heeds_hints_of_classes_without_samples_alone():
    X, y, hints = data()
    taught = np.flatnonzero(y != 5)
    ours = make("square").partial_fit(X[taught], y[taught]).hint(hints, np.arange(6))
    theirs = make("square").partial_fit(X[taught], y[taught]).hint(hints[5:], [5])
    np.testing.assert_array_equal(ours.scores(X), theirs.scores(X))
    assert (ours.predict(X[y == 5]) == 5).mean() > 0.8
    never = make("square").partial_fit(X[taught], y[taught])
    among = list(range(5))
    assert (ours.predict(X, among) == never.predict(X)).mean() > 0.95
    ours.partial_fit(X[y == 5], y[y == 5])
    never.partial_fit(X[y == 5], y[y == 5])
    assert reference.relative_error(ours.scores(X), never.scores(X)) < 1e-6


def test_hints_alone_answer_once_all_other_classes_are_forgotten():
    X, y, hints = data()
    model = make("square").partial_fit(X, y).hint(hints[:2] + 1, [7, 8])
    for label in range(6):
        model.forget(label)
    assert model.predict(hints[:2] + 1).tolist() == [7, 8]


@pytest.mark.parametrize("size", N_COMPONENTS)
def test_hints_that_say_nothing_do_not_count(size):
    X, y, _ = data(per_class=8)
    codes = np.random.default_rng(0).normal(size=(6, 8))
    ours = make(size).partial_fit(X, y).hint(codes, np.arange(6))
    never = make(size).partial_fit(X, y)
    assert reference.relative_error(ours.scores(X), never.scores(X)) < 1e-9


@pytest.mark.parametrize("size", N_COMPONENTS)
def test_verbs_keep_hints_exact(size):
    X, y, hints = data()
    few = np.concatenate([np.flatnonzero(y == c)[: 4 if c < 2 else 20] for c in range(6)])
    X, y = X[few], y[few]

    def taught(rows, labels, hinted=range(7)):
        model = make(size).partial_fit(rows, labels)
        rows = np.concatenate([hints, hints[:1] + 2])
        return model.hint(rows[list(hinted)], list(hinted))

    expected = taught(X, y).scores(X)
    assert expected.shape[1] == 7  # the last one is known by its hint alone

    order = np.random.default_rng(0).permutation(len(X))
    shuffled = taught(X[order[:30]], y[order[:30]])
    shuffled.predict(X[:2])
    shuffled.partial_fit(X[order[30:]], y[order[30:]])
    merged = taught(X[order[:30]], y[order[:30]])
    merged.predict(X[:2])
    other = taught(X[order[30:]], y[order[30:]])
    other.predict(X[:2])
    merged.merge(other)
    more = taught(X, y)
    more.partial_fit(X[:9] + 1, y[:9])
    more.predict(X[:2])
    more.remove(X[:9] + 1, y[:9])
    solved = taught(X, y)
    solved.predict(X[:2])
    arrays, meta = solved.pack()
    stored = unpack(arrays, json.loads(json.dumps(meta)), device=DEVICE)
    stored.partial_fit(X[:1], y[:1]).remove(X[:1], y[:1])
    back = taught(X, y)
    back.predict(X[:2])
    back.attach(back.detach(0))
    for model in (shuffled, merged, more, stored, back):
        assert model.counts_ == taught(X, y).counts_
        assert reference.relative_error(model.scores(X), expected) < 1e-6

    renamed = taught(X, y)
    renamed.predict(X[:2])
    renamed.rename(0, 9)
    assert renamed.counts_[9] == 4
    assert 0 not in renamed.counts_
    ours = np.roll(renamed.scores(X), 1, axis=1)  # 9 comes last
    assert reference.relative_error(ours, expected) < 1e-6
    assert 6 not in taught(X, y).forget(6).counts_


@pytest.mark.parametrize("size", N_COMPONENTS)
def test_a_model_without_hints_counts_its_samples_alone(size):
    X, y, hints = data()
    some = np.concatenate([np.flatnonzero(y == c)[: 3 if c == 0 else 20] for c in range(6)])
    model = make(size).partial_fit(X[some], y[some]).hint(hints, np.arange(6))
    model.predict(X)
    model.hint([], [])
    assert model.class_count_.tolist() == [3, 20, 20, 20, 20, 20]
    again = unpack(*model.pack(solved=False))
    never = make(size).partial_fit(X[some], y[some])
    for one in (again, model):
        assert reference.relative_error(one.scores(X), never.scores(X)) < 1e-6


def test_a_class_is_gone_once_its_samples_and_its_hint_are():
    X, y, hints = data()
    some = np.concatenate([np.flatnonzero(y == c)[: 3 if c == 0 else 20] for c in range(6)])
    model = make("square").partial_fit(X[some], y[some]).hint(hints, np.arange(6))
    model.predict(X)
    model.remove(X[some][:3], y[some][:3]).hint([], [])
    assert model.counts_ == dict.fromkeys(range(1, 6), 20)
    assert len(model.classes_) == len(model.class_count_) == 5


def test_samples_of_a_class_with_a_hint_are_checked_like_others():
    X, y, hints = data(per_class=200)
    some = np.concatenate([np.flatnonzero(y == c)[: 3 if c == 0 else 200] for c in range(6)])
    model = make("square").partial_fit(X[some], y[some]).hint(hints, np.arange(6))
    own = X[some][:3]
    model.check_learned(own, [0, 0, 0])
    with pytest.raises(NotLearnedError, match="class 0"):
        model.check_learned(X[y == 0][3:6], [0, 0, 0])


@pytest.mark.parametrize("size", ["held", "square"])
@pytest.mark.parametrize("per_class", [2, 20])
@pytest.mark.parametrize("rule", ["auto", "lda"])
def test_the_ridge_told_is_the_ridge_solved_with(size, per_class, rule, monkeypatch):
    """Also where hints count as samples, and where one is all that is known of a class."""
    X, y, hints = data(per_class)
    model = make(size).set_params(rule=rule).partial_fit(X[y < 5], y[y < 5])
    model.hint(hints, np.arange(6))
    used, relative_ridge = [], Settings.relative_ridge

    def noted(*arguments):
        used.append(relative_ridge(*arguments))
        return used[-1]

    monkeypatch.setattr(Settings, "relative_ridge", noted)
    model.predict(X[:1])
    assert model.ridge_ == used[0]
    if not model.holds_samples:
        assert model.frozen().ridge_ == used[0]
