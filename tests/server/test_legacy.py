"""A folder that the service of klda 0.1.0 wrote: changes folded, and more in its journal file."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from klda.learner import Learner
from klda.server.journal import JournalError

from .test_service import Running

FOLDED = {"ants": 12, "cats": 6}


@pytest.fixture
def old(tmp_path):
    return Path(shutil.copytree(Path(__file__).parent / "service-0.1.0", tmp_path / "old"))


def test_changes_that_were_not_folded_are_not_lost(old):
    before = {path.name: path.read_bytes() for path in old.iterdir()}
    with pytest.raises(JournalError, match=r"journal-\d+\.klda .* Start and stop klda serve"):
        Running(old)
    after = {path.name: path.read_bytes() for path in old.iterdir()}
    assert after.items() >= before.items()


def test_a_folder_that_was_stopped_cleanly_is_served(old):
    (file,) = old.glob("journal-*.klda")
    file.write_bytes(b"")  # left by a kill before its first change
    with Running(old) as running:
        assert running.counts == FOLDED
        running.rename("cats", "kittens")
    assert Learner.load(old).classes == {"ants": 12, "kittens": 6}
