"""Undo: a model becomes what it would be had a change never been made."""

from __future__ import annotations

import itertools
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from klda import KLDA, KldaError, Learner
from klda.learner import UndoError
from klda.storage import folder as storage
from klda.undo import log as undo_module
from klda.undo.change import Named
from klda.undo.log import UndoLog
from tests.factories import PROBE, assert_same_scores, rows_of, samples, taught

pytestmark = pytest.mark.filterwarnings("ignore::klda.learner.ForgetTraceWarning")

# Models of three kinds: one keeps its few samples, one has only statistics, one keeps a ledger.
KINDS = {
    "few": {"n_components": 400},
    "many": {"n_components": 16},
    "crossing": {"n_components": 110},  # it keeps up to 55 samples: has 48, and some changes add 10
    "ledger": {"n_components": 40, "keep": "features"},
}


# Each leaves the others possible, before and after it.
CHANGES = {
    "learn old": lambda bot: bot.learn(rows_of("a", 10, seed=1), ["a"] * 10),
    "learn new": lambda bot: bot.learn(rows_of("x", 4, seed=2), ["x"] * 4),
    "learn batches": lambda bot: bot.learn(
        iter([(rows_of("b", 9, seed=3), ["b"] * 9), (rows_of("y", 9, seed=4), ["y"] * 9)])
    ),
    "forget samples": lambda bot: bot.forget(["b", "b"], rows_of("b")[:2]),
    "forget class": lambda bot: bot.forget("d"),
    "rename": lambda bot: bot.rename("c", "z"),
    "join": lambda bot: bot.rename("a", "b", merge=True) if "a" in bot.classes else bot,
}


def made(kind):
    options = dict(KINDS[kind])
    return taught("abcd", 12, keep=options.pop("keep", None), **options)


def test_undo_of_the_last_change_gives_the_model_before():
    for kind, (name, change) in itertools.product(KINDS, CHANGES.items()):
        learner, expected = made(kind), made(kind)
        change(learner)
        undone = learner.undo()
        assert undone["number"] == 2, (kind, name)
        assert_same_scores(learner, expected)
        assert learner.engine.keeps_rows == expected.engine.keeps_rows, (kind, name)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("first", CHANGES)
def test_undo_after_two_other_changes_gives_a_model_that_never_had_it(kind, first, tmp_path):
    others = [name for name in CHANGES if name != first]
    for i, (second, third) in enumerate(itertools.permutations(others, 2)):
        learner, expected = made(kind), made(kind)
        order = [first, second, third]
        if first == "join" and {"learn old", "forget samples"} & {*order}:
            continue  # one goes to another class without it, of the other nobody can tell
        for name in order:
            CHANGES[name](learner)
        for name in order[1:]:
            CHANGES[name](expected)
        if i % 7 == 0:
            folder = tmp_path / f"{second}-{third}"
            learner.save(folder)
            learner = Learner.load(folder)
        learner.undo(2)
        assert_same_scores(learner, expected)
        assert learner.history[-1]["undoes"] == 2
        # Redo: as if it had never been undone.
        whole = made(kind)
        for name in order:
            CHANGES[name](whole)
        learner.undo(learner.history[-1]["number"])
        assert learner.classes == whole.classes
        if kind != "crossing":  # there it may have its samples back, and no trace of a class
            assert_same_scores(learner, whole)


@pytest.mark.parametrize("keep", [None, "features"])
def test_after_an_undo_it_is_as_sure_as_if_it_had_never_learned_wrong_labels(keep):
    rows, labels = samples("abcd", 200)
    bot = Learner("features", classifier=KLDA(n_components=2000, random_state=0), keep=keep)
    bot.learn(rows, labels)
    expected, proba = bot.quality(), bot.predict_proba(PROBE)
    bot.learn(rows_of("a", 150, seed=5), ["b"] * 150)
    assert bot.quality().accuracy < expected.accuracy - 0.1
    copy = bot.copy().forget(["b"] * 150, rows_of("a", 150, seed=5))
    assert copy.quality().accuracy == pytest.approx(expected.accuracy, abs=0.005)
    bot.undo()
    assert bot.quality().accuracy == pytest.approx(expected.accuracy, abs=0.005)
    np.testing.assert_allclose(bot.predict_proba(PROBE), proba, atol=0.02)


