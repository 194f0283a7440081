"""``klda learn`` for hours: killed, interrupted, resumed, and over files larger than memory."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from klda import Learner
from klda.learner.resume import unfinished
from klda.storage import folder as storage
from tests.factories import write_rows
from tests.learner.test_kill import Commands, command, start

pytestmark = pytest.mark.slow

ROWS = 100_000  # 13 chunks


NEW = ("--components", "400", "--gamma", "0.02")


OFTEN = ("--checkpoint-every", "0.01")


@pytest.fixture(scope="module")
def long_file(tmp_path_factory):
    """Rows that take seconds to learn; classes come and go, so that places matter."""
    path = tmp_path_factory.mktemp("rows") / "long.npz"
    rng = np.random.default_rng(0)
    which = np.sort(rng.integers(0, 40, ROWS)) ^ rng.integers(0, 2, ROWS)
    centres = rng.normal(size=(41, 16))
    rows = (2 * centres[which] + rng.normal(size=(ROWS, 16))).astype(np.float32)
    np.savez(path, features=rows, labels=np.array([f"class {k}" for k in range(41)])[which])
    return path


@pytest.fixture(scope="module")
def commands():
    with Commands() as running:
        yield running


def run(commands, *words, seconds=None):
    """Run a command to its end, or kill it after so many seconds."""
    child = commands.start(*words)
    end = time.monotonic() + (120 if seconds is None else seconds)
    while commands.runs() and time.monotonic() < end:
        time.sleep(0.005)
    finished = not commands.runs()
    commands.kill(child)
    return finished


@pytest.fixture(scope="module")
def whole_run(commands, long_file, tmp_path_factory):
    """The model of a learn that nothing cut off, and the seconds it took."""
    folder = tmp_path_factory.mktemp("whole") / "m"
    start = time.monotonic()
    assert run(commands, "learn", long_file, "--model", folder, *NEW)
    return folder, time.monotonic() - start


@pytest.fixture(scope="module")
def whole(whole_run):
    return whole_run[0]


def check_same(folder, whole):
    """The same to the last bit: statistics, counts, temperature, weights."""
    stored, expected = storage.load(folder, verify=True), storage.load(whole)
    assert stored.document["samples"] == ROWS
    assert stored.document["engine"] == expected.document["engine"]
    assert stored.arrays.keys() == expected.arrays.keys()
    for name, array in expected.arrays.items():
        assert np.array_equal(stored.arrays[name], array), name
    named = {entry["name"] for entry in stored.document["files"]}
    assert {path.name for path in folder.iterdir()} == named | {"model.json", ".lock"}


def test_killed_at_any_moment_and_resumed_gives_the_same_model(
    commands, long_file, whole_run, tmp_path
):
    rng, (whole, seconds) = random.Random(0), whole_run
    folder, places = tmp_path / "m", []
    words = ("learn", long_file, "--model", folder, *NEW, *OFTEN, "--resume")
    for _ in range(3):  # soon after a new checkpoint, so that each goes on from the one before
        child = commands.start(*words)
        while commands.runs() and unfinished(folder) in [None, *places]:
            time.sleep(0.001)
        time.sleep(rng.uniform(0, 0.02))
        commands.kill(child)
        assert not storage.exists(folder)
        places.append(unfinished(folder))
    assert None not in places
    assert len(set(places)) == 3
    # At any time, and later and later, so that most of it is learned between kills.
    for attempt in range(60):
        if run(commands, *words, seconds=rng.uniform(0, 0.2) * (1 + attempt / 10) * seconds):
            break
        assert not storage.exists(folder) or Learner.load(folder).samples == ROWS
    else:  # the machine has become slower since `seconds` was measured
        assert run(commands, *words)
    check_same(folder, whole)
    # Once more changes nothing.
    assert run(commands, *words)
    check_same(folder, whole)


def test_killed_around_the_save_nothing_counts_twice(commands, long_file, whole, tmp_path):
    for i in range(3):
        folder = tmp_path / f"m{i}"
        words = ("learn", long_file, "--model", folder, *NEW, *OFTEN)
        child = commands.start(*words)
        while commands.runs() and not storage.exists(folder):
            time.sleep(0.0002)
        time.sleep(0.0005 * i)
        commands.kill(child)
        assert run(commands, *words, "--resume")
        check_same(folder, whole)


def test_control_c_says_how_to_go_on(long_file, whole, tmp_path):
    folder = tmp_path / "m"
    words = ("learn", long_file, "--model", folder, *NEW, *OFTEN)
    process = start(*words)
    while process.poll() is None and not unfinished(folder):
        time.sleep(0.005)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    assert "The progress is kept" in errors
    assert "--resume" in errors
    assert not storage.exists(folder)
    done = subprocess.run(command(*words, "--resume", "--json"), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "Continuing after" in done.stderr
    check_same(folder, whole)


# A process of its own whose largest memory, in kilobytes, is printed at the end. What getrusage
# says would include the process that started it.
MEASURED = """
import re
from pathlib import Path
from klda.cli import main
try:
    main()
