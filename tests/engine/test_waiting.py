"""Which learned samples wait to be left out: the same ones, however they were learned."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from klda import KLDA
from klda.engine.held_rows import LabelledRows
from klda.engine.model import MOST_WAITING
from tests.reference import DEVICE

NAMES = ["ant", "bee", "cat"]


def nothing(width=8, dtype=np.float32):
    return LabelledRows(np.empty((0, width), dtype))


def samples(n, width=8, seed=0, copies=1):
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(n, width)).astype(np.float32)
    return np.repeat(rows, copies, axis=0), rng.integers(0, 3, n * copies)


def learned(rows, groups, parts, most=MOST_WAITING):
    waiting = nothing(rows.shape[1])
    for part in parts:
        waiting = waiting.add(rows[part], groups[part], NAMES, most)
    return waiting


def held(waiting):
    pairs = zip(waiting.rows, waiting.labels, strict=True)
    return Counter((label, row.tobytes()) for row, label in pairs)


@given(seed=st.integers(0, 10_000), n_cuts=st.integers(0, 6), copies=st.integers(1, 3))
@settings(max_examples=30, deadline=None)
def test_order_batches_and_merging_choose_the_same_samples(seed, n_cuts, copies):
    """Also among equal rows, which may belong to several classes."""
    rows, groups = samples(200 // copies, seed=seed, copies=copies)
    n, rng = len(rows), np.random.default_rng(seed)
    expected = held(learned(rows, groups, [np.arange(n)], 64))
    assert sum(expected.values()) == 64
    cuts = np.sort(rng.integers(0, n, n_cuts))
    parts = np.split(rng.permutation(n), cuts)
    assert held(learned(rows, groups, parts, 64)) == expected
    merged = nothing()
    for part in parts:
        own = learned(rows, groups, [part], 64)
        merged = merged.add(own.rows, np.arange(len(own)), own.labels, 64)
    assert held(merged) == expected


def test_those_that_wait_are_a_bounded_fair_choice():
    waiting = nothing(1, np.float64)
    for start in range(0, 20_000, 500):
        batch = np.arange(start, start + 500, dtype=float)[:, None]
        waiting = waiting.add(batch, np.arange(500), range(start, start + 500), MOST_WAITING)
    values = waiting.rows[:, 0]
    assert len(values) == MOST_WAITING
    assert waiting.labels == values.astype(int).tolist()
    assert len(set(waiting.labels)) == MOST_WAITING
    assert values.mean() == pytest.approx(10_000, rel=0.06)
    in_tenths = np.histogram(values, 10, (0, 20_000))[0]
    assert ((in_tenths - 102.4) ** 2 / 102.4).sum() < 27.9  # chi-squared, 9 degrees: 1 in 1000


@pytest.mark.parametrize("column", [0, 400, -1])
def test_every_feature_counts(column):
    """The first pixels of a picture are often the same in all pictures."""
    rows = np.zeros((5000, 784), np.float32)
    rows[:, column] = np.arange(5000) % 256
    rows[:, 500] = np.arange(5000) // 256
    waiting = nothing(784).add(rows, np.arange(5000) // 500, range(10), MOST_WAITING)
    assert min(Counter(waiting.labels).values()) > 50


def test_few_samples_all_wait_in_the_order_they_came():
    rows, groups = samples(MOST_WAITING)
    waiting = learned(rows, groups, np.split(np.arange(MOST_WAITING), 4))
    np.testing.assert_array_equal(waiting.rows, rows)
    assert waiting.labels == [NAMES[i] for i in groups]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_tensors_and_arrays_choose_the_same_samples(dtype):
    torch = pytest.importorskip("torch")
    rows, groups = samples(3000, width=40)
    rows = rows.astype(dtype)
    expected = nothing(40, dtype).add(rows, groups, NAMES, MOST_WAITING)
    for device in {"cpu", DEVICE}:
        there = torch.from_numpy(rows).to(device)
        found = nothing(40, dtype).add(there, groups, NAMES, MOST_WAITING)
        np.testing.assert_array_equal(found.rows, expected.rows)
        assert found.labels == expected.labels


def test_a_model_merged_from_parts_is_judged_by_the_samples_of_the_whole():
    rows, groups = samples(3000)
    rows += 2 * np.eye(3, 8, dtype=np.float32)[groups]
    names = np.array(NAMES)[groups]

    def learn(part):
        model = KLDA(n_components=64, gamma=0.05, random_state=0, device=DEVICE, dtype="float64")
        return model.partial_fit(rows[part], names[part])

    whole, merged = learn(slice(None)), learn(slice(0, 700))
    for part in (slice(700, 2900), slice(2900, 3000)):
        merged.merge(learn(part))
    assert held(merged.model_.waiting) == held(whole.model_.waiting)
    assert merged.temperature_ == pytest.approx(whole.temperature_, rel=1e-6)
    assert merged.threshold() == pytest.approx(whole.threshold(), rel=1e-6)


@pytest.mark.parametrize("sizes", [(10, 30), (30, 30), (30, 300), (300, 30), (300, 300)])
def test_no_sample_of_an_uncalibrated_model_waits_after_merging(sizes):
    """Whether the models hold their samples or not."""
    rows, groups = samples(sum(sizes))
    names = np.array(NAMES)[groups]

    def learn(part, **settings):
        model = KLDA(n_components=64, gamma=0.05, random_state=0, device=DEVICE, **settings)
        return model.partial_fit(rows[part], names[part])

    here, there = slice(0, sizes[0]), slice(sizes[0], None)
    for other in (learn(there, calibrated=False), learn(there)):
        merged = learn(here, calibrated=False).merge(other)
        attached = learn(here, calibrated=False).attach(other.model_)
        assert not merged.holds_samples
        assert merged.model_.keeps == attached.model_.keeps == {}
    assert learn(here).merge(learn(there)).model_.keeps["waiting"] == sum(sizes)
