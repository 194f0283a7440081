"""What docs/howto says about stored samples and about options holds; test_docs runs its code."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import numpy as np
import pytest

from klda import KLDA, Learner
from klda.storage import folder

pytestmark = pytest.mark.slow

HOWTO = Path(__file__).resolve().parents[2] / "docs" / "howto"
PAGES = ("unknown-inputs.md", "forget.md", "check-classes.md")
TEXT = "\n".join((HOWTO / name).read_text(encoding="utf-8") for name in PAGES)


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
