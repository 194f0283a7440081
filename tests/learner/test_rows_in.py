"""What a learner takes as rows and labels computed elsewhere, and what it refuses."""

import warnings

import numpy as np
import pytest

from klda import KldaError, Learner

ROWS = np.random.default_rng(0).normal(size=(20, 8)).astype("f4")
LABELS = ["a"] * 10 + ["b"] * 10


@pytest.fixture
def learner():
    return Learner("features").learn(ROWS, LABELS)


@pytest.mark.parametrize("rows", [ROWS[:0], ROWS[0], 3.0, [["x"]], [[1.0], [1.0, 2.0]]])
@pytest.mark.parametrize("verb", ["predict_rows", "answer_rows", "suggest_rows", "learn_rows"])
def test_rows_of_another_shape_are_refused(learner, verb, rows):
    more = (["a"],) if verb == "learn_rows" else ()
    with pytest.raises(KldaError, match="rows"):
        getattr(learner, verb)(rows, *more)
    assert learner.classes == {"a": 10, "b": 10}
    assert len(learner.history) == 1


def test_rows_may_be_lists(learner):
    assert learner.learn_rows(ROWS.tolist(), LABELS).samples == 40
    assert learner.predict_rows(ROWS.tolist()).tolist() == learner.predict_rows(ROWS).tolist()


@pytest.mark.parametrize(
    ("labels", "classes"),
    [([1.0, 2.0], {1: 1, 2: 1}), ([True, False], {0: 1, 1: 1}), ([1, 2.0], {1: 1, 2: 1})],
)
def test_whole_numbers_become_integers(labels, classes):
    learner = Learner("features").learn(ROWS[:2], labels)
    assert learner.classes == classes
    assert all(type(label) is int for label in learner.classes)


@pytest.mark.parametrize("labels", [[2**63, -1], [2**63, 2**63 + 1], [2**70, 1], [1e300, 1.0]])
def test_integers_that_would_be_rounded_are_refused(labels):
    with pytest.raises(KldaError, match="integers below"):
        Learner("features").learn(ROWS[:2], labels)


@pytest.mark.parametrize("parts", [[30, -10], [20, 0], [19], []])
def test_parts_are_positive_and_add_up(learner, parts):
    with pytest.raises(KldaError, match="parts"):
        learner.learn_rows(ROWS, LABELS, parts=parts)


def test_what_is_no_label_or_id_is_no_class(learner):
    with pytest.raises(KldaError, match="no such class"):
        learner.forget([["a"]])
    ledger = Learner("features", keep="features").learn(ROWS, LABELS)
    with pytest.raises(KldaError, match="not in the ledger"):
        ledger.forget(ids=2**70)


def test_a_first_save_keeps_what_others_keep(learner, tmp_path):
    learner.extras = {"kept": 1}
    learner.save(tmp_path / "model")
    assert learner.extras == Learner.load(tmp_path / "model").extras == {"kept": 1}
    learner.save(tmp_path / "other")
    assert Learner.load(tmp_path / "other").extras == {}


class Texts:
    """An encoder that counts what it encodes, until it is lost."""

    def __init__(self):
        self.encoded, self.is_lost = [], False

    def __call__(self, texts):
        if self.is_lost:
            raise RuntimeError("offline")
        self.encoded += texts
        return np.array([[len(text), *map(ord, text[:3])] for text in texts], "f4")


def test_a_name_is_encoded_once():
    encoder = Texts()
    learner = Learner(encoder).learn(["where is it?", "my card"], ["card", "card"])
    encoder.encoded.clear()
    learner.declare(["lost card", "top up"])
    assert sorted(encoder.encoded) == ["lost card", "top up"]


def test_a_warning_that_is_an_error_comes_before_the_change():
    encoder = Texts()
    learner = Learner(encoder).learn(["where is it?", "my card"], ["card", "card"])
    rows = learner.encode(["top up money"])
    encoder.is_lost = True
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(UserWarning, match="could not be encoded"):
            learner.learn_rows(rows, ["top up"])
    assert learner.classes == {"card": 2}
    assert len(learner.history) == 1


def test_merging_into_an_empty_learner_takes_its_seed_too():
    from klda import KLDA

    other = Learner("features", classifier=KLDA(n_components=64, gamma=0.1, random_state=7))
    other.learn(ROWS, LABELS)
    mine = Learner("features", classifier=KLDA(n_components=64, gamma=0.1, random_state=1))
    assert mine.merge(other).parameters.random_state == 7
