"""A model and its solution stay in step, whoever asks meanwhile."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from klda import KLDA
from klda.engine import solution
from klda.engine.model import HalfChangedError, Member
from tests import reference


def make(**options):
    return KLDA(n_components=64, gamma=0.05, random_state=0, dtype="float64", **options)


def test_a_copy_made_while_another_thread_solves_has_the_scatter_itself():
    X, y = reference.blobs(300, 6, 4)
    model = make().fit(X, y)
    expected = model.covariance_
    stop = threading.Event()

    def solve():
        ridges = [1e-2, 1e-1]
        while not stop.is_set():
            model.set_params(ridge=ridges[0])
            ridges.reverse()
            model.predict(X[:1])

    asking = threading.Thread(target=solve)
    asking.start()
    try:
        copies = [model.copy().covariance_ for _ in range(200)]
        packed = [model.pack(solved=False)[0]["learn/0/triangle"] for _ in range(100)]
    finally:
        stop.set()
        asking.join()
    for copied in copies:
        np.testing.assert_array_equal(copied, expected)
    for triangle in packed:
        np.testing.assert_array_equal(triangle, packed[0])


def test_merging_keeps_the_evidence_of_both_whether_they_were_asked_or_not():
    X, y = reference.blobs(240, 6, 4)
    one, other = make().fit(X[:120], y[:120]), make().fit(X[120:], y[120:])
    probes = len(one.solution_.evidence) + len(other.solution_.evidence)
    asked = one.copy().merge(other)
    assert len(asked.solution_.evidence) == probes
    empty = one.empty().merge(other)
    assert empty.temperature_ == other.temperature_
    assert empty.threshold() == other.threshold()
    never_asked = make().partial_fit(X[:120], y[:120])
    assert len(never_asked.merge(other).solution_.evidence) == probes


def test_a_fit_that_fails_leaves_the_model_as_it_was():
    X, y = reference.blobs(60, 6, 3)
    model = make().fit(X, y)
    before = model.predict(X)
    model.set_params(ridge=-1.0)
    with pytest.raises(ValueError, match="ridge"):
        model.fit(X[:, :4], y)
    model.set_params(ridge="auto")
    assert model.n_features_in_ == 6
    np.testing.assert_array_equal(model.predict(X), before)


def test_a_change_that_can_not_be_undone_is_never_used(monkeypatch):
    X, y = reference.blobs(300, 6, 4)
    monkeypatch.setattr(solution, "BLOCK_ROWS", {"cpu": 40, "gpu": 40})
    model = make().fit(X[:200], y[:200])
    change, calls = Member.change, []

    def failing(member, *arguments):
        calls.append(1)
        if len(calls) > 1:
            raise MemoryError
        change(member, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(Member, "change", failing)
        with pytest.raises(HalfChangedError, match="Load it from its folder again"):
            model.partial_fit(X[200:], y[200:])
    for use in (
        lambda: model.predict(X),
        lambda: model.partial_fit(X, y),
        lambda: model.counts_,
        lambda: model.pack(),
        lambda: model.copy(),
    ):
        with pytest.raises(HalfChangedError):
            use()
    assert (model.fit(X, y).predict(X) == y).mean() > 0.9
