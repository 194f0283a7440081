from __future__ import annotations

import json

import numpy as np
import pytest
from tests import reference

from klda_bench.measure import beyond


class SyntheticData(beyond.Features):
    """Features of a small made-up set under the name of a real one."""

    def __init__(self, folder=None, layers="auto"):
        pass

    def load(self, name):
        X, y = reference.blobs(900, 12, 20, spread=1.5)
        names = np.array([f"class {m:02d}" for m in range(20)])[y]
        return X[:600].astype("f"), names[:600], X[600:].astype("f"), names[600:]

    def out_of_scope(self):
        return 4 * np.random.default_rng(0).normal(size=(50, 12)).astype("f")


@pytest.mark.parametrize("experiment", ["accuracy", "gamma", "stream"])
def test_every_experiment_gives_lines_with_accuracies(experiment, monkeypatch):
    monkeypatch.setattr(beyond, "Features", SyntheticData)
    lines = list(getattr(beyond, experiment)("clinc", seeds=1))
    assert lines
    for line in lines:
        json.dumps(line)
        found = line.get("accuracy", line.get("default"))
        assert 0.4 < found <= 1


def test_few_shot_puts_the_model_back_after_every_class():
    X, y, X_test, y_test = SyntheticData().load("clinc")
    model = beyond.KLDA(random_state=0, gamma=0.02, device="cpu", calibrated=False)
    before = model.partial_fit(X, y).decision_function(X_test)
    plans = {label: np.flatnonzero(y == label) for label in ("class 00", "class 07")}
    found = beyond.taught_from(model, X, y, X_test, y_test, plans, sizes=(1, 5))
    assert set(found) == {1, 5}
    assert min(found[k]["recall"] for k in (1, 5)) > 0.5
    assert reference.relative_error(model.decision_function(X_test), before) < 1e-3


def test_automatic_gamma_gives_the_same_answers_at_any_scale(monkeypatch):
    monkeypatch.setattr(beyond, "Features", SyntheticData)
    lines = list(beyond.gamma("clinc", seeds=1))
    auto = [line["accuracy"] for line in lines if line["gamma"] == "auto"]
    assert len(auto) == 4
    assert max(auto) - min(auto) < 0.01
