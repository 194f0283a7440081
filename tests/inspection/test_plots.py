"""The map of the classes, as a picture and as a page of its own."""

from __future__ import annotations

import json
import re
import shutil
from html.parser import HTMLParser

import numpy as np
import pytest

from klda import Learner
from klda.inspection.evaluation import Reliability
from klda.inspection.plots import confused_classes


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


def test_a_confusion_matrix_shows_the_confused_classes_side_by_side():
    confusion = np.eye(50, dtype=np.int64) * 20
    pairs = [(3, 41), (7, 22), (12, 48), (30, 31)]
    for weight, (one, other) in enumerate(pairs, 1):
        confusion[one, other] = confusion[other, one] = weight
    order = confused_classes(confusion, most=6)
    assert set(order) == {7, 22, 12, 48, 30, 31}  # those with most errors
    for one, other in pairs[1:]:
        assert abs(order.index(one) - order.index(other)) == 1
    assert sorted(confused_classes(confusion[:10, :10])) == list(range(10))
    assert len(confused_classes(np.eye(50, dtype=np.int64))) == 30  # no errors


def test_bins_of_few_answers_are_joined_and_nothing_is_lost():
    rng = np.random.default_rng(0)
    confidence = rng.beta(5, 1, 300)
    found = Reliability.of(confidence, rng.random(300) < confidence)
    joined = found.with_at_least(10)
    assert joined.counts.min() >= 10
    assert joined.counts.sum() == 300
    there = found.counts > 0
    for name in ("confidence", "accuracy"):
        before = found.counts[there] @ getattr(found, name)[there]
        assert joined.counts @ getattr(joined, name) == pytest.approx(before)
    assert np.all(np.diff(joined.confidence) > 0)
    few = Reliability.of(confidence[:4], np.ones(4)).with_at_least(10)
    assert few.counts.tolist() == [4]
