"""``klda learn``: new models and old ones, files, options, what is said."""

from __future__ import annotations

import csv
import shutil

import pytest
from PIL import Image

from klda import Learner
from tests.cli.conftest import folder_content, read_csv, words


def test_learn_makes_a_model_and_then_adds_to_it(cli, rows, tmp_path):
    model = tmp_path / "m"
    first = cli.json(
        "learn", rows("one", "ab"), "--model", model, "--components", 300, "--gamma", 0.02
    )
    assert first["new_classes"] == ["a", "b"]
    assert first["learned"] == first["samples"] == 50
    second = cli.json("learn", rows("two", "bc"), rows("three", "d"), "--model", model)
    assert second["new_classes"] == ["c", "d"]
    assert second["learned"] == 75
    assert second["samples"] == 125
    learner = Learner.load(model)
    assert learner.classes == {"a": 25, "b": 50, "c": 25, "d": 25}
    assert learner.parameters.n_components == 300
    assert [entry["source"] for entry in learner.history] == ["one.npz", "two.npz, three.npz"]


@pytest.mark.parametrize(
    "options, kind",
    [
        (("--classifier", "lda", "--ridge", 0.1), "LDA"),
        (("--seed", 3, "--components", 64), "KLDA"),
    ],
)
def test_a_new_model_takes_the_settings_given(cli, rows, tmp_path, options, kind):
    cli("learn", rows("one", "ab"), "--model", tmp_path / "m", *options)
    assert (cli.json("show", "--model", tmp_path / "m")["parameters"]["n_components"] is None) == (
        kind == "LDA"
    )


def test_settings_of_an_existing_model_cannot_change(cli, rows, make):
    model = make("m", "ab")
    before = folder_content(model)
    result = cli("learn", rows("two", "c"), "--model", model, "--components", 500, code=1)
    assert "--components was fixed" in result.stderr
    assert folder_content(model) == before


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


def test_another_foundation_model_than_that_of_the_folder_is_refused_in_the_users_words(
    cli, bot, tmp_path
):
    model = shutil.copytree(bot / "model", tmp_path / "m")
    said = cli("learn", bot / "test.csv", "--model", model, "--foundation", "ngrams", code=1).stderr
    assert "uses minilm, which can't be changed" in " ".join(said.split())
    assert "layers" not in said


def test_a_quoted_pattern_and_a_folder_of_files(cli, rows, tmp_path):
    shards = tmp_path / "shards"
    shards.mkdir()
    for i in (2, 1, 3):
        rows(f"part-{i}", f"a{i}", seed=i).rename(shards / f"part-{i}.npz")
    for i, way in enumerate((f"{shards}/*.npz", shards)):
        result = cli.json("learn", way, "--model", tmp_path / f"m{i}", "--components", 64)
        assert result["learned"] == 150
        assert result["new_classes"] == ["1", "2", "3", "a"]
        history = Learner.load(tmp_path / f"m{i}").history
        assert history[-1]["source"] == "part-1.npz, part-2.npz, part-3.npz"
    assert cli.json("evaluate", shards, "--model", tmp_path / "m0")["samples"] == 150
    nothing = cli("learn", f"{shards}/*.parquet", "--model", tmp_path / "none", code=1)
    assert "no file matches this pattern" in nothing.stderr
    assert not (tmp_path / "none").exists()


def write_texts(path, labels):
    lines = [f"text {i} of {label},{label}" for i, label in enumerate(labels)]
    path.write_text("text,label\n" + "\n".join(lines) + "\n")
    return path


def test_new_classes_that_are_probably_others_are_named(cli, tmp_path):
    model, options = tmp_path / "m", ("--components", 50, "--foundation", "ngrams")
    first = write_texts(tmp_path / "a.csv", ["Refund", "refund", "card_arrival", "other"])
    said = words(cli("learn", first, "--model", model, *options))
    assert "'refund' is a new class. Did you mean 'Refund'?" in said
    assert "'other'" not in said
    more = write_texts(tmp_path / "b.csv", ["refund", "card arival", "cards"])
    said = words(cli("learn", more, "--model", model))
    assert "'card arival' is a new class. Did you mean 'card_arrival'?" in said
    assert f"klda rename 'card arival' card_arrival --merge --model {model}" in said
    assert "Refund" not in said  # said before
    assert "'cards'" not in said
    assert len(Learner.load(model).classes) == 6


def test_ignore_case(cli, tmp_path):
    model = tmp_path / "m"
    options = ("--model", model, "--ignore-case")
    first = write_texts(tmp_path / "a.csv", ["Refund", "refund", "REFUND", "other"])
    cli("learn", first, *options, "--components", 50, "--foundation", "ngrams")
    assert Learner.load(model).classes == {"refund": 3, "other": 1}
    cli("rename", "other", "Other", "--model", model)
    more = write_texts(tmp_path / "b.csv", ["OTHER", "Refund"])
    cli("learn", more, *options)
    assert Learner.load(model).classes == {"refund": 4, "Other": 2}
    assert cli.json("evaluate", more, *options)["never_learned"] == []


def test_learning_the_same_file_or_a_copy_of_it_again_is_said(cli, rows, tmp_path):
    model, once, two = tmp_path / "m", rows("once", "ab"), rows("two", "ab", seed=1)
    said = cli("learn", once, two, "--model", model, "--components", 50).stderr
    assert "learned before" not in said
    copy = shutil.copy(two, tmp_path / "copy.npz")
    again = cli("learn", copy, once, rows("three", "ab", seed=2), "--model", model)
    assert "The same rows were learned before: copy.npz, once.npz. They now" in words(again)
    assert Learner.load(model).classes == {"a": 125, "b": 125}
    rows("once", "bc")
    assert "learned before" not in cli("learn", once, "--model", model).stderr
    said = cli("learn", two, copy, "--model", tmp_path / "m2", "--components", 50).stderr
    assert "learned before: copy.npz. " in said  # by the same command


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


def test_an_image_that_cannot_be_decoded_is_named(cli, tmp_path, tiny_dinov2):
    from PIL import Image

    for label in ("cats", "dogs"):
        (tmp_path / "photos" / label).mkdir(parents=True)
        Image.new("RGB", (32, 32), "red").save(tmp_path / "photos" / label / "1.png")
    learn = ("learn", tmp_path / "photos", "--model", tmp_path / "m", "--components", 50)
    assert "--foundation is needed for images" in cli(*learn, code=1).stderr
    (tmp_path / "photos" / "dogs" / "broken.jpg").write_bytes(b"no image")
    result = cli(*learn, "--foundation", tiny_dinov2, code=1)
    assert "broken.jpg" in result.stderr
    assert not (tmp_path / "m").exists()
    (tmp_path / "photos" / "dogs" / "broken.jpg").unlink()
    cli(*learn, "--foundation", tiny_dinov2)
    found = read_csv(cli("predict", tmp_path / "photos", "--model", tmp_path / "m").stdout)
    assert {row["image"].split("/")[-1] for row in found} == {"1.png"}


@pytest.fixture
def texts(tmp_path):
    path = tmp_path / "texts.csv"
    path.write_text("text,label\nplay a song,music\nsome jazz,music\na pizza,food\nbread,food\n")
    return path
