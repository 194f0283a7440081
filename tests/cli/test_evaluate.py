"""``klda evaluate``: accuracy, what is confused, pictures."""

from __future__ import annotations

import re

import numpy as np
import pytest
from PIL import Image

from klda import Learner
from tests.cli.conftest import LABELS, folder_content


def test_evaluate(cli, bot):
    found = cli.json("evaluate", bot / "test.csv", "--model", bot / "model")
    assert 0.9 < found["accuracy"] <= 1
    assert found["samples"] == 32
    assert {each["label"] for each in found["classes"]} >= {"play_music", "order_pizza"}
    text = cli("evaluate", bot / "test.csv", "--model", bot / "model").stdout
    assert re.search(r"Accuracy \d+\.\d+%", text)
    assert "play_music" in text


def test_evaluate_draws_the_confusion(cli, make, rows, tmp_path):

    model = make("m", "abc")
    picture = tmp_path / "deep" / "confusion.png"
    cli("evaluate", rows("t", "abc", seed=5), "--model", model, "--confusion", picture)
    with Image.open(picture) as image:
        assert min(image.size) > 300
        # A correct picture has a dark diagonal: it is not one colour.
        assert len(np.unique(np.asarray(image.convert("L")))) > 20
    wrong = cli("evaluate", rows("t", "abc"), "--model", model, "--confusion", "a.txt", code=1)
    assert ".png" in wrong.stderr


@pytest.mark.parametrize("option", ["--confusion", "--reliability"])
def test_the_name_of_a_picture_is_looked_at_first(cli, make, rows, monkeypatch, option):
    model, test = make("m", "ab"), rows("t", "ab")
    monkeypatch.setattr(Learner, "evaluate", None)
    message = cli("evaluate", test, "--model", model, option, "c.foo", code=1).stderr
    assert f"{option} c.foo: give a name that ends in .png" in message


def test_evaluate_says_how_far_probabilities_can_be_trusted(cli, model, rows, tmp_path):
    pytest.importorskip("matplotlib")
    test = rows("t", LABELS, seed=3)
    found = cli.json("evaluate", test, "--model", model)
    assert 0 <= found["expected_calibration_error"] < 0.2
    assert sum(one["samples"] for one in found["reliability"]) == 150
    picture = tmp_path / "reliability.png"
    shown = cli("evaluate", test, "--model", model, "--reliability", picture).stdout
    assert "expected calibration error" in shown
    assert picture.stat().st_size > 5000


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


def test_tune_unknown_is_kept_and_used(cli, make, rows, tmp_path):
    model = make("m", "abcdef")
    known, unknown = rows("known", "abcdef", seed=5), rows("unknown", "xyz", seed=5)
    found = cli.json("tune-unknown", known, unknown, "--model", model)
    (chosen,) = [one for one in found["choices"] if one["chosen"]]
    assert (found["known"], found["unknown"]) == (150, 75)
    assert chosen["known_refused"] + chosen["unknown_accepted"] < 0.2
    learner = Learner.load(model)
    with np.load(unknown) as arrays:
        accepted = np.mean(learner.is_known(arrays["features"]))
    assert accepted == pytest.approx(chosen["unknown_accepted"])
    cli("predict", unknown, "--model", model, "--reject", "auto", "-o", tmp_path / "answers.csv")
    answers = (tmp_path / "answers.csv").read_text()
    assert answers.count(",true") == round(75 * accepted)
    shown = cli("tune-unknown", known, unknown, "--model", model, "--reject", 0.02).stdout
    assert "chosen" in shown
    assert "From 150 known and 75 unknown inputs." in shown
    before = folder_content(model)
    message = cli("tune-unknown", known, unknown, "--model", model, "--reject", 2, code=1)
    assert "--reject=2.0" in message.stderr
    assert folder_content(model) == before


def test_rows_that_were_learned_are_no_test(cli, make, rows, tmp_path):
    model = make("m", "abc")
    said = cli("evaluate", tmp_path / "m-rows.npz", "--model", model).stderr
    assert "m-rows.npz: learned by this model, so the accuracy is too good." in said
    assert "too good" not in cli("evaluate", rows("t", "abc", seed=5), "--model", model).stderr
