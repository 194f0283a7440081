"""Changes that fail, threads and disks with problems, and what is left on disk."""

from __future__ import annotations

import asyncio
import logging
import resource
import shutil
import sqlite3
import threading
import time
from contextlib import closing, contextmanager
from dataclasses import replace

import pytest

from klda import KLDA
from klda.learner import Learner
from klda.server import api, schemas
from klda.server.changes import Forget, Key, Learn, Remove, Rename
from klda.server.journal import Bookmark, Journal
from klda.server.service import Service
from klda.server.settings import ServiceSettings
from klda.server.snapshot import Snapshot
from klda.storage import folder as storage
from klda.storage.folder import JOURNAL

from .conftest import (
    CENTRES,
    FIRST,
    Running,
    fails,
    journaled,
    keep_undo,
    samples,
    serving,
    wait_for,
)

KEY = Key("key", "digest")
ALL = dict.fromkeys(CENTRES, 40)


def at_once(running, *calls):
    """Make changes that the writer finds waiting together; return an outcome for each."""
    writer, begun, ready = running.service.writer, threading.Event(), threading.Event()
    held = writer.read(lambda *_: begun.set() or ready.wait(20))
    assert begun.wait(20)

    async def run():
        asked = [asyncio.ensure_future(call(running.service)) for call in calls]
        while writer.waiting < len(calls):
            await asyncio.sleep(0.01)
        ready.set()
        return await asyncio.gather(*asked, return_exceptions=True)

    outcomes = asyncio.run(run())
    held.result(20)
    return outcomes


def fails_on(monkeypatch, label):
    """Let the learner fail, half done, on every batch that has a label."""
    real = Learner.learn_rows

    def learn(self, rows, labels, **options):
        if label in labels:
            self.forget("ants")
            raise ArithmeticError(f"{label} on purpose")
        return real(self, rows, labels, **options)

    monkeypatch.setattr(Learner, "learn_rows", learn)


def test_what_fails_does_not_fail_the_changes_it_was_taken_with(features_model, monkeypatch):
    with Running(features_model) as running:
        fails_on(monkeypatch, "bad")
        good, bad, repeated, other = at_once(
            running,
            lambda s: s.learn(samples("dogs", 5), ["dogs"] * 5, KEY),
            lambda s: s.learn(samples("eels", 5), ["bad"] * 5),
            lambda s: s.learn(samples("dogs", 5), ["dogs"] * 5, KEY),
            lambda s: s.change(Rename("cats", "kittens")),
        )
        assert isinstance(bad, ArithmeticError)
        assert good.number == repeated.number
        assert repeated.repeated
        assert other.number
        expected = {"ants": 40, "bees": 40, "kittens": 40, "dogs": 5}
        assert running.counts == expected
    with Running(features_model) as again:
        assert again.counts == expected


def young_model(folder):
    """Save a model that holds its samples: 30 now, and up to 50."""
    learner = Learner("features", classifier=KLDA(n_components=100, random_state=0))
    for label in CENTRES:
        learner.learn(samples(label, 10), [label] * 10)
    learner.save(folder)


def test_a_forget_says_whether_it_left_a_trace_when_it_was_made(tmp_path):
    def forget(service, label, key=None):
        return api.forget(schemas.ForgetBody(labels=[label]), service, key)

    young_model(tmp_path / "m")
    running = Running(tmp_path / "m", checkpoint_interval=1e9)
    exact = asyncio.run(forget(running.service, "ants", KEY))
    learn = Learn(("dogs",) * 60, samples("dogs", 60))
    _, inexact = at_once(
        running,
        lambda s: asyncio.wrap_future(s.writer.submit(learn)),
        lambda s: forget(s, "bees"),
    )
    assert (exact["exact"], inexact["exact"]) == (True, False)
    assert asyncio.run(forget(running.service, "ants", KEY))["exact"]
    assert running.forget(["cats"], samples("cats", 10)[:1]).exact
    running.abandon()
    with Running(tmp_path / "m") as again:
        repeated = asyncio.run(forget(again.service, "ants", KEY))
        assert repeated == {**exact, "repeated": True, "samples": 69}


def test_an_undo_brings_back_no_labels_of_another_kind(features_model):
    with Running(features_model) as running:
        gone = running.forget(list(CENTRES))
        running.learn(samples("ants", 5), [7] * 5)
        with fails(409, match="'ants'"):
            running.undo(gone.number)
        assert running.counts == {7: 5}
        assert running.service.snapshot.version == FIRST + 1


