"""Thresholds of classes that are forgotten, joined, renamed or taught again, and their undo."""

from __future__ import annotations

import pytest

from klda import Learner
from klda.inspection.refusal import Refusal
from tests.factories import rows_of, samples, taught

pytestmark = pytest.mark.filterwarnings("ignore::klda.learner.ForgetTraceWarning")

TUNED = Refusal(1.0, {"a": 2.0, "b": 3.0})


def tuned(labels="abcd", **options):
    return taught(labels, **options).set_refusal(TUNED)


GONE = {
    "forgotten": lambda bot: bot.forget("b"),
    "samples forgotten": lambda bot: bot.forget(["b"] * 12, rows_of("b")),
    "joined": lambda bot: bot.rename("b", "a", merge=True),
}


@pytest.mark.parametrize("components", [16, 400])
@pytest.mark.parametrize("gone", GONE)
def test_a_class_that_is_gone_leaves_no_threshold(gone, components, tmp_path):
    learner = GONE[gone](tuned(n_components=components))
    assert learner.refusal == Refusal(1.0, {"a": 2.0})
    learner.learn(*samples("b", seed=3))
    assert learner.refusal == Refusal(1.0, {"a": 2.0})
    learner.save(tmp_path / "m")
    learner = Learner.load(tmp_path / "m")
    learner.undo(4)
    assert learner.refusal == Refusal(1.0, {"a": 2.0})
    learner.undo(3)
    assert learner.refusal == TUNED
    learner.undo(6)  # gone again
    assert learner.refusal == Refusal(1.0, {"a": 2.0})


def test_undo_of_older_thresholds_gives_none_to_a_class_that_is_new():
    learner = tuned().set_refusal(Refusal(5.0)).forget("b").learn(*samples("b", seed=3))
    learner.undo(3)
    assert learner.refusal == Refusal(1.0, {"a": 2.0})


def test_undo_of_older_thresholds_and_then_of_a_forget_brings_back_those_of_the_class():
    learner = tuned().set_refusal(Refusal(5.0, {"b": 6.0})).forget("b")
    learner.undo(3)
    learner.undo(4)
    assert learner.refusal == TUNED


def test_thresholds_follow_a_rename_that_is_undone():
    learner = tuned().rename("b", "z").set_refusal(Refusal(5.0, {"z": 6.0}))
    learner.undo(3)
    assert learner.refusal == Refusal(5.0, {"b": 6.0})
    learner.undo(4)
    assert learner.refusal == TUNED
    learner.undo(5)  # the rename
    assert learner.refusal == Refusal(1.0, {"a": 2.0, "z": 3.0})
    learner.undo(6)
    assert learner.refusal == Refusal(5.0, {"z": 6.0})


def test_thresholds_stay_when_undo_data_is_erased():
    learner = tuned()
    learner.expire_undo()
    learner.set_refusal(None).undo()
    assert learner.refusal == TUNED
