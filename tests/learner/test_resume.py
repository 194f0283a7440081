"""Long learns: cut off at any place and resumed, they give the model of an uninterrupted one."""

from __future__ import annotations

import json
import os
from contextlib import closing

import numpy as np
import pytest

from klda import Learner
from klda.data import Layout, TableError, open_tables, read
from klda.engine.engine import Engine
from klda.errors import KldaError
from klda.learner import resume
from klda.learner.resume import CheckpointError, CheckpointWarning, ResumableLearn
from klda.storage import folder as storage
from tests.factories import small

CHUNK = 50


class CutOffError(Exception):
    """What a kill is to a process."""


@pytest.fixture
def files(tmp_path):
    """Three files with 410 rows; some classes come late, and one chunk of the second is short."""
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(6, 8))
    paths = []
    for i, count in enumerate((200, 130, 80)):
        which = rng.integers(0, 4 + i, count)
        rows = (centres[which] + rng.normal(size=(count, 8))).astype(np.float32)
        path = tmp_path / f"part{i}.npz"
        np.savez(path, features=rows, labels=np.array([f"class {k}" for k in which]))
        paths.append(path)
    return paths


def make(kind="many samples", keep=None):
    changes = {
        "many samples": {"n_components": 64, "gamma": "auto"},
        "few samples": {"n_components": 900},
        "lda": {"n_components": None, "rule": "lda", "dtype": "float64"},
    }
    return Learner("features", classifier=small(**changes[kind]), keep=keep)


def learn(
    learner, files, folder, *, pieces=None, columns=None, every=1e-9, fraction=1e9, **options
):
    """Learn files with a checkpoint after each batch, and be cut off after so many of them."""
    opened = open_tables(
        files, modality=learner.modality, layout=columns or Layout(), classes=learner.classes
    )
    rows = CHUNK if learner.modality == "features" else 12

    def cut(stream):
        for i, piece in enumerate(stream):
            if i == pieces:
                raise CutOffError
            yield piece
        if pieces == "all":
            raise CutOffError

    with storage.writer_lock(folder):
        job = ResumableLearn(folder, opened, every=every, fraction=fraction)
        job.open(**options)
        if job.complete:
            job.tidy()
            return Learner.load(folder)
        with closing(read(opened, labels=True, start=job.place, rows=rows)) as stream:
            job.learn(learner, cut(stream))
        job.save(learner)
    return learner


def cut_off(*arguments, **options):
    with pytest.raises(CutOffError):
        learn(*arguments, **options)


def content(folder):
    """Everything a model folder says, but for times and what names a single save."""
    stored = storage.load(folder, verify=True)
    history = [
        {key: value for key, value in entry.items() if key not in ("when", "run")}
        for entry in stored.document["history"]
    ]
    kept = ("classes", "samples", "parameters", "keep", "engine", "foundation_model", "compact")
    document = {key: stored.document[key] for key in kept} | {"history": history}
    # What undoes a learn is its rows, or their statistics if some were learned before a pause.
    own = {k: array for k, array in stored.arrays.items() if not k.startswith("undo/")}
    return document, {name: array.tobytes() for name, array in own.items()}


@pytest.mark.parametrize(
    "kind, keep, pieces",
    [
        *(("many samples", None, pieces) for pieces in ((1,), (7,), ("all",), (2, 1, 4))),
        ("few samples", None, (2, 1, 4)),
        ("lda", None, (2, 1, 4)),
        ("many samples", "features", (5,)),
    ],
)
def test_a_resumed_learn_gives_the_same_model_to_the_last_bit(files, tmp_path, kind, keep, pieces):
    """And so is what it learns later: nothing that shows only then is lost in a pause."""
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    learn(make(kind, keep), files, whole)
    for i, count in enumerate(pieces):
        # The first chunk is learned together with the second, so that one piece leaves nothing.
        count = count if count == "all" else count + (i == 0)
        cut_off(make(kind, keep), files, cut, pieces=count, resume=i > 0)
        assert not storage.exists(cut)
        assert storage.exists(cut / storage.LEARNING)
    learn(make(kind, keep), files, cut, resume=True)
    assert content(cut) == content(whole)
    assert not (cut / storage.LEARNING).exists()
    for folder in (whole, cut):
        learn(Learner.load(folder), files[2:], folder)
    assert content(cut) == content(whole)


