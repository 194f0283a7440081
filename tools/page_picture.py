"""Take the pictures of the page that the documentation shows, in light and dark.

    python tools/page_picture.py

Needs Playwright and Chromium (CHROMIUM, by default /usr/bin/chromium).
"""

from __future__ import annotations

import csv
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from playwright.sync_api import sync_playwright

from klda import Learner

ROOT = Path(__file__).resolve().parent.parent
INTENTS = ROOT / "bench" / "src" / "klda_bench" / "demo" / "intents.csv"
QUESTION = "someone took my debit card, please block it"

with tempfile.TemporaryDirectory() as folder, INTENTS.open() as file:
    rows = [row for row in csv.DictReader(file) if row["part"] == "learn"]
    bot = Learner("minilm").learn([row["text"] for row in rows], [row["intent"] for row in rows])
    bot.save(f"{folder}/bot")
    command = [sys.executable, "-m", "klda", "serve", "--model", f"{folder}/bot", "--port", "0"]
    service = subprocess.Popen([*command, "--quiet"], stderr=subprocess.PIPE, text=True)
    try:
        url = next(found[0] for line in service.stderr if (found := re.search(r"http://\S+", line)))
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(
                executable_path=os.environ.get("CHROMIUM", "/usr/bin/chromium"),
                args=["--no-sandbox"],
            )
            for scheme, name in (("light", "page.png"), ("dark", "page-dark.png")):
                size = {"width": 1100, "height": 700}
                page = browser.new_page(viewport=size, color_scheme=scheme)
                page.goto(url)
                field = page.locator("textarea").first
                field.fill(QUESTION)
                field.press("Enter")
                page.get_by_text("Why?").wait_for()
                page.screenshot(path=ROOT / "docs" / "_static" / name)
            browser.close()
    finally:
        service.terminate()
        service.wait(30)
