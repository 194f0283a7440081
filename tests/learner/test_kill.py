"""The real command in a process of its own: killed, interrupted, in competition, out of space."""

from __future__ import annotations

import json
import os
import random
import resource
import select
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from klda import KLDA
from klda.learner import Learner
from klda.storage import folder as storage
from tests.factories import write_rows

pytestmark = pytest.mark.slow

KLDA_COMMAND = [sys.executable, "-c", "from klda.cli import main; main()"]
D = 1500


def command(*words):
    return [*KLDA_COMMAND, *map(str, words)]


def heed_interrupts():
    """A job in the background of a script ignores them, and so would all that it starts."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def start(*words, **options):
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    options = pipes | {"preexec_fn": heed_interrupts} | options
    return subprocess.Popen(command(*words), **options)


@pytest.fixture
def model(tmp_path):
    """A model folder whose save takes a while: some 10 MB of statistics."""
    with np.load(write_rows(tmp_path / "first.npz", "abcd", 200)) as first:
        bot = Learner("features", classifier=KLDA(n_components=D, gamma=0.02, random_state=0))
        bot.learn(first["features"], first["labels"]).save(tmp_path / "model")
    return tmp_path / "model"


@pytest.fixture
def more(tmp_path):
    return write_rows(tmp_path / "more.npz", "defg", 200, seed=1)


QUESTIONS = np.random.default_rng(9).normal(size=(100, 16)).astype(np.float32) * 2


def answers(folder):
    stored = storage.load(folder, verify=True)
    learner = Learner.load(folder)
    return stored.generation, learner.classes, learner.predict(QUESTIONS).tolist()


class Commands:
    """Runs ``klda`` in processes that start at once: forks of one that has imported it.

    Importing takes most of the time of a short command, and fifty of them would take minutes.
    """

    CODE = """
import json, os, sys
import klda.cli.learn, klda.classifiers.klda, klda.learner.resume
from klda.cli import main
for line in sys.stdin:
    child = os.fork()
    if child == 0:
        sys.argv = ["klda", *json.loads(line)]
        main()
    print(child, flush=True)
    os.waitpid(child, 0)
    print("ended", flush=True)
"""

    def __init__(self):
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        code = [sys.executable, "-c", self.CODE]
        self.parent = subprocess.Popen(code, text=True, bufsize=1, **pipes)

    def start(self, *words):
        print(json.dumps([str(word) for word in words]), file=self.parent.stdin)
        return int(self.parent.stdout.readline())

    def runs(self):
        return not select.select([self.parent.stdout], [], [], 0)[0]

    def kill(self, child):
        if self.runs():
            os.kill(child, signal.SIGKILL)
        assert self.parent.stdout.readline() == "ended\n"

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.parent.stdin.close()
        self.parent.wait()
        self.parent.stdout.close()


@pytest.fixture
def commands():
    with Commands() as running:
        yield running


def check_after_a_kill(model, before):
    """Return what the folder answers now, after checking that it is the old model or the new."""
    found = answers(model)
    generation, classes, _ = before
    if found[0] == generation:
        assert found == before
    else:
        new = dict.fromkeys("efg", 0) | classes
        expected = {label: count + 200 * (label in "defg") for label, count in new.items()}
        assert found[1] == dict(sorted(expected.items()))
    return found


def test_twenty_kills_around_the_save_leave_the_old_model_or_the_new(model, more, commands):
    rng = random.Random(0)
    state = answers(model)
    changed = 0
    middle = 0.03  # seconds from the first new file to the moment that counts; found as we go
    for _ in range(20):
        child = commands.start("learn", more, "--model", model)
        files = set(model.iterdir())
        while commands.runs() and set(model.iterdir()) <= files:
            time.sleep(0.0005)
        time.sleep(middle * rng.uniform(0, 2))
        commands.kill(child)
        found = check_after_a_kill(model, state)
        saved = found[0] != state[0]
        changed += saved
        middle = min(middle * (0.8 if saved else 1.25), 1.0)
        state = found
    # On a disk of any speed the moments were spread over both sides of the one that counts.
    assert 2 <= changed <= 18, changed
    # The folder still works, and the next save clears away what the kills have left.
    subprocess.run(command("learn", more, "--model", model), check=True, capture_output=True)
    named = {entry["name"] for entry in storage.load(model).document["files"]}
    assert {path.name for path in model.iterdir()} == named | {"model.json", ".lock"}


def test_kills_while_the_model_is_made_leave_none_or_all(tmp_path, more):
    rng = random.Random(1)
    for i in range(4):
        folder = tmp_path / f"new{i}"
        process = start("learn", more, "--model", folder, "--components", D, "--gamma", 0.02)
        while process.poll() is None and not folder.exists():
            time.sleep(0.002)
        time.sleep(rng.uniform(0, 0.5))
        process.kill()
        process.communicate()
        if storage.exists(folder):
            assert answers(folder)[1] == dict.fromkeys("defg", 200)
        else:
            done = start("learn", more, "--model", folder, "--components", D, "--gamma", 0.02)
            assert done.wait() == 0
            done.communicate()
            assert answers(folder)[1] == dict.fromkeys("defg", 200)


def test_control_c_leaves_the_model_as_it_was(tmp_path, model):
    """The rows come through a pipe that never ends, so the command is surely in the middle."""
    before = answers(model)
    endless = tmp_path / "endless.csv"
    os.mkfifo(endless)
    # A model of texts is not needed: reading comes first, and that is where it hangs.
    process = start("learn", endless, "--model", tmp_path / "new")
    with endless.open("w") as pipe:
        pipe.write("text,label\n")
        pipe.flush()
        time.sleep(0.2)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Interrupted" in errors
    assert not storage.exists(tmp_path / "new")
    assert answers(model) == before


def test_two_learn_commands_at_once(model, more):
    before = answers(model)
    with storage.writer_lock(model):
        process = start("learn", more, "--model", model)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "Another process is writing" in errors
    assert str(model) in errors
    assert answers(model) == before
    first, second = (start("learn", more, "--model", model) for _ in range(2))
    for process in (first, second):
        process.communicate(timeout=60)
    codes = sorted(process.returncode for process in (first, second))
    assert codes in ([0, 0], [0, 1])
    assert answers(model)[1]["e"] == 200 * codes.count(0)
    with storage.writer_lock(model):
        waiting = start("learn", more, "--model", model, "--wait", "60")
        time.sleep(1)
        assert waiting.poll() is None
    _, errors = waiting.communicate(timeout=60)
    assert waiting.returncode == 0, errors


def test_a_full_disk_is_an_error_and_the_model_stays(model, more):
    before = answers(model)
    content = {path.name: path.stat().st_size for path in model.iterdir()}

    def limit():
        resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, resource.RLIM_INFINITY))

    process = start("learn", more, "--model", model, preexec_fn=limit)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "disk is full" in errors
    assert answers(model) == before
    assert {path.name: path.stat().st_size for path in model.iterdir()} == content


def test_a_reader_that_stops_reading_is_no_error(model, tmp_path):
    np.save(tmp_path / "q.npy", np.tile(QUESTIONS, (500, 1)))
    predict = " ".join(f"'{word}'" for word in command("predict", tmp_path / "q.npy", "-m", model))
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", f"{predict} | head -n 2"], capture_output=True, text=True
    )
    assert done.stdout.splitlines()[0] == "row,label,probability,known"
    assert "Traceback" not in done.stderr