def test_a_learn_into_an_existing_model_leaves_it_as_it_was_until_it_is_complete(files, tmp_path):
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    for folder in (whole, cut):
        learn(make(), files[:1], folder)
    learn(Learner.load(whole), files[1:], whole)
    before = content(cut)
    for again in (False, True):
        cut_off(Learner.load(cut), files[1:], cut, pieces=2, resume=again)
        assert content(cut) == before
    learn(Learner.load(cut), files[1:], cut, resume=True)
    assert content(cut) == content(whole)


@pytest.mark.parametrize("is_new", [True, False])
def test_texts_are_learned_in_pauses_as_without(tmp_path, is_new):
    """The checkpoint has name rows of classes whose names had counted before."""
    texts = [f"{word} number {i}" for i in range(24) for word in ("card", "loan")]
    path = tmp_path / "rows.jsonl"
    pairs = [{"text": text, "label": text.split()[0]} for text in texts]
    path.write_text("".join(json.dumps(pair) + "\n" for pair in pairs))
    folders = [tmp_path / "whole", tmp_path / "cut"]
    for folder in folders if not is_new else []:
        Learner("ngrams").declare(["card", "loan"]).learn(texts[:2], ["card", "loan"]).save(folder)

    def start(folder):
        return Learner("ngrams") if is_new else Learner.load(folder)

    learn(start(folders[0]), [path], folders[0], every=0)
    cut_off(start(folders[1]), [path], folders[1], pieces=3)
    learn(start(folders[1]), [path], folders[1], resume=True)
    assert content(folders[1]) == content(folders[0])


# ---------------------------------------------------------------- refused


def rewritten(path):
    with np.load(path) as old:
        np.savez(path, **(dict(old) | {"features": np.ones_like(old["features"])}))


def damaged(folder):
    next((folder / storage.LEARNING).glob("*.safetensors")).write_bytes(b"")


RESUMED = {
    "a file changed": (lambda files, _: rewritten(files[0]), {}, r"part0.npz was changed since"),
    "the present one": (lambda files, _: rewritten(files[1]), {}, r"part1.npz was changed since"),
    "one was touched": (lambda files, _: os.utime(files[0]), {}, r"part0.npz was changed since"),
    "fewer files": (None, {"files": slice(2)}, r"it learns part0.npz, part1.npz, part2.npz, not"),
    "in another order": (None, {"files": slice(None, None, -1)}, r"it learns part0.npz.*, not"),
    "other parameters": (None, {"learner": ("few samples",)}, "n_components=64, not 900"),
    "with a ledger": (None, {"learner": ("many samples", "features")}, "keep=None, not 'features'"),
    "other columns": (None, {"columns": Layout("features", "others")}, r"columns=\[.*, not"),
    "damaged": (lambda _, folder: damaged(folder), {}, r"can't be read"),
}


@pytest.mark.parametrize("case", RESUMED)
def test_what_can_not_be_resumed_is_refused_and_may_be_dropped(files, tmp_path, case):
    change, options, message = RESUMED[case]
    for path in files:
        with np.load(path) as old:
            np.savez(path, features=old["features"], labels=old["labels"], others=old["labels"])
    columns = Layout("features", "labels")
    folder = tmp_path / "m"
    cut_off(make(), files, folder, pieces=6, columns=columns)  # in the middle of the second file
    if change:
        change(files, folder)
    before = {path.name: path.read_bytes() for path in (folder / storage.LEARNING).iterdir()}
    learner = make(*options.get("learner", ()))
    with pytest.raises(CheckpointError, match=rf"{message}.*--restart"):
        learn(
            learner,
            files[options.get("files", slice(None))],
            folder,
            columns=options.get("columns", columns),
            resume=True,
        )
    after = {path.name: path.read_bytes() for path in (folder / storage.LEARNING).iterdir()}
    assert after == before
    assert learn(make(), files, folder, columns=columns, restart=True).samples == 410


