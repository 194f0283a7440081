"""Estimators under threads, interrupts, and input that is not what it should be."""

from __future__ import annotations

import copy
import json
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from scipy.linalg import lapack

from klda import KLDA, LDA, KLDAEnsemble, KldaError
from klda.classifiers import unpack
from klda.engine import solution
from klda.engine.model import Member
from tests import reference
from tests.classifiers.test_classifiers import ALL, make
from tests.reference import DEVICE


@pytest.mark.parametrize("kind", [KLDA, KLDAEnsemble])
def test_many_threads_may_ask_for_the_first_answer(kind):
    X, y = reference.blobs(900, 8, 5)
    whole = make(kind, n_components=400).partial_fit(X[:800], y[:800])
    whole.predict(X[:2])
    for seed in range(10):
        model = copy.deepcopy(whole)
        rows = slice(800 + seed, 840 + seed)
        model.partial_fit(X[rows], y[rows])  # few enough to be brought in by the next who asks
        twin = copy.deepcopy(model)
        start = threading.Barrier(8)

        def ask(_, model=model, start=start):
            start.wait()
            return model.scores(X[:5])

        with ThreadPoolExecutor(8) as pool:
            found = list(pool.map(ask, range(8)))
        for scores in [*found, model.scores(X[:5])]:
            np.testing.assert_allclose(scores, twin.scores(X[:5]), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    "labels",
    [
        ["a", float("nan"), "b"],
        ["a", None, "b"],
        ["a", 1, "b"],
        [1, float("nan"), 2],
        np.array([1, np.nan, 2], dtype=object),
        np.array(["a", np.nan, "b"], dtype=object),
    ],
)
def test_missing_and_mixed_labels_are_refused(labels):
    model = make(LDA)
    with pytest.raises(KldaError, match=r"y\[1\]|unknown type"):
        model.partial_fit(np.eye(3), labels)
    assert not hasattr(model, "classes_")


@pytest.mark.parametrize("kind", [list, lambda v: np.array(v, dtype=object)])
def test_labels_may_be_numpys_own(kind):
    assert make(LDA).partial_fit(np.eye(2), kind([np.int64(3), np.int64(1)])).classes_.tolist() == [
        1,
        3,
    ]
    found = make(LDA).partial_fit(np.eye(2), kind([np.str_("b"), np.str_("a")]))
    assert found.classes_.tolist() == ["a", "b"]


@pytest.mark.parametrize("kind", ALL)
def test_values_too_large_to_square_are_refused_and_nothing_changes(kind):
    X, y = reference.blobs(100, 4, 3)
    model = make(kind, dtype="float32").partial_fit(X, y)
    before = model.scores(X)
    for value in (1e25, -1e30):
        with pytest.raises(KldaError, match=r"too large for float32.*float64"):
            model.partial_fit(np.array([[value, 0, 0, 0]]), [0])
    np.testing.assert_array_equal(model.scores(X), before)
    assert model.class_count_.sum() == 100


def test_tensors_of_any_precision_are_taken():
    torch = pytest.importorskip("torch")
    X, y = reference.blobs(100, 4, 3)
    exact = make(LDA, dtype="float32").partial_fit(X, y)
    for kind in (torch.bfloat16, torch.float16, torch.float64, torch.int32):
        model = make(LDA, dtype="float32").partial_fit(torch.tensor(10 * X).to(kind), y)
        assert (model.predict(torch.tensor(10 * X).to(kind)) == exact.predict(X)).mean() > 0.8
    with pytest.raises(KldaError, match="infinity"):
        make(LDA, dtype="float32").partial_fit(torch.full((3, 4), 1e39, dtype=torch.float64), y[:3])


@pytest.mark.parametrize("new", [None, (1, 2), 1.5, True])
def test_a_name_must_be_a_label(new):
    model = make(LDA).partial_fit(np.eye(2), [1, 2])
    with pytest.raises(KldaError, match="new="):
        model.rename(1, new)
    assert model.classes_.tolist() == [1, 2]


@pytest.mark.parametrize("different", [{"n_components": 32}, {"gamma": 0.5}, {"dtype": "float64"}])
def test_an_empty_model_takes_over_its_like_only(different):
    X, y = reference.blobs(60, 4, 3)
    model = make(KLDA, dtype="float32").partial_fit(X, y)
    with pytest.raises(KldaError, match=f"{next(iter(different))}="):
        make(KLDA, **({"dtype": "float32"} | different)).merge(model)


