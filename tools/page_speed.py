"""Measure the page: bytes over the wire and first paint of each screen, and how long a teach takes.

    python tools/page_speed.py MODEL
    python tools/page_speed.py FILE   # with columns text and label, of which 10,000 rows are taught

Needs Playwright and Chromium (CHROMIUM, by default /usr/bin/chromium). Each screen is opened with
an empty cache; the first of all is opened as soon as the service has started. A teach is what the
browser waits for after a click on Right, less what encoding the text takes.
"""

from __future__ import annotations

import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path

import pandas as pd
from playwright.sync_api import Browser

from klda import Learner
from page_picture import open_browser, serving

SCREENS = ("classes", "classes/map", "quality", "", "inbox", "history", "connect", "docs", "import")
TIMES, ROWS = 5, 10_000
PAINT = "performance.getEntriesByName('first-contentful-paint')[0].startTime"
TAKEN = "performance.getEntriesByType('resource').findLast(r => r.name.endsWith('{}')).duration"


def make_model(path: Path, folder: Path) -> None:
    """Copy a model, or make one of the rows of a file."""
    if path.is_dir():
        shutil.copytree(path, folder)
        return
    table = pd.read_csv(path, keep_default_na=False, dtype=str)
    rows = table.sample(min(ROWS, len(table)), random_state=0)
    Learner("minilm").learn(rows.text.tolist(), rows.label.tolist()).save(folder)


def open_screen(browser: Browser, url: str) -> tuple[float, float]:
    """Return the kilobytes that a screen sends, and milliseconds to its first paint."""
    context = browser.new_context()
    page = context.new_page()
    network = context.new_cdp_session(page)
    network.send("Network.enable")
    sizes: list[float] = []
    network.on("Network.loadingFinished", lambda event: sizes.append(event["encodedDataLength"]))
    page.goto(url)
    page.wait_for_timeout(300)
    found = sum(sizes) / 1000, page.evaluate(PAINT)
    context.close()
    return found


def teach(browser: Browser, url: str, times: int) -> list[float]:
    """Return how many milliseconds it takes to teach an answer, several times."""
    page = browser.new_page()
    page.goto(url)
    taken = []
    for i in range(times):
        page.fill("#value", question := f"what is my balance, question {i}?")
        page.press("#value", "Enter")
        page.locator(f'#answer input[value="{question}"]').first.wait_for(state="attached")
        page.locator("#teach button[name=chosen]").first.dispatch_event("click")
        page.wait_for_selector("#answer [data-settled]")
        taken.append(page.evaluate(TAKEN.format("/page/teach")))
    return taken


def encoding(learner: Learner) -> float:
    """Return how many milliseconds it takes to encode a text."""
    taken = []
    for i in range(2 * TIMES):
        start = time.perf_counter()
        learner.encode([f"what is my balance, text {i}?"])
        taken.append(1000 * (time.perf_counter() - start))
    return statistics.median(taken)


def main() -> None:
    """Measure and print."""
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "model"
        make_model(Path(sys.argv[1]), model)
        learner = Learner.load(model)
        print(f"{len(learner.classes)} classes, {sum(learner.classes.values()):,} examples")
        with serving(model) as url, open_browser() as browser:
            for screen in SCREENS:
                opened = [open_screen(browser, url + screen) for _ in range(TIMES)]
                (size, first), paints = max(opened), [paint for _, paint in opened]
                paint, first = statistics.median(paints), paints[0]
                print(f"/{screen:12}{size:5.1f} KB, first paint {first:4.0f} ms, then {paint:.0f}")
            first, *taken = teach(browser, url, 1 + 2 * TIMES)
        # A teach encodes its text, and again to answer.
        taken, encoded = statistics.median(taken), 2 * encoding(learner)
        print(f"a teach {taken:.0f} ms, {encoded:.0f} of them for encoding; the first {first:.0f}")


if __name__ == "__main__":
    main()
