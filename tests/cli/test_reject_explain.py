"""Known or unknown, why, exact forgetting and the label set on the command line."""

from __future__ import annotations

import csv
import json
import re
import shutil
from html.parser import HTMLParser

import numpy as np
import pytest

from klda import Learner
from klda.learner import folder as storage

LABELS = "abcdef"


@pytest.fixture
def model(make):
    return make("m", LABELS, "--ridge", 0.01, "--keep", "features")


@pytest.fixture
def questions(rows, tmp_path):
    """Fresh rows of the known classes, then of two that are not known."""
    known = np.load(rows("known", LABELS, seed=7))["features"]
    strange = np.load(rows("strange", "yz", seed=7))["features"]
    path = tmp_path / "questions.npy"
    np.save(path, np.concatenate([known, strange]))
    return path


def read_csv(text):
    return list(csv.DictReader(text.splitlines()))


# ------------------------------------------------------------------------------- reject


def test_reject_answers_unknown_for_what_is_not_known(cli, model, questions):
    answers = read_csv(cli("predict", questions, "--model", model, "--reject").stdout)
    labels = np.array([row["label"] for row in answers])
    assert (labels[:150] == "unknown").mean() < 0.15
    assert (labels[150:] == "unknown").mean() > 0.9
    for row in answers:
        assert (row["probability"] == "") == (row["label"] == "unknown")
        assert row["known"] == ("false" if row["label"] == "unknown" else "true")


def test_a_class_called_unknown_is_told_from_a_refusal(cli, model, questions):
    Learner.load(model).rename("a", "unknown").save(model)
    asked = ("predict", questions, "--model", model, "--top-k", 2)
    table = read_csv(cli(*asked, "--reject").stdout)
    lines = cli(*asked, "--reject", "--format", "jsonl").stdout.splitlines()
    found = [json.loads(line) for line in lines]
    assert [row["known"] == "true" for row in table] == [one["known"] for one in found]
    assert {one["known"] for one in found if one["label"] == "unknown"} == {True, False}
    assert all(one["known"] == (one["probability"] is not None) for one in found)
    assert "known" not in read_csv(cli(*asked).stdout)[0]


def test_the_share_may_be_chosen_and_implies_reject(cli, model, questions):
    def refused(*options):
        lines = cli("predict", questions, "--model", model, "--format", "jsonl", *options).stdout
        found = [json.loads(line) for line in lines.splitlines()]
        assert all((one["probability"] is None) == (one["label"] == "unknown") for one in found)
        return sum(one["label"] == "unknown" for one in found[:150])

    assert refused() == 0
    assert refused("--refused", 0.01) <= refused("--reject") < refused("--refused", 0.4)
    wrong = cli("predict", questions, "--model", model, "--refused", 0, code=1)
    assert "--refused=0" in wrong.stderr


# ------------------------------------------------------------------------------- explain


def test_explain_for_people(cli, bot):
    shown = cli(
        *("predict", "--model", bot / "model", "--explain"),
        *("--text", "play some jazz", "--text", "do fish sleep at night"),
    ).stdout
    first, second = shown.split("do fish sleep")
    assert "play_music, sure" in first
    assert "nearest classes" in first
    assert "new to me; the closest class is" in second
    assert "%" not in second.split("nearest classes")[1]
    assert "nearest samples" not in shown  # this model keeps none


def test_explain_for_programs_agrees_with_python(cli, model, questions):
    lines = cli("predict", questions, "--model", model, "--explain", "--format", "jsonl").stdout
    found = [json.loads(line) for line in lines.splitlines()]
    learner = Learner.load(model)
    expected = learner.explain(np.load(questions)[4], top=3, samples=3)
    assert found[4].pop("input") == 5
    assert found[4]["label"] == expected.label
    assert found[4]["samples"] == expected.to_dict()["samples"]
    assert found[4]["novelty"] == pytest.approx(expected.novelty, rel=1e-3)
    assert {one["known"] for one in found} == {True, False}


def test_explain_is_no_table_of_comma_separated_values(cli, model, questions):
    wrong = cli("predict", questions, "--model", model, "--explain", "--format", "csv", code=2)
    assert "jsonl" in wrong.stderr


# ------------------------------------------------------------------------------- forget


def test_single_samples_are_forgotten_by_their_numbers(cli, model):
    found = cli.json("forget", "--model", model, "--ids", "0,3", "--ids", "149")
    assert found["forgotten"] == 3
    assert found["exact"]
    learner = Learner.load(model)
    assert learner.classes["a"] == 23
    assert learner.classes["f"] == 24
    again = cli("forget", "--model", model, "--ids", "3", code=1)
    assert "3" in again.stderr


def test_ids_need_a_ledger_and_no_classes_beside(cli, make, rows, model):
    plain = make("plain", "abc")
    more = rows("more", "g")
    assert "--keep" in cli("learn", more, "--model", plain, "--keep", "x", code=1).stderr
    assert "ledger" in cli("forget", "--model", plain, "--ids", "1", code=1).stderr
    cli("forget", "a", "--model", model, "--ids", "1", code=2)
    cli("forget", "--model", model, code=2)


