from __future__ import annotations

import json
import resource
import signal
import subprocess
import sys
from contextlib import closing
from dataclasses import asdict, replace

import numpy as np
import pytest

from klda.learner import Detached
from klda.learner.folder import JOURNAL
from klda.server.changes import Acknowledgement, Binding, Change, Key
from klda.server.journal import Journal, JournalError

UNBOUND = Binding()


def learn(number, n=3, key=""):
    rows = np.random.default_rng(number).normal(size=(n, 4)).astype(np.float32)
    labels, used = ["ab"[i % 2] for i in range(n)], Key(key, "digest") if key else None
    return Change("learn", labels, rows, sequence=number, key=used)


@pytest.fixture
def journal(tmp_path):
    with closing(Journal(tmp_path, Binding())) as journal:
        yield journal


def add(journal, *changes):
    with journal.transaction():
        for change in changes:
            journal.add(change, Acknowledgement(change.sequence, 1, change.sequence))


def written(change):
    return json.dumps(asdict(replace(change, rows=None)))


def reopened(journal, binding=UNBOUND):
    """The journal, opened again beside a model folder that says this about it."""
    journal.close()
    journal.__init__(journal.path.parent, binding)
    return journal


def test_what_is_added_is_read_back_exactly(journal):
    changes = [
        learn(1),
        Change("forget", ["a"], sequence=2, when=5.5),
        Change("rename", ["b", "ü"], sequence=3),
        Change("restore", sequence=4, target=2),
        Change("declare", [1, 2], descriptions=["one", None], sequence=5),
    ]
    add(journal, *changes[:2])
    add(journal, *changes[2:])
    found = reopened(journal).start(UNBOUND)
    assert [written(change) for change in found] == [written(change) for change in changes]
    np.testing.assert_array_equal(found[0].rows, changes[0].rows)
    assert found[0].rows.dtype == np.float32
    assert journal.last == 5
    assert [c.sequence for c in journal.start(journal.binding(3))] == [4, 5]


def test_a_transaction_that_fails_leaves_nothing(journal):
    add(journal, learn(1, key="first"))
    add(journal, learn(2, key="same"))
    with pytest.raises(JournalError):  # the number is taken, after others were stored
        add(journal, learn(3, key="second"), learn(2))
    assert journal.last == 2
    assert journal.answered(Key("second", "")) is None
    assert [c.sequence for c in reopened(journal).start(UNBOUND)] == [1, 2]


def test_changes_go_once_the_model_has_them_and_the_count_continues(journal):
    add(journal, learn(1, key="k"), learn(2), learn(3))
    journal.mark_checkpointed(journal.binding(2))
    assert [c.sequence for c in journal.start(journal.binding(2))] == [3]
    saved = journal.binding(3)
    journal.mark_checkpointed(saved)
    assert reopened(journal, saved).start(saved) == []
    assert journal.last == journal.position == 3
    assert journal.answered(Key("k", "")) == (
        Key("k", "digest"),
        Acknowledgement(1, 1, 1, [], repeated=True),
    )


def test_a_kill_between_a_save_and_the_removal_doubles_nothing(journal):
    add(journal, learn(1), learn(2))
    saved = journal.binding(2)  # the model was saved with both
    assert not journal.is_bound
    assert reopened(journal, saved).start(saved) == []
    assert journal.is_bound
    assert journal.position == 2


def test_a_model_older_than_its_journal_is_an_error(journal):
    add(journal, learn(1), learn(2), learn(3))
    older = journal.binding(1)
    journal.mark_checkpointed(journal.binding(2))
    with pytest.raises(JournalError, match="older than the journal"):
        reopened(journal, older)


def test_refused_changes_are_kept_but_not_replayed(journal):
    add(journal, learn(1), learn(2))
    journal.refuse(learn(1), "it does not fit")
    assert [c.sequence for c in reopened(journal).start(UNBOUND)] == [2]
    journal.mark_checkpointed(journal.binding(2))
    kept = journal._db.execute("SELECT sequence, refused FROM changes WHERE header NOTNULL")
    assert kept.fetchall() == [(1, "it does not fit")]


