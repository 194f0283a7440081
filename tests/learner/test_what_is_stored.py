"""What the documentation says about stored samples holds; test_docs runs its code."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from klda import KLDA, Learner
from klda.storage import folder

PAGE = Path(__file__).resolve().parents[2] / "docs" / "explanation" / "what-is-stored.md"


@pytest.mark.parametrize("rule", ["auto", "lda"])
def test_the_page_says_that_a_folder_holds_the_rows_of_few_samples(tmp_path, rule):
    rows = np.random.default_rng(0).normal(size=(10, 4)).astype(np.float32)
    classifier = KLDA(n_components=64, gamma=0.1, rule=rule, random_state=0)
    learner = Learner("features", classifier=classifier, undo=0).learn(rows, ["a", "b"] * 5)
    learner.save(tmp_path / "m")
    stored = folder.load(tmp_path / "m").arrays.values()
    found = [array for array in stored if array.shape == rows.shape]
    assert any(np.array_equal(np.unique(array, axis=0), np.unique(rows, axis=0)) for array in found)
    said = PAGE.read_text(encoding="utf-8")
    assert "up to 2,500 samples (half as many as random features) | the feature row" in said
    assert "**Undo keeps features, too.**" in said
