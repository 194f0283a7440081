"""How the cost of learning and predicting grows, beside the formulas of docs/scaling.md."""

from __future__ import annotations

import itertools
import statistics
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from klda import KLDA, KldaError
from klda_bench import environment
from klda_bench.measure import common
from klda_bench.results import Row

ANSWERED = 1000  # samples

Block = tuple[np.ndarray, np.ndarray]


def classes(
    known: common.Numbers = "100,1000,10000",
    total: Annotated[int, typer.Option(help="Rows of all known classes together.")] = 30_000,
    rows: Annotated[int, typer.Option(help="Rows of the class that is added.")] = 40,
    features: common.Features = 384,
    components: common.Components = 2000,
    repeats: Annotated[
        int, typer.Option(help="Answers after a class was added; three times as many without.")
    ] = 5,
) -> Iterator[Row]:
    """Measure the time to add a class against the classes known before, which should not matter."""
    medians = []
    for before in common.numbers("known", known):
        each = max(2, total // before)  # all models have as many rows
        model = common.make_model(components)
        for samples, labels in _few_rows(before, each, features):
            model.partial_fit(samples, labels)
        rng = np.random.default_rng(1)
        new = itertools.count(before)
        fresh = (_rows_of(np.array([label]), rows, features, rng) for label in new)
        alone = [_add_class(model, *next(fresh))[0] for _ in range(3 * repeats)]
        model.predict(next(fresh)[0][:1])
        answered = [_add_class(model, *next(fresh), answer=True) for _ in range(repeats)]
        medians.append(statistics.median(alone))
        yield {
            "what": "adding a class",
            "classes_before": before,
            "rows_before": before * each,
            "add_seconds": medians[-1],
            "first_answer_seconds": statistics.median(run[1] for run in answered),
            "runs": {"alone": alone, "answered": answered},
        }
    ratio = medians[-1] / medians[0]
    yield {"what": "adding a class, most classes over fewest", "ratio": ratio}


def _add_class(
    model: KLDA, samples: np.ndarray, labels: np.ndarray, answer: bool = False
) -> tuple[float, float]:
    """Return the seconds of learning a class, and of the first answer after it."""
    start = time.perf_counter()
    model.partial_fit(samples, labels)
    learned = time.perf_counter()
    if answer:
        model.predict(samples[:1])
    return learned - start, time.perf_counter() - learned


def _rows_of(classes: np.ndarray, rows: int, n_features: int, rng: np.random.Generator) -> Block:
    """Draw some rows of each of some classes."""
    centres = rng.standard_normal((len(classes), n_features), dtype=np.float32)
    samples = 0.5 * rng.standard_normal((len(classes) * rows, n_features), dtype=np.float32)
    samples += centres.repeat(rows, axis=0)
    samples /= np.linalg.norm(samples, axis=1, keepdims=True)
    return samples, classes.repeat(rows)


def _few_rows(n_classes: int, rows: int, n_features: int) -> Iterator[Block]:
    """Yield a few rows of each of many classes; a block holds complete classes."""
    rng, blocks = np.random.default_rng(0), -(-n_classes * rows // 6000)
    for classes in np.array_split(np.arange(n_classes), min(blocks, n_classes)):
        yield _rows_of(classes, rows, n_features, rng)


def many(
    classes: common.ClassCount = 100_000,
    few: Annotated[int, typer.Option(help="Rows of each class.")] = 3,
    features: common.Features = 64,
    components: common.Components = 2000,
) -> Iterator[Row]:
    """Learn very many classes of few rows and answer with the top five, in a process of its own."""
    yield {
        "what": "many classes",
        **environment.in_child(_many, classes, few, features, components),
    }


def _many(n_classes: int, few: int, n_features: int, n_components: int) -> Row:
    idle = environment.resident_bytes()
    with environment.peak_memory() as memory:
        model = common.make_model(n_components)
        asked, truth, learning = [], [], 0.0
        for samples, labels in _few_rows(n_classes, few + 1, n_features):
            kept = np.arange(len(labels)) % (few + 1) > 0  # one row of each is held out
            start = time.perf_counter()
            model.partial_fit(samples[kept], labels[kept])
            learning += time.perf_counter() - start
            share = -(-ANSWERED * len(np.unique(labels)) // n_classes)
            asked.append(samples[~kept][:share])
            truth.append(labels[~kept][:share])
        X, y = np.concatenate(asked)[:ANSWERED], np.concatenate(truth)[:ANSWERED]
        clock = common.Clock("cpu")
        first = clock(lambda: model.predict(X[:1]))
        start = time.perf_counter()
        labels, _ = model.predict_top(X, 5)
        answering = time.perf_counter() - start
    return {
        "classes": n_classes,
        "rows": n_classes * few,
        "learn_seconds": learning,
        "first_answer_seconds": first,
        "answered": len(X),
        "top_5_seconds": answering,
        "right_first": float((labels[:, 0] == y).mean()),
        "right_in_5": float((labels == y[:, None]).any(axis=1).mean()),
        "peak_bytes": memory.peak_bytes,
        "idle_bytes": idle,
    }


def device(
    rows: common.RowCount = 1_000_000,
    features: common.Features = 768,
    classes: common.ClassCount = 1000,
    components: common.Components = 5000,
    block: Annotated[int, typer.Option(help="Rows per call.")] = 100_000,
    side: Annotated[int, typer.Option(help="Side of the bare matrix product.")] = 8192,
    repeats: common.Repeats = 3,
    device: common.Device = "auto",
    tf32: common.Tf32 = False,
) -> Iterator[Row]:
    """Learn rows made on the device; compare its rate with that of a bare matrix product."""
    import torch

    device = environment.resolve_device(device)
    environment.require_device(device)
    environment.allow_tf32(tf32)
    rate = _product_rate(torch, device, side, repeats)
    where = {"on": environment.describe_device(device), "precision": "tf32" if tf32 else "float32"}
    yield {"what": "bare matrix product", **where, "flops": rate}
    generator = torch.Generator(device=device).manual_seed(0)
    centres = torch.randn(classes, features, device=device, generator=generator)

    def make_block(n: int) -> tuple[Any, np.ndarray]:
        labels = torch.randint(classes, (n,), device=device, generator=generator)
        samples = torch.randn(n, features, device=device, generator=generator)
        samples += 0.7 * centres[labels]
        return torch.nn.functional.normalize(samples, dim=1), labels.cpu().numpy()

    # Rows must be there before the clock starts; as many calls as blocks, as a stream has.
    size = min(block, rows)
    blocks = [make_block(size) for _ in range(max(1, rows // size))]
    n = size * len(blocks)
    # The random features, and the half of Z^T Z that a symmetric matrix has.
    work = 2 * n * features * components + n * components**2
    clock, seconds = common.Clock(device), []
    for _ in range(repeats):
        model = common.make_model(components, "auto" if device == "cpu" else device)
        model.partial_fit(*make_block(4 * components))  # beyond few rows, and the device is awake
        seconds.append(clock(partial(_learn_blocks, model, blocks)))
    median = statistics.median(seconds)
    yield {
        "what": "learning on the device",
        **where,
        "rows": n,
        "learn_seconds": median,
        "runs": seconds,
        "flops": work / median,
        "share_of_product": work / median / rate,
    }


def _learn_blocks(model: KLDA, blocks: list[tuple[Any, np.ndarray]]) -> None:
    for samples, labels in blocks:
        model.partial_fit(samples, labels)


def _product_rate(torch: Any, device: str, side: int, repeats: int) -> float:
    """Multiplications and additions per second of one large matrix product: the median."""
    a = torch.randn(side, side, device=device)
    clock, out = common.Clock(device), torch.empty_like(a)
    clock(lambda: torch.mm(a, a, out=out))
    times = [clock(lambda: torch.mm(a, a, out=out)) for _ in range(max(3, repeats))]
    return 2 * side**3 / statistics.median(times)


def generate(
    out: Annotated[Path, typer.Argument(metavar="OUT", help="An .npz file.")],
    rows: common.RowCount = 1_000_000,
    features: common.Features = 384,
    classes: common.ClassCount = 1000,
) -> Iterator[Row]:
    """Write a file of synthetic features."""
    start = time.perf_counter()
    write_features(out, rows, features, classes)
    size, seconds = out.stat().st_size, time.perf_counter() - start
    yield {"what": "generated", "file": out.name, "rows": rows, "bytes": size, "seconds": seconds}


def write_features(path: Path, n_rows: int, n_features: int, n_classes: int) -> None:
    """Write an .npz file that ``klda learn`` takes; its rows are never in memory as a whole."""
    if path.suffix != ".npz":
        raise KldaError(f"OUT={path} must end in .npz.")
    if min(n_rows, n_features, n_classes) < 1:
        raise KldaError("--rows, --features and --classes must be 1 or more.")
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    with tempfile.TemporaryFile(dir=path.parent) as scratch, part.open("wb") as file:
        features = np.memmap(scratch, np.float32, "w+", shape=(n_rows, n_features))
        labels, start = np.arange(n_rows) % n_classes, 0
        for samples, _ in common.sample_blocks(n_rows, n_features, n_classes):
            features[start : start + len(samples)] = samples
            start += len(samples)
        np.savez(file, features=features, labels=labels)
    part.replace(path)


COMMANDS = (classes, many, device, generate)
