"""What a service does at its start with what it finds: it never goes on without a change."""

from __future__ import annotations

import os
import resource
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from klda import KLDA
from klda.learner import Learner
from klda.learner import folder as storage
from klda.learner.folder import JOURNAL, LAST_CHANGE, ModelFolderError
from klda.server.changes import Change, Key
from klda.server.journal import JournalError

from .conftest import Running, fails, journaled, listening, samples, serving, wait_for
from .test_writer import ALL, refused, write


def taught(folder, times=5):
    """Teach classes, all but the first in the journal alone; end as a kill does."""
    running = Running(folder, checkpoint_interval=1e9)
    for i in range(times):
        running.learn(samples(f"new{i}", 3), [f"new{i}"] * 3, Key(f"key{i}", "digest"))
    counts = running.counts
    for path in sorted(folder.glob("journal*")):  # as they are while it runs
        shutil.copy(path, path.with_name(f"{path.name}.copy"))
    running.abandon()
    for path in folder.glob("journal*.copy"):
        path.rename(path.with_name(path.name.removesuffix(".copy")))
    return counts


def content(folder, pattern="*"):
    return {path.name: path.read_bytes() for path in folder.glob(pattern) if path.is_file()}


def put_back(folder, files):
    for path in folder.glob("journal*"):
        path.unlink()
    for name, data in files.items():
        (folder / name).write_bytes(data)


def largest(folder):
    return max(folder.glob("*.safetensors"), key=lambda path: path.stat().st_size)


# ------------------------------------------------------------------ the model can't be read


def test_a_damaged_model_stops_the_start_and_costs_no_change(large_model):
    expected = taught(large_model)
    file = largest(large_model)
    whole = file.read_bytes()
    assert len(whole) > 1 << 20
    file.write_bytes(whole[:-4] + b"\0\0\xc0\x7f")  # not a number
    for _ in range(2):
        with pytest.raises(ModelFolderError, match=f"{file.name} is truncated or damaged"):
            Running(large_model)
        assert journaled(large_model) == [2, 3, 4, 5]
    file.write_bytes(whole)
    with Running(large_model) as again:
        assert again.counts == expected
        assert again.learn(samples("new0", 3), ["new0"] * 3, Key("key0", "digest")).repeated
    assert not refused(large_model)


def test_a_model_damaged_while_it_is_served_is_a_problem_and_refuses_no_change(
    large_model, monkeypatch
):
    monkeypatch.setattr("klda.server.writer.RETRY_SECONDS", 0.2)
    with serving(large_model, checkpoint_interval=1e9) as client:
        file = largest(large_model)
        whole = file.read_bytes()
        body = {"features": samples("dogs", 3).tolist(), "labels": ["dogs"] * 3}
        with file.open("r+b") as opened:  # in place: the service has mapped it, and not read it yet
            opened.seek(-4, os.SEEK_END)
            opened.write(b"\0\0\xc0\x7f")
        assert client.post("/v1/learn", json=body).status_code == 503
        assert client.get("/v1/health").status_code == 503
        with file.open("r+b") as opened:
            opened.write(whole)
        wait_for(lambda: client.get("/v1/health").status_code == 200)
        assert client.post("/v1/learn", json=body).json()["samples"] == 453


@pytest.mark.skipif(sys.platform != "linux", reason="limits its address space as Linux does")
def test_klda_serve_says_that_memory_is_short(large_model):
    code = (
        "import resource, klda.cli.app, klda.server.app, klda.server.run;"
        "from klda.cli import main;"
        "pages = int(open('/proc/self/statm').read().split()[0]) * resource.getpagesize();"
        "resource.setrlimit(resource.RLIMIT_AS, (pages + (1 << 20),) * 2); main()"
    )
    command = [sys.executable, "-c", code, "serve", "--model", str(large_model), "--port", "0"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1
    assert "Not enough memory" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "error", [MemoryError(), RuntimeError("can't start new thread")], ids=["array", "thread"]
)
def test_a_request_without_memory_for_it_is_told_so(client, monkeypatch, error):
    def fail(*_, **__):
        raise error

    with monkeypatch.context() as patched:
        patched.setattr("klda.server.snapshot.Snapshot.search", fail)
        answer = client.get("/v1/classes")
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "memory")
    assert client.get("/v1/health").status_code == 200


# ------------------------------------------------------------------ the journal is not whole


def test_a_journal_is_not_replayed_onto_a_model_that_took_the_place_of_its_own(features_model):
    taught(features_model)
    replacement = Learner("features", classifier=KLDA(n_components=200, random_state=1))
    replacement.learn(samples("ants", 20), ["ants"] * 20).save(features_model, overwrite=True)
    with pytest.raises(JournalError, match=r"or the model in .* was replaced"):
        Running(features_model)
    for path in features_model.glob("journal*"):
        path.unlink()
    with Running(features_model) as again:
        assert again.counts == {"ants": 20}


