"""A folder that the service of klda 0.1.0 wrote: changes folded, and more in its journal files."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from klda.learner import Learner
from klda.server.journal import JournalError

from .conftest import fails
from .test_service import Running

COUNTS = {"ants": 10, "cats": 6, "eels": 5}


def rows(centre, n):
    rng = np.random.default_rng([0, abs(centre)])
    return (centre + rng.normal(size=(n, 4))).astype(np.float32)


@pytest.fixture
def old(tmp_path):
    return Path(shutil.copytree(Path(__file__).parent / "service-0.1.0", tmp_path / "old"))


@pytest.mark.parametrize("folds", [False, True])
def test_changes_keys_and_undo_of_an_old_service_are_honoured(old, folds):
    running = Running(old, fold_interval=0.0 if folds else 1e9, undo_seconds=1e12)
    assert running.counts == COUNTS
    assert running.service.snapshot.version == 6
    assert not list(old.glob("journal-*.klda"))
    running.abandon()
    with Running(old, undo_seconds=1e12) as again:
        assert again.counts == COUNTS
        assert again.learn(rows(8, 6), ["dogs"] * 6, "key-folded", {"n": 1}).repeated
        assert again.learn(rows(-8, 5), ["eels"] * 5, "key-journal", {"n": 2}).repeated
        assert [(t.correct, t.wrong, t.new_rows) for t in again.tallies()] == [(0, 0, 6), (0, 0, 5)]
        assert again.forgotten() == {2: {"bees": 12}, 3: {"cats": 12}}
        with fails(409, match="rename it first"):
            again.undo(3)
        again.undo(2)
        assert again.counts == {**COUNTS, "bees": 12}
        assert again.ask(rows(4, 1))[0].top[0][0] == "bees"
    assert Learner.load(old).classes == {**COUNTS, "bees": 12}


def test_a_kill_in_the_middle_of_the_migration_doubles_nothing(old, tmp_path):
    (file,) = old.glob("journal-*.klda")
    shutil.copy(file, tmp_path)
    Running(old, fold_interval=1e9).abandon()
    shutil.copy(tmp_path / file.name, file)  # as if it had not been removed
    with Running(old) as again:
        assert again.counts == COUNTS


@pytest.mark.parametrize("cut", [1, 10, 100])
def test_an_incomplete_last_frame_was_never_acknowledged(old, cut):
    (file,) = old.glob("journal-*.klda")
    file.write_bytes(file.read_bytes()[:-cut])
    with Running(old) as running:
        assert running.counts == {**COUNTS, "ants": 12}


def test_damage_with_changes_after_it_is_an_error(old):
    (file,) = old.glob("journal-*.klda")
    content = bytearray(file.read_bytes())
    content[30] ^= 0xFF
    file.write_bytes(content)
    with pytest.raises(JournalError, match="damaged at byte 0"):
        Running(old)


def test_a_save_by_someone_else_before_the_first_start_loses_nothing(old):
    learner = Learner.load(old)
    learner.learn(rows(20, 3), ["flies"] * 3)
    learner.save(old)
    with Running(old, undo_seconds=1e12) as again:
        assert again.counts == {**COUNTS, "flies": 3}
        assert again.learn(rows(8, 6), ["dogs"] * 6, "key-folded", {"n": 1}).repeated
        assert again.forgotten() == {2: {"bees": 12}, 3: {"cats": 12}}
