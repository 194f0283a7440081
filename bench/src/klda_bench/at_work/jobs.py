"""Jobs for programs at work; each program does a job in a process of its own.

``python -m klda_bench.at_work.jobs JOB PROGRAM`` is that process. It prints one JSON line after
each batch of samples; seconds are of the CPU, memory is the program's own.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from klda.errors import KldaError, MissingDependencyError
from klda_bench import environment
from klda_bench.at_work.programs import PROGRAMS
from klda_bench.data import datasets
from klda_bench.results import PROGRAM, Row, Run
from klda_bench.runs.metrics import accuracy
from klda_bench.runs.protocol import split_classes
from klda_bench.shots.tasks import KINDS, Shots


@dataclass(frozen=True)
class Job:
    """A data set, what is drawn of it (as in ``klda bench shots``), and in how many tasks."""

    title: str
    dataset: str
    kind: str
    shots: Shots
    tasks: int


GERMAN = "10kGNAD, German news, a fifth of the labels drawn at random"
JOBS = {
    "stream": Job("CLINC in ten tasks, 8 samples of each class", "clinc", "shots", 8, 10),
    "few": Job("Banking, 16 samples of each class", "banking", "shots", 16, 1),
    "german": Job(GERMAN, "gnad-german", "noisy", "all", 1),
}


def asked(job: str, name: str, folder: str | None) -> Run:
    """Return a program's run of a job; what ours answer changes with the program."""
    known, program = JOBS[job], PROGRAMS[name]
    try:
        is_ours = program.package == "klda"
        version = PROGRAM if is_ours else importlib.metadata.version(program.package)
    except importlib.metadata.PackageNotFoundError as error:
        raise MissingDependencyError(
            f"programs={name!r} needs the package {program.package!r}, which is not installed. In "
            'a clone of klda\'s repository, run: pip install -e "bench[peers]"'
        ) from error
    digest = datasets.load(known.dataset, data=folder).sha256
    settings = {"job": job, "shots": known.shots, "tasks": known.tasks, "data_sha256": digest}
    settings |= {"program": name, "version": version}

    def make() -> Row:
        return settings | {"machine": environment.machine(), "steps": done(job, name, folder)}

    return Run(settings, f"{known.title}: {program.title}", make)


def done(job: str, name: str, folder: str | None) -> list[Row]:
    """Do a job in a fresh process; return what it measured after each task."""
    command = [sys.executable, "-m", __name__, job, name]
    place = {} if folder is None else {"KLDA_DATA": folder}
    how: Any = {"capture_output": True, "text": True, "check": False}
    with tempfile.TemporaryDirectory() as scratch:  # some packages write into the present folder
        end = subprocess.run(command, env=os.environ | place, cwd=scratch, **how)
    if end.returncode:
        raise KldaError(f"{name} failed at {job}: {end.stderr.strip().splitlines()[-1]}")
    return [json.loads(line) for line in end.stdout.splitlines() if line.startswith("{")]


def work(job: str, name: str) -> Iterator[Row]:
    """Teach a program task by task, and ask it after each."""
    known = JOBS[job]
    dataset = datasets.load(known.dataset)
    drawn = KINDS[known.kind].draw(dataset.train.y, known.shots, np.random.default_rng(0))
    texts = np.array(dataset.train.X, dtype=object)[drawn.rows]
    made, seconds, seen = PROGRAMS[name].make(), 0.0, list[str]()
    for task in split_classes(dataset.classes, known.tasks, 0):
        seen += task
        own = np.isin(drawn.labels, task)
        begin = time.process_time()
        made.learn(texts[own].tolist(), drawn.labels[own].tolist())
        made.predict(dataset.test.X[:1])  # some solve when first asked
        seconds += time.process_time() - begin
        test = dataset.test.of_classes(seen)
        begin = time.process_time()
        answers = [str(label) for label in made.predict(test.X)]
        each = (time.process_time() - begin) / len(test)
        with tempfile.TemporaryDirectory() as folder:
            made.save(Path(folder))
            disk = sum(file.stat().st_size for file in Path(folder).rglob("*") if file.is_file())
        yield {
            "classes": len(seen),
            "samples": int(np.isin(drawn.labels, seen).sum()),
            "accuracy": round(accuracy(test.y, np.array(answers)), 4),
            "learn_seconds": round(seconds, 3),
            "answer_ms": round(1000 * each, 3),
            "disk_bytes": disk,
            "peak_bytes": environment.peak_bytes(),
        }


if __name__ == "__main__":
    out = os.fdopen(os.dup(1), "w")
    with contextlib.redirect_stdout(sys.stderr):  # packages print what they do
        for line in work(*sys.argv[1:3]):
            print(json.dumps(line), file=out, flush=True)
