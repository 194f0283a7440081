"""What a user waits for: the first answer, an install, learning a file.

Everything runs in fresh processes of one Python, by default this one. To measure a small install,
make a virtual environment, install klda there, and give its ``bin/python``.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from klda import KldaError
from klda_bench.measure.common import Repeats, names
from klda_bench.results import Row

TEXTS = ["where is my card?", "my card has not come", "will it rain?", "a sunny day"]
LABELS = ["card", "card", "weather", "weather"]
NOT_KLDA = ("pip", "setuptools", "pkg_resources", "_distutils_hack", "wheel")
COMMAND = "import sys; sys.argv[0] = 'klda'; from klda.cli import main; main()"
LEARN = """
import sys
from klda import Learner
Learner(sys.argv[1]).learn({texts!r}, {labels!r}).save(sys.argv[2])
"""
FIRST = """
import sys
from klda import Learner
print(Learner(sys.argv[1]).learn({texts!r}, {labels!r}).predict(["my card"])[0])
"""
SIZE = """
import pathlib, sysconfig
packages = pathlib.Path(sysconfig.get_paths()["purelib"])
skipped = {skipped!r}
files = (path for path in packages.rglob("*") if path.is_file() and not path.is_symlink())
print(sum(f.stat().st_blocks * 512 for f in files if not f.relative_to(packages).parts[0].startswith(skipped)))
"""  # noqa: E501
# The process that a shell starts: ru_maxrss of a child may be that of the process it came from.
PEAK = """
import atexit, pathlib, sys
def say():
    status = pathlib.Path("/proc/self/status")
    for line in status.read_text().splitlines() if status.exists() else ():
        if line.startswith("VmHWM"):
            print("peak", line.split()[1], file=sys.stderr)
atexit.register(say)
"""


def start(
    models: Annotated[
        str, typer.Option(help="Text models, separated by commas.")
    ] = "minilm,ngrams",
    python: Annotated[Path | None, typer.Option(help="Python of another environment.")] = None,
    repeats: Repeats = 5,
) -> Iterator[Row]:
    """Measure cold starts: klda --help, klda predict --text, a Learner's first answer."""
    runner = _Fresh(python or Path(sys.executable), repeats)
    skipped = runner.run(SIZE.format(skipped=NOT_KLDA))
    yield {"what": "install", "program": "all packages but pip", "bytes": int(skipped.stdout)}
    yield runner.row("klda --help", COMMAND, "--help")
    for model in names(models):
        with tempfile.TemporaryDirectory() as scratch:
            folder = str(Path(scratch) / "bot")
            runner.run(LEARN.format(texts=TEXTS, labels=LABELS), model, folder)
            asked = ("predict", "--model", folder, "--text", "my card")
            yield runner.row(f"{model}: klda predict --text", COMMAND, *asked)
        code = FIRST.format(texts=TEXTS, labels=LABELS)
        yield runner.row(f"{model}: Learner to first answer", code, model)


def learn(
    file: Annotated[list[Path], typer.Option(help="File with samples and labels; repeatable.")],
    options: Annotated[str, typer.Option(help="More options of klda learn, in quotes.")] = "",
    repeats: Repeats = 3,
) -> Iterator[Row]:
    """Measure klda learn from the shell to the saved model: seconds and memory."""
    runner = _Fresh(Path(sys.executable), repeats)
    for path in file:
        asked = ("learn", str(path), *shlex.split(options), "--model")
        yield runner.row(f"klda learn {path.name}", COMMAND, *asked, new_folder=True)


class _Fresh:
    """Runs code in fresh processes of one Python."""

    def __init__(self, python: Path, repeats: int) -> None:
        self._python, self._repeats = python, repeats

    def run(self, code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [os.fspath(self._python), "-c", code, *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            last = (done.stderr.strip().splitlines() or ["no message"])[-1]
            raise KldaError(f"--python {self._python} can't run this: {last}")
        return done

    def row(self, program: str, code: str, *arguments: str, new_folder: bool = False) -> Row:
        """Return medians of some runs; with `new_folder`, each has one as its last argument."""
        runs = []
        for _ in range(self._repeats):
            with tempfile.TemporaryDirectory() as scratch:
                last = [str(Path(scratch) / "bot")] if new_folder else []
                runs.append(self._timed(code, *arguments, *last))
        seconds, used, peak = np.median(runs, axis=0).tolist()
        row: Row = {"what": "start", "program": program, "seconds": seconds, "cpu_seconds": used}
        return row | ({} if np.isnan(peak) else {"peak_bytes": peak})

    def _timed(self, code: str, *arguments: str) -> tuple[float, float, float]:
        """Return the seconds that a run takes, those of CPU, and its peak memory (on Linux)."""
        before, begin = os.times(), time.perf_counter()
        done = self.run(PEAK + code, *arguments)
        after, end = os.times(), time.perf_counter()
        used = after.children_user + after.children_system
        said = [line.split()[1] for line in done.stderr.splitlines() if line.startswith("peak ")]
        peak = int(said[-1]) * 1024 if said else np.nan
        return end - begin, used - before.children_user - before.children_system, peak
