from __future__ import annotations

import math

import numpy as np
import pytest

from klda_bench.runs.metrics import paired_difference, spread


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
