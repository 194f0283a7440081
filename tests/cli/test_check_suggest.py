"""``klda check`` and ``klda suggest``."""

from __future__ import annotations

import io
import json

import pytest
from rich.console import Console

from klda import Learner
from klda.cli.console import table
from tests.cli.conftest import folder_content, read_csv
from tests.factories import examples

WRONG = (3, 40)  # rows whose labels are exchanged


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path, monkeypatch):
    """Where a command writes the rows that it skipped."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module")
def tickets(tmp_path_factory):
    """A file of texts with two wrong labels, a row twice, and an empty row."""
    path = tmp_path_factory.mktemp("tickets") / "tickets.csv"
    chosen = ("check_balance", "book_flight", "play_music", "order_pizza")
    rows = [[e.text, e.intent] for e in examples("learn") if e.intent in chosen]
    one, other = WRONG
    rows[one][1], rows[other][1] = rows[other][1], rows[one][1]
    lines = [f'{i},"{text}",{label}' for i, (text, label) in enumerate(rows, 100)]
    path.write_text("\n".join(["Nr,Text,Queue", *lines, lines[0], '999,"",play_music', ""]))
    return path


def test_check_finds_wrong_labels_and_duplicates(cli, tickets, tmp_path):
    shown = cli("check", tickets, "--skip-bad")
    found = read_csv(shown.stdout)
    assert list(found[0]) == ["row", "Nr", "Text", "Queue", "suggested", "confidence", "problem"]
    by_row = {int(one["row"]): one for one in found}
    for row in WRONG:
        assert by_row[row + 1]["Nr"] == str(100 + row)
        assert by_row[row + 1]["suggested"] != by_row[row + 1]["Queue"]
    assert by_row[65]["problem"] == "duplicate of row 1"
    assert "65 rows checked" in shown.stderr
    assert "1 row there twice" in shown.stderr
    output = tmp_path / "suspects.jsonl"
    cli("check", tickets, "--skip-bad", "--output", output)
    lines = list(map(json.loads, output.read_text().splitlines()))
    assert [one["row"] for one in lines] == [int(one["row"]) for one in found]


def test_check_with_a_model_leaves_it_alone(cli, tickets, bot):
    before = folder_content(bot / "model")
    found = cli.json("check", tickets, "--skip-bad", "--model", bot / "model")
    assert {one["row"] for one in found["suspects"]} >= {row + 1 for row in WRONG}
    assert found["rows"] == 65
    assert folder_content(bot / "model") == before
    assert Learner.load(bot / "model").samples == 64


def test_check_says_that_nothing_is_wrong(cli, tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("text,label\nwhere is my card,card\nhello there,greeting\n")
    shown = cli("check", path, "--foundation", "ngrams")
    assert "nothing looks wrong" in shown.stderr
    assert shown.stdout == ""


def test_all_columns_fit_a_terminal_of_80_columns():
    heads = ("row", "input", "label", "suggested", "prob.", "problem")
    cells = (1234, "a question " * 7, "a_long_label_" * 4, "another_label_" * 4, "98.8%", "label")
    shown = io.StringIO()
    Console(file=shown, width=80).print(table(*heads, rows=[cells]))
    first, second, *_ = shown.getvalue().splitlines()
    assert first.split() == list(heads)
    assert all(len(part) > 3 for part in second.split("  ") if part.strip())


@pytest.fixture
def unlabeled(tmp_path):
    """Texts of intents that the model of `bot` knows, and of one that it does not."""
    path = tmp_path / "unlabeled.csv"
    chosen = ("check_balance", "play_music", "refill_prescription")
    texts = [e.text for e in examples("test") if e.intent in chosen]
    path.write_text("\n".join(["id,message", *(f'{i},"{t}"' for i, t in enumerate(texts)), ""]))
    return path


def test_suggest_asks_for_what_is_new_first(cli, bot, unlabeled, tmp_path):
    shown = cli("suggest", unlabeled, "--model", bot / "model", "-n", 6)
    found = read_csv(shown.stdout)
    assert list(found[0]) == ["row", "id", "message", "guess", "probability", "known", "alike"]
    assert 3 <= len(found) <= 6
    new = {e.text for e in examples("test") if e.intent == "refill_prescription"}
    assert found[0]["message"] in new
    listed = cli.json("suggest", unlabeled, "--model", bot / "model", "-n", 6)
    assert [one["id"] for one in listed["suggestions"]] == [one["id"] for one in found]
    assert len(listed["suggestions"][0]["like"]) == int(found[0]["alike"])
    output = tmp_path / "to-label.tsv"
    cli("suggest", unlabeled, "-n", 3, "--output", output)
    assert output.read_text().startswith("row\tid\tmessage\tguess")
