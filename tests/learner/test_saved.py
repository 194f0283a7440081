"""Learners in model folders: saved, loaded, damaged, and of version 0.2.0."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from klda import KldaError, Learner, encoders
from klda.engine import sizes
from klda.engine.engine import PredictionOnlyError
from klda.learner import FoundationModelError
from klda.storage import array_files
from klda.storage import folder as storage
from klda.storage.folder import ModelChangedError, ModelExistsError, ModelFolderError
from tests.factories import (
    PROBE,
    LetterCounts,
    assert_same_scores,
    edit_document,
    rows_of,
    samples,
    small,
    taught,
)
from tests.storage.test_folder import FailingSystem

REPOSITORY = Path(__file__).parent.parent.parent
OLD = REPOSITORY / "tests" / "folders" / "0.2.0"
KINDS = {
    "samples kept": {"n_components": 400},
    "statistics": {},
    "ledger": {"keep": "features"},
    "LDA": {"n_components": None, "rule": "lda"},
    "not calibrated": {"calibrated": False},
}


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "m"


@pytest.mark.parametrize("kind", KINDS)
def test_a_loaded_learner_answers_and_learns_as_the_saved_one(folder, kind):
    bot = taught(**KINDS[kind])
    bot.save(folder)
    loaded = Learner.load(folder, verify=True)
    assert loaded.parameters == bot.parameters
    assert loaded.history == bot.history
    np.testing.assert_array_equal(loaded.scores(PROBE), bot.scores(PROBE))
    np.testing.assert_array_equal(loaded.predict_proba(PROBE), bot.predict_proba(PROBE))
    assert loaded.threshold() == bot.threshold()
    assert_same_scores(loaded.learn(*samples("e")), bot.learn(*samples("e")))
    known = loaded.answer_rows(PROBE), bot.answer_rows(PROBE)
    assert [one.known for one in known[0]] == [one.known for one in known[1]]
    loaded.save(folder)


@pytest.mark.parametrize("labels", [[3, 10, 2], ["ä b", "\N{SNOWMAN}", "unknown"]])
def test_labels_survive_a_save(folder, labels):
    taught(labels).save(folder)
    assert Learner.load(folder).classes == dict.fromkeys(sorted(labels), 12)
    assert Learner.load(folder).predict(rows_of(labels[0], 1)).tolist() == labels[:1]


def test_history_tells_what_was_learned_when(folder):
    bot = taught("").learn(*samples("ab"), source=Path("first.csv"))
    bot.save(folder)
    Learner.load(folder).learn(*samples("bc")).forget("a", rows_of("a")).save(folder)
    history = json.loads((folder / "model.json").read_text())["history"]
    new = {"action": "learn", "samples": 24, "new_classes": ["a", "b"], "source": "first.csv"}
    assert history[0] | {"when": ""} == {"number": 1, "when": "", **new}
    assert history[1]["new_classes"] == ["c"]
    assert (history[2]["dropped_classes"], history[2]["samples"]) == (["a"], -12)


def test_a_compact_model_of_150_classes_is_small_answers_alike_and_can_not_learn(tmp_path):
    rows = np.random.default_rng(0).normal(size=(300, 384)).astype(np.float32)
    labels = [f"class {i % 150}" for i in range(300)]
    bot = Learner("features", classifier=small(n_components=5000, gamma=1e-3)).learn(rows, labels)
    bot.save(tmp_path / "compact", compact=True)
    assert sum(path.stat().st_size for path in (tmp_path / "compact").iterdir()) <= 25e6
    compact = Learner.load(tmp_path / "compact")
    for one in (compact, compact.copy()):
        assert one.classes == bot.classes
        np.testing.assert_array_equal(one.scores(rows[:20]), bot.scores(rows[:20]))
        np.testing.assert_array_equal(one.is_known(rows[:20]), bot.is_known(rows[:20]))
        with pytest.raises(PredictionOnlyError, match="saved with compact=True"):
            one.learn(rows[:2], labels[:2])
        with pytest.raises(PredictionOnlyError, match="saved with compact=True"):
            one.learn([(rows[:2], labels[:2])])


def test_a_moved_folder_is_the_same_model(folder, tmp_path):
    bot = taught()
    bot.save(folder)
    shutil.move(folder, tmp_path / "n")
    moved = Learner.load(tmp_path / "n")
    np.testing.assert_array_equal(moved.scores(PROBE), bot.scores(PROBE))
    moved.learn(*samples("e")).save(tmp_path / "n")


# ---------------------------------------------------------------- no save loses a model


def test_an_empty_learner_is_not_saved(folder):
    with pytest.raises(KldaError, match="no classes"):
        Learner("features").save(folder)
    assert not folder.exists()


@pytest.mark.parametrize("keep", [None, "features"])
def test_a_learner_that_learned_nothing_comes_back_from_what_it_packs(folder, keep):
    """As a service saves a new model."""
    new = Learner("features", classifier=small(), keep=keep)
    storage.save(folder, *new.pack(solved=False))
    found = Learner.load(folder, verify=True)
    assert (found.classes, found.width, found.history) == ({}, None, [])
    assert_same_scores(found.learn(*samples("ab")), taught("ab", keep=keep))


def test_a_save_does_not_undo_what_someone_else_saved(folder):
    taught("ab").save(folder)
    mine, theirs = Learner.load(folder), Learner.load(folder)
    theirs.learn(*samples("c")).save(folder)
    with pytest.raises(ModelChangedError):
        mine.learn(*samples("d")).save(folder)
    assert list(Learner.load(folder).classes) == ["a", "b", "c"]
    mine.save(folder, overwrite=True)
    assert list(Learner.load(folder).classes) == ["a", "b", "d"]


def test_a_save_replaces_no_model_that_it_did_not_come_from(folder, tmp_path):
    taught("ab").save(folder)
    other = taught("cd")
    other.save(tmp_path / "other")
    with pytest.raises(ModelExistsError, match=r"m holds a model already.*overwrite=True"):
        other.save(folder)
    assert list(Learner.load(folder).classes) == ["a", "b"]
    other.save(tmp_path / "other")
    other.save(folder, overwrite=True)
    other.learn(*samples("e")).save(folder)
    assert list(Learner.load(folder).classes) == ["c", "d", "e"]


def test_a_compact_save_takes_the_place_of_no_model_that_can_learn(folder, tmp_path):
    bot = taught("ab")
    bot.save(folder)
    for overwrite in (False, True):
        with pytest.raises(ModelExistsError, match=r"compact=True: .*m holds.* another folder"):
            bot.save(folder, compact=True, overwrite=overwrite)
    bot.learn(*samples("c")).save(folder)
    bot.save(tmp_path / "small", compact=True)
    bot.save(tmp_path / "small", compact=True, overwrite=True)


@pytest.mark.parametrize("is_new", [True, False])
def test_a_learner_saves_again_after_a_save_that_the_disk_did_not_confirm(
    tmp_path, monkeypatch, is_new
):
    """Whichever step fails, the learner knows which model in the folder is its own."""
    learner, unconfirmed = taught("ab"), 0
    for fail_at in range(1, 100):
        folder = tmp_path / (f"m{fail_at}" if is_new else "m")
        mine, failed = learner.copy() if is_new else learner, None
        with monkeypatch.context() as patch:
            FailingSystem(patch, fail_at)
            try:
                mine.save(folder)
            except ModelFolderError as error:
                failed = error
        mine.learn(*samples("ab")).save(folder)
        assert Learner.load(folder).classes == mine.classes
        if failed is None:
            break
        unconfirmed += "did not confirm" in str(failed)
    assert unconfirmed == 2


def test_what_others_keep_beside_a_model_stays_in_its_folder(folder, tmp_path):
    taught().save(folder)
    storage.save_extras(folder, {"note": 1})
    bot = Learner.load(folder)
    assert bot.extras == {"note": 1}
    bot.copy().extras["note"] = 2
    bot.learn(*samples("e")).save(folder)
    bot.save(tmp_path / "n")
    assert Learner.load(folder).extras == {"note": 1}
    assert Learner.load(tmp_path / "n").extras == bot.extras == {}


# ---------------------------------------------------------------- the foundation model


@pytest.mark.parametrize("change", [{"revision": "0" * 64}, {"layers": "all"}, {"dimension": 5}])
def test_a_model_made_with_another_foundation_model_is_refused(folder, change):
    Learner(LetterCounts()).learn(["hello"], ["a"]).save(folder)
    edit_document(folder, lambda document: document["foundation_model"].update(change))
    with pytest.raises(FoundationModelError, match=r"was made with the foundation model 'letters'"):
        Learner.load(folder, model=LetterCounts())


def test_a_loaded_learner_opens_its_foundation_model_when_it_needs_it(folder, monkeypatch):
    Learner("ngrams").learn(["hello", "goodbye"], ["a", "b"]).save(folder)
    reopen, opened = encoders.reopen, []
    monkeypatch.setattr(
        encoders, "reopen", lambda given, *place: opened.append(given["name"]) or reopen(given)
    )
    loaded = Learner.load(folder)
    assert loaded.classes == {"a": 1, "b": 1}
    assert opened == []
    assert loaded.predict(["hello", "goodbye"]).tolist() == ["a", "b"]
    assert opened == ["ngrams"]


# ---------------------------------------------------------------- damage


def test_answering_reads_nothing_that_only_learning_needs(folder, monkeypatch):
    monkeypatch.setattr(array_files, "VERIFIED_UP_TO", 0)  # files that a user would see mapped
    bot = taught("abcd", n=60, n_components=220)
    bot.save(folder)
    (path,) = folder.glob("learn_statistics_triangle-*")
    path.write_bytes(path.read_bytes()[:-4] + np.float32(np.nan).tobytes())
    spoilt = Learner.load(folder)
    np.testing.assert_array_equal(spoilt.scores(PROBE), bot.scores(PROBE))
    np.testing.assert_array_equal(spoilt.is_known(PROBE), bot.is_known(PROBE))
    for change in (lambda: spoilt.learn(*samples("a")), lambda: spoilt.rename("a", "e")):
        with pytest.raises(KldaError, match="triangle' holds values that are not finite"):
            change()
    with pytest.raises(ModelFolderError, match="SHA-256"):
        Learner.load(folder, verify=True)


WRONG = {
    "count": (("engine", "model", "counts", 0), -8),
    "count that is none": (("engine", "solution", "counts", 0), "x"),
    "another class": (("engine", "solution", "classes", 0), "zebra"),
    "width": (("engine", "model", "n_features"), 5),
    "ridge": (("engine", "solution", "rho"), None),
    "bandwidth": (("engine", "solution", "gamma"), 10**400),
    "chunks": (("engine", "model", "rows", "chunks"), 10**18),
    "number": (("engine", "model", "rows", "next_number"), 3),
    "no engine": (("engine",), {}),
    "modality": (("foundation_model", "modality"), {}),
    "history": (("history",), [[]]),
    "samples": (("samples",), 24),
}


@pytest.mark.parametrize("case", WRONG)
def test_values_that_can_not_be_are_refused(folder, case):
    taught("abcd", keep="features").save(folder)
    (*path, last), value = WRONG[case]

    def change(document):
        for key in path:
            document = document[key]
        document[last] = value

    edit_document(folder, change)
    with pytest.raises(KldaError, match=r"damaged: .*Restore the (folder|model) from a copy"):
        Learner.load(folder).learn(*samples("a"))


def test_a_parameter_of_a_newer_version_says_to_upgrade(folder):
    taught().save(folder)
    edit_document(folder, lambda found: found["parameters"].update(warp=9))
    with pytest.raises(KldaError, match=r"newer version of klda.*'warp'.*Upgrade"):
        Learner.load(folder)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes and timers of POSIX")
def test_random_damage_never_answers_in_silence():
    command = [sys.executable, "-m", "tools.mutate_folders", "--count", "500", "--seed", "7"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=REPOSITORY)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "different though verified: 0; foreign or slow: 0" in done.stdout


OPEN = """
import resource, sys
import klda.learner
from klda import KldaError, Learner
resource.setrlimit(resource.RLIMIT_DATA, (800 << 20,) * 2)
try:
    Learner.load(sys.argv[1])
