"""The parts of the cluster benchmark that need no cluster; the rest is what it measures."""

from __future__ import annotations

import pytest

pytest.importorskip("ray")

from klda.benchmarks import cluster as benchmark
from klda.data import open_table


def test_texts_are_the_same_each_time_and_can_be_read(tmp_path):
    file = benchmark._write(tmp_path / "texts.csv", 700)
    batches = list(open_table(file, modality="text").batches())
    texts = [text for batch in batches for text in batch.inputs]
    assert texts == [text for text, _ in benchmark.make_texts(700)]
    assert len({label for batch in batches for label in batch.labels}) > 100
    assert 10 < sum(len(text.split()) for text in texts) / len(texts) < 30


def test_the_table_shows_errors_and_kills():
    run = benchmark.Run("2 workers, one killed", 2, 100, 9.0, 8.0, 2e-6, True, 1)
    alone = benchmark.Run("one process", 0, 100, 9.0, 9.0, None, None)
    result = {"n_components": 50, "classes": 3, "runs": [vars(alone), vars(run)]}
    columns = [list(column.cells) for column in benchmark.table(result).columns]
    assert columns[0] == ["one process", "2 workers, one killed (1)"]
    assert columns[5] == ["-", "2.0e-06"]
