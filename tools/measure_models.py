"""Measure named text models for the table src/klda/encoders/named_models.toml.

    KLDA_DATA=... OMP_NUM_THREADS=1 python tools/measure_models.py minilm multilingual ngrams

Speed is in texts of Banking77 per second of processor time, with one thread. Accuracy is that of a
Learner with its defaults on the test rows of the paper's four sets, after all training rows.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import numpy as np

from klda import Learner
from klda.data import open_table

SETS = ("banking", "clinc", "dbpedia", "hwu")


def read(name, part):
    path = Path(os.environ["KLDA_DATA"], "paper", name, f"{part}.csv.gz")
    return next(open_table(path).batches(rows=1 << 20))


def speed(learner, n=1000):
    texts = read("banking", "train").inputs[:n]
    learner.encode(texts[:64])
    start = time.process_time()
    learner.encode(texts)
    return n / (time.process_time() - start)


def accuracy(name, dataset):
    train, test = read(dataset, "train"), read(dataset, "test")
    bot = Learner(name).learn(train.inputs, train.labels)
    return float(np.mean(bot.predict(test.inputs) == test.labels))


for model in sys.argv[1:]:
    rate = speed(Learner(model))
    found = {dataset: accuracy(model, dataset) for dataset in SETS}
    shown = ", ".join(f"{dataset} {value:.3f}" for dataset, value in found.items())
    print(f"{model}: speed = {rate:.0f}, accuracy = {np.mean(list(found.values())):.3f} ({shown})")