except KldaError as error:
    print(error)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="limits its memory as Linux does")
@pytest.mark.parametrize("name", [storage.DOCUMENT, "arrays"])
def test_a_file_of_short_values_that_would_fill_the_memory_is_refused(folder, name):
    """240 MB of empty lists in model.json, 90 in a header: 20 times as much once parsed."""
    taught().save(folder)
    document = file = folder / storage.DOCUMENT
    if name == storage.DOCUMENT:
        file.write_bytes(b'{"format": "klda-model", "x": [' + b"[]," * 80_000_000 + b"[]]}")
    else:
        start = b'{"x": [' + b"[]," * 30_000_000 + b"[]]} "
        content = len(start).to_bytes(8, "little") + start
        file = folder / f"large-{'0' * 16}.safetensors"
        file.write_bytes(content)
        entry = {"name": file.name, "bytes": len(content), "sha256": "", "arrays": ["x"]}
        entry["header_sha256"] = hashlib.sha256(content).hexdigest()
        edit_document(document.parent, lambda found: found.update(files=[entry]))
    command = [sys.executable, "-c", OPEN, folder]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert str(file) in done.stdout
    assert "values, more than" in done.stdout


def test_a_label_full_of_commas_is_one_value():
    array_files.check_values(json.dumps(["," * array_files.MOST_VALUES, '\\"[' * 9]).encode())
    with pytest.raises(ValueError, match="values, more than"):
        array_files.check_values(b"[" + b"1," * array_files.MOST_VALUES + b"1]")


