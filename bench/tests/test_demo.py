from __future__ import annotations

import io
import re
import time
from collections import Counter

import numpy as np
import pytest
from PIL import Image
from rich.console import Console

from klda.encoders import MODELS
from klda_bench.demo.__main__ import run
from klda_bench.demo.texts import examples, unknown_questions


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


@pytest.fixture(scope="module")
def shown(tmp_path_factory):
    """What the demonstration prints, its picture, and the seconds it takes."""
    if not MODELS["minilm"].available_offline():
        pytest.skip("minilm is not installed")
    screen, picture = io.StringIO(), tmp_path_factory.mktemp("demo") / "demo.png"
    begin = time.perf_counter()
    run(Console(file=screen, width=120), picture)
    return screen.getvalue(), picture, time.perf_counter() - begin


def figures(text, first_cell):
    """Percentages in the row of a table that begins with a cell."""
    cell = re.escape(first_cell)
    row = next(line for line in text.splitlines() if re.match(rf"\s*{cell}\s", line))
    return [float(found) for found in re.findall(r"([\d.]+)%", row)]


def test_the_demonstration_ends_in_time_and_draws_a_picture(shown):
    _, picture, seconds = shown
    assert seconds < 60 * 5  # a minute on two free cores; CI is busier
    with Image.open(picture) as image:
        assert image.size[0] >= 900


def test_names_alone_answer_and_samples_improve_accuracy(shown):
    accuracy = {k: figures(shown[0], k)[0] for k in ("0 (names)", "1", "4", "16")}
    assert accuracy["0 (names)"] > 60
    assert accuracy["0 (names)"] < accuracy["4"] < accuracy["16"]
    assert accuracy["16"] > 90


def test_confidence_follows_accuracy(shown):
    for k in ("0 (names)", "1", "2", "4", "8", "16"):
        accuracy, confidence, wrong_and_sure = figures(shown[0], k)[:3]
        # With names alone and one sample of each class nothing can be left out: rather unsure.
        assert -50 < confidence - accuracy < 15
        assert wrong_and_sure <= 5


def test_old_and_rare_classes_hold_where_fine_tuning_forgets_them(shown):
    by_task = figures(shown[0], "5 health")
    assert len(by_task) == 5
    assert min(by_task) > 70
    *ours, rare = figures(shown[0], "klda")
    assert ours[-1] == pytest.approx(np.mean(by_task), abs=1)
    assert ours[-1] > 85
    assert figures(shown[0], "fine-tuned softmax layer")[-2] < 40
    for peer in ("nearest mean", "logistic regression, keeps all texts"):
        *accuracy, rare_of_peer = figures(shown[0], peer)
        assert len(accuracy) == len(ours)
        assert ours[-1] > accuracy[-1]
        assert rare > rare_of_peer
    assert "the same answer to 100%" in " ".join(shown[0].split())


def test_unknown_questions_are_refused_and_a_class_is_forgotten(shown):
    text = " ".join(shown[0].split())
    found, wrongly = re.search(
        r"Marked unknown: (\d+) of 18 .*?wrongly (\d+) of 160", text
    ).groups()
    assert int(found) >= 11
    assert int(wrongly) <= 25
    forgot = re.search(r"was answered order_pizza, now (\w+); 19 classes left", text)
    assert forgot.group(1) != "order_pizza"
    assert "loaded: the same answers" in text
