"""``klda rename``."""

from __future__ import annotations

import pytest

from klda import Learner


def test_rename(cli, make, rows):
    model = make("m", "abc")
    said = cli("rename", "a", "new name", "--model", model)
    assert "Renamed a to new name" in said.stderr
    assert said.stdout == ""
    assert Learner.load(model).classes == {"b": 25, "c": 25, "new name": 25}
    answers = cli("predict", rows("q", "a", count=1), "--model", model).stdout
    assert "1,new name," in answers
    found = cli.json("rename", "b", "z", "--model", model)
    assert (found["old"], found["new"], found["samples"]) == ("b", "z", 25)


@pytest.mark.parametrize(
    "given, wrong", [(("zebra", "x"), "'zebra'"), (("a", "b"), "'b'"), (("a", " "), "empty")]
)
def test_a_rename_that_can_not_be_done_changes_nothing(cli, make, given, wrong):
    model = make("m", "ab")
    before = (model / "model.json").read_bytes()
    assert wrong in cli("rename", *given, "--model", model, code=1).stderr
    assert (model / "model.json").read_bytes() == before
    assert "There is no model folder" in cli("rename", "a", "b", "--model", "gone", code=1).stderr
