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
from klda.server.changes import Key, Learn, Remove, Rename, Retry
from klda.server.journal import JournalError
from klda.storage import folder as storage
from klda.storage.folder import JOURNAL, ModelFolderError

from .conftest import FIRST, Running, fails, journaled, listening, samples, serving, wait_for
from .test_writer import ALL, full_disk, refused, write


def taught(folder, times=5):
    """Teach classes, in the journal alone; end as a kill does."""
    running = Running(folder, checkpoint_interval=1e9)
    for i in range(times):
        running.learn(samples(f"new{i}", 3), [f"new{i}"] * 3, Key(f"key{i}", "digest"))
    counts = running.counts
    running.abandon()
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
        assert journaled(large_model) == [4, 5, 6, 7, 8]
    file.write_bytes(whole)
    with Running(large_model) as again:
        assert again.counts == expected
        assert again.learn(samples("new0", 3), ["new0"] * 3, Key("key0", "digest")).repeated
    assert not refused(large_model)


def test_a_model_damaged_while_it_is_served_is_a_problem_and_costs_no_change(large_model):
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
        assert client.post("/v1/learn", json=body).json()["samples"] == 453
        assert client.get("/v1/health").status_code == 200


@pytest.mark.skipif(sys.platform != "linux", reason="limits its address space as Linux does")
def test_klda_serve_says_that_memory_is_short(large_model):
    code = (
        "import resource, klda.cli.app, klda.server.app, klda.server.run;"
        "from klda.cli import main;"
        "pages = int(open('/proc/self/statm').read().split()[0]) * resource.getpagesize();"
        "resource.setrlimit(resource.RLIMIT_AS, (pages + (16 << 20),) * 2); main()"
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
    with pytest.raises(JournalError, match="or the model was replaced"):
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
    with pytest.raises(JournalError, match="belongs to another model"):
        Running(features_model)


@pytest.mark.parametrize("damage", ["deleted", "emptied", "cut", "changed"])
def test_a_journal_that_is_lost_or_damaged_stops_the_start(features_model, damage):
    expected = taught(features_model)
    whole = content(features_model, "journal*")
    journal = features_model / JOURNAL
    size = journal.stat().st_size
    if damage == "deleted":
        journal.unlink()
    elif damage == "changed":
        with journal.open("r+b") as opened:
            opened.seek(4096)
            opened.write(b"\xff" * (size - 8192))
    else:
        os.truncate(journal, 0 if damage == "emptied" else size // 2)
    for _ in range(2):
        with pytest.raises(JournalError, match=r"Restore it and the model .* --discard-journal"):
            Running(features_model)
    put_back(features_model, whole)
    with Running(features_model) as again:
        assert again.counts == expected


def test_no_file_but_the_journal_itself_has_what_was_acknowledged(features_model):
    """A write-ahead log would; SQLite goes on without one that is lost."""
    running = Running(features_model, checkpoint_interval=1e9)
    running.learn(samples("dogs", 3), ["dogs"] * 3)
    assert [path.name for path in features_model.glob("journal*")] == [JOURNAL]
    running.abandon()


def test_whoever_says_so_goes_on_without_the_changes_of_the_journal(features_model):
    taught(features_model)
    (features_model / JOURNAL).write_bytes(b"damaged" * 1000)
    with Running(features_model, discard_journal=True) as again:
        assert again.counts == ALL
        assert again.learn(samples("dogs", 3), ["dogs"] * 3).number == FIRST
    with Running(features_model) as again:
        assert again.counts == {**ALL, "dogs": 3}
    (aside,) = features_model.glob(f"{JOURNAL}.*")
    assert aside.read_bytes() == b"damaged" * 1000


@pytest.mark.parametrize("new", [None, "features"])
def test_a_model_that_is_missing_beside_its_journal_costs_nothing(features_model, new):
    running = Running(features_model, checkpoint_interval=0.0)
    running.learn(samples("dogs", 3), ["dogs"] * 3, Key("key", "digest"))
    wait_for(lambda: not running.service.writer.pending)
    running.abandon()
    document = features_model / storage.DOCUMENT
    whole = document.read_bytes()
    document.unlink()
    with pytest.raises(JournalError, match="the model that it belongs to is missing"):
        Running(features_model, new=new)
    document.write_bytes(whole)
    with Running(features_model) as again:
        assert again.counts == {**ALL, "dogs": 3}
        assert again.learn(samples("dogs", 3), ["dogs"] * 3, Key("key", "digest")).repeated


def test_a_stopped_service_needs_no_journal_to_start_again(features_model):
    with Running(features_model) as running:
        running.learn(samples("dogs", 3), ["dogs"] * 3, Key("key", "digest"))
    with Running(features_model) as again:
        assert again.learn(samples("dogs", 3), ["dogs"] * 3, Key("key", "digest")).repeated
    (features_model / JOURNAL).unlink()
    with Running(features_model) as again:
        assert again.counts == {**ALL, "dogs": 3}
        assert again.learn(samples("eels", 3), ["eels"] * 3).number == FIRST + 1


@pytest.mark.parametrize(
    "statement",
    [
        "DELETE FROM changes WHERE number = 4",
        "DELETE FROM changes WHERE number = 5",
        "UPDATE changes SET rows = NULL WHERE number = 8",
        "UPDATE changes SET change = '' WHERE number = 5",
        "UPDATE changes SET checksum = '', change = '{}' WHERE number = 8",
        "UPDATE changes SET number = 12 WHERE number = 8",
        "UPDATE changes SET change = replace(change, 'new2', 'neu2') WHERE number = 6",
        "UPDATE changes SET rows = zeroblob(length(rows)) WHERE number = 6",
        "DROP TABLE changes",
        "DROP TABLE state",
        "DELETE FROM state",
        "UPDATE state SET position = 7",
    ],
)
def test_a_journal_that_was_tampered_with_stops_the_start(features_model, statement):
    expected = taught(features_model)
    whole = content(features_model, "journal*")
    with closing(sqlite3.connect(features_model / JOURNAL)) as journal, journal:
        journal.execute(statement)
    with pytest.raises(JournalError, match="Restore it and the model"):
        Running(features_model)
    put_back(features_model, whole)
    with Running(features_model) as again:
        assert again.counts == expected


@pytest.mark.parametrize("noted", ["x", {"position": "x"}, {"position": -1}, {"position": 10**30}])
def test_a_model_that_says_nonsense_about_its_journal_is_damaged(features_model, noted):
    storage.save_extras(features_model, {"service": noted})
    with pytest.raises(ModelFolderError, match="damaged"):
        Running(features_model)


# ------------------------------------------------------------------ what is not a journal


@pytest.mark.skipif(sys.platform == "win32", reason="makes links as POSIX does")
@pytest.mark.parametrize("link", [Path.symlink_to, Path.hardlink_to])
@pytest.mark.parametrize(
    "name", [JOURNAL, f"{JOURNAL}-journal", f"{JOURNAL}-wal", storage.INBOX, f"{storage.INBOX}-wal"]
)
def test_a_link_in_the_place_of_a_database_is_refused(features_model, tmp_path, name, link):
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


def test_changes_of_the_command_line_keep_their_numbers_and_can_be_undone_there(features_model):
    """Those that only the journal has come later, with numbers that no one was told before."""
    running = Running(features_model, checkpoint_interval=1e9)
    gone = running.forget(["bees"])
    running.learn(samples("dogs", 3), ["dogs"] * 3, Key("key", "digest"))
    undone = running.undo(gone.number)
    running.abandon()
    learner = Learner.load(features_model)
    learner.learn(samples("eels", 2), ["eels"] * 2).save(features_model)
    (own,) = [one["number"] for one in learner.history if one.get("new_classes") == ["eels"]]
    assert own == gone.number
    with Running(features_model) as again:
        assert again.counts == {**ALL, "dogs": 3, "eels": 2}
        for number in (own, undone.number):
            with fails(404, match="can be undone"):
                again.undo(number)
        forgot, learned, back = again.history()
        assert learned.number == forgot.number + 1 == undone.number + 2
        assert (forgot.kind, back.target) == ("forget", forgot.number)
        again.undo(learned.number)
        assert again.counts == {**ALL, "eels": 2}
        # A key is free once its change was undone, and belongs to the change that uses it then.
        for is_repeated in (False, True):
            made = again.learn(samples("dogs", 3), ["dogs"] * 3, Key("key", "digest"))
            assert made.repeated is is_repeated
        again.abandon()
    learner = Learner.load(features_model)
    learner.undo(own)
    learner.save(features_model)
    with Running(features_model) as again:
        assert again.counts == {**ALL, "dogs": 3}
        assert again.learn(samples("dogs", 3), ["dogs"] * 3, Key("key", "digest")).repeated


def test_a_database_of_another_program_gets_no_tables(features_model):
    with closing(sqlite3.connect(features_model / JOURNAL)) as database, database:
        database.execute("CREATE TABLE letters (text)")
    before = (features_model / JOURNAL).read_bytes()
    with pytest.raises(JournalError, match="not written by this version"):
        Running(features_model)
    assert (features_model / JOURNAL).read_bytes() == before


def test_a_journal_of_0_2_0_must_have_nothing_that_its_model_has_not(tmp_path):
    old = Path(shutil.copytree(Path(__file__).parent / "service-0.2.0", tmp_path / "old"))
    before = content(old)
    told = "Start and stop the service once with the version .* --discard-journal"
    with pytest.raises(JournalError, match=told):
        Running(old)
    assert content(old).items() >= before.items()
    with closing(sqlite3.connect(old / JOURNAL)) as journal, journal:
        journal.execute("UPDATE changes SET header = NULL, features = NULL")  # as a stop does
    with Running(old) as again:
        learner = Learner.load(old)
        assert again.counts == learner.classes
        assert again.learn(samples("fish", 2), ["fish"] * 2).number == learner.next_number
    assert Learner.load(old).classes["fish"] == 2


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
        Rename("nobody", "somebody"),
        Learn(("dogs",) * 5, samples("dogs", 5)),
        Remove(("emmets",) * 2, samples("ants", 2)),
    )
    with serving(features_model) as client:
        listed = client.get("/v1/refused").json()["refused"]
        assert [(one["change"], one["kind"], one["samples"]) for one in listed] == [
            (4, "rename", 0),
            (6, "remove", 2),
        ]
        assert listed[0]["classes"] == ["nobody", "somebody"]
        assert "no class 'nobody'" in listed[0]["reason"]
        assert client.get("/v1/model").json()["refused"] == 2
        assert "klda_refused 2.0" in client.get("/v1/metrics").text
        assert client.post("/v1/retry", json={"retry": 4}).status_code == 404
        assert client.post("/v1/retry", json={"retry": 5}).status_code == 404
        client.post("/v1/rename", json={"old": "ants", "new": "emmets"})
        done = client.post("/v1/retry", json={"retry": 6}, headers={"Idempotency-Key": "k"})
        assert (done.json()["version"], done.json()["samples"]) == (8, 123)
        again = client.post("/v1/retry", json={"retry": 6}, headers={"Idempotency-Key": "k"})
        assert again.json()["repeated"]
        assert client.post("/v1/retry", json={"retry": 6}).status_code == 404
        assert [one["change"] for one in client.get("/v1/refused").json()["refused"]] == [4]
        assert "klda_refused 1.0" in client.get("/v1/metrics").text
    with Running(features_model) as again:
        assert again.counts == {"emmets": 38, "bees": 40, "cats": 40, "dogs": 5}
        assert [change.number for change, _ in again.read("refused")] == [4]


def test_a_change_that_was_made_again_is_replayed_once(features_model):
    write(features_model, Rename("dogs", "hounds"))
    running = Running(features_model, checkpoint_interval=1e9)
    running.learn(samples("dogs", 5), ["dogs"] * 5)
    running.change(Retry(FIRST))
    running.abandon()
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


@pytest.mark.skipif(sys.platform == "win32", reason="limits the size of files as POSIX does")
def test_a_folder_that_cannot_note_the_first_change_is_reported_until_it_can(features_model):
    body = {"features": samples("dogs", 3).tolist(), "labels": ["dogs"] * 3}
    with serving(features_model, checkpoint_interval=0.1) as client:
        with full_disk():
            assert client.post("/v1/learn", json=body).status_code == 503
            message = client.get("/v1/health").json()["error"]["message"]
            assert "model folder could not be written (File too large)" in message
        wait_for(lambda: client.get("/v1/health").status_code == 200)
        assert client.post("/v1/learn", json=body).json()["samples"] == 123


@pytest.mark.skipif(sys.platform == "win32", reason="limits the size of files as POSIX does")
def test_a_new_model_that_cannot_be_saved_does_not_start_and_leaves_nothing(tmp_path):
    with full_disk(), pytest.raises(ModelFolderError, match="disk is full"):
        Running(tmp_path / "new", new="features")
    assert not (tmp_path / "new").exists()


def test_a_new_model_starts_again_as_it_began(tmp_path):
    with Running(tmp_path / "new", new="features"):
        pass
    running = Running(tmp_path / "new", checkpoint_interval=1e9)  # without --new
    running.learn(samples("ants", 5), ["ants"] * 5, Key("key", "digest"))
    running.abandon()
    with Running(tmp_path / "new", new="ngrams") as again:  # which says nothing about an old model
        assert again.learn(samples("ants", 5), ["ants"] * 5, Key("key", "digest")).repeated
        assert again.counts == {"ants": 5}
        assert again.service.modality == "features"
    assert Learner.load(tmp_path / "new").classes == {"ants": 5}


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


def test_a_second_service_on_the_folder_of_a_running_one_changes_nothing(features_model):
    with listening(features_model), pytest.raises(storage.ModelBusyError):
        Running(features_model)
