"""A killed service with damaged files, or too little memory: it refuses, or it has everything.

Each trial teaches a real service, kills it, breaks something, starts it, mends what was broken and
starts it again. KLDA_TRIALS=200 makes that many, each from its own seed.
"""

from __future__ import annotations

import os
import random
import shutil
import sys
from contextlib import contextmanager, suppress
from pathlib import Path
from subprocess import TimeoutExpired

import httpx
import pytest

from klda.errors import KldaError
from klda.server.client import Client
from klda.server.errors import ServerError
from klda.server.journal import JournalError
from klda.storage.folder import DOCUMENT, JOURNAL
from tests.factories import ServiceProcess

from .conftest import CENTRES, Running, samples
from .test_start import taught

TRIALS = int(os.environ.get("KLDA_TRIALS", "4"))

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="kills and limits as Linux does")


@contextmanager
def serving(folder, *options):
    server = ServiceProcess(folder, *options)
    try:
        server.wait()
        with Client(server.address) as client:
            yield client
    finally:
        server.kill()


def teach(client, chance):
    """Make some changes; return one with its key, to be sent again."""
    taught = []
    for i in range(chance.randint(2, 7)):
        label, n = f"new{chance.randint(0, 3)}", chance.randint(1, 4)
        known = list(client.classes)
        kind = chance.choice(["learn"] * 3 + ["forget", "rename", "remove", "tune", "undo"])
        if kind == "forget" and len(known) > 2:
            client.forget(chance.choice(known))
        elif kind == "rename":
            client.rename(chance.choice(known), f"renamed{i}")
        elif kind == "remove" and taught:
            rows, labels = chance.choice(taught)
            with suppress(ServerError):  # it was forgotten or renamed
                client.forget(labels[:1], rows[:1])
        elif kind == "tune":
            client.tune_unknown(*[samples(known[0], 30, seed=i) + shift for shift in (0, 2)])
        elif kind == "undo":
            with suppress(KldaError):  # there may be nothing
                client.undo()
        else:
            rows = samples(label, n, seed=i)
            client.learn(rows, [label] * n)
            taught.append((rows, [label] * n))
    body = {"features": samples("last", 2).tolist(), "labels": ["last"] * 2}

    def learn_last(client):
        return client._call("POST", "/v1/learn", body, **{"Idempotency-Key": "last"})

    learn_last(client)
    return lambda again: learn_last(again)["repeated"]


def asked(client):
    """Return the questions whose answers say what a model has learned."""
    probes = [row for label in (*CENTRES, "new1", "last") for row in samples(label, 3, seed=9)]
    return [
        lambda: client.classes,
        lambda: client.info["version"],
        lambda: list(client.predict(probes)),
    ]


def state(client):
    return [ask() for ask in asked(client)]


def check_answers(server, expected, memory):
    """A service that started reports a problem, or answers rightly.

    One that is short of memory may fail to answer, each question for itself, and logs why.
    """
    failed = None
    with Client(server.address) as client:
        for ask, right in zip(asked(client), expected, strict=True):
            try:
                if client._http.get("/v1/health").status_code == 503:
                    return
                assert ask() == right, server.log()
            except (ServerError, httpx.TransportError) as error:
                failed = error
    if failed is not None:
        assert memory, (failed, server.log())
        assert getattr(failed, "code", "unreachable") in ("memory", "unreachable"), failed
        check_shortage(server)


def check_shortage(server):
    """A service that got no memory calls nothing damaged; if it still runs, its log says why."""
    with suppress(TimeoutExpired):  # its connections end before it does
        server.process.wait(0 if "emory" in server.log() else 20)
    log = server.log()
    assert "damaged" not in log
    assert server.process.poll() is not None or "emory" in log, log


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


def change_journal(folder, other, chance):
    """Another model's journal."""
    shutil.copy(other / JOURNAL, folder / JOURNAL)


def break_journal(folder, other, chance):
    damage(folder / JOURNAL, chance)


def test_no_damage_to_a_journal_loses_a_change(features_model, tmp_path):
    """In this process, ten times as many as the trials."""
    expected = taught(features_model)
    for seed in range(10 * TRIALS):
        chance, folder = random.Random(seed), tmp_path / f"damaged{seed}"
        shutil.copytree(features_model, folder)
        damage(folder / JOURNAL, chance)
        try:
            running = Running(folder)
        except JournalError:
            continue
        counts = running.counts
        running.abandon()
        assert counts == expected, seed


FAULTS = {"model": break_model, "journal": break_journal, "other": change_journal, "memory": None}


@pytest.fixture(scope="module")
def others(large_origin, tmp_path_factory):
    """A model that grew out of the same one, as a kill left it."""
    folder = Path(shutil.copytree(large_origin, tmp_path_factory.mktemp("other") / "model"))
    with serving(folder, "--checkpoint-interval", "3600") as client:
        client.learn(samples("foreign", 5), ["foreign"] * 5)
    return folder


def check_refusal(server, memory):
    code, log = server.stop(), server.log()
    if memory:  # libraries may crash
        assert code != 0
        check_shortage(server)
        return
    assert code == 1
    assert "Error:" in log
    assert "Traceback" not in log
    assert "memory" not in log


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
    # No checkpoint, however slow this computer is: it would not fit what comes back below.
    server = ServiceProcess(folder, "--checkpoint-interval", "3600", memory=memory)
    try:
        if not server.starts():
            check_refusal(server, memory)
        else:
            check_answers(server, expected, memory)
    except TimeoutError:  # it runs, and no connection gets an answer
        assert memory
        check_shortage(server)
    finally:
        server.kill()
    if not memory:
        # What was broken comes back, and only that: a refused start has changed nothing else.
        for path, content in whole.items():
            if path.name.startswith(JOURNAL) is (kind != "model"):
                path.write_bytes(content)
    with serving(folder) as client:
        assert state(client) == expected
        assert was_repeated(client)
        assert client._call("GET", "/v1/refused") == {"refused": []}
