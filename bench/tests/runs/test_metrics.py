from __future__ import annotations

import math

import numpy as np
import pytest

from klda_bench.runs.metrics import accuracy_as_learned, paired_difference, spread


def test_a_spread_says_how_many_seeds_it_is_of_where_they_are_few():
    assert spread(2.0, 1.0, 3, seeds=3) == "2.00 ± 1.00"
    assert spread(2.0, 1.0, 2, seeds=3) == "2.00 ± 1.00 (2 seeds)"
    assert spread(5.0, math.nan, 1) == "5.00 (1 seed)"


def test_paired_difference_does_not_count_a_row_twice_for_two_runs():
    a = np.array([1, 1, 0, 1], dtype=bool)
    b = np.array([1, 0, 0, 0], dtype=bool)
    difference, error = paired_difference(a, b)
    assert difference == 50.0
    assert error == pytest.approx(100 * np.std([0, 1, 0, 1], ddof=1) / 2)
    assert paired_difference(np.stack([a, a]), np.stack([b, b])) == (difference, error)


def test_accuracy_is_weighted_by_the_classes_learned():
    truth = np.array(["a"] * 8 + ["b"] * 2)
    answers = np.array(["a"] * 8 + ["a", "b"])
    learned = np.array(["a", "b", "b", "b"])
    assert accuracy_as_learned(answers, truth, truth)[0] == pytest.approx(90)
    assert accuracy_as_learned(answers, truth, learned)[0] == pytest.approx(25 + 75 / 2)


def test_the_error_of_a_weighted_accuracy_is_that_of_its_draws():
    rng = np.random.default_rng(0)
    truth, learned = (
        np.repeat(["a", "b", "c"], [400, 100, 50]),
        np.repeat(["a", "b", "c"], [1, 1, 2]),
    )
    chance = np.repeat([0.9, 0.7, 0.5], [400, 100, 50])
    draws = [
        accuracy_as_learned(np.where(rng.random(550) < chance, truth, "none"), truth, learned)
        for _ in range(400)
    ]
    found, errors = np.array(draws).T
    # The standard deviation of 400 normal draws is known to 1 / sqrt(800) of it, four times over.
    assert errors.mean() == pytest.approx(found.std(), rel=4 / np.sqrt(800))
