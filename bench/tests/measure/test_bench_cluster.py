"""The parts of the cluster benchmark that need no cluster; the rest is what it measures."""

from __future__ import annotations

from klda_bench.data import read_table
from klda_bench.measure.cluster import make_texts, write_texts


def test_texts_are_the_same_each_time_and_can_be_read(tmp_path):
    file = write_texts(tmp_path / "texts.csv", 700)
    texts, labels, modality = read_table(file)
    assert modality == "text"
    assert texts == [text for text, _ in make_texts(700)]
    assert len(set(labels)) > 100
    assert 10 < sum(len(text.split()) for text in texts) / len(texts) < 30
