"""A toy language: each class has words of its own."""

from __future__ import annotations

import numpy as np

from klda_bench.methods.registry import select

NAMES = ["red_fox", "blue_owl", "green_bee", "pink_cat"]
WORDS_A_CLASS = 4


def topic_words(label: str) -> list[str]:
    """Words that only texts of this class use."""
    return [f"{label.replace('_', '')}{i}" for i in range(WORDS_A_CLASS)]


def make_texts(label: str, count: int, seed: int = 0) -> list[str]:
    """Texts of a class: its own words in any order, two fillers among them."""
    rng = np.random.default_rng([seed, NAMES.index(label)])
    fillers = ["the", "and", "of", "to"]
    rows = []
    for _ in range(count):
        words = [*rng.choice(topic_words(label), 3), *rng.choice(fillers, 2)]
        rows.append(" ".join(rng.permutation(words)))
    return rows


def make_task(labels: list[str], count: int = 24, seed: int = 0) -> tuple[list[str], list[str]]:
    """Texts and labels of some classes."""
    texts = [text for label in labels for text in make_texts(label, count, seed)]
    return texts, [label for label in labels for _ in range(count)]


def accuracy(method, task) -> float:
    """Share of a task's texts that get their label."""
    texts, labels = task
    return float(np.mean(method.predict(texts) == np.array(labels)))


def make(name: str, backbone: str = "minilm", device: str = "auto", seed: int = 0, **options):
    """Make a method of the tables, as the benchmarks do."""
    (spec,) = select(name)
    return spec.make(spec.options(given=options), backbone=backbone, seed=seed, device=device)
