"""A folder that the service of klda 0.2.0 wrote and a kill left: no id, no checksums, no note."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path

import pytest

from klda.learner import Learner
from klda.learner import folder as storage
from klda.learner.folder import JOURNAL
from klda.server.changes import Binding, Key
from klda.server.journal_file import JournalError

from .conftest import samples
from .test_service import Running, journaled

COUNTS = {"dogs": 3, "eels": 4, "emmets": 12}  # three changes of it are in the journal alone
AGES = 1e12  # seconds in which what was forgotten then can be restored


@pytest.fixture
def old(tmp_path):
    return Path(shutil.copytree(Path(__file__).parent / "service-0.2.0", tmp_path / "old"))


def bound(folder):
    return Binding.of(storage.load(folder).document["extras"]).journal is not None


def test_its_changes_keys_and_undos_are_all_there(old):
    assert journaled(old) == [3, 4, 5]
    with Running(old, undo_seconds=AGES) as running:
        assert running.counts == COUNTS
        for name, label, n in (("first", "dogs", 3), ("second", "eels", 4)):
            key = Key(name, "digest")
            assert running.learn(samples(label, n), [label] * n, key).repeated
        assert running.forgotten() == {2: {"bees": 12}, 5: {"cats": 12}}
        running.undo(2)
        assert running.learn(samples("fish", 2), ["fish"] * 2).version == 7
    expected = {**COUNTS, "bees": 12, "fish": 2}
    assert Learner.load(old).classes == expected
    with Running(old, undo_seconds=AGES) as again:
        assert again.counts == expected
        again.undo(5)
        assert again.counts == {**expected, "cats": 12}


def test_its_journal_is_bound_to_it_with_the_first_change(old, tmp_path):
    journal = (old / JOURNAL).read_bytes()
    other = Path(shutil.copytree(old, tmp_path / "other"))
    running = Running(old, checkpoint_interval=1e9)
    assert not bound(old)
    running.learn(samples("fish", 2), ["fish"] * 2)
    assert bound(old)
    running.abandon()
    foreign = other / JOURNAL
    shutil.copy(old / JOURNAL, foreign)
    with pytest.raises(JournalError, match="belongs to another model"):
        Running(other)
    foreign.write_bytes(journal)
    with Running(other) as running:
        assert running.counts == COUNTS
    with Running(old) as again:
        assert again.counts == {**COUNTS, "fish": 2}
    (old / JOURNAL).write_bytes(journal)
    with pytest.raises(JournalError, match="belongs to another model"):
        Running(old)


@pytest.mark.parametrize("killed", ["before", "after"])
def test_a_kill_while_it_is_bound_costs_nothing(old, tmp_path, monkeypatch, killed):
    """Right before the folder names the journal, or right after."""
    real, copy = storage.save_extras, tmp_path / "copy"

    def save_extras(*args):
        if killed == "after":
            real(*args)
        shutil.copytree(old, copy)
        if killed == "before":
            real(*args)

    with monkeypatch.context() as patched:
        patched.setattr(storage, "save_extras", save_extras)
        running = Running(old, checkpoint_interval=1e9)
        running.learn(samples("fish", 2), ["fish"] * 2)
        running.abandon()
    with Running(copy) as again:
        assert again.counts == {**COUNTS, "fish": 2}
        again.learn(samples("fish", 2), ["fish"] * 2)
    with Running(copy) as again:
        assert again.counts == {**COUNTS, "fish": 4}


def test_a_change_during_the_first_checkpoint_counts_once(old, tmp_path, monkeypatch):
    real, begun, allowed = storage.save, threading.Event(), threading.Semaphore(0)

    def save(*args, **options):
        begun.set()
        assert allowed.acquire(timeout=20)
        return real(*args, **options)

    with monkeypatch.context() as patched:
        patched.setattr(storage, "save", save)
        running = Running(old, checkpoint_interval=0.0)
        assert begun.wait(20)  # it saves what was replayed, and does not name the journal yet
        threading.Timer(0.3, allowed.release).start()
        running.learn(samples("fish", 2), ["fish"] * 2)
        shutil.copytree(old, tmp_path / "killed")  # the next checkpoint can't begin
        allowed.release(9)
        running.abandon()
    with Running(tmp_path / "killed") as again:
        assert again.counts == {**COUNTS, "fish": 2}
