"""Known or unknown, and why: the learner's side."""

from __future__ import annotations

import json

import numpy as np
import pytest

from klda import KLDA, LDA, KldaError, Learner
from klda.learner import UNKNOWN, UNKNOWN_INTEGER

CENTRES = np.random.default_rng(5).normal(size=(10, 10)) * 4


def rows_of(number, n=60, seed=0):
    noise = np.random.default_rng([seed, number]).normal(size=(n, 10))
    return (CENTRES[number] + noise).astype(np.float32)


def taught(names="abcdefgh", keep=None, classifier=None):
    learner = Learner(
        "features",
        classifier=classifier or KLDA(n_components=300, gamma=0.01, random_state=0),
        keep=keep,
    )
    rows = np.concatenate([rows_of(i) for i in range(len(names))])
    return learner.learn(rows, np.repeat(list(names), 60))


KNOWN = np.concatenate([rows_of(i, n=50, seed=1) for i in range(8)])
UNKNOWNS = np.concatenate([rows_of(i, n=50, seed=1) for i in (8, 9)])


@pytest.fixture(scope="module")
def bot():
    return taught(keep="features")


def test_unknown_inputs_are_refused_and_known_ones_are_not(bot):
    assert bot.is_known(KNOWN).mean() == pytest.approx(0.95, abs=0.06)
    assert bot.is_known(UNKNOWNS).mean() < 0.05
    assert bot.novelty(UNKNOWNS).min() > np.median(bot.novelty(KNOWN))


def test_the_share_refused_is_the_share_asked_for(bot):
    refused = [(~bot.is_known(KNOWN, reject=share)).mean() for share in (0.01, 0.05, 0.2, 0.5)]
    assert refused == sorted(refused)
    assert all(found < share + 0.05 for found, share in zip(refused, (0.01, 0.05, 0.2, 0.5)))
    assert refused[-1] > 0.2  # with few samples, rather too few
    assert (~bot.is_known(KNOWN, reject=0.1, by_class=True)).mean() < 0.16


def test_predict_names_refused_inputs_unknown(bot):
    plain = bot.predict(KNOWN)
    answers = bot.predict(KNOWN, reject=0.05)
    known = bot.is_known(KNOWN)
    np.testing.assert_array_equal(answers[known], plain[known])
    assert set(answers[~known]) == {UNKNOWN}
    assert (bot.predict(UNKNOWNS, reject=0.05) == "unknown").mean() > 0.95


def test_integer_classes_answer_minus_one_and_stay_integers():
    learner = taught(names=[3, 1, 4, 15, 9, 2, 6, 5])
    answers = learner.predict(np.concatenate([KNOWN, UNKNOWNS]), reject=0.05)
    assert answers.dtype.kind == "i"
    assert (answers[-len(UNKNOWNS) :] == UNKNOWN_INTEGER).mean() > 0.95


def test_the_top_begins_with_unknown_for_refused_inputs(bot):
    top = bot.predict_top(UNKNOWNS, 2, reject=0.05)
    plain = bot.predict_top(UNKNOWNS, 2)
    refused = ~bot.is_known(UNKNOWNS)
    for answer, before, is_refused in zip(top, plain, refused, strict=True):
        if is_refused:
            assert answer[0][0] == "unknown"
            assert np.isnan(answer[0][1])
            assert answer[1] == before[0]
        else:
            assert answer == before


@pytest.mark.parametrize("share", [0, 1, -0.1, 2, True, "0.05"])
def test_a_share_that_is_none_is_refused_by_name(bot, share):
    with pytest.raises(KldaError, match="reject"):
        bot.predict(KNOWN, reject=share)
    with pytest.raises(KldaError, match="reject"):
        bot.is_known(KNOWN, reject=share)


def test_classifiers_that_can_not_tell_say_so():
    learner = taught(classifier=LDA(calibrated=False))
    with pytest.raises(KldaError, match="calibrated"):
        learner.predict(KNOWN, reject=0.05)
    with pytest.raises(KldaError, match="calibrated"):
        learner.is_known(KNOWN)


def test_it_survives_save_and_load(bot, tmp_path):
    bot.save(tmp_path / "m")
    loaded = Learner.load(tmp_path / "m")
    np.testing.assert_array_equal(loaded.is_known(KNOWN), bot.is_known(KNOWN))
    ours, theirs = loaded.explain(KNOWN[0]), bot.explain(KNOWN[0])
    assert [near.label for near in ours.classes] == [near.label for near in theirs.classes]
    assert ours.novelty == pytest.approx(theirs.novelty, rel=1e-5)
    assert ours.threshold == theirs.threshold


# ------------------------------------------------------------------------------- explain


def test_explain_agrees_with_all_other_answers(bot):
    middle = (CENTRES[:1] + CENTRES[1:2]) / 2  # where more than one class has a probability
    said = bot.explain(middle[0], top=2)
    scores = bot.scores(middle)[0]
    assert said.label == bot.predict(middle)[0]
    assert [near.score for near in said.classes] == pytest.approx(sorted(scores, reverse=True)[:2])
    assert [(near.label, near.probability) for near in said.classes] == [
        (label, pytest.approx(p, rel=1e-6)) for label, p in bot.predict_top(middle, 2)[0]
    ]
    first, second = said.classes
    odds = np.log(first.probability / second.probability)
    assert said.margin == pytest.approx(odds, rel=1e-4)
    assert said.novelty == pytest.approx(bot.novelty(middle)[0])
    assert first.distance == said.novelty
    assert [near.distance for near in said.classes] == sorted(
        near.distance for near in said.classes
    )
    assert said.known is bool(bot.is_known(middle)[0])
    json.dumps(said.to_dict())


def test_explain_names_the_nearest_learned_samples(bot):
    said = bot.explain(rows_of(2)[7], samples=3)
    assert said.samples[0].id == 2 * 60 + 7
    assert said.samples[0].label == "c"
    assert said.samples[0].similarity == pytest.approx(1, abs=1e-5)
    assert len(said.samples) == 3
    assert taught().explain(KNOWN[0]).samples == []


def test_unknown_inputs_are_explained_as_such(bot):
    said = bot.explain_all(UNKNOWNS)
    assert [one.known for one in said] == bot.is_known(UNKNOWNS).tolist()
    assert said[0].novelty > said[0].threshold


def test_explain_where_little_is_known():
    one_class = taught(names="a")
    said = one_class.explain(KNOWN[0])
    assert said.label == "a"
    assert np.isnan(said.margin)
    assert said.to_dict()["margin"] is None
    assert (said.threshold, said.known) == (None, None)


@pytest.mark.parametrize("wrong", [{"top": 0}, {"top": 1.5}, {"samples": -1}])
def test_numbers_that_can_not_be_shown_are_named(bot, wrong):
    ((name, value),) = wrong.items()
    with pytest.raises(KldaError, match=f"{name}={value} can.t be used"):
        bot.explain(KNOWN[0], **wrong)
    assert bot.explain(KNOWN[0], top=1, samples=0).samples == []


def test_explain_takes_one_input():
    with pytest.raises(KldaError, match="explain_all"):
        taught(names="ab").explain(KNOWN[:2])
