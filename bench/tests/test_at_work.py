from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from klda.encoders import MODELS
from klda_bench.at_work import jobs, programs
from klda_bench.cli import app

NEEDS = {
    "lr": ["sentence_transformers"],
    "knn": ["sentence_transformers"],
    "setfit": ["setfit"],
    "adaptive": ["adaptive_classifier"],
    "model2vec": ["model2vec", "skeletoken", "datasets"],
    "river": ["river"],
}
WORDS = {"card": "my card is lost", "rain": "will it rain today", "song": "play a loud song"}


@pytest.fixture
def texts(tmp_path, monkeypatch):
    """A small set of texts in the place of CLINC, and a job on it in two tasks."""
    folder = tmp_path / "paper" / "clinc"
    folder.mkdir(parents=True)
    for part, endings in (("train", ("please", "now", "again", "dear")), ("test", ("thanks",))):
        rows = [f"{text} {end},{label}" for label, text in WORDS.items() for end in endings]
        (folder / f"{part}.csv").write_text("\n".join(["text,label", *rows]), encoding="utf-8")
    monkeypatch.setenv("KLDA_DATA", str(tmp_path))
    monkeypatch.setitem(jobs.JOBS, "tiny", jobs.Job("tiny", "clinc", "shots", 3, 2))
    return tmp_path


def available(name):
    if name not in ("river", "tf-idf") and not MODELS["minilm"].available_offline():
        pytest.skip("minilm is not installed")
    for package in NEEDS.get(name, ()):
        pytest.importorskip(package)


@pytest.mark.usefixtures("texts")
@pytest.mark.parametrize("name", programs.PROGRAMS)
def test_a_program_learns_new_classes_and_keeps_the_old_ones(name):
    available(name)
    first, last = jobs.work("tiny", name)
    assert (first["classes"], last["classes"]) == (2, 3)
    assert (first["samples"], last["samples"]) == (6, 9)
    assert last["accuracy"] > 60  # two of three
    assert last["learn_seconds"] >= first["learn_seconds"] > 0
    assert last["disk_bytes"] > 100
    assert last["peak_bytes"] > 10_000_000


def test_a_job_is_done_in_a_process_of_its_own_and_not_again(texts, monkeypatch):
    output = texts / "out"
    done = []

    def recorded(job, name, folder):
        done.append(name)
        step = {"classes": 2, "accuracy": 90.0, "learn_seconds": 1.0, "answer_ms": 2.0}
        return [step | {"disk_bytes": 3_000_000, "peak_bytes": 4_000_000}]

    monkeypatch.setattr(jobs, "done", recorded)
    arguments = ["peers-at-work", "--jobs", "tiny", "--programs", "klda,tf-idf"]
    for _ in range(2):
        answer = CliRunner().invoke(app, [*arguments, "--output", str(output)])
        assert answer.exit_code == 0, answer.output
    assert done == ["klda", "tf-idf"]
    rows = [json.loads(line) for line in (output / "results.jsonl").read_text().splitlines()]
    assert {row["program"] for row in rows} == {"klda", "tf-idf"}
    assert "| klda | 90.0 | 1.0 | 2.0 | 4 | 3.0 |" in (output / "at-work.md").read_text()


def test_what_is_not_there_is_named(texts):
    for option, value, words in (
        ("--jobs", "none", "--jobs none is not one of"),
        ("--programs", "x", "--programs x is not one of"),
    ):
        answer = CliRunner().invoke(app, ["peers-at-work", option, value, "--data", str(texts)])
        assert answer.exit_code == 1
        assert words in answer.stderr


def test_the_process_prints_one_line_after_each_task(texts):
    (texts / "paper" / "clinc").rename(texts / "paper" / "banking")
    (step,) = jobs.done("few", "tf-idf", str(texts))
    assert step["classes"] == 3
    assert step["accuracy"] > 60
