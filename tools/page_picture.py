"""Take the pictures of the page that the documentation shows.

    python tools/page_picture.py

Needs Playwright and Chromium (CHROMIUM, by default /usr/bin/chromium).
"""

from __future__ import annotations

import csv
import io
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from PIL import Image
from playwright.sync_api import Browser, Page, sync_playwright

from klda import Learner
from klda.server.client import Client

ROOT = Path(__file__).resolve().parent.parent
PICTURES = ROOT / "docs" / "_static"
INTENTS = ROOT / "bench" / "src" / "klda_bench" / "demo" / "intents.csv"
QUESTIONS = (
    "when is the deadline for my taxes",
    "how long until my pizza gets here",
    "someone took my debit card, please block it",
)
UNSORTED = """tell me the balance of my joint account
where's the food I ordered
they sent my suitcase to the wrong city
my debit card is gone, I think it was stolen
when is the deadline for my taxes
how do I file my tax return
can I deduct my home office from my taxes
is there a penalty if I file my taxes late
what documents do I need for my taxes
I still haven't received my tax refund
please turn down the heating in the bedroom"""


def ask(page: Page, question: str) -> None:
    """Ask a question and wait for its answer."""
    page.fill("#value", question)
    page.press("#value", "Enter")
    answered = "asked => document.querySelector('#answer input[name=value]')?.value === asked"
    page.wait_for_function(answered, arg=question)


def show_try(page: Page) -> None:
    """Three questions, and the words that speak for the last answer."""
    page.click("#hide-steps")
    for question in QUESTIONS:
        ask(page, question)
    page.click("details.why summary")
    page.wait_for_selector(".words mark")


def show_inbox(page: Page) -> None:
    """Texts that wait to be sorted."""
    page.fill("#inbox-texts", UNSORTED)
    page.click("details[open] button.primary")
    page.wait_for_selector(".group input[name=label]")


def show_import(page: Page) -> None:
    """An export in which two classes are wrong and a ticket is there twice."""
    with INTENTS.open() as file:
        rows = [row for row in csv.DictReader(file) if row["part"] == "test"][:60]
    table = [["Ticket", "Subject", "Queue"]]
    table += [[str(700 + i), row["text"], row["intent"]] for i, row in enumerate(rows)]
    table[8][2], table[31][2] = table[31][2], table[8][2]
    table.append(["760", *table[1][1:]])
    content = "\n".join(";".join(row) for row in table).encode()
    page.set_input_files("#file", {"name": "export.csv", "mimeType": "", "buffer": content})
    page.wait_for_selector(".suspects")


def show_map(page: Page) -> None:
    """The classes."""
    page.wait_for_load_state("networkidle")


def show_class(page: Page) -> None:
    """A class."""
    page.locator(".classes .link").nth(4).click()
    page.wait_for_selector("#drawer[open] #texts")


def show_quality(page: Page) -> None:
    """How the model does on a file."""
    with INTENTS.open() as file:
        rows = [row for row in csv.DictReader(file) if row["part"] == "test"]
    table = [["text", "label"], *([row["text"], row["intent"]] for row in rows)]
    content = "\n".join(";".join(row) for row in table).encode()
    page.set_input_files("#test-file", {"name": "may.csv", "mimeType": "", "buffer": content})
    page.wait_for_selector("#result")


def show_history(page: Page) -> None:
    """Some changes."""
    with Client(page.url.removesuffix("history")) as client:
        client.declare("gift_card")
        client.rename("gift_card", "voucher")
        client.learn(["I have a voucher", "can I pay with a voucher"], ["voucher"] * 2)
    page.reload()
    page.locator(".changes button").first.click()
    page.wait_for_selector(".changes .tag")
    page.click(".message .close")


def wait(page: Page) -> None:
    """The screen as it opens."""
    page.wait_for_load_state("networkidle")


SCREENS: dict[str, tuple[str, str, int, Callable[[Page], None]]] = {
    "page.png": ("", "light", 930, show_try),
    "page-dark.png": ("", "dark", 930, show_try),
    "page-inbox.png": ("inbox", "light", 1080, show_inbox),
    "page-import.png": ("import", "light", 900, show_import),
    "page-class.png": ("classes", "light", 760, show_class),
    "page-map.png": ("classes/map", "light", 760, show_map),
    "page-quality.png": ("quality", "light", 1000, show_quality),
    "page-history.png": ("history", "light", 520, show_history),
    "page-connect.png": ("connect", "light", 700, wait),
}
FIRST_VISIT = {"page-start.png": ("", "light", 900, wait)}


@contextmanager
def serving(model: Path, *options: str) -> Iterator[str]:
    """Serve a model; yield the address of the page."""
    command = [sys.executable, "-m", "klda", "serve", "--model", str(model), *options]
    command += ["--port", "0", "--quiet"]
    service = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        found = (re.search(r"http://\S+", line) for line in service.stderr or ())
        yield next(one[0] for one in found if one)
    finally:
        service.terminate()
        service.wait(30)


@contextmanager
def open_browser() -> Iterator[Browser]:
    """Start Chromium."""
    with sync_playwright() as playwright:
        path = os.environ.get("CHROMIUM", "/usr/bin/chromium")
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


def take_pictures(url: str, screens: dict[str, tuple[str, str, int, Callable]]) -> None:
    """Show each screen and take its picture, in 256 colours."""
    with open_browser() as browser:
        for name, (screen, scheme, height, show) in screens.items():
            size = {"width": 1100, "height": height}
            page = browser.new_page(viewport=size, color_scheme=scheme)
            page.goto(url + screen)
            show(page)
            page.wait_for_timeout(500)
            picture = Image.open(io.BytesIO(page.screenshot()))
            picture.convert("RGB").quantize(256, dither=Image.Dither.NONE).save(
                PICTURES / name, optimize=True
            )
            page.close()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        with serving(Path(folder) / "new", "--new", "minilm") as url:
            take_pictures(url, FIRST_VISIT)
        with INTENTS.open() as file:
            rows = [row for row in csv.DictReader(file) if row["part"] == "learn"]
        bot = Learner("minilm")
        bot.learn([row["text"] for row in rows], [row["intent"] for row in rows])
        bot.save(f"{folder}/assistant")
        with serving(Path(folder) / "assistant") as url:
            take_pictures(url, SCREENS)
