from __future__ import annotations

import dataclasses
import json
import math

import numpy as np
import pytest

from klda.benchmarks import experiments, memory, paper
from klda.benchmarks.methods import select
from klda.benchmarks.metrics import Spread
from klda.benchmarks.report import write_report
from klda.benchmarks.results import ResultStore
from klda.benchmarks.suite import NOT_HERE, Cell, Plan, pack_bits, walk
from klda.benchmarks.tables import Entry, entry_of, pairs_against
from klda.errors import KldaError
from tests.benchmarks.test_suite import plan, write_features


def record(accuracy, correct=(1, 1, 0, 1)):
    bits = np.asarray(correct, dtype=bool)
    return {
        "metrics": {"final_accuracy": accuracy},
        "settings": {"subset": ""},
        "correct": pack_bits(bits),
        "rows_predicted": len(bits),
    }


def test_an_entry_shows_mean_spread_paper_and_difference():
    published = paper.Figure(90.0, "bart-base", "AAAI")
    cells = [Cell("m", "d", "k", seed, "done", record(91.0 + seed)) for seed in range(3)]
    entry = entry_of(cells, published)
    assert entry.ours == Spread(92.0, 1.0, 3)
    assert (entry.own_text, entry.paper_text) == ("92.00 ± 1.00", "90.0")
    assert entry.difference_text == "+2.0"


def test_an_entry_says_when_it_has_few_seeds():
    cells = [Cell("m", "d", "k", seed, "done", record(91.0 + seed)) for seed in range(2)]
    assert entry_of(cells[:1], None).own_text == "91.00 (1 seed)"
    assert entry_of(cells, None, seeds=3).own_text == "91.50 ± 0.71 (2 seeds)"
    assert entry_of(cells, None).own_text == "91.50 ± 0.71"


def test_an_entry_without_runs_shows_no_number():
    entry = entry_of([Cell("m", "d", "k", 0, "unavailable", None, "no model", NOT_HERE)], None)
    assert entry.ours is None
    assert entry.own_text == "not available offline"
    assert Entry().paper_text == "-"


def test_the_papers_figures_all_have_a_source_and_a_plausible_value():
    for figure in paper.FIGURES.values():
        assert figure.source in paper.SOURCES
        assert 50 < figure.value < 100
    assert paper.figure("clinc", "klda-e", "minilm").backbone == "bart-base"
    assert paper.figure("cifar10", "klda", "dinov2-base").value == 98.45  # without an ensemble
    assert paper.figure("cifar10", "klda-e", "dinov2-base") is None
    assert paper.figure("hwu", "klda", "minilm") is None


def test_paired_differences_are_over_the_same_rows():
    a, b = (1, 1, 0, 1), (1, 0, 0, 0)
    cells = [
        Cell("m", "d", "klda", 0, "done", record(75.0, a)),
        Cell("m", "d", "lda", 0, "done", record(25.0, b)),
    ]
    (pair,) = pairs_against(cells, "lda", ["lda", "klda"])
    assert (pair["method"], pair["difference"]) == ("klda", 50.0)
    assert pair["standard_error"] == pytest.approx(100 * np.std([0, 1, 0, 1], ddof=1) / 2, rel=1e-4)


# The paper counts, for BART-base features (d = 768) and D = 5000: RFF D(d + 1), means M D,
# covariance D^2, KLDA-E five times as much.
def test_memory_is_counted_as_the_paper_does():
    counts = {line.method: line for line in memory.count(768, 150)}
    assert counts["klda"].parameters == 5000 * 769 + 150 * 5000 + 5000**2
    assert counts["klda-e"].parameters == 5 * counts["klda"].parameters
    assert counts["lda"].parameters == 150 * 768 + 768**2
    assert counts["qda"].parameters == 150 * 768 + 150 * 768**2
    assert counts["klda"].bytes == 4 * counts["klda"].parameters


def test_table1_writes_its_files_and_the_report_needs_no_other(tmp_path):
    pytest.importorskip("matplotlib")
    folder, output = write_features(tmp_path / "blobs"), tmp_path / "out"
    grid = plan(folder, command="klda bench table1 <here>")
    product = experiments.table1(grid, output)
    assert product.n_run == 8
    names = {file.name for file in product.files}
    assert names == {
        *("table1.csv", "table1.json", "table1.png"),
        *("curves.csv", "curves.png", "pairs.json"),
    }
    for name in ("table1.png", "curves.png"):
        assert (output / name).read_bytes().startswith(b"\x89PNG")
    saved = json.loads((output / "table1.json").read_text())
    assert [row["name"] for row in saved["rows"]] == ["ncm", "lda", "klda", "klda-e"]
    mean = saved["rows"][1]["cells"]["blobs"]["ours"]["mean"]
    runs = [cell.record for cell in product.cells if cell.method == "lda"]
    assert mean == pytest.approx(np.mean([run["metrics"]["final_accuracy"] for run in runs]))

    pairs = json.loads((output / "pairs.json").read_text())
    assert {pair["base"] for pair in pairs} == {"lda"}
    assert [pair["method"] for pair in pairs] == ["ncm", "klda", "klda-e"]

    page = write_report(output).read_text(encoding="utf-8")
    assert page.count("data:image/png;base64,") == 2
    assert 'src="http' not in page
    assert "<link" not in page
    assert "klda bench table1 &lt;here&gt;" in page
    assert f"{mean:.2f}" in page


