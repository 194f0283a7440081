"""What a user waits for: the first answer, in fresh processes.

Everything runs in fresh processes of one Python, by default this one. To measure a small install,
make a virtual environment, install klda there, and give its ``bin/python``.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import numpy as np

from klda import KldaError
from klda.cli.options import option
from klda_bench.options import Output, Repeats, names
from klda_bench.results import Row

# The process that a shell starts: ru_maxrss of a child may be that of the process it came from.
PEAK = """
import atexit, pathlib, re, sys
status = pathlib.Path("/proc/self/status")
if status.exists():
    atexit.register(lambda: print(re.search("VmHWM.*", status.read_text())[0], file=sys.stderr))
"""
COMMAND = "import sys; sys.argv[0] = 'klda'; from klda.cli import main; main()"
FIRST = """
import sys
from klda import Learner
bot = Learner(sys.argv[1]).learn(["where is my card?", "will it rain?"], ["card", "weather"])
bot.predict(["my card"])
"""
SAVE = "bot.save(sys.argv[2])"
SIZE = """
import pathlib, sysconfig
files = pathlib.Path(sysconfig.get_paths()["purelib"]).rglob("*")
print(sum(f.stat().st_blocks * 512 for f in files if f.is_file() and not f.is_symlink()))
"""


def start(
    models: Annotated[
        str, option("Text models, comma-separated.", show_default=True)
    ] = "minilm,ngrams",
    python: Annotated[Path | None, option("Python of another environment (this one).")] = None,
    repeats: Repeats = 5,
    output: Output = None,
) -> Iterator[Row]:
    """Measure cold starts: klda --help, klda predict --text, a Learner's first answer."""
    python = python or Path(sys.executable)
    yield {"what": "install", "program": "all packages", "bytes": int(_run(python, SIZE).stdout)}
    yield _row(repeats, "klda --help", python, COMMAND, "--help")
    for model in names(models, "models"):
        with tempfile.TemporaryDirectory() as scratch:
            folder = str(Path(scratch) / "bot")
            _run(python, FIRST + SAVE, model, folder)
            asked = ("predict", "--model", folder, "--text", "my card")
            yield _row(repeats, f"{model}: klda predict --text", python, COMMAND, *asked)
        yield _row(repeats, f"{model}: Learner to first answer", python, FIRST, model)


def _run(python: Path, code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [os.fspath(python), "-c", code, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise KldaError(f"--python {python} can't run this: {last}")
    return done


def _row(repeats: int, program: str, python: Path, code: str, *arguments: str) -> Row:
    """Return medians of some runs: seconds, those of CPU, and peak memory (on Linux)."""
    runs = []
    for _ in range(repeats):
        before, begin = os.times(), time.perf_counter()
        done = _run(python, PEAK + code, *arguments)
        after, end = os.times(), time.perf_counter()
        used = after.children_user + after.children_system
        used -= before.children_user + before.children_system
        said = [line.split() for line in done.stderr.splitlines() if line.startswith("VmHWM")]
        runs.append((end - begin, used, int(said[-1][1]) * 1024 if said else np.nan))
    seconds, used, peak = np.median(runs, axis=0).tolist()
    row: Row = {"what": "start", "program": program, "seconds": seconds, "cpu_seconds": used}
    return row | ({} if np.isnan(peak) else {"peak_bytes": peak})