# ---------------------------------------------------------------- folders of version 0.2.0

SAID = json.loads((OLD / "said.json").read_text(encoding="utf-8"))
REFUSED = "compact of few samples"
LOADED = [name for name in SAID if name != REFUSED]


def old(name, tmp_path):
    """Copy an old folder; return the copy, what it said in its time, and how to load it."""
    at = shutil.copytree(OLD / name.replace(",", "").replace(" ", "-"), tmp_path / "old")
    options = {"model": LetterCounts()} if name == "names" else {}
    probe = SAID[name]["probe"]
    return at, probe if options else np.array(probe, np.float32), options


@pytest.mark.parametrize("name", LOADED)
def test_a_folder_of_0_2_0_loads_learns_and_is_saved_as_one_of_today(tmp_path, name):
    at, probe, options = old(name, tmp_path)
    bot, said = Learner.load(at, verify=True, **options), SAID[name]
    assert bot.classes == said["classes"]
    numbered = [{"number": i, **one} for i, one in enumerate(said["history"], 1)]
    assert bot.history == [{**one, "undoable": False} for one in numbered]
    assert bot.declared == said["declared"]
    if said["ids"] is not None:
        assert bot.ledger.ids_at(np.arange(bot.samples)) == said["ids"]
    if bot.parameters.rule == "lda":  # the others have another ridge
        np.testing.assert_allclose(bot.scores(probe), said["scores"], rtol=0, atol=1e-9)
        assert bot.predict(probe).tolist() == said["labels"]
    assert bot.threshold() is not None
    assert np.isfinite(bot.predict_proba(probe)).all()
    if name != "compact":
        bot.learn(probe[:2], ["new"] * 2).save(at)
        assert storage.load(at).document["format_version"] == storage.FORMAT_VERSION
        again = Learner.load(at, verify=True, **options)
        np.testing.assert_array_equal(again.predict_proba(probe), bot.predict_proba(probe))