@pytest.mark.parametrize("n_components", [64, 200])
def test_a_model_may_be_merged_with_itself(n_components):
    X, y = reference.blobs(120, 6, 3)
    options = {"n_components": n_components, "dtype": "float64", "ridge": 1e-2}
    model = make(KLDA, **options).partial_fit(X, y).remove(X[:20], y[:20])
    twice = make(KLDA, **options)
    for _ in range(2):
        twice.partial_fit(X[20:], y[20:])
    np.testing.assert_allclose(model.merge(model).scores(X), twice.scores(X), rtol=1e-6, atol=1e-6)


def test_large_batches_lose_no_digits():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60_000, 8)) + 2
    y = np.arange(60_000) % 2
    options = {"n_components": 16, "gamma": 0.02, "ridge": 1e-2, "calibrated": False}
    single = make(KLDA, dtype="float32", **options).partial_fit(X, y)
    double = make(KLDA, dtype="float64", **options).partial_fit(X, y)
    error = np.abs(single.means_ - double.means_).max() / np.abs(double.means_).max()
    assert error < 2e-5
    scores = double.scores(X[:100])
    assert np.abs(single.scores(X[:100]) - scores).max() / np.abs(scores).max() < 1e-4


class Stop:
    """Interrupts after some calls of a member's change."""

    def __init__(self, monkeypatch, calls, error):
        self.left, self.error = calls, error
        change = Member.change

        def counting(member, *arguments):
            change(member, *arguments)
            self.left -= 1
            if self.left == 0:
                self.stop()

        monkeypatch.setattr(Member, "change", counting)

    def stop(self):
        if self.error is KeyboardInterrupt:
            signal.raise_signal(signal.SIGINT)
        else:
            raise self.error


@pytest.mark.parametrize("sign", ["partial_fit", "remove"])
@pytest.mark.parametrize("calls", [1, 2, 3, 5, 9])
def test_an_interrupted_batch_is_undone(monkeypatch, calls, sign):
    X, y = reference.blobs(300, 6, 4)
    monkeypatch.setattr(solution, "BLOCK_ROWS", {"cpu": 40, "gpu": 40})
    model = make(KLDAEnsemble).partial_fit(X[:200], y[:200])
    before, scores = model.class_count_.tolist(), model.scores(X)
    batch = (X[200:], y[200:] + 2) if sign == "partial_fit" else (X[:100], y[:100])
    Stop(monkeypatch, calls, KeyboardInterrupt)
    with pytest.raises(KeyboardInterrupt):
        getattr(model, sign)(*batch)
    assert [int(each.statistics.counts.sum()) for each in model.model_.members] == [200] * 3
    assert model.class_count_.tolist() == before
    np.testing.assert_allclose(model.scores(X), scores, rtol=1e-6, atol=1e-6)
    getattr(model, sign)(*batch)


@pytest.mark.skipif(DEVICE != "cpu", reason="LAPACK is what is interrupted")
def test_an_interrupt_while_solving_leaves_the_scatter_as_it_was(monkeypatch):
    X, y = reference.blobs(300, 6, 4)
    model = make(KLDA, n_components=40).partial_fit(X, y)
    before, potrf = model.covariance_, lapack.dpotrf

    def interrupted(*arguments, **options):
        signal.raise_signal(signal.SIGINT)
        return potrf(*arguments, **options)

    monkeypatch.setattr(lapack, "dpotrf", interrupted)
    with pytest.raises(KeyboardInterrupt):
        model.predict(X)
    np.testing.assert_array_equal(model.covariance_, before)
    monkeypatch.undo()
    fresh = make(KLDA, n_components=40).partial_fit(X, y)
    np.testing.assert_allclose(model.scores(X), fresh.scores(X), rtol=1e-6, atol=1e-6)


def test_an_interrupt_while_factorising_is_held_back(monkeypatch):
    X, y = reference.blobs(300, 6, 4)
    model = make(KLDA, n_components=40).partial_fit(X, y)
    backend, finished = type(model.model_.backend), []
    factorise = backend.factorise

    def interrupted(self, square, rho):
        signal.raise_signal(signal.SIGINT)
        finished.append(factorise(self, square, rho))
        return finished[0]

    monkeypatch.setattr(backend, "factorise", interrupted)
    with pytest.raises(KeyboardInterrupt):
        model.predict(X)
    assert len(finished) == 1


