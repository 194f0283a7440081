"""``klda forget``."""

from __future__ import annotations

import numpy as np
import pytest

from klda import Learner
from tests.cli.conftest import folder_content


@pytest.fixture
def write(tmp_path):
    """Write some rows of an .npz file to another."""

    def some(name, source, chosen):
        with np.load(source) as content:
            inputs, labels = content["features"][chosen], content["labels"][chosen]
        path = tmp_path / f"{name}.npz"
        np.savez(path, features=inputs, labels=labels)
        return path

    return some


@pytest.fixture
def refused(cli):
    """Run a forget that must be refused and leave the model as it was; return the message."""

    def run(model, *words, code=1):
        before = folder_content(model)
        message = cli("forget", "--model", model, *words, code=code).stderr
        assert folder_content(model) == before
        return message

    return run


def test_each_class_must_have_rows_in_the_file(refused, make, rows):
    model = make("m", "abc")
    message = refused(model, "a", "b", "--rows", rows("only", "a"))
    assert "only.npz has 0 rows of class 'b', and 25 were learned" in message
    assert "There is no class 'zebra'" in refused(model, "zebra", "--rows", rows("only", "a"))


@pytest.mark.parametrize("options", [(), ("--keep", "features"), ("--classifier", "lda")])
def test_a_part_of_a_class_is_forgotten_only_where_asked_for(
    cli, refused, make, rows, write, options
):
    if options and options[0] == "--classifier":
        model = rows("m-rows", "abc").parent / "m"
        cli("learn", model.parent / "m-rows.npz", "--model", model, *options)
    else:
        model = make("m", "abc", *options)
    part = write("part", model.parent / "m-rows.npz", np.arange(8))
    message = refused(model, "a", "--rows", part)
    assert "part.npz has 8 rows of class 'a', and 25 were learned" in message
    assert "--partly" in message
    found = cli.json("forget", "a", "--model", model, "--rows", part, "--partly")
    assert found["exact"]
    assert found["forgotten_classes"] == []
    assert found["left"] == {"a": 17}
    assert found["checked"] == ("--classifier" not in options)  # held, or in the ledger
    rest = write("rest", model.parent / "m-rows.npz", np.arange(8, 75))
    said = cli("forget", "b", "--model", model, "--rows", rest).stderr
    assert "as if it had never seen what was forgotten" in said
    assert "This assumes that" not in said
    assert Learner.load(model).classes == {"a": 17, "c": 25}
    entry = Learner.load(model).history[-1]
    assert (entry["action"], entry["samples"], entry["source"]) == ("forget", -25, "rest.npz")


def test_a_part_that_can_not_be_compared_is_said_to_be_unchecked(cli, make, rows, write):
    model = make("m", "abcdefgh")  # 200 samples, more than half of 300 components
    part = write("part", rows("again", "abcdefgh"), np.arange(4))
    said = cli("forget", "a", "--model", model, "--rows", part, "--partly").stderr
    assert "This assumes that the rows were learned" in said


@pytest.mark.parametrize("count", [25, 400], ids=["few rows", "many rows"])
@pytest.mark.parametrize("options", [(), ("--seed", 3), ("--keep", "features")])
def test_rows_that_were_never_learned_are_refused(
    cli, refused, rows, write, tmp_path, count, options
):
    learned = rows("learned", "abc", count=count)
    model = tmp_path / "m"
    cli("learn", learned, "--model", model, "--components", 300, "--gamma", 0.02, *options)
    reason = "These rows were not learned by this model as class 'a'"
    others = rows("others", "abc", count=count, seed=5)
    for words in (("a",), ("a", "--partly")):
        assert reason in refused(model, *words, "--rows", others)
    part = write("some", others, np.arange(count // 2))
    assert "These rows were not learned by this model as class 'a'" in refused(
        model, "a", "--rows", part, "--partly"
    )


def test_all_classes_can_not_be_forgotten(refused, make, rows):
    model = make("m", "ab")
    for words in (("a", "b"), ("a", "b", "--rows", rows("same", "ab"))):
        assert "delete the folder" in refused(model, *words)


def test_forget_takes_the_options_of_encoding(cli, bot, tmp_path):
    model = tmp_path / "m"
    cli("learn", bot / "learn.csv", "--model", model, "--components", 500)
    cli(
        *("forget", "play_music", "--model", model, "--rows", bot / "learn.csv"),
        *("--device", "cpu", "--batch-size", 8),
    )
    assert "play_music" not in Learner.load(model).classes


def test_single_samples_are_forgotten_by_their_numbers(cli, model):
    found = cli.json("forget", "--model", model, "--ids", "0,3", "--ids", "149")
    assert found["forgotten"] == 3
    assert found["exact"]
    learner = Learner.load(model)
    assert learner.classes["a"] == 23
    assert learner.classes["f"] == 24
    again = cli("forget", "--model", model, "--ids", "3", code=1)
    assert "3" in again.stderr


def test_ids_need_a_ledger_and_no_classes_beside(cli, make, rows, model):
    plain = make("plain", "abc")
    more = rows("more", "g")
    assert "--keep" in cli("learn", more, "--model", plain, "--keep", "x", code=1).stderr
    assert "ledger" in cli("forget", "--model", plain, "--ids", "1", code=1).stderr
    cli("forget", "a", "--model", model, "--ids", "1", code=2)
    cli("forget", "--model", model, code=2)


def test_without_a_ledger_the_trace_is_said_to_stay(cli, make):
    model = make("plain", "abc", "--components", 60)
    said = cli("forget", "a", "--model", model).stderr
    assert "A small statistical trace of them remains" in said
    assert "--rows" in said
    assert "--keep features" in said


@pytest.mark.parametrize("words", [("forget", "Refund"), ("rename", "Refund", "money back")])
def test_a_class_that_is_not_there_is_said_in_the_users_words(cli, make, words):
    said = cli(*words, "--model", make("m", ["refund", "card lost"]), code=1).stderr
    assert "There is no class 'Refund' in this model. Did you mean 'refund'?" in said


def test_forget_the_rows_of_a_file_without_naming_classes(cli, make, rows):
    model = make("m", "abc", "--keep", "features")
    more = rows("more", "cd", seed=9)
    before = Learner.load(model).classes
    cli("learn", more, "--model", model)
    found = cli.json("forget", "--rows", more, "--model", model)
    assert found["forgotten"] == 50
    assert found["exact"]
    assert Learner.load(model).classes == before
    again = cli("forget", "--rows", more, "--model", model, code=1).stderr
    assert "nothing was forgotten" in again