finally:
    print(re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1])
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="measured as Linux tells it")
def test_memory_does_not_grow_with_the_file(tmp_path):
    """With 150,000 rows, 19 batches, all buffers were full; as many more are another 230 MB."""
    peaks = []
    for count in (150_000, 300_000):
        path = tmp_path / f"{count}.npz"
        rows = np.random.default_rng(0).standard_normal((count, 384), dtype=np.float32)
        np.savez(path, features=rows, labels=np.arange(count) % 10)
        words = ["learn", path, "--model", tmp_path / f"m{count}", "--components", 50]
        done = subprocess.run(
            [sys.executable, "-c", MEASURED, *map(str, words)],
            env=os.environ | {"MALLOC_ARENA_MAX": "2"},
            capture_output=True,
            text=True,
            check=True,
        )
        peaks.append(int(done.stdout.split()[-1]) * 1024)
        path.unlink()
    assert peaks[1] - peaks[0] < 230e6 / 6


def test_a_learn_that_was_cut_off_is_in_the_way_until_resumed_or_dropped(
    commands, cli, long_file, tmp_path
):
    folder = tmp_path / "m"
    words = ("learn", long_file, "--model", folder, *NEW)
    child = commands.start(*words, *OFTEN)
    while commands.runs() and not unfinished(folder):
        time.sleep(0.002)
    commands.kill(child)
    other = write_rows(tmp_path / "other.npz", "ab", 25)
    refused = cli("learn", other, "--model", folder, code=1).stderr
    assert "holds an unfinished learn of long.npz" in refused
    assert "--restart" in refused
    refused = cli("learn", other, "--model", folder, "--resume", code=1).stderr
    assert "it learns long.npz, not other.npz" in refused
    words_left_out = ("learn", long_file, "--model", folder, *NEW[2:], "--resume")
    assert "n_components=400, not 5000" in cli(*words_left_out, code=1).stderr
    both = cli(*words, "--resume", "--restart", code=2).stderr
    assert "give one of them" in both
    assert unfinished(folder)
    dropped = cli.json("learn", other, "--model", folder, "--restart", *NEW)
    assert dropped["samples"] == 50
    assert unfinished(folder) is None


def test_an_option_that_is_fixed_is_refused_before_progress_is_dropped(
    commands, cli, long_file, tmp_path
):
    folder = tmp_path / "m"
    other = write_rows(tmp_path / "other.npz", "ab", 25)
    cli("learn", other, "--model", folder, *NEW)
    refused = cli("learn", long_file, "--model", folder, *NEW, "--resume", code=1).stderr
    assert "--components was fixed" in refused  # there is nothing to resume
    child = commands.start("learn", long_file, "--model", folder, *OFTEN)
    while commands.runs() and not unfinished(folder):
        time.sleep(0.002)
    commands.kill(child)
    refused = cli("learn", long_file, "--model", folder, *NEW, "--restart", code=1).stderr
    assert "--components was fixed" in refused
    assert unfinished(folder)
    # The command that made the model, given again, has nothing left to do.
    finished = tmp_path / "finished"
    cli("learn", other, "--model", finished, *NEW)
    done = cli("learn", other, "--model", finished, *NEW, "--resume")
    assert "nothing to resume" in done.stderr
