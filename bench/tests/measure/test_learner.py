"""Measurements of a learner on real features."""

from __future__ import annotations

import numpy as np
import pytest

from klda_bench.measure.learner import forget, quality, suggest, suspects


@pytest.fixture
def sets(tmp_path):
    """Eight classes of texts that are easy to tell apart."""
    words = ["amber", "basil", "cedar", "delta", "ember", "fjord", "grape", "hazel"]
    rng = np.random.default_rng(0)
    for part in ("train", "test"):
        lines = [
            f"{' '.join(rng.choice(words, 2))} {word} {word} {i},{word}"
            for i in range(12)
            for word in words
        ]
        (tmp_path / f"{part}.csv").write_text("\n".join(["text,label", *lines, ""]))
    return str(tmp_path)


def test_quality(sets):
    few, all_ = quality(sets, shots="3,all", backbone="ngrams", seeds=1)
    assert (few["shots"], all_["shots"]) == (3, "all")
    assert all_["off"] == pytest.approx(all_["expected"] - all_["as_learned"], abs=0.02)
    assert all_["shift"] == pytest.approx(all_["as_learned"] - all_["tested"], abs=0.02)
    assert few["by_chance"] > all_["by_chance"] > 0
    assert all_["low"] <= all_["expected"] <= all_["high"]


def test_suspects(sets):
    pytest.importorskip("cleanlab")
    (row,) = suspects(sets, backbone="ngrams")
    assert row["recall"] > 0.8
    assert row["precision"] > 0.5
    assert row["klda_at_its_recall"] >= row["cleanlab_precision"]


def test_suggest(sets):
    (row,) = suggest(sets, backbone="ngrams", seeds=1, step=5)
    assert row["all"] == 96
    assert 8 <= row["suggest"] <= min(row["random"], row["uncertain"])


def test_forgetting_leaves_the_scores_of_a_model_that_never_learned(sets):
    (row,) = forget(sets, backbone="ngrams", seeds=1)
    assert (row["classes"], row["forgotten"]) == (8, 1)
    assert row["relative_error"] < 1e-4
    assert row["same_labels"] == 1
