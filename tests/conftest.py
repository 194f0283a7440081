from __future__ import annotations

import os
import re
import signal
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from tests.factories import REPOSITORY, Cli, save_tiny_dinov2


def find_data() -> Path | None:
    """Folder of the reference data: KLDA_DATA, else ../shared/data beside the repository."""
    candidates = [os.environ.get("KLDA_DATA"), REPOSITORY.parent / "shared" / "data"]
    for candidate in candidates:
        if candidate and (Path(candidate) / "paper").is_dir():
            return Path(candidate)
    return None


@pytest.fixture(autouse=True)
def interrupts():
    """Let tests be interrupted: a run in the background of a shell ignores SIGINT."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """Reference data folder; the test is skipped where it is absent."""
    found = find_data()
    if found is None:
        pytest.skip("reference data not found: set KLDA_DATA to the folder that holds paper/")
    return found


@pytest.fixture(scope="session")
def tiny_dinov2(tmp_path_factory) -> Path:
    """A tiny image model of the paper's architecture, with random weights."""
    for module in ("PIL", "torch", "transformers"):
        pytest.importorskip(module)
    return save_tiny_dinov2(tmp_path_factory.mktemp("dinov2"))


@pytest.fixture(scope="session")
def cli() -> Cli:
    """Runs commands."""
    return Cli()


@pytest.fixture
def crowded(cli, tmp_path):
    """A class close to another, and a small one."""
    rng = np.random.default_rng(0)
    centres = dict(zip("abcdefg", rng.normal(size=(7, 16)) * 2, strict=True))
    centres["near a"] = centres["a"] + 0.15 * rng.normal(size=16)
    parts, labels = [], []
    for name, centre in centres.items():
        n = 4 if name == "g" else 50
        parts.append(centre + rng.normal(size=(n, 16)))
        labels += [name] * n
    path = tmp_path / "crowded.npz"
    np.savez(path, features=np.concatenate(parts).astype(np.float32), labels=np.array(labels))
    folder = tmp_path / "crowded"
    cli("learn", path, "--model", folder, "--components", 300, "--gamma", 0.01)
    return folder


HOW_TO_GET = {
    "chromium": "apt-get install chromium (macOS: brew install chromium)",
    "reference data": "set KLDA_DATA to the folder of the reference data",
    "GPU": "run on a machine with a CUDA GPU",
    "'avalanche'": "make test-recipes",
    "could not import": "make test, which installs all extras",
    "installed": "make test, which installs all extras",
}


def pytest_terminal_summary(terminalreporter):
    """Say at the end what was skipped, why, and how to get it."""
    skipped = terminalreporter.stats.get("skipped", [])
    if not skipped:
        return
    reasons = Counter(re.sub("^Skipped: ", "", report.longrepr[2]) for report in skipped)
    terminalreporter.section(f"{len(skipped)} skipped, and how to run them")
    for reason, count in reasons.most_common():
        ways = (way for word, way in HOW_TO_GET.items() if word in reason)
        way = next(ways, "not for this machine or these settings")
        terminalreporter.line(f"{count} x {reason}\n      {way}")
