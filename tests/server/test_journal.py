from __future__ import annotations

import json
import resource
import signal
import subprocess
import sys
from contextlib import closing

import numpy as np
import pytest

from klda.server.changes import Declare, Forget, Key, Learn, Rename, Tally, Tune, Undo
from klda.server.journal import VERSION, Bookmark, Journal, JournalError
from klda.storage.folder import JOURNAL


def learn(number, n=3, key=""):
    rows = np.random.default_rng(number).normal(size=(n, 4)).astype(np.float32)
    labels, used = ["ab"[i % 2] for i in range(n)], Key(key, "digest") if key else None
    return Learn(labels, rows, Tally(1, 2, 0), number=number, key=used)


@pytest.fixture
def journal(tmp_path):
    with closing(opened(tmp_path)) as journal:
        yield journal


def opened(folder):
    """The journal of a new model."""
    return Journal(folder, Bookmark())


def reopened(journal, bookmark=None):
    """The same beside a model that stands where the journal says, or at another bookmark."""
    bookmark = bookmark or journal.bookmark(journal.position, is_open=True)
    journal.close()
    journal.__init__(journal.path.parent, bookmark)
    return journal


def add(journal, *changes):
    with journal.transaction():
        for change in changes:
            journal.add(change)


def written(change):
    return json.dumps(change.pack())


def numbers(changes):
    return [change.number for change in changes]


def test_what_is_added_is_read_back_exactly(journal):
    changes = [
        learn(1, key="k"),
        Forget(["a"], number=2, when=5.5, samples=-3, exact=True),
        Rename("b", "ü", number=3),
        Undo(2, number=4),
        Declare([(1, "one"), (2, None)], number=5, new_classes=[1, 2]),
        Tune({"limit": 1.5, "classes": [["a", 2.5]]}, {"known": 7}, number=6),
    ]
    add(journal, *changes[:2])
    add(journal, *changes[2:])
    found = reopened(journal).waiting()
    assert [written(change) for change in found] == [written(change) for change in changes]
    np.testing.assert_array_equal(found[0].rows, changes[0].rows)
    assert found[0].rows.dtype == np.float32
    assert written(journal.made_with(Key("k", ""))) == written(changes[0])
    assert numbers(journal.history()) == [1, 2, 3, 4, 5, 6]
    assert numbers(journal.numbered([5, 2])) == [2, 5]


def test_a_transaction_that_fails_leaves_nothing(journal):
    add(journal, learn(1), learn(2, key="same"))
    with pytest.raises(JournalError):  # the number is taken, after others were stored
        add(journal, learn(3, key="second"), learn(2))
    assert journal.last == 2
    assert journal.made_with(Key("second", "")) is None
    assert numbers(reopened(journal).waiting()) == [1, 2]


def test_what_the_model_has_is_not_replayed_and_the_count_continues(journal):
    add(journal, learn(1, key="k"), learn(2), learn(3))
    journal.saved(2)
    assert numbers(journal.waiting()) == [3]
    saved = journal.bookmark(3, is_open=True)  # the model was saved, and then a kill came
    assert reopened(journal, saved).waiting() == []
    assert journal.last == journal.position == 3
    assert journal.made_with(Key("k", "")).key == Key("k", "digest")


def test_a_model_older_than_its_journal_is_an_error(journal):
    add(journal, learn(1), learn(2), learn(3))
    older = journal.bookmark(1, is_open=True)
    journal.saved(2)
    with pytest.raises(JournalError, match="the model is older"):
        reopened(journal, older)


def test_what_was_erased_is_not_on_the_disk(journal, tmp_path):
    change = learn(1, 500)
    secret = change.rows.tobytes()[1000:1064]
    add(journal, change)
    assert on_disk(tmp_path, secret)
    journal.saved(1)
    assert not on_disk(tmp_path, secret)


def on_disk(folder, content):
    return any(content in path.read_bytes() for path in folder.glob(f"{JOURNAL}*"))


def test_only_the_latest_keys_are_kept(tmp_path, monkeypatch):
    monkeypatch.setattr("klda.server.journal.MAX_KEPT", 3)
    with closing(opened(tmp_path)) as journal:
        add(journal, *(learn(i, 1, key=f"k{i}") for i in range(1, 7)))
        journal.saved(6)
        assert [i for i in range(1, 7) if journal.made_with(Key(f"k{i}", ""))] == [4, 5, 6]


def test_a_journal_of_a_newer_version_is_refused_and_left_alone(journal, tmp_path):
    add(journal, learn(1))
    journal._db.execute(f"PRAGMA user_version = {VERSION + 1}")
    journal.close()
    before = (tmp_path / JOURNAL).read_bytes()
    with pytest.raises(JournalError, match="not written by this version of klda"):
        reopened(journal, Bookmark())
    assert (tmp_path / JOURNAL).read_bytes() == before


@pytest.mark.skipif(sys.platform == "win32", reason="limits the size of files as POSIX does")
def test_a_failed_write_leaves_nothing_behind_and_is_over_when_the_disk_has_room(journal):
    add(journal, learn(1))
    unlimited = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (40_000, unlimited[1]))
    try:
        with pytest.raises(JournalError):
            add(journal, learn(2, 5000))
        assert "I/O error" in journal.problem or "full" in journal.problem
        assert journal.last == 1
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, unlimited)
    journal.probe()
    assert not journal.problem
    add(journal, learn(2, 5))
    assert [len(c.labels) for c in reopened(journal).waiting()] == [3, 5]


KILLED = """
import os, sys, pathlib
sys.path[:0] = {path!r}
from tests.server.test_journal import add, learn, opened
journal = opened(pathlib.Path({folder!r}))
print(*journal.bookmark(0, is_open=True)[:2], flush=True)
for number in range(1, 4):
    add(journal, learn(number))
journal._db.execute("PRAGMA cache_size = 1")  # so that what is not committed is on the disk
journal._db.execute("BEGIN IMMEDIATE")
journal.add(learn(4, 20000))
journal.add(learn(5, 20000))
os.kill(os.getpid(), {signal})
"""


@pytest.mark.skipif(sys.platform == "win32", reason="kills with a POSIX signal")
def test_after_a_kill_what_was_committed_is_there_and_nothing_else(tmp_path):
    code = KILLED.format(path=sys.path, folder=str(tmp_path), signal=int(signal.SIGKILL))
    killed = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert killed.returncode == -signal.SIGKILL
    assert (tmp_path / JOURNAL).stat().st_size > 300_000
    position, checksum = killed.stdout.split()
    with closing(Journal(tmp_path, Bookmark(int(position), checksum, True))) as journal:
        assert numbers(journal.waiting()) == [1, 2, 3]
        assert journal.last == 3