# ---------------------------------------------------------------- other kinds of changes


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("n", [3, 40])
def test_undo_of_a_merge(kind, n):
    options = dict(KINDS[kind])
    keep = options.pop("keep", None)
    other = taught("de", n, keep=keep, **options)
    learner, expected = made(kind).merge(other), made(kind)
    for bot in (learner, expected):
        CHANGES["rename"](CHANGES["learn old"](bot))
    learner.undo(2)
    assert_same_scores(learner, expected)


# ---------------------------------------------------------------- what is set


PAIRS = list(itertools.pairwise([*CHANGES, *CHANGES][: len(CHANGES) + 1]))


def tune(label):
    """Return a change that fits thresholds to inputs between the classes."""

    def change(bot):
        unknown = rows_of(label, 60, seed=3) + 1.2
        return bot.tune_unknown(samples("abcd", 60, seed=9)[0], unknown, by_class=True) and bot

    return change


@pytest.mark.parametrize("kind", KINDS)
def test_undo_of_tuned_thresholds_brings_back_those_before(kind, tmp_path):
    for i, (second, third) in enumerate(PAIRS):
        learner, expected = made(kind), made(kind)
        tune("c")(learner)
        tune("c")(expected)
        tuned = tune("a")(learner).refusal
        for bot, name in itertools.product((learner, expected), (second, third)):
            CHANGES[name](bot)
        if i % 3 == 0:
            learner.save(tmp_path / f"{i}")
            learner = Learner.load(tmp_path / f"{i}")
        with pytest.raises(UndoError, match="other thresholds were set since, by change 3"):
            learner.undo(2)
        learner.undo(3)
        assert learner.refusal == expected.refusal
        assert_same_scores(learner, expected)
        learner.undo(2)
        assert learner.refusal is None
        learner.undo(7)
        learner.undo(6)
        assert learner.refusal.limit == tuned.limit
        assert {*learner.refusal.classes} <= {*learner.classes, *"abcd"}


REBUILDS = {
    "size": {"n_components": 60},
    "bandwidth": {"gamma": 0.1},
    "seed": {"random_state": 7},
    "classifier": {"n_components": None, "rule": "lda"},
}


@pytest.mark.parametrize("rebuild", REBUILDS)
@pytest.mark.parametrize("chance", [0, None])
def test_undo_of_a_rebuild_after_two_other_changes(rebuild, chance, tmp_path):
    def bot():
        return taught("abcd", 12, keep="features", random_state=chance)

    for i, (second, third) in enumerate(PAIRS):
        learner = bot()
        expected = learner.copy()
        learner.rebuild(**REBUILDS[rebuild])
        rebuilt = learner.scores(PROBE)
        for one, name in itertools.product((learner, expected), (second, third)):
            CHANGES[name](one)
        if i % 3 == 0:
            learner.save(tmp_path / f"{i}")
            learner = Learner.load(tmp_path / f"{i}")
        learner.undo(2)
        assert_same_scores(learner, expected)
        assert learner.parameters.stored() == expected.parameters.stored()
        np.testing.assert_array_equal(learner.ledger.numbers, expected.ledger.numbers)
        learner.undo(4)
        learner.undo(3)
        learner.undo(5)  # rebuilt again
        assert np.abs(learner.scores(PROBE) - rebuilt).max() <= 1e-4 * np.abs(rebuilt).max()


def test_changes_before_a_rebuild_can_be_undone_after_it():
    for name, change in CHANGES.items():
        learner, expected = made("ledger"), made("ledger").rebuild(n_components=60)
        change(learner)
        learner.rebuild(n_components=60).undo(2)
        assert_same_scores(learner, expected)
        assert name


def test_a_rebuild_leaves_the_numbers_of_samples():
    learner = made("ledger").forget(ids=[3, 4])
    before = learner.ledger.numbers.tolist()
    assert learner.rebuild(gamma=0.1).ledger.numbers.tolist() == before


TEXTS = [f"{word} {i}" for word in ("where is my card", "I want a refund") for i in range(4)]
LABELS = ["card"] * 4 + ["refund"] * 4
ASKED = ["card", "money back", "a cat", "what time is it"]
TEXT_CHANGES = {
    "declare": lambda bot: bot.declare({"cats": "animals that purr"}),
    "describe": lambda bot: bot.declare({"refund": "money back"}),
    "learn": lambda bot: bot.learn(["it purrs", "a cat"], ["cats"] * 2),
    "rename": lambda bot: bot.rename("refund", "repayment"),
    "forget": lambda bot: bot.forget("card"),
}


