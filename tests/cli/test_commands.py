"""The commands as a user types them: what they print, where, and how they end."""

from __future__ import annotations

import csv
import io
import json
import re
import shutil

import numpy as np
import pytest

from klda.learner import Learner


def folder_content(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name != ".lock"}


# ------------------------------------------------------------------------------- learn


def test_learn_makes_a_model_and_then_adds_to_it(cli, rows, tmp_path):
    model = tmp_path / "m"
    first = cli.json(
        "learn", rows("one", "ab"), "--model", model, "--components", 300, "--gamma", 0.02
    )
    assert first["new_classes"] == ["a", "b"]
    assert first["learned"] == first["samples"] == 50
    second = cli.json("learn", rows("two", "bc"), rows("three", "d"), "--model", model)
    assert second["new_classes"] == ["c", "d"]
    assert second["learned"] == 75
    assert second["samples"] == 125
    learner = Learner.load(model)
    assert learner.classes == {"a": 25, "b": 50, "c": 25, "d": 25}
    assert learner.parameters.n_components == 300
    assert [entry["source"] for entry in learner.history] == ["one.npz", "two.npz, three.npz"]


@pytest.mark.parametrize("pieces", [7, 77])
def test_learning_a_file_in_pieces_gives_the_same_answers(cli, tmp_path, pieces):
    rng = np.random.default_rng(0)
    labels = np.array([f"class {i % 7}" for i in range(770)])
    inputs = (rng.normal(size=(7, 16))[np.arange(770) % 7] + rng.normal(size=(770, 16))).astype(
        "f4"
    )
    questions = tmp_path / "questions.npy"
    np.save(questions, rng.normal(size=(200, 16)).astype(np.float32))
    options = ("--components", 300, "--gamma", 0.02)
    np.savez(tmp_path / "all.npz", features=inputs, labels=labels)
    cli("learn", tmp_path / "all.npz", "--model", tmp_path / "whole", *options)
    for i, part in enumerate(np.array_split(rng.permutation(770), pieces)):
        np.savez(tmp_path / "part.npz", features=inputs[part], labels=labels[part])
        first = options if i == 0 else ()
        cli("learn", tmp_path / "part.npz", "--model", tmp_path / "parts", *first)
    answers = [
        [line.split(",")[1] for line in cli("predict", questions, "--model", m).stdout.splitlines()]
        for m in (tmp_path / "whole", tmp_path / "parts")
    ]
    assert len(answers[0]) == 201
    assert answers[0] == answers[1]


@pytest.mark.parametrize(
    "options, kind",
    [
        (("--classifier", "lda", "--ridge", 0.1), "LDA"),
        (("--seed", 3, "--components", 64), "KLDA"),
    ],
)
def test_a_new_model_takes_the_settings_given(cli, rows, tmp_path, options, kind):
    cli("learn", rows("one", "ab"), "--model", tmp_path / "m", *options)
    assert (cli.json("show", "--model", tmp_path / "m")["parameters"]["n_components"] is None) == (
        kind == "LDA"
    )


def test_settings_of_an_existing_model_cannot_change(cli, rows, make):
    model = make("m", "ab")
    before = folder_content(model)
    result = cli("learn", rows("two", "c"), "--model", model, "--components", 500, code=1)
    assert "--components was fixed" in result.stderr
    assert folder_content(model) == before


# ------------------------------------------------------------------------------- predict


def read_csv(text):
    return list(csv.DictReader(io.StringIO(text)))


def test_predict_texts_in_every_format(cli, bot, tmp_path):
    question = "I want to hear a song"
    base = ("predict", "--model", bot / "model", "--text", question, "--top-k", 2)
    (row,) = read_csv(cli(*base).stdout)
    assert (row["text"], row["label"]) == (question, "play_music")
    assert float(row["probability"]) > float(row["probability_2"])
    entry = json.loads(cli(*base, "--format", "jsonl").stdout)
    assert entry["label"] == entry["top"][0]["label"] == "play_music"
    assert len(entry["top"]) == 2
    table = cli(*base, "--format", "table").stdout
    assert "play_music" in table
    output = tmp_path / "answers.csv"
    result = cli(*base, "--output", output)
    assert result.stdout == ""
    assert read_csv(output.read_text())[0]["label"] == "play_music"


