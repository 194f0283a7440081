from __future__ import annotations

import math
import re

import numpy as np
import pytest

from klda.errors import KldaError
from klda_bench.methods.registry import registry, select
from klda_bench.paper import published, tables
from klda_bench.paper.accuracy_table import make_table, paired
from klda_bench.paper.report import write_report
from klda_bench.results import Results, key_of
from klda_bench.runs.grid import GridPlan, as_frame, pack_bits, with_record
from toy_grid import plan, write_features


def record(accuracy, correct=(1, 1, 0, 1)):
    bits = np.asarray(correct, dtype=bool)
    return {
        "metrics": {"final_accuracy": accuracy},
        "settings": {"data_sha256": "same"},
        "correct": pack_bits(bits),
        "rows_predicted": len(bits),
    }


def run(method, seed, accuracy, correct=(1, 1, 0, 1)):
    place = {"backbone": "m", "dataset": "d", "method": method, "seed": seed}
    return with_record(place, record(accuracy, correct))


def table(*accuracies, paper=None, **how):
    runs = as_frame(run("k", seed, accuracy) for seed, accuracy in enumerate(accuracies))
    theirs = {} if paper is None else {("k", "d"): {"paper": paper, "paper_text": "as printed"}}
    return make_table("", runs.assign(row="k"), {"k": "K"}, theirs, **how)


def report_of(folder):
    return write_report(folder).read_text(encoding="utf-8")


def cell_of(table, row, column):
    return table.cells.set_index(["row", "column"]).loc[(row, column)]


def test_a_cell_shows_mean_spread_paper_and_difference():
    cell = cell_of(table(91.0, 92.0, 93.0, paper=90.0), "k", "d")
    assert cell["mean"] == 92.0
    assert (cell["paper"], cell["paper_text"]) == (90.0, "as printed")
    assert cell["difference"] == 2.0
    assert cell.text == "92.00 ± 1.00"


def test_a_cell_without_runs_shows_no_number():
    run = {"backbone": "m", "dataset": "d", "method": "k", "seed": 0, "status": "unavailable"}
    runs = as_frame([run | {"reason": "no model"}])
    found = make_table("", runs.assign(row="k"), {"k": "K"})
    assert math.isnan(cell_of(found, "k", "d")["mean"])
    assert found.shown["d"].tolist() == ["unavailable"]
    assert found.notes == ["Missing: no model"]


def test_there_is_no_difference_between_figures_of_two_models():
    cell = cell_of(table(91.0, paper=90.0, same_model=False), "k", "d")
    assert cell["paper"] == 90.0
    assert math.isnan(cell["difference"])


def test_all_accuracies_of_the_papers_tables_are_here():
    assert len(published.FIGURES) == 11 * 4 + 10 * 4 + 4 * 4
    texts = {place: figure["paper_text"] for place, figure in published.FIGURES.items()}
    assert texts["bart-base", "klda-e", "hwu"] == "89.78 ± 0.09"
    assert texts["mistral-7b", "joint", "clinc"] == "97.60 ± 0.11"
    assert texts["dinov2-small", "klda", "cars"] == "81.94 ± 0.11"
    assert ("dinov2-base", "klda-e", "cifar10") not in published.FIGURES
    assert all(20 < figure["paper"] < 100 for figure in published.FIGURES.values())


def test_paired_differences_are_over_the_same_rows():
    a, b = (1, 1, 0, 1), (1, 0, 0, 0)
    runs = as_frame([run("klda", 0, 75.0, a), run("lda", 0, 25.0, b)])
    ((backbone, dataset, difference, error),) = paired(runs, "klda", "lda")
    assert (backbone, dataset, difference) == ("m", "d", 50.0)
    assert error == pytest.approx(100 * np.std([0, 1, 0, 1], ddof=1) / 2, rel=1e-4)


def test_runs_on_rows_in_another_order_are_not_compared():
    other = run("lda", 0, 25.0)
    other["record"]["settings"] |= {"data_sha256": "of another copy"}
    assert not [*paired(as_frame([run("klda", 0, 75.0), other]), "klda", "lda")]


