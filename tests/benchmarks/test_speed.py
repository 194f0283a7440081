from __future__ import annotations

import json

import pytest

from klda.benchmarks import speed

pytest.importorskip("torch")


def test_quick_run_measures_every_program_and_writes_json(tmp_path, capsys):
    output = tmp_path / "speed.json"
    speed.main(
        [
            "--quick",
            "--n-components",
            "300",
            "--members",
            "2",
            "--device",
            "cpu",
            "--output",
            str(output),
        ]
    )
    result = json.loads(output.read_text())
    assert result["sizes"]["n_components"] == 300
    names = {row["name"] for row in result["rows"]}
    assert len(names) == 5
    assert all(row["learn"] > 0 for row in result["rows"])
    ours = [row for row in result["rows"] if row["name"].startswith("klda")]
    assert len(ours) == 3
    assert all(row["over_floor"] > 0 for row in ours)
    assert result["peak_memory_beyond_data"] > 0
    # The authors' form takes a singular value decomposition and a loop over samples: it is slower
    # by far on any machine, however noisy.
    ratios = result["ratios"]
    assert ratios["predicting, authors' form over ours, as many members"] > 5
    assert ratios["learning, authors' form over ours, as many members"] > 1
    assert "authors' form" in capsys.readouterr().out