def test_two_copies_of_a_model_that_went_their_own_ways_do_not_mix(features_model, tmp_path):
    with Running(features_model) as running:
        running.learn(samples("dogs", 3), ["dogs"] * 3)
    twin = Path(shutil.copytree(features_model, tmp_path / "twin"))
    for folder, label in ((features_model, "eels"), (twin, "fish")):
        with Running(folder) as running:
            running.learn(samples(label, 3), [label] * 3)
    taught(twin, 1)
    put_back(features_model, content(twin, "journal*"))
    with pytest.raises(JournalError, match="change 2 is not the one in the model"):
        Running(features_model)


@pytest.mark.parametrize("damage", ["deleted", "emptied", "cut", "changed"])
def test_a_write_ahead_log_that_is_lost_or_damaged_is_noticed(features_model, damage):
    """SQLite itself goes on with what is left, without a word."""
    expected = taught(features_model)
    whole = content(features_model, "journal*")
    log = features_model / f"{JOURNAL}-wal"
    size = log.stat().st_size
    assert size > 8192
    if damage == "deleted":
        log.unlink()
    elif damage == "changed":
        with log.open("r+b") as opened:
            opened.seek(size // 2)
            opened.write(b"\xff" * 4096)
    else:
        os.truncate(log, 0 if damage == "emptied" else size - 4096)
    for _ in range(2):
        with pytest.raises(JournalError, match=r"has lost changes that were acknowledged.*Restore"):
            Running(features_model)
        assert content(features_model, JOURNAL)[JOURNAL] == whole[JOURNAL]
        if damage == "changed":
            assert log.read_bytes() != whole[log.name]
    put_back(features_model, whole)
    with Running(features_model) as again:
        assert again.counts == expected


def test_whoever_says_so_goes_on_without_the_lost_changes(features_model):
    taught(features_model)
    (features_model / f"{JOURNAL}-wal").unlink()
    (features_model / LAST_CHANGE).unlink()
    with Running(features_model) as again:
        assert again.counts == {**ALL, "new0": 3}
        again.learn(samples("dogs", 3), ["dogs"] * 3)
    with Running(features_model) as again:
        assert again.counts == {**ALL, "new0": 3, "dogs": 3}


def test_a_journal_that_is_gone_with_changes_in_it_is_noticed(features_model):
    expected = taught(features_model)
    whole = content(features_model, "journal*")
    for path in features_model.glob(f"{JOURNAL}*"):
        path.unlink()
    with pytest.raises(JournalError, match=r"ends with change 0.*change 5 was the last"):
        Running(features_model)
    put_back(features_model, whole)
    with Running(features_model) as again:
        assert again.counts == expected
    for path in features_model.glob(f"{JOURNAL}*"):
        path.unlink()  # now the model has everything
    with Running(features_model) as again:
        assert again.counts == expected
        assert again.learn(samples("dogs", 3), ["dogs"] * 3).version == 6


@pytest.mark.parametrize(
    "statement",
    [
        "DELETE FROM changes WHERE sequence = 2",
        "DELETE FROM changes WHERE sequence = 5",
        "UPDATE changes SET header = NULL, features = NULL WHERE sequence = 5",
        "UPDATE changes SET header = NULL WHERE sequence = 2",
        "UPDATE changes SET checksum = NULL, header = '{}' WHERE sequence = 5",
        "UPDATE changes SET sequence = 9 WHERE sequence = 5",
        "UPDATE changes SET header = replace(header, 'new2', 'neu2') WHERE sequence = 3",
        "UPDATE changes SET features = zeroblob(length(features)) WHERE sequence = 3",
        "UPDATE changes SET key = 'another' WHERE sequence = 3",
        "DROP TABLE changes",
        "DROP TABLE journal",
        "DELETE FROM journal",
        "UPDATE journal SET id = 'x'",
    ],
)
def test_a_journal_that_was_tampered_with_stops_the_start(features_model, statement):
    expected = taught(features_model)
    whole = content(features_model, "journal*")
    with closing(sqlite3.connect(features_model / JOURNAL)) as journal, journal:
        journal.execute(statement)
    with pytest.raises(JournalError):
        Running(features_model)
    put_back(features_model, whole)
    with Running(features_model) as again:
        assert again.counts == expected


def test_a_damaged_undo_restores_nothing(features_model):
    with Running(features_model) as running:
        gone = running.forget(["bees"])
    with closing(sqlite3.connect(features_model / JOURNAL)) as journal, journal:
        ((arrays,),) = journal.execute("SELECT arrays FROM forgotten")
        altered = arrays[:-1] + bytes([arrays[-1] ^ 1])
        journal.execute("UPDATE forgotten SET arrays = ?", (altered,))
    with Running(features_model) as running:
        with pytest.raises(JournalError, match="checksum"):
            running.undo(gone.version)
        assert set(running.counts) == {"ants", "cats"}


@pytest.mark.parametrize("text", ["", "x", "0" * 87])
def test_a_damaged_note_of_the_last_change_stops_the_start(features_model, text):
    expected = taught(features_model)
    note = features_model / LAST_CHANGE
    whole = note.read_text()
    note.write_text(text)
    with pytest.raises(JournalError, match=f"{LAST_CHANGE} is damaged.*delete it"):
        Running(features_model)
    note.write_text(whole)
    with Running(features_model) as again:
        assert again.counts == expected


@pytest.mark.parametrize(
    "extras",
    [
        [],
        {"service": "x"},
        {"service": {"position": "1"}},
        {"service": {"position": -1}},
        {"service": {"position": 10**30}},
        {"service": {"position": True}},
        {"service": {"position": 1, "journal": 5}},
        {"service": {"position": 1, "checksum": []}},
    ],
    ids=str,
)
def test_a_model_that_says_nonsense_about_its_journal_is_damaged(features_model, extras):
    storage.save_extras(features_model, extras)
    with pytest.raises(ModelFolderError, match="damaged"):
        Running(features_model)


# ------------------------------------------------------------------ what is not a journal


@pytest.mark.skipif(sys.platform == "win32", reason="makes links as POSIX does")
@pytest.mark.parametrize("link", [Path.symlink_to, Path.hardlink_to])
@pytest.mark.parametrize("name", [JOURNAL, f"{JOURNAL}-wal", f"{JOURNAL}-shm", LAST_CHANGE])
def test_a_link_in_the_place_of_the_journal_is_refused(features_model, tmp_path, name, link):
    elsewhere = tmp_path / "elsewhere.db"
    with closing(sqlite3.connect(elsewhere)) as database, database:
        database.execute("CREATE TABLE letters (text)")
    before = elsewhere.read_bytes()
    link(features_model / name, elsewhere)
    with pytest.raises(ModelFolderError, match=f"{name} is not a regular file"):
        Running(features_model)
    assert elsewhere.read_bytes() == before
    (features_model / name).unlink()
    with Running(features_model) as running:
        assert running.counts == ALL


def test_a_database_of_another_program_gets_no_tables(features_model):
    with closing(sqlite3.connect(features_model / JOURNAL)) as database, database:
        database.execute("CREATE TABLE letters (text)")
    before = (features_model / JOURNAL).read_bytes()
    with pytest.raises(JournalError, match="another program"):
        Running(features_model)
    assert (features_model / JOURNAL).read_bytes() == before


def test_a_journal_that_a_kill_left_without_tables_is_used(features_model):
    (features_model / JOURNAL).touch()
    with Running(features_model) as running:
        running.learn(samples("dogs", 3), ["dogs"] * 3)
    with Running(features_model) as again:
        assert again.counts == {**ALL, "dogs": 3}


# ------------------------------------------------------------------ refused changes


def test_refused_changes_are_listed_and_can_be_made_again(features_model):
    write(
        features_model,
        Change("rename", ("nobody", "somebody"), sequence=1),
        Change("learn", ("dogs",) * 5, samples("dogs", 5), sequence=2),
        Change("remove", ("emmets",) * 2, samples("ants", 2), sequence=3),
    )
    with serving(features_model) as client:
        listed = client.get("/v1/refused").json()["refused"]
        assert [(one["change"], one["kind"], one["samples"]) for one in listed] == [
            (1, "rename", 0),
            (3, "remove", 2),
        ]
        assert listed[0]["classes"] == ["nobody", "somebody"]
        assert "no class 'nobody'" in listed[0]["reason"]
        assert client.get("/v1/model").json()["refused"] == 2
        assert "klda_refused 2.0" in client.get("/v1/metrics").text
        assert client.post("/v1/retry", json={"retry": 1}).status_code == 404
        assert client.post("/v1/retry", json={"retry": 2}).status_code == 404
        client.post("/v1/rename", json={"old": "ants", "new": "emmets"})
        done = client.post("/v1/retry", json={"retry": 3}, headers={"Idempotency-Key": "k"})
        assert (done.json()["version"], done.json()["samples"]) == (5, 123)
        again = client.post("/v1/retry", json={"retry": 3}, headers={"Idempotency-Key": "k"})
        assert again.json()["repeated"]
        assert client.post("/v1/retry", json={"retry": 3}).status_code == 404
        assert [one["change"] for one in client.get("/v1/refused").json()["refused"]] == [1]
        assert "klda_refused 1.0" in client.get("/v1/metrics").text
    with Running(features_model) as again:
        assert again.counts == {"emmets": 38, "bees": 40, "cats": 40, "dogs": 5}
        assert [change.sequence for change, _ in again.read("refused")] == [1]


def test_a_change_that_was_made_again_is_replayed_once(features_model):
    write(features_model, Change("rename", ("dogs", "hounds"), sequence=1))
    running = Running(features_model, checkpoint_interval=1e9)
    running.learn(samples("dogs", 5), ["dogs"] * 5)
    running.retry(1)
    running.abandon()
    assert journaled(features_model) == [3]
    with Running(features_model) as again:
        assert again.counts == {**ALL, "hounds": 5}
        assert again.read("refused") == []


# ------------------------------------------------------------------ a folder that can't be written


@pytest.mark.skipif(sys.platform == "win32", reason="limits the size of files as POSIX does")
def test_a_folder_that_cannot_be_written_is_reported_until_it_can(large_model):
    """The journal can: changes are acknowledged, and survive."""
    unlimited = resource.getrlimit(resource.RLIMIT_FSIZE)
    body = {"features": samples("dogs", 3).tolist(), "labels": ["dogs"] * 3}
    with serving(large_model, checkpoint_interval=0.1) as client:
        resource.setrlimit(resource.RLIMIT_FSIZE, (600_000, unlimited[1]))
        try:
            assert client.post("/v1/learn", json=body).json()["samples"] == 453
            wait_for(lambda: client.get("/v1/health").status_code == 503)
            message = client.get("/v1/health").json()["error"]["message"]
            assert "model folder could not be written (File too large)" in message
            assert str(large_model) not in message  # it is for everyone
            assert 'klda_healthy{part="folder"} 0.0' in client.get("/v1/metrics").text
            assert 'klda_healthy{part="journal"} 1.0' in client.get("/v1/metrics").text
            assert client.post("/v1/learn", json=body).json()["samples"] == 456
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, unlimited)
        wait_for(lambda: client.get("/v1/health").status_code == 200)
        assert 'klda_healthy{part="folder"} 1.0' in client.get("/v1/metrics").text
        assert client.get("/v1/model").json()["journal_pending"] == 0
    assert Learner.load(large_model).classes["dogs"] == 6


