from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from klda_bench.cli import app

pytest.importorskip("torch")


def measure(output, *options):
    words = ["speed", "--quick", "--device", "cpu", *options, "--output", str(output)]
    answer = CliRunner().invoke(app, words)
    assert answer.exit_code == 0, answer.output
    return [json.loads(line) for line in output.read_text().splitlines()], answer.stdout


def test_quick_run_measures_every_program_and_writes_rows(tmp_path):
    rows, shown = measure(tmp_path / "speed.jsonl")
    programs = {row["program"]: row for row in rows if "program" in row}
    assert len(programs) == 4
    assert all(row["learn_seconds"] > 0 for row in programs.values())
    assert all("D = 400" in row["what"] for row in programs.values())
    ours = [row for row in rows if row.get("program", "").startswith("klda")]
    assert len(ours) == 3
    assert all(row["over_floor"] > 0 for row in ours)
    taught = [row for row in rows if "labels_seconds" in row]
    assert [row["samples"] for row in taught] == [100, 180, 220]
    assert [row["labels_over_220"] for row in taught][2] == 1  # the first beyond D / 2
    # The authors' form answers in a loop over samples: slower by far on any machine.
    authors, default = programs["authors' form"], programs["klda, default"]
    assert authors["predict_microseconds"] > 5 * default["predict_microseconds"]
    assert "authors' form" in shown
