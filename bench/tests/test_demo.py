from __future__ import annotations

import io
import re
import time
from collections import Counter

import pytest
from PIL import Image
from rich.console import Console

from klda_bench.demo import examples, unknown_questions
from klda_bench.demo.__main__ import run
from klda_bench.engine import MODELS


def test_the_data_set_is_what_it_says():
    data = examples()
    assert len({example.task for example in data}) == 5
    per_class = Counter((example.intent, example.part) for example in data)
    assert len({intent for intent, _ in per_class}) >= 15
    assert all(per_class[intent, "learn"] == 16 for intent, _ in per_class)
    assert all(per_class[intent, "test"] == 8 for intent, _ in per_class)
    texts = [example.text.lower() for example in data] + unknown_questions()
    assert len(set(texts)) == len(texts)
    assert len(unknown_questions()) >= 15
    # A class belongs to one task, and the tasks come one after the other.
    assert len({(example.task, example.intent) for example in data}) == len(per_class) / 2
    order = [example.task for example in data]
    assert order == sorted(order, key=order.index)


@pytest.mark.skipif(not MODELS["minilm"].available_offline(), reason="minilm is not installed")
def test_the_demonstration_runs_and_shows_that_old_classes_hold(tmp_path):
    screen = io.StringIO()
    begin = time.perf_counter()
    run(Console(file=screen, width=100), tmp_path / "demo.png")
    assert time.perf_counter() - begin < 60 * 5  # a minute on two free cores; CI is busier
    text = screen.getvalue()
    for word in ("Accuracy by task", "Questions", "Forgot order_pizza", "the same answers", "Time"):
        assert word in text
    found, wrongly = re.search(
        r"Marked unknown: (\d+) of 18 .*?wrongly (\d+) of 160", text, re.DOTALL
    ).groups()
    assert int(found) >= 11
    assert int(wrongly) <= 20
    said = " ".join(text.split())
    assert f"{int(wrongly) / 160:.0%}, where 5% was asked for" in said
    last = next(line for line in text.splitlines() if "5 health" in line)
    percentages = [float(word.rstrip("%")) for word in last.split() if word.endswith("%")]
    assert len(percentages) == 6
    assert percentages[-1] > 88
    assert min(percentages) > 75
    with Image.open(tmp_path / "demo.png") as image:
        assert image.size[0] >= 900