def test_table1_draws_its_curves_and_the_report_shows_all_of_it(tmp_path):
    pytest.importorskip("matplotlib")
    folder, output = write_features(tmp_path / "blobs"), tmp_path / "out"
    product = tables.table1(plan(folder, curve=True, command="klda bench table1 <here>"), output)
    assert product.count("done") == 8
    assert product.files == [output / "curves.png"]
    assert product.files[0].read_bytes().startswith(b"\x89PNG")
    assert product.cells.row.tolist() == ["ncm", "lda", "klda", "klda-e"]
    mean = cell_of(product, "lda", "blobs")["mean"]
    records = product.runs.record[product.runs.method == "lda"]
    assert mean == pytest.approx(np.mean([run["metrics"]["final_accuracy"] for run in records]))
    text = report_of(output)
    assert "![Accuracy while learning](curves.png)" in text
    assert "klda bench table1 <here>" in text
    assert f"| LDA | {mean:.2f}" in text.replace("**", "")


def test_a_report_of_your_own_data_shows_all_of_it_and_nothing_of_the_paper(tmp_path):
    output = tmp_path / "out"
    for name in ("first", "second"):
        tables.models_table(plan(write_features(tmp_path / name), "lda,klda"), output, "t")
    text = report_of(output)
    assert "|  | first | second |" in text
    assert "Your data" in text
    assert "paper" not in text
    assert "klda-e" not in text


def finished(method, dataset, accuracy, **changes):
    """Return a row of a finished run on the paper's data and model, at the usual settings."""
    settings = {"split": "paper", "tasks": 10, "layers": "last", "seed": 0}
    settings |= {"data_sha256": "same"}
    options = registry()[method].options("paraphrase-minilm-l3")
    settings |= {"dataset": dataset, "method": method, "backbone": "paraphrase-minilm-l3"}
    settings |= {"options": options} | changes
    row = record(accuracy) | {"key": key_of(settings), "settings": settings}
    row |= {"finished": "2026-01-01", "command": "klda bench paper", "evaluate": "end"}
    row |= {"seconds": {"learn": 1.0}, "versions": {"klda": "1"}, "machine": {"cores": 2}}
    return row | {"seen_accuracy": [accuracy]}


def test_our_default_is_that_of_the_latest_program_at_its_own_settings(tmp_path):
    store = Results.of(tmp_path)
    store.append(finished("lda", "clinc", 90.0))
    store.append(finished("klda-default", "clinc", 51.0, program="one"))
    store.append(finished("klda-default", "clinc", 52.0, options={"ridge": 7.0}, program="one"))
    later = finished("klda-default", "clinc", 92.0, program="other") | {"finished": "2026-01-02"}
    store.append(later)
    text = report_of(tmp_path)
    assert "90.00" in text
    assert "92.00" in text
    assert "51.00" not in text
    assert "52.00" not in text


ROWS = 10_000
EVEN, ODD = np.arange(ROWS) % 2 == 0, np.arange(ROWS) % 2 == 1


def answered(method, dataset, correct, **changes):
    """Return a finished run with its answers, and the accuracy they have."""
    row = finished(method, dataset, 100 * float(np.mean(correct)), **changes)
    return row | {"correct": pack_bits(correct), "rows_predicted": len(correct)}


def test_a_report_on_the_papers_data_starts_with_what_holds(tmp_path):
    output = tmp_path / "out"
    store = Results.of(output)
    store.append(answered("klda-e", "clinc", np.arange(ROWS) < 0.945 * ROWS))
    store.append(answered("klda-e", "banking", EVEN))
    upper = np.arange(ROWS) < 0.96 * ROWS
    ours = {"layers": "auto"}
    store.append(answered("joint", "clinc", upper))
    store.append(answered("klda-default", "clinc", upper & (np.arange(ROWS) > 100), **ours))
    store.append(answered("joint", "hwu", EVEN))
    store.append(answered("klda-default", "hwu", ODD, **ours))
    text = report_of(output)
    lines = [line for line in text.partition("## Contents")[0].splitlines() if line[:2] == "- "]
    assert len(lines) < 12  # one screen
    assert any("1 of 2 within the error" in line and "Banking -41.73" in line for line in lines)
    said = {line.partition(". ")[0]: line for line in lines}
    assert "CLINC +1.79" in said["- Ahead of the paper's joint fine-tuning"]
    assert "CLINC -1.01" in said["- Behind our own joint fine-tuning"]
    assert "HWU +0.00" in said["- Level with our own joint fine-tuning"]
    assert any("Stanford Cars: their data were not available" in line for line in lines)
    assert "| KLDA-E | 94.50 (1 seed) | 94.53 ± 0.00 | -0.03 |" in text
    assert "Table 1: paper, ours, why" in text
    for figure in published.FIGURES.values():
        assert figure["paper_text"] in text


