"""Measure how fast MiniLM's features are made, beside sentence-transformers on the same files.

    KLDA_DATA=... OMP_NUM_THREADS=1 python tools/measure_encoding.py

Texts per second of processor time with one thread, on two sets of texts, in turns; and the largest
difference between a feature and that of sentence-transformers.
"""

from __future__ import annotations

import time
from statistics import median

import numpy as np
from sentence_transformers import SentenceTransformer

from klda import encoders
from klda.encoders import MODELS
from measure_models import read

TURNS, N = 3, 1000


def encoder(name, **options):
    return encoders.load(name, device="cpu", **options).encode


PROGRAMS = {
    "sentence-transformers": SentenceTransformer(
        str(MODELS["minilm"].locate().folder), device="cpu"
    ).encode,
    "klda, ONNX Runtime, float32": encoder("minilm", runtime="onnx"),
    "klda, torch, float32": encoder("minilm", runtime="torch"),
    "klda, torch, bfloat16": encoder("minilm", runtime="torch", precision="bfloat16"),
    "klda, multilingual": encoder("multilingual"),
    "klda, n-grams": encoder("ngrams"),
}


def seconds(encode, texts):
    start = time.process_time()
    encode(texts)
    return time.process_time() - start


for name in ("clinc", "dbpedia"):
    texts = read(name, "train").inputs[:N]
    taken = {program: [] for program in PROGRAMS}
    for _ in range(TURNS):
        for program, encode in PROGRAMS.items():
            taken[program].append(seconds(encode, texts))
    expected = PROGRAMS["sentence-transformers"](texts)
    for program, encode in PROGRAMS.items():
        rate = N / median(taken[program])
        times = median(taken["sentence-transformers"]) / median(taken[program])
        rows = encode(texts)
        same = rows.shape == expected.shape and program != "klda, multilingual"
        off = f"{np.abs(rows - expected).max():.0e}" if same else "other features"
        said = f"{rate:,.0f} texts/s, {times:.2f} x, difference {off}"
        print(f"{name}: {program}: {said}", flush=True)