@pytest.mark.parametrize("first", TEXT_CHANGES)
def test_names_come_and_go_with_the_changes_that_brought_them(first, tmp_path):
    def bot():
        return Learner("ngrams").learn(TEXTS, LABELS)

    others = [name for name in TEXT_CHANGES if name != first]
    for second, third in itertools.permutations(others, 2):
        order = [first, second, third]
        if "rename" in order and "describe" in order[order.index("rename") :]:
            continue  # a class of another name
        learner, expected = bot(), bot()
        for name in order:
            TEXT_CHANGES[name](learner)
        for name in order[1:]:
            TEXT_CHANGES[name](expected)
        learner.save(tmp_path / second / third)
        learner = Learner.load(tmp_path / second / third)
        learner.undo(2)
        assert learner.declared == expected.declared
        assert_same_scores(learner, expected, ASKED)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("whole", [lambda bot: bot.rename("b", "z"), lambda bot: bot.forget("b")])
def test_a_change_of_a_class_made_again_takes_along_what_came_back_meanwhile(kind, whole):
    learner, expected = made(kind).forget(["b", "b"], rows_of("b")[:2]), whole(made(kind))
    whole(learner)
    for number in (3, 2, 4):  # the change of the class, the forget before it, and the first undo
        learner.undo(number)
    assert_same_scores(learner, expected)


def test_a_declaration_made_again_holds_beside_samples_learned_meanwhile():
    learner = Learner("ngrams").declare({"card": "a bank card"})
    learner.undo(1)
    learner.learn(TEXTS, LABELS).undo(2)
    assert learner.declared == {"card": "a bank card"}
    expected = Learner("ngrams").declare({"card": "a bank card"}).learn(TEXTS, LABELS)
    assert_same_scores(learner, expected, ASKED)


def test_a_declared_class_that_was_forgotten_by_mistake_is_declared_again_by_the_undo():
    learner = Learner("ngrams").declare({"card": "a bank card", "fee": None}).forget("card")
    learner.learn(TEXTS, LABELS).undo(2)
    assert learner.declared == {"card": "a bank card", "fee": None}


@pytest.mark.parametrize("again", [{"card": "a bank card"}, {"card": None}])
def test_what_was_declared_twice_can_be_undone_once(again):
    learner = Learner("ngrams").declare({"card": None, "fee": None}).declare(again)
    learner.undo(1)
    assert learner.declared == again


def test_what_both_of_two_merged_learners_had_declared_is_left_when_one_is_undone():
    learner = Learner("ngrams").declare({"card": None})
    learner.merge(Learner("ngrams").declare({"card": "a bank card"}))
    assert learner.declared == {"card": None}
    learner.undo(1)
    assert learner.declared == {"card": "a bank card"}
    learner.undo(3)
    assert learner.declared == {"card": None}


def test_undo_needs_no_encoder_where_names_stay(monkeypatch):
    learner = Learner("ngrams").learn(TEXTS, LABELS).forget("card")
    monkeypatch.setattr(learner.encoder, "encode", None)
    learner.undo()
    assert learner.classes == {"card": 4, "refund": 4}


# ---------------------------------------------------------------- which one


def test_undo_goes_back_step_by_step_and_an_undo_can_be_undone():
    learner = taught("ab").learn(*samples("c")).learn(*samples("d"))
    scores = learner.scores(PROBE)
    assert learner.undo()["new_classes"] == ["d"]
    assert learner.undo()["new_classes"] == ["c"]
    assert list(learner.classes) == ["a", "b"]
    numbers = [entry["number"] for entry in learner.history]
    assert numbers == [1, 2, 3, 4, 5]
    assert learner.history[-1]["undoes"] == 2
    assert [entry["undoable"] for entry in learner.history] == [True, False, False, True, True]
    with pytest.raises(UndoError, match="undone already; undo change 5"):
        learner.undo(2)
    learner.undo(5)
    learner.undo(4)
    np.testing.assert_allclose(learner.scores(PROBE), scores, rtol=0, atol=1e-4)
    assert learner.undo()["number"] == 3


def test_whatever_the_history_offers_can_be_undone():
    learner = taught("ab").learn(*samples("c"))
    for _ in range(4):  # an undo, its undo, and so on
        learner.undo(learner.history[-1]["number"])
        for entry in learner.history:
            if entry["undoable"]:
                learner.copy().undo(entry["number"])
            else:
                with pytest.raises(UndoError):
                    learner.copy().undo(entry["number"])


