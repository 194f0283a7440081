"""What commands say of how good a model is."""

from __future__ import annotations

import csv
import json

import numpy as np


def test_learn_and_show_say_what_accuracy_to_expect(make, cli, rows, tmp_path):
    folder = make("model", "abc")
    done = cli("learn", rows("more", "d", count=40), "--model", folder)
    assert "Expected accuracy 100% (likely" in done.stderr
    assert "expected accuracy" in cli("show", folder).stdout
    told = json.loads(cli("show", folder, "--quality", "--json").stdout)
    assert [one["label"] for one in told["classes"]] == list("abcd")
    assert told["low"] < told["accuracy"] <= 1
    assert "likely" in cli("show", folder, "--quality").stdout


def test_check_compares_before_and_after(make, cli, rows):
    folder, held = make("model", "abc"), rows("held", "abcd", count=10, seed=5)
    done = cli("learn", rows("more", "d"), "--model", folder, "--check", held, "--json")
    check = json.loads(done.stdout)["check"]
    assert check["before"] == 0.75
    assert check["after"] == 1.0
    by_label = {one["label"]: one for one in check["classes"]}
    assert by_label["d"]["before"] is None
    assert by_label["a"]["before"] == by_label["a"]["after"] == 1.0


def test_a_change_that_makes_a_class_worse_is_refused(make, cli, rows, tmp_path):
    folder, held = make("model", "abc"), rows("held", "abc", count=10, seed=5)
    arrays = np.load(rows("false", "a", count=400, seed=7))
    wrong = tmp_path / "wrong.npz"
    np.savez(wrong, features=arrays["features"], labels=np.array(["b"] * 400))
    options = ("--model", folder, "--check", held, "--refuse-worse", 1.0)
    before = json.loads(cli("show", folder, "--json").stdout)["classes"]
    done = cli("learn", wrong, *options, code=1)
    assert "--refuse-worse 1: " in done.stderr
    assert "'a' from 100.0% to" in done.stderr
    assert json.loads(cli("show", folder, "--json").stdout)["classes"] == before
    cli("learn", rows("good", "a", seed=9), *options)


def test_refuse_worse_needs_a_check(make, cli, rows):
    folder = make("model", "ab")
    done = cli("learn", rows("more", "a"), "--model", folder, "--refuse-worse", 1.0, code=2)
    assert "--check" in done.stderr


def test_errors_are_the_rows_answered_wrong(bot, cli, tmp_path):
    with (bot / "test.csv").open(encoding="utf-8", newline="") as file:
        table = list(csv.DictReader(file))
    for row in table[:2]:
        row["intent"] = "play_music" if row["intent"] != "play_music" else "book_flight"
    path, wrong = tmp_path / "test.csv", tmp_path / "wrong.csv"
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(table[0]))
        writer.writeheader()
        writer.writerows(table)
    done = cli("evaluate", path, "--model", bot / "model", "--errors", wrong, "--json")
    with wrong.open(encoding="utf-8", newline="") as file:
        found = list(csv.DictReader(file))
    samples, accuracy = (json.loads(done.stdout)[name] for name in ("samples", "accuracy"))
    assert len(found) == round(samples * (1 - accuracy)) >= 2
    assert {row["utterance"] for row in table[:2]} <= {row["utterance"] for row in found}
    assert all(row["label"] != row["answer"] for row in found)


def test_two_classes_become_one(make, cli):
    folder = make("model", "abc")
    done = cli("rename", "a", "b", "--merge", "--model", folder, "--json")
    assert json.loads(done.stdout)["samples"] == 50
    assert json.loads(cli("show", folder, "--json").stdout)["classes"] == {"b": 50, "c": 25}


def test_merging_into_no_class_asks_which_was_meant(bot, cli):
    options = ("--merge", "--model", bot / "model")
    done = cli("rename", "play_music", "Book flight", *options, code=1)
    assert "Did you mean 'book_flight'?" in done.stderr
