"""How many texts a second become features: klda's engines beside other libraries.

All run the same weights on the same texts, in turns, on the CPU; medians count. Features are the
published ones (``layers="last"``), so that they can be compared: the largest difference to those of
sentence-transformers is in the table.

On a busy machine, compare the seconds of CPU that 1,000 texts take with one thread
(``OMP_NUM_THREADS=1``): waiting for a core does not count there.
"""

from __future__ import annotations

import importlib.util
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Annotated

import numpy as np
import typer

from klda import KldaError, encoders
from klda_bench import data as datasets_
from klda_bench.measure.common import Data, Names, Repeats
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
    programs = {name: make for name, make in _programs(model).items() if make is not None}
    for name in datasets.split(","):
        texts = list(datasets_.load(name, data=data).train.X[:rows])
        seconds: dict[str, list[tuple[float, float]]] = {program: [] for program in programs}
        features: dict[str, np.ndarray] = {}
        for program, run in programs.items():
            features[program] = run(texts[:256])  # warms up
        for _ in range(repeats):
            for program, run in programs.items():
                start, cpu_start = time.perf_counter(), time.process_time()
                run(texts)
                used = time.process_time() - cpu_start
                seconds[program].append((time.perf_counter() - start, used))
        yield from _compared(name, len(texts), seconds, features)


def _compared(
    name: str,
    count: int,
    seconds: dict[str, list[tuple[float, float]]],
    features: dict[str, np.ndarray],
) -> Iterator[Row]:
    medians = {
        program: [statistics.median(times) for times in zip(*pairs, strict=True)]
        for program, pairs in seconds.items()
    }
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


def _programs(model: str) -> dict[str, Encode | None]:
    return {
        "klda, onnx, float32": _ours(model, engine="onnx"),
        "klda, torch, float32": _ours(model, engine="torch"),
        "klda, torch, bfloat16": _ours(model, engine="torch", precision="bfloat16"),
        REFERENCE: _sentence_transformers(model),
        "fastembed": _fastembed(model),
        "klda, ngrams": _ours("ngrams"),
    }


def _ours(model: str, **options: str) -> Encode | None:
    needed = {"onnx": "onnxruntime", "torch": "torch"}.get(options.get("engine", ""))
    if needed is not None and importlib.util.find_spec(needed) is None:
        return None
    return encoders.load(model, device="cpu", layers="last", **options).encode  # type: ignore[arg-type]


def _sentence_transformers(model: str) -> Encode | None:
    if importlib.util.find_spec("sentence_transformers") is None:
        return None
    from sentence_transformers import SentenceTransformer

    files = getattr(encoders.load(model, device="cpu"), "files", None)
    if files is None:
        raise KldaError(f"--model {model} is not a text model with weights.")
    library = SentenceTransformer(str(files.folder), device="cpu")
    return lambda texts: library.encode(texts, show_progress_bar=False)


def _fastembed(model: str) -> Encode | None:
    """Return fastembed with the same model; None where it is not installed or has no such model."""
    if importlib.util.find_spec("fastembed") is None or model not in encoders.MODELS:
        return None
    from fastembed import TextEmbedding

    try:
        library = TextEmbedding(encoders.MODELS[model].hub_id)
    except (OSError, ValueError, RuntimeError):  # not in its list, or can't be downloaded
        return None
    return lambda texts: np.stack(list(library.embed(texts)))
