"""Files larger than memory: made a block at a time, and learned by the real ``klda learn``."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from klda import KldaError, Learner
from klda.learner import folder as folders
from klda_bench.measure.common import sample_blocks
from klda_bench.results import Row

KILL_AFTER = 0.4  # of the rows, as the last checkpoint has them
CHECKPOINTS = 20  # in the run that is killed, so that there is one to go on from


def generate(path: Path, n_rows: int, n_features: int, n_classes: int) -> None:
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
        for samples, _ in sample_blocks(n_rows, n_features, n_classes):
            features[start : start + len(samples)] = samples
            start += len(samples)
        np.savez(file, features=features, labels=labels)
    part.replace(path)


def learn_files(
    paths: list[Path], rows: list[int], compared: np.ndarray, folder: Path, n_components: int
) -> Iterator[Row]:
    """Learn files in processes of their own; kill one more run of the last, and resume it.

    Both models of that file score the samples `compared`. The model folders are made again in
    `folder`.
    """
    a_row = []
    for path, n in zip(paths, rows, strict=True):
        shutil.rmtree(folder / path.stem, ignore_errors=True)
        start = time.perf_counter()
        run = _finish(_start(path, folder / path.stem, n_components))
        wall = time.perf_counter() - start
        a_row.append(run["seconds"] / n)
        yield {
            "what": "learning a file",
            "rows": n,
            "bytes": path.stat().st_size,
            "seconds": run["seconds"],
            "seconds_in_all": wall,
            "microseconds_a_row": 1e6 * a_row[-1],
            "peak_bytes": run["peak_bytes"],
        }
    yield {"what": "time a row, large file over small", "ratio": a_row[-1] / a_row[0]}
    large, killed = paths[-1], folder / "killed"
    resumed = _kill_and_resume(large, killed, n_components, rows[-1], a_row[-1] * rows[-1])
    first, second = (
        Learner.load(model, device="cpu").scores(compared)
        for model in (folder / large.stem, killed)
    )
    error = float(np.abs(first - second).max() / np.abs(first).max())
    yield {"what": "killed half-way and resumed", **resumed, "relative_error": error}


def _start(path: Path, model: Path, n_components: int, *more: str) -> subprocess.Popen:
    main = "import sys; from klda.cli import main; sys.exit(main())"
    options = ["--components", str(n_components), "--gamma", "0.2", "--device", "cpu", "--json"]
    command = [sys.executable, "-c", main, "learn", str(path), "--model", str(model)]
    pipe = subprocess.PIPE
    return subprocess.Popen(
        [*command, *options, *more], stdout=pipe, stderr=pipe, text=True, start_new_session=True
    )


def _finish(process: subprocess.Popen) -> dict[str, Any]:
    """Return what a learn says of itself, and the largest memory that it held."""
    output, complaint = process.stdout.read(), process.stderr.read()  # type: ignore[union-attr]
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        raise KldaError(f"klda learn failed with status {process.returncode}: {complaint.strip()}")
    scale = 1 if sys.platform == "darwin" else 1024
    return json.loads(output) | {"peak_bytes": int(usage.ru_maxrss) * scale}


def _kill_and_resume(path: Path, model: Path, n_components: int, rows: int, seconds: float) -> Row:
    shutil.rmtree(model, ignore_errors=True)
    every = f"{seconds / CHECKPOINTS:.3f}"
    process = _start(path, model, n_components, "--checkpoint-every", every)
    _kill_after(process, model, int(KILL_AFTER * rows))
    report = _finish(_start(path, model, n_components, "--resume"))
    if not report["resumed_after"]:
        raise KldaError("The run was killed before its first checkpoint; use more rows.")
    return {"resumed_after_rows": report["resumed_after"], "samples": report["samples"]}


def _kill_after(process: subprocess.Popen, model: Path, rows: int) -> None:
    """Kill a learn as soon as a checkpoint has so many rows.

    It stands still while it is looked at: it can't end before the look does, however busy the
    machine is.
    """
    while process.poll() is None:
        os.killpg(process.pid, signal.SIGSTOP)
        if _saved_rows(model) >= rows:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            return
        os.killpg(process.pid, signal.SIGCONT)
        time.sleep(0.02)
    raise KldaError("The run ended before it could be killed half-way; use more rows.")


def _saved_rows(model: Path) -> int:
    """Rows in the last checkpoint of a ``klda learn`` that has not finished; 0 without one."""
    folder = model / folders.LEARNING
    try:
        found = folders.load(folder) if folders.exists(folder) else None
    except folders.ModelFolderError:  # it was complete, and removed, between the two looks
        return 0
    return 0 if found is None else int(found.document["learning"]["samples"])
