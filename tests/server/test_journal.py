from __future__ import annotations

import numpy as np
import pytest

from klda.server.changes import Change
from klda.server.journal import Journal, JournalError, pack


def learn(number, n=3, key=""):
    rows = np.random.default_rng(number).normal(size=(n, 4)).astype(np.float32)
    return Change("learn", tuple("ab"[i % 2] for i in range(n)), rows, sequence=number, key=key)


def read(folder, after=0):
    return [change for frame in Journal(folder).replay(after) for change in frame]


def written(folder, *frames):
    journal = Journal(folder)
    for frame in frames:
        journal.append(frame)
    journal.close()
    return next(folder.glob("journal-*"))


def test_what_is_appended_is_read_back_exactly(tmp_path):
    changes = [
        learn(1, key="k"),
        Change("forget", ("a",), sequence=2, when=5.5),
        Change("rename", ("b", "ü"), sequence=3),
        Change("restore", sequence=4, target=2),
        Change("learn", (1, 2), np.ones((2, 4), np.float32), sequence=5, right=1, wrong=1),
    ]
    written(tmp_path, changes[:2], changes[2:])
    found = read(tmp_path)
    assert [c.header() for c in found] == [c.header() for c in changes]
    np.testing.assert_array_equal(found[0].rows, changes[0].rows)
    assert found[0].rows.dtype == np.float32


def test_only_changes_after_the_position_are_replayed(tmp_path):
    written(tmp_path, [learn(1), learn(2)], [learn(3)])
    assert [c.sequence for c in read(tmp_path, after=1)] == [2, 3]
    assert [c.sequence for c in read(tmp_path, after=3)] == []


@pytest.mark.parametrize("cut", [1, 5, 15, 17, 40, 100])
def test_a_torn_last_frame_is_cut_off_and_the_rest_is_whole(tmp_path, cut):
    file = written(tmp_path, [learn(1)], [learn(2)])
    content = file.read_bytes()
    whole = len(pack([learn(1)]))
    file.write_bytes(content[: whole + cut])
    assert [c.sequence for c in read(tmp_path)] == [1]
    assert file.stat().st_size == whole
    journal = Journal(tmp_path)
    journal.replay(0)
    journal.append([learn(2)])
    journal.close()
    assert [c.sequence for c in read(tmp_path)] == [1, 2]


def test_every_possible_cut_keeps_exactly_the_whole_frames(tmp_path):
    file = written(tmp_path, [learn(1, 1)], [learn(2, 1)])
    content, first = file.read_bytes(), len(pack([learn(1, 1)]))
    for size in range(len(content)):
        file.write_bytes(content[:size])
        assert [c.sequence for c in read(tmp_path)] == ([1] if size >= first else [])


def test_a_last_frame_of_zeros_is_cut_off(tmp_path):
    file = written(tmp_path, [learn(1)])
    with file.open("ab") as opened:
        opened.write(bytes(500))
    assert [c.sequence for c in read(tmp_path)] == [1]


def test_damage_with_whole_frames_after_it_is_reported(tmp_path):
    file = written(tmp_path, [learn(1)], [learn(2)])
    content = bytearray(file.read_bytes())
    content[30] ^= 0xFF
    file.write_bytes(content)
    with pytest.raises(JournalError, match="damaged at byte 0"):
        read(tmp_path)


def test_missing_changes_are_reported(tmp_path):
    written(tmp_path, [learn(5)])
    with pytest.raises(JournalError, match="after 2 are missing"):
        read(tmp_path, after=2)


def test_cancelled_changes_are_left_out_but_keep_their_numbers(tmp_path):
    written(tmp_path, [learn(1), learn(2)], [Change("cancel", sequence=3, target=2)])
    journal = Journal(tmp_path)
    assert [c.sequence for frame in journal.replay(0) for c in frame] == [1]
    assert journal.last == 3


def test_files_go_once_the_model_has_their_changes(tmp_path):
    journal = Journal(tmp_path)
    journal.append([learn(1)])
    journal.append([learn(2)])
    journal.rotate()
    journal.append([learn(3)])
    journal.remove(1)
    assert len(list(tmp_path.glob("journal-*"))) == 2
    journal.remove(2)
    assert [c.sequence for c in read(tmp_path, after=2)] == [3]
    journal.remove(3)  # still written to
    assert len(list(tmp_path.glob("journal-*"))) == 1


def test_a_failed_write_leaves_nothing_behind(tmp_path, monkeypatch):
    journal = Journal(tmp_path)
    journal.append([learn(1)])
    calls = []

    def full(descriptor):
        calls.append(descriptor)
        if len(calls) == 1:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(JournalError, match="No space left"):
        journal.append([learn(2)])
    monkeypatch.undo()
    assert journal.last == 1
    journal.append([learn(2, 5)])
    journal.close()
    assert [len(c.labels) for c in read(tmp_path)] == [3, 5]
