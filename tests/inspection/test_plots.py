"""The map of the classes, as a picture and as a page of its own."""

from __future__ import annotations

import json
import re
import shutil
from html.parser import HTMLParser

import numpy as np
import pytest

from klda import Learner


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
