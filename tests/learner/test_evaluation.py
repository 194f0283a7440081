from __future__ import annotations

import json

import numpy as np
import pytest

from klda import LDA, Learner
from klda.learner.evaluation import Evaluation, Reliability


def test_the_calibration_error_is_the_weighted_gap_between_promise_and_truth():
    confidence = np.array([0.95, 0.95, 0.95, 0.95, 0.55, 0.55])
    correct = np.array([1, 1, 1, 0, 0, 1], bool)
    found = Reliability.of(confidence, correct, bins=10)
    assert found.error == pytest.approx(4 / 6 * abs(0.95 - 0.75) + 2 / 6 * abs(0.55 - 0.5))
    assert found.counts.sum() == 6
    assert found.accuracy[9] == 0.75


@pytest.mark.parametrize("value", [0.0, 1 / 15, 0.5, 1.0])
def test_every_probability_has_a_bin(value):
    found = Reliability.of(np.array([value]), np.array([True]))
    assert found.counts.sum() == 1
    assert found.error == pytest.approx(1 - value)


def test_honest_probabilities_have_no_error_and_boasts_have():
    rng = np.random.default_rng(0)
    confidence = rng.uniform(0.3, 1.0, 200_000)
    correct = rng.random(len(confidence)) < confidence
    assert Reliability.of(confidence, correct).error < 0.005
    assert Reliability.of(confidence**0.25, correct).error > 0.1


def test_evaluate_reports_reliability_and_the_same_answers_as_predict():
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(600, 6)) + np.repeat(np.eye(6)[:3] * 2, 200, axis=0)
    labels = np.repeat(list("abc"), 200)
    learner = Learner("features", classifier=LDA()).learn(rows[::2], labels[::2])
    found = learner.evaluate(rows[1::2], labels[1::2])
    assert found.accuracy == (learner.predict(rows[1::2]) == labels[1::2]).mean()
    assert found.reliability.error < 0.1
    content = json.loads(json.dumps(found.to_dict()))
    assert content["expected_calibration_error"] == found.reliability.error
    assert sum(one["samples"] for one in content["reliability"]) == 300


def test_printing_an_evaluation_says_how_good_it_is_in_one_line():
    result = Evaluation.of(["a", "b", "a", "b"], ["a", "b", "b", "b"], np.full(4, 0.75))
    said = "<Evaluation: accuracy 75.00% of 4 samples, expected calibration error 0.0%>"
    assert repr(result) == str(result) == said