def test_what_was_deleted_is_not_on_the_disk(journal, tmp_path):
    change = learn(1, 500)
    secret = change.rows.tobytes()[1000:1064]
    means = np.random.default_rng(7).normal(size=300).astype(np.float32)
    add(journal, change)
    with journal.transaction():
        journal.keep(1, 5.0, [Detached("a", 3, {"means": means}, {})])
    assert all(on_disk(tmp_path, part) for part in (secret, means.tobytes()))
    journal.mark_checkpointed(journal.binding(1))
    assert not on_disk(tmp_path, secret)
    assert journal.purge(before=6.0)
    assert not on_disk(tmp_path, means.tobytes())
    assert not journal.purge(before=6.0)


def on_disk(folder, content):
    return any(content in path.read_bytes() for path in folder.glob(f"{JOURNAL}*"))


def test_only_the_latest_keys_are_kept(journal, monkeypatch):
    monkeypatch.setattr("klda.server.journal.MAX_ROWS", 3)
    add(journal, *(learn(i, 1, key=f"k{i}") for i in range(1, 7)))
    journal.mark_checkpointed(journal.binding(6))
    assert [i for i in range(1, 7) if journal.answered(Key(f"k{i}", ""))] == [4, 5, 6]


def test_a_journal_of_a_newer_version_is_refused_and_left_alone(journal, tmp_path):
    add(journal, learn(1))
    journal._db.execute("PRAGMA user_version = 4")
    journal.close()
    before = (tmp_path / JOURNAL).read_bytes()
    with pytest.raises(JournalError, match=r"version 4.*uses 3.*Upgrade klda"):
        reopened(journal)
    assert (tmp_path / JOURNAL).read_bytes() == before


def test_an_error_names_the_file_and_is_reported_until_a_write_succeeds(journal):
    add(journal, learn(1))
    journal._db.execute("ALTER TABLE forgotten RENAME TO lost")
    for failing in (journal.forgotten, lambda: journal.purge(0.0)):
        with pytest.raises(JournalError, match=rf"{JOURNAL}: no such table: forgotten"):
            failing()
        assert "no such table" in journal.problem
        journal.probe()
        assert not journal.problem


@pytest.mark.skipif(sys.platform == "win32", reason="limits the size of files as POSIX does")
def test_a_failed_write_leaves_nothing_behind_and_is_over_when_the_disk_has_room(journal):
    add(journal, learn(1))
    unlimited = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, unlimited[1]))
    try:
        with pytest.raises(JournalError):
            add(journal, learn(2, 5000))
        reason = journal.problem
        assert "I/O error" in reason or "full" in reason
        journal.probe()
        assert journal.problem == reason
        assert journal.last == 1
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, unlimited)
    journal.probe()
    assert not journal.problem
    add(journal, learn(2, 5))
    assert [len(c.labels) for c in reopened(journal).start(UNBOUND)] == [3, 5]


KILLED = """
import os, sys, pathlib
sys.path[:0] = {path!r}
from tests.server.test_journal import Acknowledgement, Binding, add, learn
from klda.server.journal import Journal
journal = Journal(pathlib.Path({folder!r}), Binding())
for number in range(1, 4):
    add(journal, learn(number))
journal._db.execute("BEGIN IMMEDIATE")
journal.add(learn(4, 2000), Acknowledgement(4, 1, 4))
os.kill(os.getpid(), {signal})
"""


@pytest.mark.skipif(sys.platform == "win32", reason="kills with a POSIX signal")
def test_after_a_kill_what_was_committed_is_there_and_nothing_else(tmp_path):
    code = KILLED.format(path=sys.path, folder=str(tmp_path), signal=int(signal.SIGKILL))
    assert subprocess.run([sys.executable, "-c", code]).returncode == -signal.SIGKILL
    with closing(Journal(tmp_path, Binding())) as journal:
        assert [c.sequence for c in journal.start(UNBOUND)] == [1, 2, 3]
        assert journal.last == 3