def test_a_small_change_in_several_blocks_is_kept_block_by_block(monkeypatch):
    X, y = reference.blobs(460, 6, 4)
    model = make(KLDA, n_components=400).partial_fit(X[:430], y[:430])
    model.predict(X[:1])
    monkeypatch.setattr(solution, "BLOCK_ROWS", {"cpu": 10, "gpu": 10})
    model.partial_fit(X[430:], y[430:])
    assert [len(rows) for rows, _ in model.model_.members[0].precision._pending] == [10, 10, 10]
    whole = make(KLDA, n_components=400).fit(X, y)
    np.testing.assert_allclose(model.scores(X), whole.scores(X), rtol=1e-4, atol=1e-4)


def test_removing_a_little_of_many_classes_is_quick():
    """Seconds before: a pass over all samples that wait or were judged for each class."""
    X = np.random.default_rng(0).normal(size=(6000, 4))
    y = np.arange(6000) % 3000
    model = make(LDA).partial_fit(X, y)
    begin = time.process_time()
    model.remove(X[:3000], y[:3000])
    assert time.process_time() - begin < 2.0


def test_pandas_own_kinds_of_labels_are_taken():
    pandas = pytest.importorskip("pandas")
    integers = pandas.Series([3, 1, 3], dtype="Int64")
    assert make(LDA).partial_fit(np.eye(3), integers).classes_.tolist() == [1, 3]
    texts = pandas.Series(["b", "a", "b"], dtype="string")
    assert make(LDA).partial_fit(np.eye(3), texts).classes_.tolist() == ["a", "b"]
    with pytest.raises(KldaError, match=r"y\[1\]"):
        make(LDA).partial_fit(np.eye(3), pandas.Series([1, None, 2], dtype="Int64"))


def test_names_of_features_are_stored():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(np.eye(3), columns=["x", "y", "z"])
    arrays, meta = make(LDA).partial_fit(frame, [0, 1, 2]).pack()
    twin = unpack(arrays, json.loads(json.dumps(meta)))
    with pytest.raises(ValueError, match="same order"):
        twin.predict(frame[["z", "y", "x"]])


def test_a_way_to_combine_that_is_set_later_is_checked_too():
    X, y = reference.blobs(60, 4, 3)
    model = make(KLDAEnsemble).partial_fit(X, y)
    model.set_params(combine="bogus")
    with pytest.raises(KldaError, match="combine='bogus'"):
        model.predict(X)


def test_models_of_another_precision_do_not_merge():
    X, y = reference.blobs(60, 4, 3)
    one, other = (make(LDA, dtype=dtype).partial_fit(X, y) for dtype in ("float32", "float64"))
    with pytest.raises(KldaError, match="dtype='float64'"):
        one.merge(other)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_nothing_is_stored_of_rows_that_were_removed(dtype):
    X, y = reference.blobs(150, 6, 3)
    model = make(KLDA, n_components=600, dtype=dtype).partial_fit(X, y).remove(X[:60], y[:60])
    arrays, meta = model.pack()
    assert len(arrays["learn/held"]) == 90
    for array in arrays.values():
        wide = array.ndim == 2 and array.shape[1] == 6
        assert not wide or not (array[:, None] == X[:60].astype(dtype)).all(2).any()
    twin = unpack(arrays, json.loads(json.dumps(meta)))
    never = make(KLDA, n_components=600, dtype=dtype).partial_fit(X[60:], y[60:])
    tolerance = 1e-4 if dtype == "float32" else 1e-8
    scores = never.scores(X)
    for one in (twin, twin.partial_fit(X[:60], y[:60]).remove(X[:60], y[:60])):
        assert np.abs(one.scores(X) - scores).max() / np.abs(scores).max() < tolerance
    scale = np.abs(never.covariance_).max()
    assert np.abs(twin.covariance_ - never.covariance_).max() / scale < tolerance


def test_removing_all_but_one_sample_leaves_nothing_to_store():
    model = make(KLDA, n_components=100).partial_fit(np.eye(4), [0, 0, 1, 1])
    model.remove(np.eye(4)[[0, 2, 3]], [0, 1, 1])
    arrays, _ = model.pack()
    assert len(arrays["learn/held"]) == 1


@pytest.mark.parametrize("dtype", [object, str, int])
def test_labels_in_two_columns_are_no_list_of_labels(dtype):
    labels = np.array([[1, 2], [1, 2], [1, 2]], dtype)
    with pytest.raises(ValueError, match="1d array"):
        make(KLDA).fit(np.eye(6), labels)
