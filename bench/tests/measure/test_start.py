from __future__ import annotations

import sys
from pathlib import Path

import pytest

from klda import KldaError
from klda_bench.measure.start import start


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
