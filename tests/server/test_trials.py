"""A killed service with damaged files, or too little memory: it refuses, or it has everything.

Each trial teaches a real service, kills it, breaks something, starts it, mends what was broken and
starts it again. KLDA_TRIALS=200 makes that many, each from its own seed.
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from klda.errors import KldaError
from klda.learner.folder import DOCUMENT, JOURNAL, LAST_CHANGE
from klda.server.client import Client
from klda.server.errors import ServerError
from klda.server.journal import JournalError
from klda.server.run import listen

from .conftest import CENTRES, Running, samples
from .test_start import taught

TRIALS = int(os.environ.get("KLDA_TRIALS", "4"))
SECONDS = 120.0
WAL = f"{JOURNAL}-wal"

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="kills and limits as Linux does")


class Process:
    """``klda serve``; with `memory`, in so many megabytes of address space."""

    def __init__(self, folder, *options, memory=None):
        with listen("127.0.0.1", 0) as probe:
            self.port = probe.getsockname()[1]
        self._log = folder.parent / "log"
        limit = f"ulimit -v {memory * 1024};" if memory else ""
        klda = "from klda.cli import main; main()"
        command = [sys.executable, "-c", klda, "serve", "--model", str(folder), "--quiet"]
        command += ["--port", str(self.port), *options]
        with self._log.open("wb") as stderr:
            self._process = subprocess.Popen(
                ["sh", "-c", f'{limit} exec "$0" "$@"', *command], stderr=stderr
            )
        self.client = Client(f"http://127.0.0.1:{self.port}")

    def starts(self):
        """Wait; return whether it serves: it may also have ended, with an error."""
        until = time.monotonic() + SECONDS
        while time.monotonic() < until:
            if self._process.poll() is not None:
                return False
            try:
                self.client._http.get("/v1/health", timeout=SECONDS)
                return True
            except self.client._lost:
                time.sleep(0.05)
        raise AssertionError(f"neither served nor ended: {self.log}")

    @property
    def log(self):
        return self._log.read_text(errors="replace")

    @property
    def code(self):
        return self._process.wait(SECONDS)

    def kill(self):
        self._process.kill()
        self._process.wait(SECONDS)
        self.client.close()


@contextmanager
def serving(folder, *options):
    process = Process(folder, *options)
    try:
        assert process.starts(), process.log
        yield process.client
    finally:
        process.kill()


def teach(client, chance):
    """Make some changes; return one with its key, to be sent again."""
    taught = []
    for i in range(chance.randint(2, 7)):
        label, n = f"new{chance.randint(0, 3)}", chance.randint(1, 4)
        known = list(client.classes)
        kind = chance.choice(["learn", "learn", "learn", "forget", "rename", "remove", "undo"])
        if kind == "forget" and len(known) > 2:
            client.forget(chance.choice(known))
        elif kind == "rename":
            client.rename(chance.choice(known), f"renamed{i}")
        elif kind == "remove" and taught:
            rows, labels = chance.choice(taught)
            with suppress(ServerError):  # it was forgotten or renamed
                client.forget(labels[:1], rows[:1])
        elif kind == "undo":
            with suppress(KldaError):  # there may be nothing
                client.undo()
        else:
            rows = samples(label, n, seed=i)
            client.learn(rows, [label] * n)
            taught.append((rows, [label] * n))
    key = {"Idempotency-Key": "last"}
    body = {"features": samples("last", 2).tolist(), "labels": ["last"] * 2}
    assert client._http.post("/v1/learn", json=body, headers=key).status_code == 200
    return lambda again: again._http.post("/v1/learn", json=body, headers=key).json()["repeated"]


def state(client):
    probes = [row for label in (*CENTRES, "new1", "last") for row in samples(label, 3, seed=9)]
    return client.classes, client.info["version"], list(client.predict(probes))


def reports_or_has(client, expected, memory):
    """Whether a service that started reports a problem, or has everything."""
    if client._http.get("/v1/health").status_code == 503:
        return True
    try:
        return state(client) == expected
    except ServerError as error:
        return memory is not None and error.code == "memory"


# ------------------------------------------------------------------ what is broken, and how


def damage(file, chance):
    """Change a file in one of several ways."""
    data = bytearray(file.read_bytes())
    at = chance.randrange(len(data)) if data else 0
    how = chance.choice(["deleted", "cut", "flipped", "overwritten"])
    if how == "deleted" or not data:
        file.unlink()
    elif how == "cut":
        os.truncate(file, at)
    elif how == "flipped":
        data[at] ^= 1 << chance.randrange(8)
        file.write_bytes(data)
    else:
        data[at : at + 4096] = chance.randbytes(len(data[at : at + 4096]))
        file.write_bytes(data)


def break_model(folder, other, chance):
    files = [*folder.glob("*.safetensors"), folder / DOCUMENT]
    largest = max(files, key=lambda file: file.stat().st_size)
    damage(chance.choice([largest, *files]), chance)


def break_journal(folder, other, chance):
    """Another model's journal, with or without what lies beside it."""
    names = chance.choice([(JOURNAL,), (JOURNAL, WAL), (JOURNAL, WAL, LAST_CHANGE)])
    for name in names:
        shutil.copy(other / name, folder / name)


