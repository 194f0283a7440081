"""What measurements share: options, synthetic rows, a clock."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Annotated, Any

import numpy as np
import typer

from klda_bench.environment import require

GAMMA = 0.2
SPREAD = 0.7  # of the centres, relative to the noise within classes

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


def make_samples(n_rows: int, n_features: int, n_classes: int) -> tuple[np.ndarray, np.ndarray]:
    """Return unit-length features of overlapping classes and their labels."""
    rng = np.random.default_rng(0)
    centres = SPREAD * rng.standard_normal((n_classes, n_features), dtype=np.float32)
    labels = np.arange(n_rows) % n_classes
    samples = rng.standard_normal((n_rows, n_features), dtype=np.float32) + centres[labels]
    return samples / np.linalg.norm(samples, axis=1, keepdims=True), labels


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