def test_show_says_which_samples_wait_for_calibration(cli, rows, tmp_path):
    model = tmp_path / "one"
    cli("learn", rows("rows", "a"), "--model", model, "--components", "10")
    assert storage.load(model).document["engine"]["keeps"] == {"waiting": 25}
    said = " ".join(cli("show", "--model", model).stdout.split())
    assert "statistics, and the features of 25 samples until probabilities are calibrated" in said


# ------------------------------------------------------------------------------- the label set


@pytest.fixture
def crowded(cli, tmp_path):
    """A class close to another, and a small one."""
    rng = np.random.default_rng(0)
    centres = dict(zip("abcdefg", rng.normal(size=(7, 16)) * 2, strict=True))
    centres["near a"] = centres["a"] + 0.15 * rng.normal(size=16)
    parts, labels = [], []
    for name, centre in centres.items():
        n = 4 if name == "g" else 50
        parts.append(centre + rng.normal(size=(n, 16)))
        labels += [name] * n
    path = tmp_path / "crowded.npz"
    np.savez(path, features=np.concatenate(parts).astype(np.float32), labels=np.array(labels))
    folder = tmp_path / "crowded"
    cli("learn", path, "--model", folder, "--components", 300, "--gamma", 0.01)
    return folder


def test_confusable_and_small_classes_are_found(cli, crowded):
    found = cli.json("show", "--model", crowded, "--confusable")
    assert {found["confusable"][0]["first"], found["confusable"][0]["second"]} == {"a", "near a"}
    assert found["confusable"][0]["confusion"] > 0.1
    assert found["small_classes"] == [{"label": "g", "samples": 4}]
    assert "near a" in cli("show", "--model", crowded, "--confusable").stdout


class Page(HTMLParser):
    """A page of the map: its tags, what it takes from elsewhere, and what it draws."""

    def __init__(self, path):
        super().__init__()
        self.tags, self.outside, self.map = [], [], None
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.outside += [value for name, value in attrs if name in ("src", "href")]

    def handle_data(self, data):
        if found := re.search(r"const map = (.*);", data):
            self.map = json.loads(found[1])

    @property
    def names(self):
        return [one["name"] for one in self.map["classes"]]


def test_the_map_is_a_picture_and_a_page_of_its_own(cli, crowded, tmp_path):
    pytest.importorskip("matplotlib")
    image = pytest.importorskip("PIL.Image")
    cli("show", "--model", crowded, "--map", tmp_path / "map.png")
    with image.open(tmp_path / "map.png") as picture:
        assert picture.width > 400
        assert len(np.unique(np.asarray(picture.convert("L")))) > 20
    cli("show", "--model", crowded, "--map", tmp_path / "map.html")
    page = Page(tmp_path / "map.html")
    assert page.outside == []
    assert sorted(page.names) == [*"abcdefg", "near a"]
    assert {"a", "near a"} in [{page.names[i], page.names[j]} for i, j, _ in page.map["pairs"]]
    wrong = cli("show", "--model", crowded, "--map", tmp_path / "map.txt", code=1)
    assert ".html" in wrong.stderr


def test_names_of_classes_can_not_break_the_page(cli, tmp_path):
    names = ["<script>alert(1)</script>", '"&amp', "@MAP@"]
    rng = np.random.default_rng(0)
    rows = np.repeat(rng.normal(size=(3, 8)) * 3, 20, axis=0) + rng.normal(size=(60, 8))
    Learner("features").learn(rows, np.repeat(names, 20)).save(tmp_path / "m")
    cli("show", "--model", tmp_path / "m", "--map", tmp_path / "map.html")
    page = Page(tmp_path / "map.html")
    assert page.tags.count("script") == 1
    assert set(names) == set(page.names)


@pytest.mark.browser
def test_the_page_draws_the_map_and_finds_classes(cli, crowded, tmp_path):
    playwright = pytest.importorskip("playwright.sync_api")
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        pytest.skip("needs chromium")
    path = tmp_path / "map.html"
    cli("show", "--model", crowded, "--map", path)
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page()
        complaints = []
        page.on("pageerror", lambda error: complaints.append(error))
        page.goto(path.as_uri())
        assert page.locator("circle").count() == 8
        assert page.locator("line").count() == len(Page(path).map["pairs"])
        shown = page.locator("g:not(.faded) text")
        page.fill("#find", "NEAR")
        assert shown.all_text_contents() == ["near a"]
        before = page.locator("svg").get_attribute("viewBox")
        page.locator("svg").hover()
        page.mouse.wheel(0, -200)
        page.wait_for_function(
            f"document.querySelector('svg').getAttribute('viewBox') != '{before}'"
        )
        browser.close()
    assert complaints == []


# ------------------------------------------------------------------------------- reliability


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


def test_without_a_ledger_the_trace_is_said_to_stay(cli, make):
    model = make("plain", "abc", "--components", 60)
    said = cli("forget", "a", "--model", model).stderr
    assert "keeps a trace" in said
    assert "--rows" in said
    assert "--keep features" in said


def test_show_says_what_is_kept_of_the_samples(cli, make, model):
    def kept(model):
        return " ".join(cli("show", "--model", model).stdout.split())

    assert "the features of 150 samples (--keep features)" in kept(model)
    few = "one row of numbers per sample, no text, no image; with more than 150 samples only"
    assert few in kept(make("few", "abc"))  # 75 samples, 300 components
    assert "statistics only" in kept(make("many", "abcdefgh"))