def break_log(folder, other, chance):
    damage(folder / WAL, chance)


def test_no_damage_to_a_journal_loses_a_change(features_model, tmp_path):
    """In this process, ten times as many as the trials."""
    expected = taught(features_model)
    files = [JOURNAL, WAL, WAL, f"{JOURNAL}-shm", LAST_CHANGE]
    for seed in range(10 * TRIALS):
        chance, folder = random.Random(seed), tmp_path / f"damaged{seed}"
        shutil.copytree(features_model, folder)
        damage(folder / chance.choice(files), chance)
        try:
            running = Running(folder)
        except JournalError:
            continue
        counts = running.counts
        running.abandon()
        assert counts == expected, seed


FAULTS = {"model": break_model, "journal": break_journal, "log": break_log, "memory": None}


@pytest.fixture(scope="module")
def others(large_origin, tmp_path_factory):
    """A model that grew out of the same one, as a kill left it."""
    folder = Path(shutil.copytree(large_origin, tmp_path_factory.mktemp("other") / "model"))
    with serving(folder, "--checkpoint-interval", "3600") as client:
        client.learn(samples("foreign", 5), ["foreign"] * 5)
    return folder


def check_refusal(process, memory):
    if memory:  # libraries may crash; but nothing is called damaged
        assert process.code != 0
        assert "damaged" not in process.log
        return
    assert process.code == 1
    assert "Error:" in process.log
    assert "Traceback" not in process.log
    assert "memory" not in process.log


@pytest.mark.parametrize("seed", range(TRIALS))
def test_a_start_refuses_or_has_everything_and_once_mended_has_everything(
    large_origin, others, tmp_path, seed
):
    kind, chance = list(FAULTS)[seed % len(FAULTS)], random.Random(seed)
    folder = Path(shutil.copytree(large_origin, tmp_path / "model"))
    with serving(folder, "--checkpoint-interval", chance.choice(["0.3", "3600"])) as client:
        was_repeated = teach(client, chance)
        expected = state(client)
    whole = {path: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    memory = None
    if FAULTS[kind] is None:
        memory = chance.randint(350, 700)
    else:
        FAULTS[kind](folder, others, chance)
    process = Process(folder, memory=memory)
    try:
        if process.starts():
            assert reports_or_has(process.client, expected, memory), process.log
        else:
            check_refusal(process, memory)
    finally:
        process.kill()
    if not memory:
        # What was broken comes back, and only that: a refused start has changed nothing else.
        for path, content in whole.items():
            if kind == "model" and path.name.startswith(JOURNAL):
                continue
            if kind == "log" and path.name != WAL:
                continue
            path.write_bytes(content)
    with serving(folder) as client:
        assert state(client) == expected
        assert was_repeated(client)
        assert client._http.get("/v1/refused").json() == {"refused": []}