def test_a_file_that_was_not_begun_may_change(files, tmp_path):
    cut_off(make(), files, tmp_path / "m", pieces=6)
    rewritten(files[2])
    assert learn(make(), files, tmp_path / "m", resume=True).samples == 410


def test_a_checkpoint_in_the_way_is_named_with_the_two_ways_on(files, tmp_path):
    cut_off(make(), files, tmp_path / "m", pieces=6)
    with pytest.raises(CheckpointError) as error:
        learn(make(), files, tmp_path / "m")
    for word in ("part0.npz, part1.npz", "300 rows, up to row 100 of part1.npz", "--resume"):
        assert word in str(error.value)
    assert resume.unfinished(tmp_path / "m") == "300 rows, up to row 100 of part1.npz"
    learn(make(), files[:1], tmp_path / "m", restart=True)
    assert Learner.load(tmp_path / "m").samples == 200
    assert resume.unfinished(tmp_path / "m") is None


def test_a_model_that_changed_since_and_another_version_are_refused(files, tmp_path, monkeypatch):
    learn(make(), files[:1], tmp_path / "m")
    cut_off(Learner.load(tmp_path / "m"), files[1:], tmp_path / "m", pieces=3)
    with monkeypatch.context() as patched:
        patched.setattr(resume, "__version__", "99.0")
        with pytest.raises(CheckpointError, match=r"begun with klda='.*', not '99.0'"):
            learn(Learner.load(tmp_path / "m"), files[1:], tmp_path / "m", resume=True)
    Learner.load(tmp_path / "m").rename("class 0", "zero").save(tmp_path / "m")
    with pytest.raises(CheckpointError, match="the model was changed since"):
        learn(Learner.load(tmp_path / "m"), files[1:], tmp_path / "m", resume=True)


@pytest.mark.parametrize("restart", [True, False])
def test_progress_that_is_a_link_is_refused_and_what_it_leads_to_is_left_alone(
    files, tmp_path, restart
):
    other, at = tmp_path / "other", tmp_path / "m" / storage.LEARNING
    make("lda").learn(np.eye(4, 8, dtype=np.float32), list("abab")).save(other)
    before = content(other)
    at.parent.mkdir()
    at.symlink_to(other)
    with pytest.raises(storage.ModelFolderError, match=r"\.learning is not a folder.*Move it away"):
        learn(make("lda"), files, tmp_path / "m", restart=restart)
    assert content(other) == before


# ---------------------------------------------------------------- complete


def test_nothing_counts_twice_if_only_tidying_up_was_cut_off(files, tmp_path, monkeypatch):
    folder = tmp_path / "m"
    with monkeypatch.context() as patched:
        patched.setattr(ResumableLearn, "tidy", lambda self: None)
        learn(make(), files, folder)
    for rename in (False, True):  # noticed also if the model was changed later
        with pytest.raises(CheckpointError, match="all of it was learned"):
            learn(Learner.load(folder), files, folder)
        if rename:
            Learner.load(folder).rename("class 0", "zero").save(folder)
    learn(Learner.load(folder), files, folder, resume=True)
    assert Learner.load(folder).samples == 410
    assert resume.unfinished(folder) is None


def test_resuming_what_is_complete_does_nothing_and_learning_it_again_counts_again(files, tmp_path):
    assert learn(make(), files, tmp_path / "m", resume=True).samples == 410  # never begun
    before = content(tmp_path / "m")
    learn(Learner.load(tmp_path / "m"), files, tmp_path / "m", resume=True)
    assert content(tmp_path / "m") == before
    learn(Learner.load(tmp_path / "m"), files, tmp_path / "m")
    assert Learner.load(tmp_path / "m").samples == 820


