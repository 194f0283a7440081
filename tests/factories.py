"""What tests make: samples, texts, files, tiny models, and services in processes of their own."""

from __future__ import annotations

import csv
import http.client
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import NamedTuple

import numpy as np

from klda import Learner
from klda.engine.parameters import Parameters
from klda.storage import folder as storage

REPOSITORY = Path(__file__).resolve().parent.parent
TEXTS = REPOSITORY / "bench" / "src" / "klda_bench" / "demo"  # the demonstration's, as data

# ---------------------------------------------------------------- samples


def clouds(centres, n, seed=0):
    """N normal samples around each centre, and their labels: c00, c01, ..."""
    rng = np.random.default_rng(seed)
    rows = np.repeat(centres, n, axis=0) + rng.normal(size=(n * len(centres), centres.shape[1]))
    return rows, np.repeat([f"c{i:02}" for i in range(len(centres))], n)


def rows_of(label, n=12, seed=0, *, dimension=8, spread=2.0):
    """Samples of a class in float32; its centre depends on the label alone."""
    letters = list(str(label).encode())
    centre = np.random.default_rng(letters).normal(size=dimension)
    noise = np.random.default_rng([seed, *letters]).normal(size=(n, dimension))
    return (spread * centre + noise).astype(np.float32)


def samples(labels, n=12, seed=0, **options):
    """Samples of several classes, and their labels."""
    rows = np.concatenate([rows_of(label, n, seed, **options) for label in labels])
    return rows, [label for label in labels for _ in range(n)]


PROBE = samples("abcdef", n=7, seed=50)[0]


def write_rows(path, labels, n, seed=0):
    """Write n samples of each class, of 16 features, to an .npz file, and return its path."""
    rows, names = samples(labels, n, seed, dimension=16)
    np.savez(path, features=rows, labels=np.array(names))
    return path


def write_parquet(path, columns, **options):
    """Write columns to a parquet file, given by its path or open, and return it."""
    import pyarrow.parquet

    pyarrow.parquet.write_table(pyarrow.table(columns), path, **options)
    return path


# ---------------------------------------------------------------- texts


class Example(NamedTuple):
    """A labelled text; `part` is "learn" or "test"."""

    task: str
    intent: str
    part: str
    text: str


def examples(part=None):
    """Twenty intents, each with 16 texts to learn and 8 to test."""
    found = [Example(**row) for row in _csv("intents")]
    return [one for one in found if part in (None, one.part)]


def unknown_questions():
    """Questions that fit none of the intents."""
    return [row["text"] for row in _csv("unknown")]


def _csv(name):
    with (TEXTS / f"{name}.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


# ---------------------------------------------------------------- models


class LetterCounts:
    """A foundation model: what the documentation of an encoder asks for, and no more."""

    name, modality, dimension = "letters", "text", 26

    def encode(self, inputs, *, progress=False):
        letters = "abcdefghijklmnopqrstuvwxyz"
        return np.array([[text.count(letter) for letter in letters] for text in inputs], np.float32)

    def fingerprint(self):
        return {
            "name": self.name,
            "modality": self.modality,
            "dimension": self.dimension,
            "source": "",
            "revision": "1",
            "pooling": "none",
            "layers": "last",
        }


def small(**changes):
    """Parameters of a model that keeps its samples up to 20."""
    defaults = {"n_components": 40, "gamma": 0.02, "device": "cpu"}
    return Parameters(**defaults | changes)


def taught(labels="abcd", n=12, *, keep=None, **changes):
    """A learner that has learned some classes."""
    learner = Learner("features", classifier=small(**changes), keep=keep)
    return learner.learn(*samples(labels, n)) if labels else learner


def assert_same_scores(learner, expected, probe=PROBE, *, rtol=1e-4):
    """Scores are equal but for rounding; most are differences, so relative to the largest."""
    assert learner.classes == expected.classes
    found, wanted = learner.scores(probe), expected.scores(probe)
    np.testing.assert_allclose(found, wanted, rtol=0, atol=rtol * np.abs(wanted).max())


def edit_document(folder, change):
    """Let a function change ``model.json`` in place, and make its checksum agree again."""
    path = folder / storage.DOCUMENT
    document = json.loads(path.read_text(encoding="utf-8"))
    change(document)
    if "sha256" in document:
        document["sha256"] = storage.checksum(document)
    path.write_text(json.dumps(document), encoding="utf-8")


def save_tiny_dinov2(folder):
    """Save DINOv2 with four narrow layers on 28-pixel images, and its image processor."""
    import torch
    import transformers

    torch.manual_seed(0)
    shape = {"hidden_size": 32, "num_hidden_layers": 4, "num_attention_heads": 4}
    config = transformers.Dinov2Config(**shape, image_size=28, patch_size=14, initializer_range=0.4)
    transformers.Dinov2Model(config).save_pretrained(folder)
    crop = {"size": {"shortest_edge": 32}, "crop_size": {"height": 28, "width": 28}}
    transformers.BitImageProcessor(**crop).save_pretrained(folder)
    return folder


# ---------------------------------------------------------------- commands


class Cli:
    """Runs commands in this process, as a user would type them."""

    def __init__(self):
        from typer.testing import CliRunner

        from klda.cli.app import app

        self.runner, self.app = CliRunner(), app

    def __call__(self, *arguments, code=0, stdin=None):
        words = [str(word) for word in arguments]
        heard = signal.getsignal(signal.SIGINT)  # a command ignores it from its save on
        result = self.runner.invoke(self.app, words, input=stdin, prog_name="klda")
        signal.signal(signal.SIGINT, heard)
        if result.exception and not isinstance(result.exception, SystemExit):
            raise result.exception
        assert result.exit_code == code, result.output
        return result

    def json(self, *arguments):
        return json.loads(self(*arguments, "--json").stdout)


# ---------------------------------------------------------------- services


class ServiceProcess:
    """``klda serve`` in a process of its own; with `memory`, in so many megabytes of it."""

    def __init__(self, model, *options, memory=None):
        code = "from klda.cli import main; main()"
        command = [sys.executable, "-c", code, "serve", "--model", str(model), "--quiet"]
        if memory:
            command = ["sh", "-c", f'ulimit -v {memory * 1024}; exec "$0" "$@"', *command]
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 (held as long as the process)
        self.process = subprocess.Popen([*command, "--port", "0", *options], stderr=self._log)

    @property
    def address(self):
        """Where it serves; None before it says so."""
        said = re.search(r" at (http://127\.0\.0\.1:\d+)/ \(", self.log())
        return said and said[1]

    def starts(self):
        """Wait; return whether it serves: it may also end, with an error.

        Raise a TimeoutError if it does neither.
        """
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                return False
            try:
                if self.address:
                    urllib.request.urlopen(f"{self.address}/v1/health", timeout=120).close()
                    return True
                time.sleep(0.05)
            except urllib.error.HTTPError:  # it has a problem, and says so
                return True
            except (OSError, http.client.HTTPException):
                time.sleep(0.05)
        raise TimeoutError(f"neither served nor ended: {self.log()}")

    def wait(self):
        """Wait until it answers."""
        assert self.starts(), self.log()

    def log(self):
        """Return what it logged so far."""
        # Without seek: the process shares the file's position.
        return os.pread(self._log.fileno(), 1 << 24, 0).decode(errors="replace")

    def kill(self):
        """End it without warning."""
        self.process.kill()
        self.process.wait()

    def stop(self):
        """End it gracefully; return its exit code."""
        if self.process.poll() is None:
            self.process.terminate()
        return self.process.wait(timeout=120)