def unsaved(folder, monkeypatch):
    """A new service that has acknowledged a change, but could not save its model."""

    def full(*_, **__):
        raise ModelFolderError("no room")

    with monkeypatch.context() as patched:
        patched.setattr(storage, "save", full)
        running = Running(folder, new="features", checkpoint_interval=1e9)
        running.learn(samples("ants", 5), ["ants"] * 5)
        assert running.service.problems["folder"]
        running.abandon()
    assert not storage.exists(folder)


def test_a_new_model_that_was_never_saved_starts_again_as_it_began(tmp_path, monkeypatch):
    unsaved(tmp_path / "new", monkeypatch)
    with Running(tmp_path / "new") as again:  # without --new
        assert again.counts == {"ants": 5}
    assert Learner.load(tmp_path / "new").classes == {"ants": 5}


def test_a_new_model_that_was_never_saved_does_not_begin_with_another_foundation_model(
    tmp_path, monkeypatch
):
    unsaved(tmp_path / "new", monkeypatch)
    with pytest.raises(JournalError, match=r"with the foundation model 'features', not 'ngrams'"):
        Running(tmp_path / "new", new="ngrams")
    with Running(tmp_path / "new", new="features") as again:
        assert again.counts == {"ants": 5}


# ------------------------------------------------------------------ one bad request


@pytest.mark.parametrize("number", ["0", "-1", str(10**20), str(2**63), "1e3", "x", ""])
def test_a_number_that_no_change_has_is_a_wrong_value(client, monkeypatch, number):
    def load(*_, **__):
        raise AssertionError("the model was loaded again")

    monkeypatch.setattr(Learner, "load", load)
    answer = client.post("/page/undo", data={"number": number})
    assert answer.status_code == 422
    assert 'class="message error"' in answer.text
    assert client.get("/v1/health").status_code == 200


def test_a_change_that_fails_before_the_model_is_touched_loads_nothing_again(
    features_model, monkeypatch
):
    with Running(features_model) as running:
        learner = running.service.writer.learner
        with pytest.raises(OverflowError):
            running.undo(10**20)
        with fails(404):
            running.forget(["nobody"])
        assert running.service.writer.learner is learner


def test_a_second_service_on_the_folder_of_a_running_one_changes_nothing(features_model):
    with listening(features_model), pytest.raises(storage.ModelBusyError):
        Running(features_model)
