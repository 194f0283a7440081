from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from klda import KldaError
from klda_bench.measure.common import make_samples
from klda_bench.measure.start import learn, start


def test_start_measures_time_memory_and_size_in_fresh_processes():
    rows = list(start(models="ngrams", repeats=1))
    size, *starts = rows
    assert size["bytes"] > 50_000_000  # NumPy alone
    named = {row["program"]: row for row in starts}
    help_, answer = named["klda --help"], named["ngrams: klda predict --text"]
    assert help_["seconds"] > 0
    assert "ngrams: Learner to first answer" in named
    if sys.platform == "linux":
        assert 10_000_000 < help_["peak_bytes"] < answer["peak_bytes"] < 2_000_000_000


def test_start_says_which_python_can_not_run_it(tmp_path):
    broken = tmp_path / "python"
    broken.write_text("#!/bin/sh\necho no klda here >&2\nexit 1\n")
    broken.chmod(0o755)
    with pytest.raises(KldaError, match="no klda here"):
        list(start(python=Path(broken), repeats=1))


def test_files_of_features_are_learned_one_after_another_in_bounded_memory(tmp_path):
    files = [tmp_path / "small.npz", tmp_path / "large.npz"]
    for file, rows in zip(files, (2000, 40_000), strict=True):
        features, labels = make_samples(rows, 16, 20)
        np.savez(file, features=features, labels=labels)
    small, large = learn(files, options="--components 100", repeats=2)
    assert (small["program"], large["program"]) == ("klda learn small.npz", "klda learn large.npz")
    if sys.platform == "linux":
        assert 10_000_000 < large["peak_bytes"] < 2 * small["peak_bytes"]
