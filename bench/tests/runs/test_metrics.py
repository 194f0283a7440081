from __future__ import annotations

import math

import numpy as np
import pytest

from klda_bench.runs.metrics import accuracy, paired_difference, spread, summarise

# Accuracy on task j after task i, made by hand.
MATRIX = [[90.0], [80.0, 70.0], [60.0, 75.0, 95.0]]


def forgetting(matrix):
    return summarise([50.0], matrix)["forgetting"]


def backward_transfer(matrix):
    return summarise([50.0], matrix)["backward_transfer"]


def test_accuracy_is_a_percentage():
    assert accuracy(np.array(["a", "b", "b", "c"]), np.array(["a", "b", "c", "c"])) == 75.0
    assert math.isnan(accuracy(np.array([]), np.array([])))


def test_forgetting_is_the_mean_drop_from_each_old_tasks_best():
    # Task 0: best 90 before the last task, 60 after; task 1: best 70, 75 after.
    assert forgetting(MATRIX) == pytest.approx(((90 - 60) + (70 - 75)) / 2)


def test_forgetting_looks_at_the_best_of_all_earlier_moments():
    assert forgetting([[50.0], [80.0, 10.0], [60.0, 10.0, 1.0]]) == pytest.approx((20 + 0) / 2)


def test_backward_transfer_is_the_mean_change_since_learned():
    assert backward_transfer(MATRIX) == pytest.approx(((60 - 90) + (75 - 70)) / 2)


def test_average_incremental_accuracy_is_the_mean_over_tasks():
    assert summarise([90.0, 75.0, 60.0], MATRIX)["average_incremental_accuracy"] == 75.0


def test_what_was_not_measured_is_not_reported():
    seen, matrix = [None, None, 70.0], [None, None, [60.0, 75.0, 75.0]]
    found = summarise(seen, matrix)
    assert found["final_accuracy"] == 70.0
    assert found["average_incremental_accuracy"] is None
    assert found["forgetting"] is None
    assert found["backward_transfer"] is None


def test_one_task_has_nothing_to_forget():
    assert forgetting([[90.0]]) is None
    assert backward_transfer([[90.0]]) is None


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
