"""What measurements share: options, synthetic rows, a clock."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Annotated, Any

import numpy as np
import typer

from klda import KLDA, KldaError
from klda_bench.environment import require

GAMMA = 0.2
BLOCK_ROWS = 20_000
SPREAD = 0.7  # of the centres, relative to the noise within classes

Features = Annotated[int, typer.Option(help="Features d.")]
ClassCount = Annotated[int, typer.Option(help="Classes.")]
RowCount = Annotated[int, typer.Option(help="Rows.")]
Numbers = Annotated[str, typer.Option(help="Numbers, separated by commas.")]
Components = Annotated[int, typer.Option(help="Random features D.")]
Repeats = Annotated[int, typer.Option(help="Runs, of which the median counts.")]
Seeds = Annotated[int, typer.Option(help="Number of seeds: 0, 1, ...")]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda, ...")]
Tf32 = Annotated[bool, typer.Option("--tf32", help="Allow TF32 in matrix products.")]
Names = Annotated[str, typer.Option(help="Data sets, separated by commas.")]
Data = Annotated[
    str | None, typer.Option(envvar="KLDA_DATA", help="Folder of data sets to look in first.")
]


def names(text: str) -> list[str]:
    """Read the names of an option, separated by commas."""
    return [part.strip() for part in text.split(",") if part.strip()]


def numbers(name: str, text: str) -> list[int]:
    """Read the whole numbers of an option, sorted."""
    try:
        return sorted(int(part) for part in text.split(","))
    except ValueError as error:
        raise KldaError(f"--{name} {text} must be whole numbers separated by commas.") from error


def make_model(n_components: int, device: str = "cpu", **options: Any) -> KLDA:
    """Return KLDA with the settings that measurements of time and memory share."""
    place: dict[str, Any] = {"n_components": n_components, "device": device}
    return KLDA(**(place | {"gamma": GAMMA, "random_state": 0} | options))


def sample_blocks(
    n_rows: int, n_features: int, n_classes: int
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield unit-length features of overlapping classes and their labels, block by block.

    Row i belongs to class ``i % n_classes``. A file of fewer rows is the beginning of one of more.
    """
    rng = np.random.default_rng(0)
    centres = SPREAD * rng.standard_normal((n_classes, n_features), dtype=np.float32)
    for start in range(0, n_rows, BLOCK_ROWS):
        labels = np.arange(start, min(start + BLOCK_ROWS, n_rows)) % n_classes
        samples = rng.standard_normal((len(labels), n_features), dtype=np.float32)
        samples += centres[labels]
        samples /= np.linalg.norm(samples, axis=1, keepdims=True)
        yield samples, labels


def make_samples(n_rows: int, n_features: int, n_classes: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the rows of :func:`sample_blocks` at once."""
    samples, labels = zip(*sample_blocks(n_rows, n_features, n_classes), strict=True)
    return np.concatenate(samples), np.concatenate(labels)


def in_turns(
    programs: Mapping[Any, Callable[[], Sequence[float]]], repeats: int
) -> dict[Any, list[float]]:
    """Run programs in turns: what else the machine does meets all of them alike.

    Returns the medians of the figures that each program gave.
    """
    runs = [{name: run() for name, run in programs.items()} for _ in range(repeats)]
    return {name: np.median([run[name] for run in runs], axis=0).tolist() for name in programs}


class Clock:
    """Seconds of a call, with the device's queue emptied before and after."""

    def __init__(self, device: str) -> None:
        self.device = device

    def __call__(self, action: Callable[[], Any], repeats: int = 1) -> float:
        """Return the seconds of the fastest of some calls."""
        best = np.inf
        for _ in range(repeats):
            self._wait()
            start = time.perf_counter()
            action()
            self._wait()
            best = min(best, time.perf_counter() - start)
        return float(best)

    def _wait(self) -> None:
        if self.device.startswith("cuda"):
            require("torch", "baselines").cuda.synchronize(self.device)
