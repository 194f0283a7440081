from __future__ import annotations

import json
import zipfile

import numpy as np
import pytest
from typer.testing import CliRunner

from klda.errors import KldaError
from klda_bench.cli import app
from klda_bench.measure import scale
from klda_bench.measure.common import sample_blocks


def call(command, tmp_path):
    output = tmp_path / "lines.jsonl"
    words = ["scale", *command.split(), "--output", str(output)]
    return CliRunner().invoke(app, words), output


def run(command, tmp_path):
    answer, output = call(command, tmp_path)
    assert answer.exit_code == 0, answer.output
    lines = [json.loads(line) for line in output.read_text().splitlines()]
    assert all(
        {"what", "measure", "settings", "machine", "versions"} <= set(line) for line in lines
    )
    assert lines[0]["what"] in answer.stdout
    return lines


def test_classes_are_added_to_models_of_as_many_rows(tmp_path):
    sizes = "--known 10,40 --total 400 --rows 5 --features 8 --components 64 --repeats 2"
    lines = run(f"classes {sizes}", tmp_path)
    assert [line["rows_before"] for line in lines[:2]] == [400, 400]
    assert lines[2]["ratio"] == pytest.approx(lines[1]["add_seconds"] / lines[0]["add_seconds"])


def test_many_classes_are_answered_in_a_process_of_its_own(tmp_path):
    (line,) = run("many --classes 300 --few 2 --features 16 --components 128", tmp_path)
    assert line["classes"] == 300
    assert line["answered"] == 300
    assert line["peak_bytes"] >= line["idle_bytes"] > 0
    assert 0.5 < line["right_first"] <= line["right_in_5"] <= 1


@pytest.mark.parametrize("precision", ["", "--tf32"])
def test_a_device_is_compared_with_a_bare_product(precision, tmp_path):
    torch = pytest.importorskip("torch")
    before = torch.get_float32_matmul_precision()
    sizes = "--rows 600 --features 8 --classes 5 --components 64 --block 300 --side 64 --repeats 1"
    try:
        lines = run(f"device --device cpu {sizes} {precision}", tmp_path)
        assert torch.get_float32_matmul_precision() == ("high" if precision else "highest")
    finally:
        torch.set_float32_matmul_precision(before)
    assert lines[1]["precision"] == ("tf32" if precision else "float32")
    assert lines[1]["share_of_product"] == pytest.approx(lines[1]["flops"] / lines[0]["flops"])


def test_a_generated_file_holds_the_rows_it_says_and_learns(tmp_path):
    path = tmp_path / "rows.npz"
    run(f"generate {path} --rows 45000 --features 4 --classes 7", tmp_path)
    with np.load(path) as stored:
        blocks = list(sample_blocks(45_000, 4, 7))
        np.testing.assert_array_equal(stored["features"], np.concatenate([b[0] for b in blocks]))
        np.testing.assert_array_equal(stored["labels"], np.arange(45_000) % 7)
    assert zipfile.ZipFile(path).testzip() is None
    assert sorted(tmp_path.iterdir()) == [
        tmp_path / "lines.jsonl",
        tmp_path / "lines.jsonl.lock",
        path,
    ]


def test_what_cannot_be_measured_is_said(tmp_path):
    answer, _ = call("classes --known few", tmp_path)
    assert answer.exit_code == 1
    assert "--known few" in answer.stderr


def test_a_file_that_klda_learn_would_not_take_is_refused(tmp_path):
    with pytest.raises(KldaError, match=r"\.npz"):
        scale.write_features(tmp_path / "rows.csv", 10, 4, 2)
    with pytest.raises(KldaError, match="--rows"):
        scale.write_features(tmp_path / "rows.npz", 0, 4, 2)
    assert not list(tmp_path.iterdir())