def test_a_compact_folder_of_0_2_0_answers_as_it_did(tmp_path):
    at, probe, _ = old("compact", tmp_path)
    bot = Learner.load(at)
    assert bot.predict(probe).tolist() == SAID["compact"]["labels"]
    np.testing.assert_array_equal(bot.scores(probe), np.float32(SAID["compact"]["scores"]))


@pytest.mark.parametrize("name", ["many samples", "many samples, by number", "LDA", "compact"])
def test_what_leaving_samples_out_had_told_0_2_0_is_not_lost(tmp_path, name):
    at, *_ = old(name, tmp_path)
    bot, rng = Learner.load(at), np.random.default_rng(1)
    labels = np.repeat(["ant", "wasp", "cät"], 400)
    rows = np.repeat([0.0, 2.5, 5.0], 400)[:, None] + rng.normal(size=(1200, 3))
    found = bot.evaluate(rows, labels)
    assert found.reliability.error < 0.1
    assert 0.85 < bot.is_known(rows).mean() < 1


def test_samples_that_a_folder_of_0_2_0_keeps_are_left_out_again(tmp_path, monkeypatch):
    monkeypatch.setattr(sizes, "EXACT_KERNEL_ROWS", 8)
    for name in ("few samples", "ledger"):
        at, _, _ = old(name, tmp_path)
        assert Learner.load(at).threshold() is not None
        shutil.rmtree(at)


def test_a_compact_folder_of_0_2_0_with_few_samples_is_refused(tmp_path):
    at, *_ = old(REFUSED, tmp_path)
    with pytest.raises(KldaError, match=r"compact by klda 0\.2\.0.* save it again from the full"):
        Learner.load(at)
