"""Names that look like another class, and thresholds fitted to unknown inputs."""

from __future__ import annotations

import time
import warnings

import numpy as np
import pytest

from klda import KldaError, Learner
from klda.labels import similar_names
from klda.learner import SimilarClassWarning
from tests.factories import rows_of, samples, taught

KNOWN = ["card_arrival", "refund", "top_up_1", "exchange rate"]


@pytest.mark.parametrize(
    "new, old",
    [
        ("Card_Arrival", "card_arrival"),
        ("card arival", "card_arrival"),
        ("Refund", "refund"),
        ("refunds", "refund"),
        ("exchange_rates", "exchange rate"),
    ],
)
def test_names_that_look_alike_are_found(new, old):
    assert similar_names([new], KNOWN) == {new: old}


@pytest.mark.parametrize("new", ["top_up_2", "card_lost", "card_arrival", "balance"])
def test_names_of_other_classes_and_the_same_name_are_not(new):
    assert similar_names([new], KNOWN) == {}


def test_learning_more_of_many_classes_takes_no_longer_than_there_are_classes():
    learner, row = Learner("features"), np.ones((1, 8), np.float32)
    learner.learn(np.eye(8000, 8, dtype=np.float32), list(range(8000)))
    seconds = []
    for learn in (learner.learn_rows, learner.learn):
        start = time.perf_counter()
        learn(row, [0])
        seconds.append(time.perf_counter() - start)
    assert seconds[1] < 3 * seconds[0] + 0.5  # comparing each class with all takes many times that


def test_new_names_are_compared_with_each_other():
    assert similar_names(["Refund", "refund"], []) == {"refund": "Refund"}
    assert similar_names([3, 33], [333]) == {}


@pytest.mark.parametrize(
    "change",
    [
        lambda bot: bot.learn(["x y"], ["Card_Arrival"]),
        lambda bot: bot.learn([(["x y"], ["card arival"])]),
        lambda bot: bot.declare("Card arrival"),
    ],
)
def test_a_class_like_another_is_noticed_before_it_is_made(change):
    learner = Learner("ngrams").learn(["where is it"], ["card_arrival"])
    with pytest.warns(SimilarClassWarning, match="Did you mean 'card_arrival'"):
        change(learner.copy())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(SimilarClassWarning):
            change(learner)
    assert learner.classes == {"card_arrival": 1}


@pytest.mark.filterwarnings("error")
def test_case_can_be_ignored():
    learner = Learner("ngrams").learn(["a", "b", "c"], ["Refund", "refund", "x"], ignore_case=True)
    learner.learn([(["d"], ["REFUND"]), (["e"], ["X"])], ignore_case=True)
    assert learner.classes == {"refund": 3, "x": 2}
    learner.rename("x", "X")
    learner.learn(["f", "g"], np.array(["x", "Y"]), ignore_case=True)
    assert learner.classes == {"X": 3, "refund": 3, "y": 1}


# ---------------------------------------------------------------- thresholds


@pytest.fixture
def bot():
    return taught("abcd", 40, n_components=200)


KNOWN_ROWS = samples("abcd", 60, seed=9)[0]
NEAR = rows_of("a", 100, seed=3) + 1.2  # unlike any class, but not very
FAR = rows_of("z", 100, seed=3)


def test_the_threshold_is_fitted_to_inputs_of_both_kinds_and_stored(bot, tmp_path):
    found = bot.tune_unknown(KNOWN_ROWS, NEAR)
    known, unknown = bot.is_known(KNOWN_ROWS), bot.is_known(NEAR)
    assert found.chosen.known_refused == pytest.approx(1 - known.mean())
    assert found.chosen.unknown_accepted == pytest.approx(unknown.mean())
    by_default = bot.is_known(KNOWN_ROWS, reject=0.05), bot.is_known(NEAR, reject=0.05)
    assert (1 - known.mean()) + unknown.mean() <= (1 - by_default[0].mean()) + by_default[1].mean()
    assert all(
        one.known_refused + one.unknown_accepted
        >= found.chosen.known_refused + found.chosen.unknown_accepted
        for one in found.choices
    )
    assert "<- chosen" in str(found)
    costs = [(one.known_refused, one.unknown_accepted) for one in found.choices]
    assert len(set(costs)) == len(costs)
    np.testing.assert_array_equal(bot.predict(NEAR, reject=True) != "unknown", unknown)
    assert [one.known for one in bot.answer(NEAR)] == unknown.tolist()
    bot.save(tmp_path / "m")
    loaded = Learner.load(tmp_path / "m")
    np.testing.assert_array_equal(loaded.is_known(NEAR), unknown)
    np.testing.assert_array_equal(loaded.frozen().is_known(NEAR), unknown)
    assert loaded.history[-1]["action"] == "tune"


def test_a_tuned_threshold_keeps_its_meaning_while_the_model_learns(bot):
    bot.tune_unknown(KNOWN_ROWS, FAR)
    bot.learn(*samples("efgh", 40))
    assert bot.is_known(KNOWN_ROWS).mean() > 0.8
    assert bot.is_known(FAR).mean() < 0.5  # most of them


def test_at_most_a_fraction_of_known_inputs_is_refused(bot):
    found = bot.tune_unknown(KNOWN_ROWS, NEAR, reject=0.1)
    assert found.chosen.known_refused == pytest.approx(0.1, abs=0.01)


def test_classes_get_thresholds_of_their_own(bot):
    found = bot.tune_unknown(KNOWN_ROWS, NEAR, by_class=True)
    assert found.classes == len(bot.refusal.classes) >= 1
    known, unknown = bot.is_known(KNOWN_ROWS), bot.is_known(NEAR)
    assert found.chosen.known_refused == pytest.approx(1 - known.mean())
    assert found.chosen.unknown_accepted == pytest.approx(unknown.mean())
    rows = np.concatenate([KNOWN_ROWS, NEAR])
    explained = [one.known for one in bot.explain_all(rows)]
    assert explained == [one.known for one in bot.answer(rows)]


def test_inputs_of_both_kinds_are_needed(bot):
    with pytest.raises(KldaError, match="is empty"):
        bot.tune_unknown(KNOWN_ROWS, KNOWN_ROWS[:0])
    with pytest.raises(KldaError, match="Too little"):
        taught("ab", 1, n_components=200).tune_unknown(KNOWN_ROWS, NEAR)
    assert bot.refusal is None
