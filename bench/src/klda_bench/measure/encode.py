"""Encoders: how many texts a second become features, and what the features are good for.

``encode`` runs the same weights on the same texts in turns, on the CPU, beside other libraries;
medians count. Features are the published ones (``layers="last"``), so that they can be compared:
the largest difference to those of sentence-transformers is in the table. On a busy machine, compare
the seconds of CPU that 1,000 texts take with one thread (``OMP_NUM_THREADS=1``): waiting for a core
does not count there.

``features`` measures the accuracy of the default classifier on the features of each encoder, and
whether a number format may change between learning and answering.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from sklearn.base import clone

from klda import KldaError, Learner, encoders
from klda.errors import MissingDependencyError
from klda_bench import data as datasets_
from klda_bench.environment import UnavailableError, require
from klda_bench.measure.common import Data, Names, Repeats, Seeds, in_turns
from klda_bench.results import Row

Encode = Callable[[list[str]], np.ndarray]
REFERENCE = "sentence-transformers"


def encode(
    datasets: Names = "clinc,dbpedia",
    data: Data = None,
    model: Annotated[str, typer.Option(help="Text model that all of them run.")] = "minilm",
    rows: Annotated[int, typer.Option(help="Training texts of each set.")] = 2000,
    repeats: Repeats = 3,
) -> Iterator[Row]:
    """Measure texts a second for each engine, beside sentence-transformers and fastembed."""
    programs: dict[str, Encode] = {}
    for program, open_ in _programs(model).items():
        try:
            programs[program] = open_()
        except (UnavailableError, MissingDependencyError, encoders.OfflineModelError) as error:
            reason = str(error).splitlines()[0]
            yield {"what": "not measured", "program": program, "reason": reason}
    for name in datasets.split(","):
        texts = list(datasets_.load(name, data=data).train.X[:rows])
        features: dict[str, np.ndarray] = {}
        for run in programs.values():
            run(texts[:256])  # warms up
        runs = {p: partial(_timed, p, run, texts, features) for p, run in programs.items()}
        yield from _compared(name, len(texts), in_turns(runs, repeats), features)


def _timed(
    program: str, encode: Encode, texts: list[str], features: dict[str, np.ndarray]
) -> tuple[float, float]:
    """Encode texts into `features`; return the seconds, and those of CPU."""
    start, cpu_start = time.perf_counter(), time.process_time()
    features[program] = encode(texts)
    used = time.process_time() - cpu_start
    return time.perf_counter() - start, used


def features(
    datasets: Names = "clinc,banking,hwu,dbpedia",
    data: Data = None,
    models: Annotated[
        str, typer.Option(help="Text models, separated by commas.")
    ] = "minilm,ngrams,wordllama",
    precisions: Annotated[
        str, typer.Option(help="Number formats of models that run on torch too.")
    ] = "float32,bfloat16",
    seeds: Seeds = 3,
    cache: Annotated[Path | None, typer.Option(help="Folder that keeps features.")] = None,
) -> Iterator[Row]:
    """Measure the accuracy of the default classifier on the features of each encoder."""
    for name in datasets.split(","):
        for model in models.split(","):
            kinds = precisions.split(",") if encoders.engine_of(model) != "numpy" else ["float32"]
            learners = {
                kind: Learner(model, device="cpu", precision=kind, cache=cache) for kind in kinds
            }
            yield from _accuracies(name, datasets_.load(name, data=data), learners, seeds)


def _accuracies(
    name: str, dataset: datasets_.Dataset, learners: dict[str, Learner], seeds: int
) -> Iterator[Row]:
    """Teach in each number format and ask in each."""
    texts = [list(part.X) for part in (dataset.train, dataset.test)]
    rows = {kind: [learner.encode(part) for part in texts] for kind, learner in learners.items()}
    for taught, (train, _) in rows.items():
        accuracies: dict[str, list[float]] = {asked: [] for asked in rows}
        for seed in range(seeds):
            classifier = clone(learners[taught].classifier).set_params(random_state=seed)
            classifier.fit(train, dataset.train.y)
            for asked, (_, test) in rows.items():
                accuracies[asked].append(100 * classifier.score(test, dataset.test.y))
        for asked, found in accuracies.items():
            gaps = np.linalg.norm(rows[asked][0] - train, axis=1) / np.linalg.norm(train, axis=1)
            yield {
                "what": name,
                "program": str(learners[taught].encoder.name),
                "taught": taught,
                "asked": asked,
                "accuracy": round(statistics.mean(found), 2),
                "by_seed": [round(value, 2) for value in found],
                "median_distance": float(f"{np.median(gaps):.2g}"),
                "largest_distance": float(f"{gaps.max():.2g}"),
            }


def _compared(
    name: str, count: int, medians: dict[str, list[float]], features: dict[str, np.ndarray]
) -> Iterator[Row]:
    reference = medians.get(REFERENCE)
    for program, (median, cpu) in medians.items():
        row: Row = {"what": f"{name}, {count} texts", "program": program}
        row["texts_per_second"] = round(count / median)
        row["cpu_seconds_per_1000"] = round(1000 * cpu / count, 3)
        row["speed-up"] = round(reference[0] / median, 2) if reference else None
        row["speed-up_in_cpu_time"] = round(reference[1] / cpu, 2) if reference else None
        same = REFERENCE in features and features[program].shape == features[REFERENCE].shape
        difference = np.abs(features[program] - features[REFERENCE]).max() if same else None
        row["largest_difference"] = None if difference is None else float(f"{difference:.1g}")
        yield row


def _programs(model: str) -> dict[str, Callable[[], Encode]]:
    return {
        "klda, onnx, float32": lambda: _ours(model, engine="onnx"),
        "klda, torch, float32": lambda: _ours(model, engine="torch"),
        "klda, torch, bfloat16": lambda: _ours(model, engine="torch", precision="bfloat16"),
        REFERENCE: lambda: _sentence_transformers(model),
        "fastembed": lambda: _fastembed(model),
        "klda, ngrams": lambda: _ours("ngrams"),
        "klda, wordllama": lambda: _ours("wordllama"),
    }


def _ours(model: str, **options: Any) -> Encode:
    if "engine" in options:
        require({"onnx": "onnxruntime", "torch": "torch"}[options["engine"]], "encode")
    return encoders.load(model, device="cpu", layers="last", **options).encode


def _sentence_transformers(model: str) -> Encode:
    library = require("sentence_transformers", "encode")
    files = getattr(encoders.load(model, device="cpu"), "files", None)
    if files is None:
        raise KldaError(f"--model {model} is not a text model with weights.")
    encoder = library.SentenceTransformer(str(files.folder), device="cpu")
    return lambda texts: encoder.encode(texts, show_progress_bar=False)


def _fastembed(model: str) -> Encode:
    """Return fastembed with the same model, whose ONNX file it takes from the hub."""
    library = require("fastembed", "encode")
    hub_id = encoders.MODELS[model].hub_id if model in encoders.MODELS else model
    try:
        threads = int(os.environ.get("OMP_NUM_THREADS", 0)) or None  # which it does not read
        encoder = library.TextEmbedding(hub_id, threads=threads)
    except (OSError, ValueError, RuntimeError) as error:  # not in its list, or not downloaded
        first = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise UnavailableError(f"{hub_id}: {first}") from error
    return lambda texts: np.stack(list(encoder.embed(texts)))
