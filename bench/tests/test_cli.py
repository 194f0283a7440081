from __future__ import annotations

import re
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from klda.errors import KldaError
from klda_bench.cli import app
from klda_bench.cli.paper import method_options
from toy_grid import write_features

runner = CliRunner()


def call(*arguments):
    return runner.invoke(app, [str(argument) for argument in arguments])


def test_table1_prints_the_table_and_a_second_call_runs_nothing(tmp_path):
    pytest.importorskip("matplotlib")
    folder = write_features(tmp_path / "blobs")
    arguments = ("table1", "--methods", "ncm,lda", "--datasets", folder, "--seeds", 2)
    arguments = (*arguments, "--device", "cpu", "--output", tmp_path / "out")
    first, second = call(*arguments), call(*arguments)
    assert first.exit_code == second.exit_code == 0, first.output
    assert re.search(r"LDA\s+\d\d\.\d\d ± 0\.00", first.stdout)
    assert first.stdout == second.stdout
    assert "4 runs made, 0 found" in first.stderr
    assert "0 runs made, 4 found" in second.stderr
    assert call("paper", "--output", tmp_path / "out").exit_code == 0


@pytest.mark.usefixtures("small_clinc")
def test_a_cell_of_the_paper_is_run_again_from_nothing(tmp_path):
    pytest.importorskip("matplotlib")
    where = ("--seeds", 2, "--device", "cpu", "--output", tmp_path / "out")
    first = call("paper", "--cell", "lda/clinc/ngrams", *where)
    assert first.exit_code == 0, first.output
    assert not (tmp_path / "out").exists()  # what is run again is not recorded
    ridge = ("--set", "lda.ridge=0.5")
    call(
        "table1", "--methods", "lda", "--datasets", "clinc", "--backbone", "ngrams", *ridge, *where
    )
    again = call("paper", "--cell", "lda/clinc/ngrams", *where)
    assert "'ridge': 0.5" in again.stdout  # the settings of the recorded runs
    assert "2 runs made, 0 found" in again.stderr
    for seed in (0, 1):
        assert re.search(rf"(?m)^\s+{seed}\s+(\S+)\s+\1\s+0 *$", again.stdout)


@pytest.mark.usefixtures("small_clinc")
def test_the_paper_without_runs_or_with_an_unknown_cell_says_what_to_do(tmp_path):
    answer = call("paper", "--output", tmp_path / "out")
    assert answer.exit_code == 1
    assert "holds no results" in answer.stderr
    for cell, words in (("lda", "METHOD/DATASET"), ("nothing/clinc", "'nothing' is not one of")):
        answer = call("paper", "--cell", cell, "--output", tmp_path / "out")
        assert answer.exit_code == 1
        assert f"--cell {cell}" in answer.stderr
        assert words in answer.stderr.replace("\n", " ")


@pytest.mark.data
def test_datasets_are_listed(data_dir, monkeypatch, tmp_path):
    monkeypatch.setenv("KLDA_CACHE", str(tmp_path))
    listed = call("datasets", "--data", data_dir)
    assert listed.exit_code == 0
    assert re.search(r"clinc\s+text\s+10,500\s+750\s+150\s+10\s+yes", listed.stdout)
    assert re.search(r"cars\s+image\s.*\sno", listed.stdout)


def test_a_report_needs_no_torch():
    code = "import sys, klda_bench.cli; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_methods_are_listed():
    listed = call("methods").stdout
    for name in ("klda-e", "ranpac", "fine-tuned"):
        assert name in listed


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--methods", "nothing"], "--methods nothing"),
        (["--set", "klda"], "METHOD.NAME=VALUE"),
        (["--datasets", "nowhere"], "nowhere"),
        (["--data", "/no/such/folder"], "is not a folder"),
        (["--datasets", ""], "datasets is empty"),
        (["--backbone", ""], "backbone is empty"),
    ],
)
def test_errors_are_one_line_that_names_the_value(arguments, message):
    answer = call("table1", "--methods", "ncm", *arguments)
    assert answer.exit_code == 1
    assert message in answer.stderr
    assert "Traceback" not in answer.output


@pytest.mark.parametrize("command", ["table1", "shots", "quality"])
def test_every_data_set_is_looked_for_before_the_first_run(command, tmp_path):
    folder = write_features(tmp_path / "blobs")
    arguments = (command, "--datasets", f"{folder},nosuch", "--backbone", "ngrams")
    answer = call(*arguments, "--output", tmp_path / "out")
    assert answer.exit_code == 1
    assert isinstance(answer.exception, SystemExit)
    assert "nosuch is neither a folder nor one of clinc" in answer.stderr
    assert not (tmp_path / "out").exists()


