from __future__ import annotations

import pytest
from tests import reference

from klda_bench.measure.agreement import compare

pytest.importorskip("torch")


def test_the_engine_gives_the_answers_of_the_plain_form():
    X, y = reference.blobs(2500, 20, 12, spread=2.5)
    result = compare(
        X[:1500].astype("f"),
        y[:1500],
        X[1500:].astype("f"),
        y[1500:],
        gamma=0.01,
        n_components=400,
        n_members=3,
        random_state=0,
    )
    assert result["agreement: ridge, averaged as the paper says"] >= 0.995
    assert result["agreement: ridge, averaged as the program does"] >= 0.93
    assert result["accuracy"] > 0.8
