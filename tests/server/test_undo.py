"""Each kind of change is undone exactly: after others in between, and after a kill."""

from __future__ import annotations

import errno
import shutil
import sqlite3
import time
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from klda import Client, Learner
from klda.learner.draft import HISTORY_LENGTH
from klda.server.changes import Learn
from klda.server.update import replay
from klda.storage import folder as storage
from klda.storage.folder import JOURNAL
from klda.undo.log import KEPT_SECONDS
from tests.factories import ServiceProcess, examples

from .conftest import FIRST, Running, fails, listening, samples, serving

ROWS = np.concatenate([samples(label, 5, seed=9) for label in ("ants", "bees", "cats", "dogs")])
# Each makes one change; those of texts need names.
CHANGES = {
    "learn": lambda bot: bot.learn(samples("ants", 7, seed=1), ["ants"] * 7),
    "learn a class": lambda bot: bot.learn(samples("dogs", 7), ["dogs"] * 7),
    "remove": lambda bot: bot.forget(["bees"] * 3, samples("bees", 3)),
    "forget": lambda bot: bot.forget(["bees"]),
    "rename": lambda bot: bot.rename("ants", "emmets"),
    "merge": lambda bot: bot.rename("ants", "cats", merge=True),
    "tune": lambda bot: bot.tune(),
}
OTHERS = (
    lambda bot: bot.learn(samples("eels", 4), ["eels"] * 4),
    lambda bot: bot.learn(samples("cats", 2, seed=4), ["cats"] * 2),
)


def assert_is(running, before, *changes, tolerance=1e-4):
    """The model is what these changes make of the one before."""
    folder = Path(shutil.copytree(before, f"{before}-{time.monotonic()}"))
    with Running(folder) as other:
        for change in changes:
            change(other)
        expected, found = (one.service.snapshot.learner for one in (other, running))
        assert found.classes == expected.classes
        assert found.refusal == expected.refusal
        scores = expected.scores(ROWS)
        np.testing.assert_allclose(
            found.scores(ROWS), scores, atol=tolerance * np.abs(scores).max()
        )


@pytest.mark.parametrize("size", ["features_model", "large_model"])
@pytest.mark.parametrize("kind", CHANGES)
@pytest.mark.parametrize("killed", ["never", "before the undo", "after the undo"])
def test_a_model_is_as_if_it_never_had_the_change(request, tmp_path, kind, size, killed):
    folder = request.getfixturevalue(size)
    before = shutil.copytree(folder, tmp_path / "before")
    running = Running(folder, checkpoint_interval=1e9)
    made = CHANGES[kind](running)
    for change in OTHERS:
        change(running)
    if killed == "before the undo":
        running.abandon()
        running = Running(folder, checkpoint_interval=1e9)
    undone = running.undo(made.number)
    assert (undone.kind, undone.target) == ("undo", made.number)
    if killed == "after the undo":
        running.abandon()
        running = Running(folder)
    assert_is(running, before, *OTHERS)
    assert made.number not in [one.number for one in running.undoable()]
    with fails(404, match="undone already"):
        running.undo(made.number)
    running.__exit__()
    with Running(folder) as again:  # from the folder alone
        assert_is(again, before, *OTHERS)
        again.undo(undone.number)  # it is made again
        assert_is(again, before, CHANGES[kind], *OTHERS, tolerance=1e-3)


def test_without_a_number_the_latest_is_undone_and_then_the_one_before(features_model):
    with serving(features_model) as client:
        for label in ("dogs", "eels"):
            body = {"features": samples(label, 2).tolist(), "labels": [label] * 2}
            client.post("/v1/learn", json=body)
        for left in ({"dogs"}, set()):
            assert client.post("/v1/undo", json={}).status_code == 200
            found = client.get("/v1/classes").json()["classes"]
            assert {one["label"] for one in found} - {"ants", "bees", "cats"} == left
        assert client.post("/v1/undo", json={}).status_code == 404
        made = client.get("/v1/history").json()["changes"]
        assert [one["undoes"] for one in made] == [FIRST, FIRST + 1, None, None]
        assert [one["undoable"] for one in made] == [True, True, False, False]


def test_learns_that_were_made_together_are_undone_one_by_one(features_model):
    with Running(features_model) as running:
        hold = running.service.writer.read(lambda *_: time.sleep(0.5))
        changes = [Learn([label] * 3, samples(label, 3)) for label in ("dogs", "eels", "fish")]
        futures = [running.service.writer.submit(change) for change in changes]
        hold.result()
        made = [future.result(20) for future in futures]
        running.undo(made[1].number)
        assert {*running.counts} == {"ants", "bees", "cats", "dogs", "fish"}