def test_predict_reads_standard_input(cli, bot):
    result = cli("predict", "--model", bot / "model", stdin="how much money have I got\n\npizza!\n")
    assert [row["label"] for row in read_csv(result.stdout)] == ["check_balance", "order_pizza"]
    dash = cli("predict", "-", "--model", bot / "model", stdin="pizza!\n")
    assert read_csv(dash.stdout)[0]["label"] == "order_pizza"


def test_predict_features_gives_row_numbers(cli, make, rows):
    model = make("m", "ab")
    found = read_csv(cli("predict", rows("q", "ba", count=2), "--model", model).stdout)
    assert [row["row"] for row in found] == ["1", "2", "3", "4"]
    assert [row["label"] for row in found] == ["b", "b", "a", "a"]


def test_a_failed_predict_leaves_no_half_written_file(cli, bot, tmp_path):
    path = tmp_path / "q.csv"
    path.write_text("text,id\nfine,1\n ,2\n")
    output = tmp_path / "answers.csv"
    output.write_text("old")
    result = cli("predict", path, "--model", bot / "model", "--output", output, code=1)
    assert "line 3: the text is empty" in result.stderr
    assert output.read_text() == "old"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["answers.csv", "q.csv"]


# ------------------------------------------------------------------------------- evaluate


def test_evaluate(cli, bot):
    found = cli.json("evaluate", bot / "test.csv", "--model", bot / "model")
    assert 0.9 < found["accuracy"] <= 1
    assert found["samples"] == 32
    assert {each["label"] for each in found["classes"]} >= {"play_music", "order_pizza"}
    text = cli("evaluate", bot / "test.csv", "--model", bot / "model").stdout
    assert re.search(r"Accuracy \d+\.\d+%", text)
    assert "play_music" in text


def test_evaluate_draws_the_confusion(cli, make, rows, tmp_path):
    from PIL import Image

    model = make("m", "abc")
    picture = tmp_path / "deep" / "confusion.png"
    cli("evaluate", rows("t", "abc", seed=5), "--model", model, "--confusion", picture)
    with Image.open(picture) as image:
        assert min(image.size) > 300
        # A correct picture has a dark diagonal: it is not one colour.
        assert len(np.unique(np.asarray(image.convert("L")))) > 20
    wrong = cli("evaluate", rows("t", "abc"), "--model", model, "--confusion", "a.txt", code=1)
    assert ".png" in wrong.stderr


# ------------------------------------------------------------------------------- forget, merge


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
    assert "use --allow-same" in said
    assert not (tmp_path / "all").exists()
    assert cli.json(*given, "--allow-same")["samples"] == 100 + extra


# ------------------------------------------------------------------------------- show, models


def test_show(cli, make):
    model = make("m", "ab")
    text = cli("show", "--model", model, "--verify").stdout
    for word in ("features", "KLDA", "2 classes from 50 samples", "learn", "m-rows.npz"):
        assert word in text
    assert cli.json("show", "--model", model)["classes"] == {"a": 25, "b": 25}


def test_models_lists_what_is_here(cli):
    listed = {entry["name"]: entry for entry in cli.json("models")}
    assert listed["minilm"]["offline"]
    assert {"bart-base", "t5-3b", "mistral-7b", "dinov2-small"} <= set(listed)
    assert "minilm" in cli("models").stdout


def test_integer_classes_taught_in_python_work_on_the_command_line(cli, rows, tmp_path):
    inputs = np.random.default_rng(0).normal(size=(20, 16)).astype(np.float32)

    model = tmp_path / "m"
    Learner("features").learn(inputs, [1, 2] * 10).save(model)
    np.savez(tmp_path / "r.npz", features=inputs[:4], labels=np.array([1, 2, 1, 2]))
    cli("learn", tmp_path / "r.npz", "--model", model)
    assert cli.json("evaluate", tmp_path / "r.npz", "--model", model)["samples"] == 4
    cli("forget", "--model", model, 2)
    assert Learner.load(model).classes == {1: 12}
    assert "not an integer" in cli("learn", rows("x", "a"), "--model", model, code=1).stderr


# ------------------------------------------------------------------------------- bad input