def test_a_data_set_that_cannot_be_read_costs_no_other_its_row(tmp_path):
    pytest.importorskip("matplotlib")
    good, broken = (write_features(tmp_path / name) for name in ("good", "broken"))
    (broken / "test.npz").unlink()
    arguments = ("table1", "--methods", "lda", "--seeds", 1, "--datasets", f"{broken},{good}")
    answer = call(*arguments, "--device", "cpu", "--output", tmp_path / "out")
    assert answer.exit_code == 1
    assert re.search(r"LDA\s+failed\s+\d\d\.\d\d", answer.stdout)
    assert "1 of 2 runs failed" in answer.stderr
    assert "has no test file" in answer.stderr


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["start", "--repeats", 0], 2, "--repeats"),
        (["quality", "--seeds", 0], 2, "--seeds"),
        (["table1", "--tasks", 0], 2, "--tasks"),
        (["quality", "--shots", 0], 1, "--shots 0 must be whole numbers from 1 on"),
        (["quality", "--datasets", ""], 1, "datasets is empty"),
        (["figure-gamma", "--values", ""], 1, "values is empty"),
        (["peers-at-work", "--jobs", ""], 1, "jobs is empty"),
    ],
)
def test_a_measurement_of_nothing_is_an_error(arguments, status, message, tmp_path):
    data = ("--datasets", write_features(tmp_path / "blobs"))
    answer = call(*arguments[:1], *(data if arguments[0] == "quality" else ()), *arguments[1:])
    assert answer.exit_code == status
    assert isinstance(answer.exception, SystemExit)
    assert message in answer.stderr


def test_a_failed_run_is_in_the_table_and_in_the_status(tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")

    def broken(self, X, y):
        raise RuntimeError("out of luck")

    monkeypatch.setattr("klda_bench.methods.peers.relu_ridge.GACL.learn_task", broken)
    folder = write_features(tmp_path / "blobs")
    arguments = ("table1", "--methods", "gacl,lda", "--datasets", folder, "--seeds", 1)
    answer = call(*arguments, "--device", "cpu", "--output", tmp_path / "out")
    assert answer.exit_code == 1
    assert re.search(r"GACL / ACIL\s+failed", answer.stdout)
    assert re.search(r"LDA\s+\d\d\.\d\d", answer.stdout)
    assert "1 of 2 runs failed" in answer.stderr
    assert "RuntimeError: out of luck" in answer.stderr


def test_settings_of_methods():
    found = method_options(["joint.epochs=30", "klda.gamma=0.1", "l2p.mode=fast", "kd.x=None"])
    assert found == {
        "joint": {"epochs": 30},
        "klda": {"gamma": 0.1},
        "l2p": {"mode": "fast"},
        "kd": {"x": None},
    }
    with pytest.raises(KldaError):
        method_options(["epochs=30"])


OWN = """
import numpy as np


class Nearest:
    'Nearest class mean, scaled.'

    def __init__(self, scale=1.0):
        self.scale, self.means = scale, {}

    def learn_task(self, X, y):
        for label in np.unique(y):
            self.means[label] = self.scale * X[y == label].mean(axis=0)

    def predict(self, X):
        means = np.stack(list(self.means.values()))
        nearest = ((self.scale * X[:, None] - means) ** 2).sum(axis=2).argmin(axis=1)
        return np.array(list(self.means))[nearest]
"""


def test_a_method_of_your_own_is_a_row_like_any_other(tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    (tmp_path / "my_methods.py").write_text(OWN)
    monkeypatch.syspath_prepend(str(tmp_path))
    folder = write_features(tmp_path / "blobs")
    arguments = ("table1", "--methods", "ncm,my_methods:Nearest", "--datasets", folder)
    arguments = (*arguments, "--seeds", 1, "--device", "cpu", "--output", tmp_path / "out")
    answer = call(*arguments, "--set", "my_methods:Nearest.scale=2.0")
    assert answer.exit_code == 0, answer.output
    assert re.search(r"Nearest\s+\d\d\.\d\d", answer.stdout)
    assert "Nearest: scale=2.0." in answer.stdout
    # A report is often made later, by a process that has never imported the method.
    report = [sys.executable, "-m", "klda_bench", "paper", "--output", str(tmp_path / "out")]
    done = subprocess.run(report, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    page = (tmp_path / "out" / "report.md").read_text(encoding="utf-8").replace("**", "")
    assert len(re.findall(r"^\| Nearest \| \d", page, flags=re.MULTILINE)) == 1
    unknown = call("table1", "--methods", "my_methods:Furthest")
    assert unknown.exit_code == 1
    assert "--methods my_methods:Furthest can't be imported" in unknown.stderr