def test_an_undo_does_not_mix_a_class_with_one_that_took_its_name(features_model):
    with Running(features_model) as running:
        gone = running.forget(["ants"])
        taken = running.rename("bees", "ants")
        told = f"Change {gone.number} can't .* by change {taken.number}. Undo that first"
        with fails(409, match=told):
            running.undo(gone.number)
    with Running(features_model) as running:  # also after a restart
        with fails(409, match="Undo that first"):
            running.undo(gone.number)
        running.undo(taken.number)
        running.undo(gone.number)
        assert running.counts == ALL


def test_an_undo_joins_what_was_taught_of_a_class_meanwhile(features_model):
    with Running(features_model) as running:
        gone = running.forget(["ants"])
        running.learn(samples("ants", 5, seed=3), ["ants"] * 5)
        running.undo(gone.number)
        assert running.counts == {**ALL, "ants": 45}


# ------------------------------------------------------------------ the journal at a start


def write(folder, *changes):
    """Let the journal have changes that the model folder does not have."""
    with closing(Journal(folder, Bookmark(FIRST - 1))) as journal:
        bookmark = journal.bookmark(FIRST - 1, is_open=True)
        with journal.transaction():
            for number, change in enumerate(changes, FIRST):
                journal.add(replace(change, number=number))
    storage.save_extras(folder, {"service": bookmark._asdict()})


def refused(folder):
    with closing(sqlite3.connect(folder / JOURNAL)) as journal:
        found = journal.execute("SELECT number FROM changes WHERE refused > ''")
        return [number for (number,) in found]


def test_a_change_that_cannot_be_replayed_is_kept_aside(features_model, caplog):
    write(
        features_model,
        Learn(("dogs",) * 5, samples("dogs", 5)),
        Rename("nobody", "x"),
        Learn(("eels",) * 5, samples("eels", 5)),
        Remove(("bees",) * 41, samples("bees", 41)),
        Forget(("cats",), when=5e9),
    )
    expected = {"ants": 40, "bees": 40, "dogs": 5, "eels": 5}
    with caplog.at_level(logging.ERROR, "klda.server"):
        running = Running(features_model)
    assert refused(features_model) == [FIRST + 1, FIRST + 3]
    said = [record for record in caplog.records if "change refused" in record.message]
    assert [record.change for record in said] == [FIRST + 1, FIRST + 3]
    assert running.counts == expected
    running.learn(samples("ants", 2), ["ants"] * 2)
    running.abandon()
    expected["ants"] = 42
    with Running(features_model) as again:  # not tried again
        assert again.counts == expected
        assert refused(features_model) == [FIRST + 1, FIRST + 3]


@pytest.mark.parametrize("error", [MemoryError, OSError, RuntimeError])
def test_a_change_is_not_kept_aside_for_a_machine_that_fails(features_model, monkeypatch, error):
    write(features_model, Learn(("dogs",) * 5, samples("dogs", 5)))

    def fail(self, *args, **options):
        raise error

    with monkeypatch.context() as patched:
        patched.setattr(Learner, "learn_rows", fail)
        with pytest.raises(error):
            Service(ServiceSettings(model=features_model))
    with Running(features_model) as again:
        assert again.counts == {**ALL, "dogs": 5}


def test_the_command_line_may_change_what_the_journal_renames(features_model):
    running = Running(features_model, checkpoint_interval=1e9)
    running.rename("bees", "wasps")
    running.rename("ants", "emmets")
    running.learn(samples("ants", 5, seed=1), ["emmets"] * 5)
    running.abandon()
    with pytest.warns(UserWarning, match="trace"):
        Learner.load(features_model).forget("ants").save(features_model)
    with Running(features_model) as again:
        assert again.counts == {"emmets": 5, "wasps": 40, "cats": 40}


def test_a_kill_before_the_journal_is_emptied_and_a_save_double_nothing(features_model, tmp_path):
    running = Running(features_model, checkpoint_interval=1e9)
    running.rename("bees", "wasps")
    running.learn(samples("dogs", 5), ["dogs"] * 5, KEY)
    running.abandon()
    shutil.copytree(features_model, tmp_path / "killed")
    with Running(features_model):
        pass  # saves
    for path in (tmp_path / "killed").glob(f"{JOURNAL}*"):
        shutil.copy(path, features_model)  # as if it had been killed after the save
    assert journaled(features_model) == [FIRST, FIRST + 1]
    Learner.load(features_model).learn(samples("eels", 4), ["eels"] * 4).save(features_model)
    with Running(features_model) as again:
        assert journaled(features_model) == []
        assert again.counts == {"ants": 40, "wasps": 40, "cats": 40, "dogs": 5, "eels": 4}
        assert again.learn(samples("dogs", 5), ["dogs"] * 5, KEY).repeated