def test_an_undo_that_was_acknowledged_is_replayed_however_late(features_model, monkeypatch):
    running = Running(features_model, checkpoint_interval=0.0)
    made = running.forget(["bees"])
    deadline = time.monotonic() + 20
    while running.service.writer.pending and time.monotonic() < deadline:
        time.sleep(0.02)
    running.service.writer._checkpoint = lambda **_: None
    running.undo(made.number)
    running.abandon()
    later = time.time() + 10 * KEPT_SECONDS
    monkeypatch.setattr(time, "time", lambda: later)
    with Running(features_model) as again:
        assert again.counts["bees"] == 40
        assert not again.undoable()
        assert again.read("refused") == []


def test_a_change_in_the_way_is_named_with_the_numbers_of_the_service(features_model):
    with Running(features_model) as running:
        learned = running.learn(samples("dogs", 3), ["dogs"] * 3)
        forgot = running.forget(["dogs"])
        with fails(409, match=f"Change {learned.number} .* by change {forgot.number}. Undo that"):
            running.undo(learned.number)
        assert "dogs" not in running.counts


def test_a_declared_class_is_taken_back(tmp_path):
    with Running(tmp_path / "new", new="ngrams") as running:
        running.declare({"refund": "money back", "card": None})
        other = running.declare({"pin": None, "card": "a plastic card"})
        running.learn(["where is my card?"], ["card"])
        running.undo(other.number)
        assert running.counts == {"card": 1, "refund": 0}
        declared = running.service.snapshot.learner.declared
        assert declared == {"refund": "money back", "card": None}


def full_disk(*_, **__):
    raise OSError(errno.ENOSPC, "No space left on device")


def undo_data(folder):
    """What the disk has for undo: in the model folder, and rows in the journal."""
    in_folder = [name for name in storage.load(folder).arrays if name.startswith("undo/")]
    with closing(sqlite3.connect(folder / JOURNAL)) as journal:
        ((in_journal,),) = journal.execute("SELECT count(*) FROM changes WHERE rows NOTNULL")
    return in_folder, in_journal


def test_undo_data_can_be_erased_from_the_disk(features_model):
    with listening(features_model, checkpoint_interval=1e9) as address, Client(address) as client:
        for label in ("dogs", "eels"):
            client.learn(samples(label, 3), [label] * 3)
        second = client.history[-1]["when"] - 0.001
        scores = client.predict_proba(ROWS)
        assert undo_data(features_model) != ([], 0)
        assert client.expire_undo(before=second)
        assert [one["undoable"] for one in client.history] == [False, True]
        assert client.expire_undo()
        assert undo_data(features_model) == ([], 0)
        assert not client.expire_undo()
        with fails(404):
            client.undo()
        np.testing.assert_array_equal(client.predict_proba(ROWS), scores)
    assert Learner.load(features_model).classes["eels"] == 3


def test_undo_data_that_stays_on_the_disk_is_reported(features_model, monkeypatch):
    with Running(features_model, checkpoint_interval=1e9) as running:
        running.learn(samples("dogs", 3), ["dogs"] * 3)
        with monkeypatch.context() as patch:
            patch.setattr(storage, "save", full_disk)
            with fails(503, match="still on the disk: the model folder could not be written"):
                running.expire_undo()
        assert not running.undoable()
        running.expire_undo()
        assert undo_data(features_model) == ([], 0)


def test_a_client_takes_back_what_it_did(features_model, monkeypatch):
    monkeypatch.setattr("klda.server.client.BATCH", 4)
    with listening(features_model) as address, Client(address) as client, Client(address) as other:
        client.learn(samples("dogs", 10), ["dogs"] * 10)  # in three requests
        other.learn(samples("eels", 2), ["eels"] * 2)
        client.rename("cats", "lions")
        client.undo().undo()
        assert client.classes == {"ants": 40, "bees": 40, "cats": 40, "eels": 2}
        client.undo(other.history[3]["change"])
        assert "eels" not in client.classes


@pytest.mark.slow
def test_an_undo_survives_a_real_kill(text_model):
    server = ServiceProcess(text_model, "--checkpoint-interval", "3600")
    try:
        server.wait()
        with Client(server.address) as client:
            before = client.classes
            some = [one.text for one in examples("learn")[:5]]
            client.learn(some, ["new"] * 5)
            client.declare({"another": None})
            client.undo(client.history[0]["change"])
            expected = client.classes
            assert expected == {**before, "another": 0}
    finally:
        server.kill()
    server = ServiceProcess(text_model)
    try:
        server.wait()
        with Client(server.address) as client:
            assert client.classes == expected
            client.undo(client.history[-1]["change"])
            assert client.classes == {**expected, "new": 5}
    finally:
        server.kill()


def test_more_changes_than_the_history_holds_are_replayed(features_model):
    learner = Learner.load(features_model)
    before, count = learner.classes["ants"], HISTORY_LENGTH + 100
    rows = samples("ants", count, seed=5)
    changes = [
        Learn(["ants"], rows[i : i + 1], number=learner.next_number + i) for i in range(count)
    ]
    assert list(replay(learner, changes)) == []
    assert learner.classes["ants"] == before + count
    assert learner.history[-1]["number"] == changes[-1].number
    assert learner.history[-1]["undoable"]
