from __future__ import annotations

import re

import pytest
from typer.testing import CliRunner

from klda.cli.bench import _options, app
from klda.errors import KldaError
from tests.benchmarks.test_suite import write_features

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
    assert re.search(r"LDA\s+│\s+\d\d\.\d\d ± 0\.00", first.stdout)
    assert first.stdout == second.stdout
    assert "4 runs made, 0 found" in first.stderr
    assert "0 runs made, 4 found" in second.stderr
    assert call("report", tmp_path / "out").exit_code == 0


@pytest.mark.data
def test_datasets_are_listed(data_dir, monkeypatch, tmp_path):
    monkeypatch.setenv("KLDA_CACHE", str(tmp_path))
    listed = call("datasets", "--data", data_dir)
    assert listed.exit_code == 0
    assert re.search(r"clinc\s+│ text\s+│\s+10,500 │\s+750 │\s+150 │\s+10 │ yes", listed.stdout)
    assert re.search(r"cars\s+│ image\s+│.*│ no", listed.stdout)


def test_methods_are_listed():
    listed = call("methods").stdout
    for name in ("klda-e", "ranpac", "fine-tuned"):
        assert name in listed


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--methods", "nothing"], "methods='nothing'"),
        (["--split", "mine"], "split='mine'"),
        (["--curve", "some"], "curve='some'"),
        (["--set", "klda"], "METHOD.NAME=VALUE"),
        (["--datasets", "nowhere"], "nowhere"),
        (["--data", "/no/such/folder"], "is not a folder"),
    ],
)
def test_errors_are_one_line_that_names_the_value(arguments, message):
    answer = call("table1", "--methods", "ncm", *arguments)
    assert answer.exit_code == 1
    assert message in answer.stderr
    assert "Traceback" not in answer.output


def test_settings_of_methods():
    found = _options(["joint.epochs=30", "klda.gamma=0.1", "l2p.mode=fast", "kd.x=None"])
    assert found == {
        "joint": {"epochs": 30},
        "klda": {"gamma": 0.1},
        "l2p": {"mode": "fast"},
        "kd": {"x": None},
    }
    with pytest.raises(KldaError):
        _options(["epochs=30"])