@pytest.mark.parametrize("part", [(Learner, "pack"), (Journal, "saved")])
def test_a_save_that_fails_does_not_fail_the_change(features_model, monkeypatch, part):
    def fail(*_, **__):
        raise MemoryError

    with monkeypatch.context() as patched:
        patched.setattr(*part, fail)
        running = Running(features_model, checkpoint_interval=0.0)
        first = running.learn(samples("dogs", 5), ["dogs"] * 5)
        assert (first.number, running.counts) == (FIRST, {**ALL, "dogs": 5})
        wait_for(lambda: running.service.problems["folder"])
        assert "could not be written (not enough memory)" in running.service.problems["folder"]
        running.abandon()
    with Running(features_model) as again:
        assert again.counts == {**ALL, "dogs": 5}
    assert Learner.load(features_model).classes == {**ALL, "dogs": 5}


# ------------------------------------------------------------------ what was forgotten


@pytest.mark.parametrize("when", ["running", "stop", "start"])
def test_what_was_forgotten_leaves_the_disk_without_a_further_change(
    features_model, when, monkeypatch
):
    keep_undo(features_model, 1e9)
    with Running(features_model, checkpoint_interval=0.1) as running:
        running.forget(["bees"])
        wait_for(lambda: forgotten(features_model))
        kept = forgotten(features_model)
        if when != "start":
            state = running.service.snapshot.learner._state
            state.undo = replace(state.undo, seconds=0.0)
        if when == "running":
            wait_for(lambda: not forgotten(features_model))
            wait_for(lambda: not running.service.writer.pending)
    if when == "start":
        assert forgotten(features_model)
        later = time.time() + 2e9
        monkeypatch.setattr(time, "time", lambda: later)
        with Running(features_model):
            wait_for(lambda: not forgotten(features_model))
    assert not forgotten(features_model)
    for path in features_model.glob("*"):
        assert not any(part in path.read_bytes() for part in kept)
    assert "bees" not in Learner.load(features_model).classes


def forgotten(folder):
    """The end of what is stored of classes that were forgotten: numbers of theirs."""
    arrays, _ = Learner.load(folder).pack(solved=False)
    ends = [one.tobytes()[-200:] for name, one in arrays.items() if name.startswith("undo/")]
    return [end for end in ends if len(set(end)) > 50]  # zeros are everywhere


# ------------------------------------------------------------------ problems


def test_a_change_for_which_memory_is_short_changes_nothing(features_model, monkeypatch):
    with serving(features_model) as client:
        body = {"features": samples("dogs", 3).tolist(), "labels": ["dogs"] * 3}

        def full(learner, version):
            raise OSError(12, "Cannot allocate memory")

        with monkeypatch.context() as patched:
            patched.setattr(Snapshot, "of", full)
            refused = client.post("/v1/learn", json=body)
            assert (refused.status_code, refused.json()["error"]["code"]) == (503, "memory")
        assert client.get("/v1/model").json()["samples"] == 120
        assert client.post("/v1/learn", json=body).json()["samples"] == 123
    assert Learner.load(features_model).classes["dogs"] == 3


@contextmanager
def full_disk():
    """No file can grow beyond a few bytes: what a full disk does to SQLite."""
    unlimited = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, unlimited[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, unlimited)


def test_health_depends_on_the_disk_and_on_both_threads(features_model):
    with serving(features_model) as client:
        service = client.app.state.service
        body = {"features": samples("dogs", 3).tolist(), "labels": ["dogs"] * 3}
        assert client.post("/v1/learn", json=body).json()["samples"] == 123
        with full_disk():
            assert client.post("/v1/learn", json=body).status_code == 503
            health = client.get("/v1/health")
            assert health.status_code == 503
            assert "journal" in health.json()["error"]["message"]
            assert 'klda_healthy{part="journal"} 0.0' in client.get("/v1/metrics").text
            asked = client.post("/v1/predict", json={"features": samples("ants", 1).tolist()})
            assert asked.json()["version"] == FIRST
        wait_for(lambda: client.get("/v1/health").status_code == 200)  # with no further learn
        assert client.post("/v1/learn", json=body).json()["samples"] == 126
        service.batcher.stop()
        assert "answers" in client.get("/v1/health").json()["error"]["message"]
        service.writer.stop()
        assert "learns" in client.get("/v1/health").json()["error"]["message"]
        service.stop = lambda: None