def test_a_ledger_with_ids_is_merged_into_a_learner_without_and_taken_out_again():
    for components in (16, 60, 400):  # its samples are not kept, no longer kept, and kept
        learner = taught("ab", n_components=components)
        other = taught("c", keep="features", n_components=components)
        other.learn(rows_of("x", 2), ["x"] * 2, ids=["one", "two"])
        expected = learner.copy()
        learner.merge(other).undo()
        assert_same_scores(learner, expected)


def test_samples_of_one_update_can_be_undone_one_by_one():
    for kind in KINDS:
        rows, labels = samples("xy", 3)
        learner = made(kind).learn_rows(rows, labels, parts=[1, 3, 2])
        assert [entry["samples"] for entry in learner.history] == [48, 1, 3, 2]
        assert learner.history[2]["new_classes"] == ["y"]
        learner.undo(3)
        keep = [0, 4, 5]
        expected = made(kind).learn_rows(rows[keep], [labels[i] for i in keep])
        assert_same_scores(learner, expected)


def test_a_rename_of_samples_with_ids_that_were_forgotten_since_is_undone_after_that():
    learner = taught("a", keep="features").learn(rows_of("x", 2), ["x"] * 2, ids=["one", "two"])
    learner.rename("x", "z").forget(ids=["one"])
    with pytest.raises(UndoError, match=r"were taken out since.*Undo that first"):
        learner.undo(3)


def test_a_sample_with_an_id_is_told_from_its_like():
    learner = taught("a", keep="features")
    row = rows_of("b", 1)
    learner.learn(row, ["b"], ids=["first"]).learn(row, ["b"], ids=["second"])
    learner.undo(2)
    assert learner.ledger.numbers_by_id.keys() == {"second"}


@pytest.mark.parametrize("number", [0, 7, -1])
def test_a_number_that_is_none_is_named(number):
    with pytest.raises(UndoError, match=f"There is no change {number} to undo"):
        taught("ab").undo(number)


def test_there_may_be_nothing_to_undo():
    with pytest.raises(UndoError, match="nothing to undo"):
        taught("").undo()


# ---------------------------------------------------------------- where others stand in the way


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "then, reason",
    [
        (lambda bot: bot.forget("x"), "forgotten since"),
        (
            lambda bot: bot.forget(["x"], rows_of("x", 4, seed=2)[1:2]),
            "(forgotten|taken out) since",
        ),
    ],
)
def test_what_was_forgotten_since_has_to_come_back_first(kind, then, reason):
    learner, expected = made(kind), made(kind)
    CHANGES["learn new"](learner)
    before = then(learner).classes
    with pytest.raises(UndoError, match=reason):
        learner.undo(2)
    assert learner.classes == before
    learner.undo(3)
    learner.undo(2)
    assert_same_scores(learner, expected)


def test_a_class_does_not_come_back_under_a_name_that_another_has_now():
    learner = made("few").forget("d").rename("c", "d")
    with pytest.raises(UndoError, match="another class was named 'd' by change 3"):
        learner.undo(2)
    learner.undo(3)
    learner.undo(2)
    assert_same_scores(learner, made("few"))


def test_a_failed_undo_leaves_everything_as_it_was(tmp_path):
    learner = made("many").learn(*samples("x")).forget("x")
    history, scores = learner.history, learner.scores(PROBE)
    with pytest.raises(UndoError):
        learner.undo(2)
    assert learner.history == history
    np.testing.assert_array_equal(learner.scores(PROBE), scores)


# ---------------------------------------------------------------- how long, and how much


def test_changes_can_be_undone_for_the_stated_time(monkeypatch):
    learner = Learner("features", undo=60).learn(*samples("ab")).learn(*samples("c"))
    now = undo_module.time.time()
    monkeypatch.setattr(undo_module.time, "time", lambda: now + 61)
    assert not any(entry["undoable"] for entry in learner.history)
    with pytest.raises(UndoError, match="nothing to undo"):
        learner.undo()


def test_no_more_than_so_many_changes_and_bytes_are_kept(monkeypatch):
    learner = taught("ab")
    monkeypatch.setattr(undo_module, "MOST_CHANGES", 3)
    for i in range(5):
        learner.learn(rows_of("a", 1, seed=i), ["a"])
    assert [entry["undoable"] for entry in learner.history] == [False] * 3 + [True] * 3
    monkeypatch.setattr(undo_module, "MOST_BYTES", 500)
    learner.learn(rows_of("a", 1), ["a"]).learn(*samples("c"))
    assert not learner.history[-1]["undoable"]
    with pytest.raises(UndoError, match="Change 8 is too large"):
        learner.undo(8)