BAD_FILES = {
    "a file that does not exist": ("nothing.csv", None, "no such file"),
    "an empty file": ("a.csv", b"", "is empty"),
    "no such column": ("a.csv", b"foo,bar,baz\n1,2,3\n", "columns are: foo, bar, baz"),
    "an empty text": ("a.csv", b"text,label\n,x\n", "line 2: the text is empty"),
    "an empty label": ("a.csv", b"text,label\nx,\n", "line 2: the label is empty"),
    "not UTF-8": ("a.csv", b"text,label\nx,y\n\xff,y\n", "line 3: not UTF-8"),
    "a broken row": ("a.csv", b"text,label\nx,y\nx\n", "line 3: broken row"),
}


@pytest.mark.parametrize("case", BAD_FILES)
def test_a_bad_file_is_an_error_and_the_model_stays(cli, bot, tmp_path, case):
    name, content, message = BAD_FILES[case]
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    before = folder_content(bot / "model")
    for command in ("learn", "evaluate"):
        result = cli(command, path, "--model", bot / "model", code=1)
        assert message in result.stderr
        assert result.stdout == ""
    assert folder_content(bot / "model") == before
    cli("learn", path, "--model", tmp_path / "new", code=1)
    assert not (tmp_path / "new").exists()


def test_an_image_that_cannot_be_decoded_is_named(cli, tmp_path, tiny_dinov2):
    from PIL import Image

    for label in ("cats", "dogs"):
        (tmp_path / "photos" / label).mkdir(parents=True)
        Image.new("RGB", (32, 32), "red").save(tmp_path / "photos" / label / "1.png")
    learn = ("learn", tmp_path / "photos", "--model", tmp_path / "m", "--components", 50)
    assert "--foundation is needed for images" in cli(*learn, code=1).stderr
    (tmp_path / "photos" / "dogs" / "broken.jpg").write_bytes(b"no image")
    result = cli(*learn, "--foundation", tiny_dinov2, code=1)
    assert "broken.jpg" in result.stderr
    assert not (tmp_path / "m").exists()
    (tmp_path / "photos" / "dogs" / "broken.jpg").unlink()
    cli(*learn, "--foundation", tiny_dinov2)
    found = read_csv(cli("predict", tmp_path / "photos", "--model", tmp_path / "m").stdout)
    assert {row["image"].split("/")[-1] for row in found} == {"1.png"}


@pytest.mark.parametrize("command", ["predict", "evaluate", "show", "forget"])
def test_a_missing_model_is_named_and_not_made(cli, rows, tmp_path, command):
    arguments = {
        "predict": ("predict", rows("q", "a")),
        "evaluate": ("evaluate", rows("q", "a")),
        "show": ("show",),
        "forget": ("forget", "a"),
    }[command]
    result = cli(*arguments, "--model", tmp_path / "gone", code=1)
    assert "There is no model folder" in result.stderr
    assert not (tmp_path / "gone").exists()


def test_a_truncated_model_is_an_error(cli, make, rows):
    model = make("m", "ab")
    (weights,) = model.glob("small-*")
    weights.write_bytes(weights.read_bytes()[:100])
    for command in (("predict", rows("q", "a")), ("learn", rows("q", "a"))):
        assert "truncated" in cli(*command, "--model", model, code=1).stderr


def test_features_of_another_length_are_an_error(cli, make, tmp_path):
    model = make("m", "ab")
    np.savez(tmp_path / "r.npz", features=np.ones((2, 5)), labels=np.array(["a", "b"]))
    assert "5 features" in cli("learn", tmp_path / "r.npz", "--model", model, code=1).stderr


@pytest.mark.parametrize(
    "words",
    [
        ("predict", "--text", "a"),
        ("predict", "x.csv", "--text", "a", "--model", "m"),
        ("predict", "--top-k", "0", "--text", "a", "--model", "m"),
        ("predict", "--format", "xml", "--text", "a", "--model", "m"),
        ("learn", "--model", "m"),
        ("merge", "one", "--output", "two"),
        ("fly",),
    ],
)
def test_wrong_usage_ends_with_2(cli, words):
    cli(*words, code=2)


def test_help_reads_like_a_manual(cli):
    text = cli("--help").stdout
    for command in ("learn", "forget", "merge", "predict", "evaluate", "show", "models"):
        assert command in text
        own = cli(command, "--help").stdout
        assert len(own.splitlines()) > 5
    assert "Exit codes" in text
    assert cli("--version").stdout.startswith("klda 0")
