"""How the cost of learning and predicting grows, measured against the formulas of docs/scaling.md.

Run as ``klda bench scale MEASURE`` or ``python -m klda_bench.scale MEASURE``:

- *rows*: time to learn against the number of rows, at fixed D; the exponent should be 1.
- *classes*: time to add a class against the classes learned before, which should not matter.
- *many*: very many classes of few rows, top-5 of a thousand samples, in a process of its own
  whose peak of memory is the one reported.
- *file*: the real ``klda learn`` on a small and on a large file, each in a process of its own; one
  more run is killed half-way and resumed.
- *device*: rows made on a GPU (or the CPU) and learned there, as a share of the rate of a bare
  matrix product in the same precision.
- *generate*: write such a file of synthetic features.

Each prints a table; ``--output FILE`` appends one JSON line a measurement.
"""

from __future__ import annotations

import argparse
import itertools
import json
import multiprocessing
import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from klda.classifiers import KLDA
from klda.errors import KldaError
from klda_bench.resources import (
    PeakMemory,
    describe_device,
    machine,
    require_device,
    resolve_device,
    versions,
)
from klda_bench.scale_files import generate, learn_files, sample_blocks
from klda_bench.speed import GAMMA, Clock, allow_tf32

Line = dict[str, Any]
OnLine = Callable[[Line], None]

WARM_ROWS = 64
ANSWERED = 1000  # samples
CHILD_HOURS = 6.0


def _model(n_components: int, device: str = "cpu", **options: Any) -> KLDA:
    settings: dict[str, Any] = {
        "n_components": n_components,
        "gamma": GAMMA,
        "random_state": 0,
        "device": device,
    }
    return KLDA(**(settings | options))


# ---------------------------------------------------------------- rows


def measure_rows(options: argparse.Namespace, on_line: OnLine) -> None:
    """Learn more and more rows; report seconds and the exponent in the number of rows."""
    sizes = sorted(options.sizes)
    if len(sizes) < 2:
        raise KldaError("--sizes needs two numbers of rows or more to fit an exponent.")
    samples, labels = _rows(sizes[-1], options.features, options.classes)
    _learn_rows(samples[: sizes[0]], labels[: sizes[0]], options.components)  # warms up
    runs: dict[int, list[tuple[float, float, float]]] = {n: [] for n in sizes}
    for _ in range(options.repeats):  # in turns: what else the machine does meets all sizes alike
        for n in sizes:
            runs[n].append(_learn_rows(samples[:n], labels[:n], options.components))
    learning, answering, working = [], [], []
    for n in sizes:
        learning.append(statistics.median(run[0] for run in runs[n]))
        answering.append(statistics.median(run[1] for run in runs[n]))
        working.append(statistics.median(run[2] for run in runs[n]))
        on_line(
            {
                "what": "learning rows",
                "rows": n,
                "learn_seconds": learning[-1],
                "first_answer_seconds": answering[-1],
                "microseconds_a_row": 1e6 * learning[-1] / n,
                "cpu_microseconds_a_row": 1e6 * working[-1] / n,
                "runs": runs[n],
            }
        )
    both = np.add(learning, answering).tolist()
    on_line({"what": "exponent of learning in rows", "exponent": exponent(sizes, learning)})
    on_line({"what": "exponent, in processor time", "exponent": exponent(sizes, working)})
    on_line({"what": "exponent, first answer included", "exponent": exponent(sizes, both)})


def exponent(sizes: list[int], seconds: list[float]) -> float:
    """Slope of log seconds against log size, by least squares."""
    return float(np.polyfit(np.log(sizes), np.log(seconds), 1)[0])


def _rows(n_rows: int, n_features: int, n_classes: int) -> tuple[np.ndarray, np.ndarray]:
    blocks = list(sample_blocks(n_rows, n_features, n_classes))
    return np.concatenate([block[0] for block in blocks]), np.concatenate([b[1] for b in blocks])


def _learn_rows(
    samples: np.ndarray, labels: np.ndarray, n_components: int
) -> tuple[float, float, float]:
    """Return the seconds of learning, of the first answer, and of processors while learning."""
    model = _model(n_components)
    model.partial_fit(samples[:WARM_ROWS], labels[:WARM_ROWS])  # draws the random features
    worked, start = time.process_time(), time.perf_counter()
    model.partial_fit(samples, labels)
    learned, worked = time.perf_counter(), time.process_time() - worked
    model.predict(samples[:1])
    return learned - start, time.perf_counter() - learned, worked