def test_table1_shows_what_earlier_calls_finished(tmp_path):
    pytest.importorskip("matplotlib")
    folder, output = write_features(tmp_path / "blobs"), tmp_path / "out"
    options = {"klda": {"n_components": 90, "gamma": 0.05}}
    experiments.table1(plan(folder, "lda,slda", options={}), output)
    experiments.table1(plan(folder, "lda", options={"lda": {"ridge": 0.5}}), output)
    product = experiments.table1(plan(folder, "klda", seeds=1, options=options), output)
    assert (product.n_run, product.n_found) == (1, 0)
    saved = json.loads((output / "table1.json").read_text())
    seeds = {row["name"]: row["cells"]["blobs"]["ours"]["n"] for row in saved["rows"]}
    assert seeds == {"lda": 2, "klda": 1, "slda": 2}
    pairs = json.loads((output / "pairs.json").read_text())
    assert [(pair["method"], pair["base"]) for pair in pairs] == [("klda", "lda"), ("slda", "lda")]
    assert ",lda," in (output / "curves.csv").read_text()
    other = experiments.table1(plan(folder, "ncm", options={}, tasks=2), output)
    assert other.tables[0].row_names == ["ncm"]


def test_the_row_of_a_method_asked_for_has_the_settings_asked_for(tmp_path):
    pytest.importorskip("matplotlib")
    folder, output = write_features(tmp_path / "blobs"), tmp_path / "out"
    experiments.table1(plan(folder, "lda", options={}), output)
    product = experiments.table1(
        plan(folder, "lda", seeds=1, options={"lda": {"ridge": 0.5}}), output
    )
    (table,) = product.tables
    assert table.entries["lda", "blobs"].ours.n == 1
    assert "LDA: ridge=0.5." in table.notes


def test_a_table_can_show_what_happens_while_learning(tmp_path):
    pytest.importorskip("matplotlib")
    folder, output = write_features(tmp_path / "blobs"), tmp_path / "out"
    grid = plan(folder, "ncm,lda", options={})
    experiments.table1(grid, output)
    product = experiments.table1(grid, output, metric="forgetting")
    values = [c.record["metrics"]["forgetting"] for c in product.cells if c.method == "lda"]
    entry = product.tables[0].entries["lda", "blobs"]
    assert entry.ours == Spread.of(values)
    saved = json.loads((output / "table1.json").read_text())
    assert saved["rows"][1]["cells"]["blobs"]["metrics"]["forgetting"] == entry.ours.to_json()
    assert "blobs_forgetting_std" in (output / "table1.csv").read_text().splitlines()[0]
    assert (output / "table1-forgetting.csv").exists()
    assert "average incremental accuracy" in write_report(output).read_text(encoding="utf-8")
    with pytest.raises(KldaError, match="metric='speed'"):
        experiments.table1(grid, output, metric="speed")


def test_the_papers_figures_stand_beside_the_papers_data_only(tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    folder = write_features(tmp_path / "clinc")
    product = experiments.table1(plan(folder, "lda", options={}), tmp_path / "out")
    assert product.tables[0].entries["lda", "clinc"].paper is None
    monkeypatch.setenv("KLDA_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("KLDA_DATA", raising=False)
    grid = Plan(select("lda"), ["clinc"], seeds=1, download=False)
    for changes, shown in (({}, True), ({"split": "official"}, False), ({"classes": 5}, False)):
        product = experiments.table1(dataclasses.replace(grid, **changes), tmp_path / "out2")
        assert (product.tables[0].entries["lda", "clinc"].paper is not None) is shown


def test_a_sweep_has_one_method(tmp_path):
    folder = write_features(tmp_path / "blobs")
    with pytest.raises(KldaError, match="klda, klda-e"):
        experiments.sweep(plan(folder, "klda,klda-e"), tmp_path / "out", "gamma", [0.1])


def test_a_sweep_has_one_line_a_value(tmp_path):
    pytest.importorskip("matplotlib")
    folder, output = write_features(tmp_path / "blobs"), tmp_path / "out"
    product = experiments.sweep(plan(folder, "klda"), output, "n_components", [40, 80])
    (table,) = product.tables
    assert table.row_names == ["40", "80"]
    assert all(entry.ours.n == 2 for entry in table.entries.values())
    assert (output / "figure-components.png").exists()
    saved = list(ResultStore(output / "results.jsonl").records())
    assert {line["settings"]["options"]["n_components"] for line in saved} == {40, 80}


def test_memory_and_runtime_come_from_the_runs(tmp_path):
    pytest.importorskip("matplotlib")
    folder, output = write_features(tmp_path / "blobs"), tmp_path / "out"
    grid = plan(folder, "lda,slda", seeds=1, options={})
    cells = walk(grid, experiments.store_in(output))
    lines = experiments.runtime_lines(cells)
    assert [line["method"] for line in lines] == ["lda", "slda"]
    assert all(line["learn_seconds"] >= 0 and line["peak_memory_mb"] > 0 for line in lines)
    experiments.write_runtime(lines, output)
    counts, files = experiments.memory_counts(output, "blobs", 6, 8)
    held = {line.method: line.held_bytes for line in counts}
    assert held["lda"] == cells[0].record["held_bytes"]
    assert held["klda"] is None
    other, _ = experiments.memory_counts(output, "blobs", 6, 8, "bart-base")
    assert all(line.held_bytes is None for line in other)
    assert all(file.exists() for file in files)
    assert not any(math.isnan(line.bytes) for line in counts)


def test_a_report_of_nothing_says_what_to_run(tmp_path):
    with pytest.raises(KldaError, match="klda bench table1"):
        write_report(tmp_path)
