"""A folder that the service of klda 0.2.0 wrote and a kill left: no id, no checksums, no note."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from klda.learner import Learner
from klda.learner import folder as storage
from klda.learner.folder import JOURNAL
from klda.server.changes import Binding, Key
from klda.server.journal import JournalError

from .conftest import Running, journaled, samples

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
        assert running.read("forgotten") == {2: {"bees": 12}, 5: {"cats": 12}}
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


@pytest.mark.parametrize("header", ["not JSON", "[]", "{}"])
def test_a_change_in_it_that_can_not_be_read_stops_the_start(old, header):
    with closing(sqlite3.connect(old / JOURNAL)) as journal, journal:
        journal.execute("UPDATE changes SET header = ? WHERE sequence = 4", (header,))
    for _ in range(2):  # also once it has checksums
        with pytest.raises(JournalError, match="change 4 can't be read"):
            Running(old)