def test_undo_data_in_another_form_is_left_out():
    stored = {"seconds": 60.0, "changes": [{"number": 1, "effect": {"kind": "learned"}}]}
    log = UndoLog.unpack({}, stored, Named({"a": "what it is"}))
    assert (log.seconds, log.changes, log.named.declared) == (60.0, (), {"a": "what it is"})


def undo_files(folder):
    return [name for name in storage.load(folder).arrays if name.startswith("undo/")]


def test_features_are_kept_for_undo_only_as_long_as_that_is_possible(tmp_path):
    learner = made("many").learn(*samples("x"))
    learner.save(tmp_path / "m")
    assert undo_files(tmp_path / "m")
    learner.save(tmp_path / "compact", compact=True)
    assert not undo_files(tmp_path / "compact")
    assert learner.expire_undo()
    assert not learner.expire_undo()
    learner.save(tmp_path / "m")
    assert not undo_files(tmp_path / "m")
    with pytest.raises(UndoError):
        Learner.load(tmp_path / "m").undo()


def test_without_undo_nothing_is_kept(tmp_path):
    learner = Learner("features", undo=0).learn(*samples("abc", 40))
    learner.save(tmp_path / "m")
    assert not undo_files(tmp_path / "m")
    with pytest.raises(UndoError, match="undo=0"):
        learner.undo()
    with pytest.raises(KldaError, match="undo=-1"):
        Learner("features", undo=-1)


def test_a_large_learn_is_undone_by_its_statistics(tmp_path):
    rows, labels = samples("bx", 4000, seed=5)
    learner, expected = made("many"), made("many")
    learner.learn(iter([(rows[i::4], labels[i::4]) for i in range(4)]))
    learner.save(tmp_path / "m")
    kept = storage.load(tmp_path / "m").arrays
    size = sum(array.nbytes for name, array in kept.items() if name.startswith("undo/"))
    assert size < 50_000  # the rows take 256,000 bytes
    CHANGES["rename"](learner).undo(2)
    assert_same_scores(learner, CHANGES["rename"](expected))


def test_the_first_learn_of_a_large_model_is_not_kept_twice():
    learner = taught("", n_components=16).learn(iter([samples("ab", 4000)]))
    assert not learner.history[0]["undoable"]
    with pytest.raises(UndoError, match="too large"):
        learner.undo()


def test_undo_after_a_kill(tmp_path):
    code = f"""
import os, sys
sys.path.insert(0, {str(Path.cwd())!r})
from klda import Learner
from tests.undo.test_undo import *
learner = made("many").learn(*samples("x"))
learner.save({str(tmp_path / "m")!r})
CHANGES["rename"](learner).save({str(tmp_path / "m")!r})
os.kill(os.getpid(), 9)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == -signal.SIGKILL, done.stderr
    learner = Learner.load(tmp_path / "m")
    learner.undo(2)
    assert_same_scores(learner, CHANGES["rename"](made("many")))


@pytest.mark.parametrize("seconds", [0, 7 * 86400.0])
def test_how_long_changes_can_be_undone_is_saved(tmp_path, seconds):
    learner = Learner("features", undo=seconds).learn(*samples("ab"))
    learner.expire_undo()
    learner.save(tmp_path / "bot")
    assert Learner.load(tmp_path / "bot").undo_seconds == seconds


@pytest.mark.parametrize("label", ["a", "b"])
def test_an_id_that_was_given_to_another_sample_since_is_not_confused_with_it(label):
    bot = Learner("features", keep="features", classifier={"n_components": 40, "random_state": 0})
    first, second = np.eye(8, dtype=np.float32)[:2]
    bot.learn([-first, -second], ["a", "b"])
    bot.learn([first], ["b"], ids=["one"])
    bot.forget(ids=["one"])
    bot.learn([second], [label], ids=["one"])
    counts = bot.classes
    with pytest.raises(UndoError, match="Undo that first"):
        bot.undo(2)
    with pytest.raises(UndoError, match="the id 'one' was given to another sample"):
        bot.undo(3)
    assert bot.classes == counts
    for _ in range(3):  # from the last on, all can be undone
        bot.undo(max(entry["number"] for entry in bot.history if entry["undoable"]))