def test_bold_marks_the_best_method_and_nothing_else(tmp_path):
    store = Results.of(tmp_path)
    for method, accuracy in (("joint", 99.0), ("lda", 90.0), ("klda", 93.0)):
        store.append(finished(method, "clinc", accuracy))
    text = report_of(tmp_path)
    assert set(re.findall(r"\*\*(.*?)\*\*", text)) == {"93.00 (1 seed)"}


def test_a_report_shows_what_all_calls_finished_at_the_usual_settings(tmp_path):
    pytest.importorskip("matplotlib")
    folder, output = write_features(tmp_path / "blobs"), tmp_path / "out"
    usual = tables.table1(plan(folder, "lda,fecam", options={}), output)
    tables.table1(plan(folder, "lda", options={"lda": {"ridge": 0.5}}), output)
    product = tables.table1(plan(folder, "ncm", seeds=1, options={}), output)
    assert (product.count("done"), product.count("found")) == (1, 0)
    assert product.cells.row.tolist() == ["ncm"]
    text = report_of(output).replace("**", "")
    assert f"| LDA | {cell_of(usual, 'lda', 'blobs').text} |" in text
    assert "| NCM | " in text
    assert "| FeCAM | " in text


def test_the_row_of_a_method_asked_for_has_the_settings_asked_for(tmp_path):
    pytest.importorskip("matplotlib")
    folder, output = write_features(tmp_path / "blobs"), tmp_path / "out"
    tables.table1(plan(folder, "lda", options={}), output)
    product = tables.table1(plan(folder, "lda", seeds=1, options={"lda": {"ridge": 0.5}}), output)
    assert cell_of(product, "lda", "blobs").text.endswith("(1 seed)")
    assert "LDA: ridge=0.5." in product.notes


def test_the_papers_figures_stand_beside_the_papers_data_only(tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    folder = write_features(tmp_path / "clinc")
    product = tables.table1(plan(folder, "lda", options={}), tmp_path / "out")
    assert math.isnan(cell_of(product, "lda", "clinc")["paper"])
    monkeypatch.setenv("KLDA_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("KLDA_OFFLINE", "1")
    monkeypatch.delenv("KLDA_DATA", raising=False)
    monkeypatch.chdir(tmp_path)
    grid = GridPlan(select("lda"), ["clinc"], seeds=1)
    product = tables.table1(grid, tmp_path / "out2")
    assert cell_of(product, "lda", "clinc")["paper"] > 90


def test_a_sweep_has_one_method(tmp_path):
    folder = write_features(tmp_path / "blobs")
    with pytest.raises(KldaError, match="klda, klda-e"):
        tables.sweep(plan(folder, "klda,klda-e"), tmp_path / "out", "gamma", [0.1])


def test_a_sweep_has_one_line_a_value(tmp_path):
    pytest.importorskip("matplotlib")
    folder, output = write_features(tmp_path / "blobs"), tmp_path / "out"
    product = tables.sweep(plan(folder, "klda"), output, "n_components", [40, 80])
    assert product.cells.row.tolist() == ["40", "80"]
    assert (output / "figure-components.png").exists()
    saved = list(Results(output / "results.jsonl").rows())
    assert {line["settings"]["options"]["n_components"] for line in saved} == {40, 80}


def test_a_report_of_nothing_says_what_to_run(tmp_path):
    with pytest.raises(KldaError, match="klda bench table1"):
        write_report(tmp_path)
