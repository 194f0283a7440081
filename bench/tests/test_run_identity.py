from __future__ import annotations

import json
from pathlib import Path

import pytest

from klda_bench.methods.registry import registry
from klda_bench.results import PROGRAM, Results, key_of
from klda_bench.runs import grid
from klda_bench.runs.grid import walk
from klda_bench.shots.draws import Arena, ShotsPlan
from klda_bench.shots.tasks import MADE
from toy_grid import plan, write_features

RESULTS = Path(__file__).resolve().parents[2] / "results" / "bench" / "results.jsonl"
SHOTS = RESULTS.parents[1] / "shots"


def test_a_changed_program_runs_our_default_again_and_no_other(tmp_path, monkeypatch):
    folder, store = write_features(tmp_path / "blobs"), Results(tmp_path / "results.jsonl")
    small = {"klda-default": {"n_components": 60}}
    asked = plan(folder, "klda-default,lda", seeds=1, options=small)
    assert set(walk(asked, store).status) == {"done"}
    assert set(walk(asked, store).status) == {"found"}
    monkeypatch.setattr(grid, "PROGRAM", "another")
    runs = walk(asked, store)
    assert dict(zip(runs.method, runs.status, strict=True)) == {
        "klda-default": "done",
        "lda": "found",
    }


def test_the_options_of_a_fine_tuned_method_hold_its_defaults():
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    options = registry()["joint"].options(given={"epochs": 30})
    assert options["epochs"] == 30
    assert (options["head_lr"], options["max_length"]) == (1e-3, 128)
    assert not {"device", "seed", "progress"} & set(options)


@pytest.mark.skipif(not RESULTS.exists(), reason="the results are not part of an installation")
def test_published_fine_tuned_runs_are_found_by_their_settings():
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    published = [
        record
        for record in Results(RESULTS).latest().values()
        if registry()[record["settings"]["method"]].needs == "inputs"
    ]
    assert len(published) >= 22
    known = registry()
    for record in published:
        settings = record["settings"]
        spec = known[settings["method"]]
        given = {"epochs", "max_length", "batch_size"} & set(settings["options"])
        asked = {name: settings["options"][name] for name in given}
        options = spec.options(settings["backbone"], given=asked)
        again = json.loads(json.dumps(settings | {"options": options}))
        assert key_of(again) == record["key"], settings


@pytest.mark.skipif(not SHOTS.exists(), reason="the results are not part of an installation")
def test_recorded_runs_of_ours_are_those_of_this_program():
    recorded = [
        row
        for row in Results.of(SHOTS).latest().values()
        if row["what"] == "made" and row["method"] == "ours" and row["program"] == PROGRAM
    ]
    assert recorded
    arenas = {name: Arena(name, ShotsPlan("made", ["ours"], [name], [5], 1)) for name in MADE}
    for row in recorded:
        if row["shots"] != "all":
            run = arenas[row["dataset"]].run("ours", row["shots"], row["draw"])
            assert key_of(run.settings) == row["key"]
            again = run.make()
            # A different order of additions moves a few answers across a boundary.
            assert abs(again["accuracy"] - row["accuracy"]) < 0.5, row
