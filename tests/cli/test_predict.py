"""``klda predict``: answers in every format, unknown inputs, explanations."""

from __future__ import annotations

import json

import numpy as np
import pytest

from klda import Learner
from tests.cli.conftest import LABELS, read_csv, words


@pytest.fixture
def questions(rows, tmp_path):
    """Fresh rows of the known classes, then of two that are not known."""
    known = np.load(rows("known", LABELS, seed=7))["features"]
    strange = np.load(rows("strange", "yz", seed=7))["features"]
    path = tmp_path / "questions.npy"
    np.save(path, np.concatenate([known, strange]))
    return path


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


def test_an_output_that_can_not_be_a_file_is_named(cli, make, rows, tmp_path):
    words = ("predict", rows("q", "ab"), "--model", make("m", "ab"), "--output")
    (tmp_path / "folder").mkdir()
    assert "folder is a folder: name a file" in cli(*words, tmp_path / "folder", code=1).stderr
    message = cli(*words, tmp_path / "none" / "a.csv", code=1).stderr
    assert "a.csv can't be written" in message
    assert ".part" not in message


def test_the_file_that_predict_writes_is_named(cli, make, rows, tmp_path):
    given = ("predict", rows("q", "ab"), "--model", make("m", "ab"), "--output")
    assert cli(*given, tmp_path / "a.csv").stderr == f"Wrote {tmp_path}/a.csv.\n"
    assert cli(*given, tmp_path / "a.csv").stderr == f"Replaced {tmp_path}/a.csv.\n"


def test_reject_answers_unknown_for_what_is_not_known(cli, model, questions):
    answers = read_csv(cli("predict", questions, "--model", model, "--reject", "auto").stdout)
    labels = np.array([row["label"] for row in answers])
    assert (labels[:150] == "unknown").mean() < 0.15
    assert (labels[150:] == "unknown").mean() > 0.9
    told = {(row["label"] == "unknown", row["known"], row["probability"] != "") for row in answers}
    assert told == {(True, "false", False), (False, "true", True)}


def test_a_class_called_unknown_is_told_from_a_refusal(cli, model, questions):
    Learner.load(model).rename("a", "unknown").save(model)
    asked = ("predict", questions, "--model", model, "--top-k", 2)
    table = read_csv(cli(*asked, "--reject", "auto").stdout)
    lines = cli(*asked, "--reject", "auto", "--format", "jsonl").stdout.splitlines()
    found = [json.loads(line) for line in lines]
    assert [row["known"] == "true" for row in table] == [one["known"] for one in found]
    assert {one["known"] for one in found if one["label"] == "unknown"} == {True, False}
    assert all(one["known"] == (one["probability"] is not None) for one in found)


def test_the_fraction_of_refused_inputs_may_be_chosen(cli, model, questions):
    def refused(*options):
        lines = cli("predict", questions, "--model", model, "--format", "jsonl", *options).stdout
        found = [json.loads(line) for line in lines.splitlines()]
        assert all((one["probability"] is None) == (one["label"] == "unknown") for one in found)
        return sum(one["label"] == "unknown" for one in found[:150])

    assert refused() == 0
    assert refused("--reject", 0.01) <= refused("--reject", "auto") < refused("--reject", 0.4)
    wrong = cli("predict", questions, "--model", model, "--reject", 0, code=1)
    assert "--reject=0.0" in wrong.stderr
    wrong = cli("predict", questions, "--model", model, "--reject", "few", code=2)
    assert "give auto, or a fraction" in words(wrong)


def test_the_share_of_refused_inputs_counts_where_answers_are_explained(cli, make, rows):
    asked = ("predict", rows("ask", "a", count=1), "--model", make("m", "abc"))
    limits = [
        cli(*asked, "--explain", "--format", "jsonl", "--reject", share).output
        for share in (0.01, 0.5)
    ]
    assert limits[0] != limits[1]


def test_explain_for_people(cli, bot):
    shown = cli(
        *("predict", "--model", bot / "model", "--explain"),
        *("--text", "play some jazz", "--text", "do fish sleep at night"),
    ).stdout
    first, second = shown.split("do fish sleep")
    assert "play_music, sure" in first
    assert "nearest classes" in first
    assert "new to me; the closest class is" in second
    assert "%" not in second.split("nearest classes")[1]
    assert "nearest samples" not in shown  # this model keeps none


def test_explain_for_programs_agrees_with_python(cli, model, questions):
    lines = cli("predict", questions, "--model", model, "--explain", "--format", "jsonl").stdout
    found = [json.loads(line) for line in lines.splitlines()]
    learner = Learner.load(model)
    expected = learner.explain(np.load(questions)[4], top=3, samples=3)
    assert found[4].pop("input") == 5
    assert found[4]["label"] == expected.label
    assert found[4]["samples"] == expected.to_dict()["samples"]
    assert found[4]["novelty"] == pytest.approx(expected.novelty, rel=1e-3)
    assert {one["known"] for one in found} == {True, False}


def test_explain_is_no_table_of_comma_separated_values(cli, model, questions):
    wrong = cli("predict", questions, "--model", model, "--explain", "--format", "csv", code=2)
    assert "jsonl" in wrong.stderr


@pytest.mark.parametrize(
    ("arguments", "message", "code"),
    [
        (["new.csv", "--output", "out.pdf"], "--output out.pdf: give a name that ends in .csv", 1),
        (["new.csv", "--output", "out.csv.gz"], "out.csv.gz: give a name that ends in .csv", 1),
        (["--text", " "], "--text is empty", 2),
    ],
)
def test_what_can_not_be_written_or_asked_is_said_before_the_work(
    cli, bot, arguments, message, code, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "new.csv").write_text("text\nwhat is my balance\n")
    said = words(cli("predict", *arguments, "--model", bot / "model", code=code))
    assert message in said
    assert [path.name for path in tmp_path.iterdir()] == ["new.csv"]


@pytest.mark.parametrize("command", ["learn", "predict"])
def test_a_model_in_the_place_of_a_file_is_recognised(cli, bot, command, monkeypatch):
    monkeypatch.setenv("COLUMNS", "300")
    said = words(cli(command, bot / "model", code=2))
    assert "is a model: name it with --model" in said
