"""Measure named text models for the table src/klda/encoders/named_models.toml.

    KLDA_DATA=... OMP_NUM_THREADS=1 python tools/measure_models.py minilm multilingual ngrams
    KLDA_DATA=... OMP_NUM_THREADS=1 python tools/measure_models.py minilm --precision bfloat16

Speed is in texts of Banking77 per second of processor time, with one thread. Accuracy is that of a
Learner with its defaults on the test rows of the paper's four sets, after all training rows.
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path

import numpy as np

from klda import Learner
from klda.data import open_table

SETS = ("banking", "clinc", "dbpedia", "hwu")


def read(name, part):
    path = Path(os.environ["KLDA_DATA"], "paper", name, f"{part}.csv.gz")
    return next(open_table(path).batches(rows=1 << 20))


def speed(encode, n=1000):
    texts = read("banking", "train").inputs[:n]
    encode(texts[:64])
    start = time.process_time()
    encode(texts)
    return n / (time.process_time() - start)


def accuracy(name, dataset, precision):
    train, test = read(dataset, "train"), read(dataset, "test")
    bot = Learner(name, precision=precision).learn(train.inputs, train.labels)
    return float(np.mean(bot.predict(test.inputs) == test.labels))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("models", nargs="+")
    parser.add_argument("--precision", default="auto")
    given = parser.parse_args()
    for model in given.models:
        rate = speed(Learner(model, precision=given.precision).encode)
        found = {name: accuracy(model, name, given.precision) for name in SETS}
        shown = ", ".join(f"{name} {value:.4f}" for name, value in found.items())
        mean = np.mean(list(found.values()))
        print(f"{model}: speed = {rate:.0f}, accuracy = {mean:.3f} ({shown})", flush=True)
