"""``klda merge``."""

from __future__ import annotations

import shutil
import threading

import pytest

from klda import Learner
from klda.storage import folder as storage


def test_merge(cli, make, tmp_path):
    parts = [make("north", "ab"), make("south", "bc"), make("west", "d")]
    found = cli.json("merge", *parts, "--output", tmp_path / "all")
    assert found["classes"] == 4
    assert Learner.load(tmp_path / "all").classes == {"a": 25, "b": 50, "c": 25, "d": 25}


def test_classes_that_look_alike_after_a_merge_are_pointed_out(cli, tmp_path):
    for name, label in (("north", "lost card"), ("south", "Lost_Card")):
        Learner("ngrams").learn([f"my card is lost {name}"], [label]).save(tmp_path / name)
    said = cli("merge", tmp_path / "north", tmp_path / "south", "--output", tmp_path / "all").stderr
    assert "'Lost_Card' is a new class. Did you mean 'lost card'?" in said


def test_merge_into_one_of_the_models_but_over_no_other(cli, make):
    north, south, other = make("north", "ab"), make("south", "bc"), make("other", "z")
    result = cli("merge", north, south, "--output", other, code=1)
    assert "would be lost" in result.stderr
    assert list(Learner.load(other).classes) == ["z"]
    cli("merge", north, south, "--output", south)
    assert list(Learner.load(south).classes) == ["a", "b", "c"]


@pytest.mark.parametrize("again", ["itself", "a copy", "a copy that knows more", "the same file"])
def test_models_that_share_samples_are_merged_only_if_asked_to(cli, make, rows, tmp_path, again):
    model, other, extra = make("m", "ab"), tmp_path / "other", 0
    if again == "itself":
        other = model
    elif again == "the same file":
        cli(
            "learn", tmp_path / "m-rows.npz", "--model", other, "--components", 300, "--gamma", 0.02
        )
    else:
        shutil.copytree(model, other)
    if again == "a copy that knows more":
        cli("learn", rows("more", "c"), "--model", other)
        extra = 25
    given = ("merge", model, other, "--output", tmp_path / "all")
    said = cli(*given, code=1).stderr
    assert "m-rows.npz, which would count twice" in said
    assert "(--allow-same)" in said
    assert not (tmp_path / "all").exists()
    assert cli.json(*given, "--allow-same")["samples"] == 100 + extra


def test_merge_waits_for_another_writer(cli, make):
    north, south = make("north", "ab"), make("south", "bc")
    held, done = threading.Event(), threading.Event()

    def write():
        with storage.writer_lock(south):
            held.set()
            done.wait(30)

    writer = threading.Thread(target=write)
    writer.start()
    held.wait(30)
    words = ("merge", north, south, "--output", south)
    assert "Another process" in cli(*words, code=1).stderr
    threading.Timer(0.3, done.set).start()
    cli(*words, "--wait", 30)
    writer.join()
    assert list(Learner.load(south).classes) == ["a", "b", "c"]