def test_a_model_that_the_learner_did_not_come_from_is_not_replaced(files, tmp_path):
    learn(make(), files[:1], tmp_path / "m")
    before, learner = content(tmp_path / "m"), make()
    with pytest.raises(storage.ModelExistsError, match=r"m holds a model already.*Learner\.load"):
        learn(learner, files[1:], tmp_path / "m")
    assert content(tmp_path / "m") == before
    assert learner.classes == {}


def test_a_broken_row_leaves_the_learner_as_it_was(files, tmp_path):
    with np.load(files[2]) as old:
        broken = dict(old) | {"labels": np.array(["class 0"] * 79 + [""])}
    np.savez(files[2], **broken)
    learner = make()
    with pytest.raises(TableError, match=r"part2.npz, row 80: the label is empty"):
        learn(learner, files, tmp_path / "m")
    assert learner.classes == {}
    assert not storage.exists(tmp_path / "m")
    with pytest.raises(KldaError, match="paths is empty"):
        learn(learner, [], tmp_path / "n")


def test_the_history_names_files_as_the_caller_does(files, tmp_path):
    (tmp_path / "train.npz").symlink_to(files[0])
    learner = learn(make(), [tmp_path / "train.npz"], tmp_path / "m")
    assert learner.history[-1]["source"] == "train.npz"


# ---------------------------------------------------------------- how often


def test_checkpoints_take_a_small_part_of_the_time_or_none(files, tmp_path, monkeypatch):
    """A clock that moves on by a second per batch and by ten per checkpoint."""
    clock, saved, add = [0.0], [], Engine.add

    def save(at, *arguments, **options):
        clock[0] += 10.0
        saved.append(clock[0])

    def learn_for_a_second(*arguments, **options):
        clock[0] += 1.0
        add(*arguments, **options)

    monkeypatch.setattr(resume.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(storage, "save", save)
    monkeypatch.setattr(Engine, "add", learn_for_a_second)
    monkeypatch.setattr(ResumableLearn, "save", lambda *_: None)
    monkeypatch.setattr("tests.learner.test_resume.CHUNK", 5)
    learn(make(), files, tmp_path / "m", every=3, fraction=0.5)
    # 3 s of learning, then 10 s of saving and 20 of learning in turns.
    assert saved[:3] == [13.0, 43.0, 73.0]
    saved.clear()
    learn(make(), files, tmp_path / "n", every=0)
    assert saved == []
    with pytest.raises(KldaError, match="every=-1"):
        learn(make(), files, tmp_path / "n", every=-1)


def test_a_checkpoint_that_fails_is_a_warning_and_learning_goes_on(files, tmp_path, monkeypatch):
    save = storage.save

    def full(at, *arguments, **options):
        if at.name == storage.LEARNING:
            raise storage.ModelFolderError("The disk is full.")
        return save(at, *arguments, **options)

    learn(make(), files, tmp_path / "whole")
    monkeypatch.setattr(storage, "save", full)
    with pytest.warns(CheckpointWarning, match="disk is full"):
        learn(make(), files, tmp_path / "m")
    assert content(tmp_path / "m") == content(tmp_path / "whole")


def test_what_is_taught_while_files_are_learned_is_not_lost(files, tmp_path):
    learner = make()
    learner.learn(np.zeros((3, 8), np.float32), ["mine"] * 3)
    opened = open_tables(files, modality="features", layout=Layout())
    job = ResumableLearn(tmp_path / "m", opened, every=0)
    job.open()

    def taught_meanwhile():
        with closing(read(opened, labels=True, rows=CHUNK)) as stream:
            yield from stream
        learner.learn(np.ones((3, 8), np.float32), ["another's"] * 3)

    with pytest.raises(KldaError, match="changed meanwhile"):
        job.learn(learner, taught_meanwhile())
    assert learner.classes == {"another's": 3, "mine": 3}