# ---------------------------------------------------------------- classes


def measure_classes(options: argparse.Namespace, on_line: OnLine) -> None:
    """Add classes to models that know few and many; report both and their ratio."""
    medians = []
    for known in sorted(options.known):
        model, fresh = _known_classes(known, options), _new_classes(options)
        alone = [_add_class(model, fresh)[0] for _ in range(3 * options.repeats)]
        model.predict(next(fresh)[0][:1])
        answered = [_add_class(model, fresh, answer=True) for _ in range(options.repeats)]
        medians.append(statistics.median(alone))
        on_line(
            {
                "what": "adding a class",
                "classes_before": known,
                "rows_before": known * _rows_each(known, options),
                "add_seconds": medians[-1],
                "first_answer_seconds": statistics.median(run[1] for run in answered),
                "runs": {"alone": alone, "answered": answered},
            }
        )
    ratio = medians[-1] / medians[0]
    on_line({"what": "adding a class, most classes over fewest", "ratio": ratio})


def _rows_each(known: int, options: argparse.Namespace) -> int:
    return max(2, int(options.total) // known)


def _known_classes(known: int, options: argparse.Namespace) -> KLDA:
    """Return a model of so many classes; all models have as many rows."""
    model = _model(options.components)
    for samples, labels in _few_rows(known, _rows_each(known, options), options.features):
        model.partial_fit(samples, labels)
    return model


def _new_classes(options: argparse.Namespace) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    rng = np.random.default_rng(1)
    for label in itertools.count(10**9):
        centre = rng.standard_normal(options.features, np.float32)
        rows = centre + rng.standard_normal((options.rows, options.features), np.float32)
        rows /= np.linalg.norm(rows, axis=1, keepdims=True)
        yield rows, np.full(len(rows), label)


def _add_class(
    model: KLDA, classes: Iterator[tuple[np.ndarray, np.ndarray]], answer: bool = False
) -> tuple[float, float]:
    """Return the seconds of learning a class, and of the first answer after it."""
    samples, labels = next(classes)
    start = time.perf_counter()
    model.partial_fit(samples, labels)
    learned = time.perf_counter()
    if answer:
        model.predict(samples[:1])
    return learned - start, time.perf_counter() - learned


def _few_rows(n_classes: int, rows: int, n_features: int) -> Iterator[tuple[np.ndarray, Any]]:
    """Yield a few rows of each of many classes, complete classes a block."""
    rng = np.random.default_rng(0)
    step = max(1, 6000 // rows)
    for start in range(0, n_classes, step):
        labels = np.repeat(np.arange(start, min(start + step, n_classes)), rows)
        centres = rng.standard_normal((len(labels) // rows, n_features), dtype=np.float32)
        samples = rng.standard_normal((len(labels), n_features), dtype=np.float32)
        samples *= 0.5
        samples += centres.repeat(rows, axis=0)
        samples /= np.linalg.norm(samples, axis=1, keepdims=True)
        yield samples, labels


# ---------------------------------------------------------------- many classes


def measure_many(options: argparse.Namespace, on_line: OnLine) -> None:
    """Learn very many classes of few rows and answer with the top five, in a child process."""
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    arguments = (options.classes, options.few, options.features, options.components, queue)
    process = context.Process(target=_many, args=arguments)
    process.start()
    deadline = time.monotonic() + CHILD_HOURS * 3600
    while process.is_alive() and queue.empty() and time.monotonic() < deadline:
        process.join(timeout=0.2)
    if queue.empty():
        process.terminate()
        raise KldaError(
            f"The process that learns {options.classes} classes ended with status "
            f"{process.exitcode} and no result: there may be too little memory."
        )
    on_line({"what": "many classes", **queue.get()})
    process.join()


def _many(n_classes: int, few: int, n_features: int, n_components: int, queue: Any) -> None:
    with PeakMemory() as idle:
        pass
    with PeakMemory() as memory:
        model = _model(n_components)
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
        start = time.perf_counter()
        model.predict(X[:1])
        first = time.perf_counter() - start
        start = time.perf_counter()
        labels, _ = model.predict_top(X, 5)
        answering = time.perf_counter() - start
    queue.put(
        {
            "classes": n_classes,
            "rows": n_classes * few,
            "learn_seconds": learning,
            "first_answer_seconds": first,
            "answered": len(X),
            "top_5_seconds": answering,
            "right_first": float((labels[:, 0] == y).mean()),
            "right_in_5": float((labels == y[:, None]).any(axis=1).mean()),
            "peak_bytes": memory.peak_bytes,
            "idle_bytes": idle.peak_bytes,
        }
    )


# ---------------------------------------------------------------- a device


def measure_device(options: argparse.Namespace, on_line: OnLine) -> None:
    """Learn rows made on the device; compare its rate with that of a bare matrix product."""
    import torch

    device = resolve_device(options.device)
    require_device(device)
    allow_tf32(options.tf32)
    precision = "tf32" if options.tf32 else "float32"
    rate = _product_rate(torch, device, options.side, options.repeats)
    where = {"on": describe_device(device), "precision": precision}
    on_line({"what": "bare matrix product", **where, "flops": rate})
    generator = torch.Generator(device=device).manual_seed(0)
    centres = torch.randn(options.classes, options.features, device=device, generator=generator)

    def block(n: int) -> tuple[Any, np.ndarray]:
        labels = torch.randint(options.classes, (n,), device=device, generator=generator)
        rows = torch.randn(n, options.features, device=device, generator=generator)
        rows += 0.7 * centres[labels]
        return torch.nn.functional.normalize(rows, dim=1), labels.cpu().numpy()

    # Rows must be there before the clock starts; as many calls as blocks, as a stream has.
    size = min(options.block, options.rows)
    blocks = [block(size) for _ in range(max(1, options.rows // size))]
    n, d, components = size * len(blocks), options.features, options.components
    # The random features, and the half of Z^T Z that a symmetric matrix has.
    work = 2 * n * d * components + n * components**2
    clock, seconds = Clock(device), []
    for _ in range(options.repeats):
        model = _model(components, "auto" if device == "cpu" else device)
        model.partial_fit(*block(4 * components))  # beyond few rows, and the device is awake
        seconds.append(clock(partial(_learn_blocks, model, blocks)))
    median = statistics.median(seconds)
    on_line(
        {
            "what": "learning on the device",
            **where,
            "rows": n,
            "learn_seconds": median,
            "runs": seconds,
            "flops": work / median,
            "share_of_product": work / median / rate,
        }
    )


def _learn_blocks(model: KLDA, blocks: list[tuple[Any, np.ndarray]]) -> None:
    for samples, labels in blocks:
        model.partial_fit(samples, labels)


def _product_rate(torch: Any, device: str, side: int, repeats: int) -> float:
    """Multiplications and additions a second of one large matrix product: the median."""
    a = torch.randn(side, side, device=device)
    clock, out = Clock(device), torch.empty_like(a)
    clock(lambda: torch.mm(a, a, out=out))
    times = [clock(lambda: torch.mm(a, a, out=out)) for _ in range(max(3, repeats))]
    return 2 * side**3 / statistics.median(times)


# ---------------------------------------------------------------- files


def measure_file(options: argparse.Namespace, on_line: OnLine) -> None:
    """Learn two files with the real command; kill one run half-way, resume it and compare."""
    small, large = sorted(options.rows)
    paths = [options.folder / f"features-{n}.npz" for n in (small, large)]
    for path, n in zip(paths, (small, large), strict=True):
        generate(path, n, options.features, options.classes)
    learn_files(paths[0], paths[1], options.folder, options.components, (small, large), on_line)


def generate_file(options: argparse.Namespace, on_line: OnLine) -> None:
    """Write a file of synthetic features."""
    start = time.perf_counter()
    generate(options.out, options.rows, options.features, options.classes)
    on_line(
        {
            "what": "generated",
            "file": options.out.name,
            "rows": options.rows,
            "bytes": options.out.stat().st_size,
            "seconds": time.perf_counter() - start,
        }
    )


# ---------------------------------------------------------------- the command


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="klda bench scale",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="measure", required=True, metavar="MEASURE")

    def command(name: str, action: Callable[..., None], **sizes: Any) -> argparse.ArgumentParser:
        one = commands.add_parser(name, help=(action.__doc__ or "").splitlines()[0])
        one.set_defaults(action=action)
        one.add_argument("--output", type=Path, help="append JSON lines to this file")
        for option, (default, text) in sizes.items():
            kind: Callable[[str], Any] = int
            if isinstance(default, list):
                kind, default, text = _numbers, ",".join(map(str, default)), f"{text}, with commas"
            one.add_argument(
                f"--{option}", type=kind, default=default, help=f"{text} (%(default)s)"
            )
        return one

    components = (2000, "random features D")
    features, repeats = (384, "features d"), (3, "runs, of which the median counts")
    command(
        "rows",
        measure_rows,
        sizes=([20_000, 40_000, 80_000, 160_000], "numbers of rows"),
        features=features,
        classes=(100, "classes"),
        components=components,
        repeats=repeats,
    )
    command(
        "classes",
        measure_classes,
        known=([100, 1000, 10_000], "classes learned before"),
        total=(30_000, "rows of all of them together"),
        rows=(40, "rows of the class that is added"),
        features=features,
        components=components,
        repeats=(5, "answers after a class was added; three times as many without"),
    )
    command(
        "many",
        measure_many,
        classes=(100_000, "classes"),
        few=(3, "rows of each"),
        features=(64, "features d"),
        components=components,
    )
    file = command(
        "file",
        measure_file,
        rows=([100_000, 1_000_000], "rows of the two files"),
        features=features,
        classes=(1000, "classes"),
        components=components,
    )
    file.add_argument("--folder", type=Path, default=Path("out/scale"), help="for files and models")
    device = command(
        "device",
        measure_device,
        rows=(1_000_000, "rows"),
        features=(768, "features d"),
        classes=(1000, "classes"),
        components=(5000, "random features D"),
        block=(100_000, "rows a call"),
        side=(8192, "side of the bare matrix product"),
        repeats=repeats,
    )
    device.add_argument("--device", default="auto", help="auto, cpu, cuda, ...")
    device.add_argument("--tf32", action="store_true", help="allow TF32 in matrix products")
    out = command(
        "generate",
        generate_file,
        rows=(1_000_000, "rows"),
        features=features,
        classes=(1000, "classes"),
    )
    out.add_argument("out", type=Path, metavar="OUT", help="an .npz file")
    return parser


def _numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def _settings(options: argparse.Namespace) -> dict[str, Any]:
    hidden = ("action", "output", "folder", "out")
    return {name: value for name, value in vars(options).items() if name not in hidden}


def report(lines: list[Line]) -> Iterator[Any]:
    """Yield what a console prints: a line for a single value, a table for more."""
    from rich.table import Table

    for what, group in itertools.groupby(lines, key=lambda line: line["what"]):
        rows = [{k: v for k, v in line.items() if k not in ("what", "runs")} for line in group]
        shown = [[_shown(name, value) for name, value in row.items()] for row in rows]
        if len(rows) == len(rows[0]) == 1:
            yield f"{what}: {shown[0][0]}"
            continue
        yield f"{what}:"
        names = [name.replace("_", " ") for name in rows[0]]
        grid = Table(*names) if len(rows) > 1 else Table(show_header=False)
        for row in shown if len(rows) > 1 else zip(names, shown[0], strict=True):
            grid.add_row(*row)
        yield grid


def _shown(name: str, value: Any) -> str:
    if name.endswith("bytes"):
        return f"{value / 1e9:.2f} GB"
    if name == "flops":
        return f"{value / 1e12:.3g} TFLOP/s"
    if isinstance(value, float):
        return f"{value:.4g}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def main(arguments: list[str] | None = None) -> None:
    """Measure, print a table, and append JSON lines."""
    from rich.console import Console

    options = _parser().parse_args(arguments)
    console, lines = Console(), []
    common = {
        "measure": options.measure,
        "settings": _settings(options),
        "machine": machine(),
        "versions": versions(),
    }

    def on_line(line: Line) -> None:
        lines.append(line)
        if options.output:
            options.output.parent.mkdir(parents=True, exist_ok=True)
            with options.output.open("a") as file:
                file.write(json.dumps(line | common) + "\n")

    options.action(options, on_line)
    for part in report(lines):
        console.print(part)


if __name__ == "__main__":
    main()
