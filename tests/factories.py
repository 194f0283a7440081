"""What tests make: samples, texts, files, tiny models, and services in processes of their own."""

from __future__ import annotations

import csv
import json
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import NamedTuple

import numpy as np

from klda.storage import folder as storage

REPOSITORY = Path(__file__).resolve().parent.parent
TEXTS = REPOSITORY / "bench" / "src" / "klda_bench" / "demo"  # the demonstration's, as data

# ---------------------------------------------------------------- samples


def clouds(centres, n, seed=0):
    """N normal samples around each centre, and their labels: c00, c01, ..."""
    rng = np.random.default_rng(seed)
    rows = np.repeat(centres, n, axis=0) + rng.normal(size=(n * len(centres), centres.shape[1]))
    return rows, np.repeat([f"c{i:02}" for i in range(len(centres))], n)


def rows_of(label, n, *, dimension=16, seed=0, spread=2.0):
    """Samples of a class in float32; its centre depends on the label alone."""
    centre = np.random.default_rng(list(str(label).encode())).normal(size=dimension)
    noise = np.random.default_rng([seed, *str(label).encode()]).normal(size=(n, dimension))
    return (spread * centre + noise).astype(np.float32)


def write_rows(path, labels, n, **options):
    """Write n samples of each class to an .npz file, and return its path."""
    rows = np.concatenate([rows_of(label, n, **options) for label in labels])
    np.savez(path, features=rows, labels=np.repeat(list(labels), n))
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


def edit_document(folder, change):
    """Let a function change ``model.json`` in place, and make its checksum agree again."""
    path = folder / storage.DOCUMENT
    document = json.loads(path.read_text(encoding="utf-8"))
    change(document)
    if "sha256" in document:
        document["sha256"] = storage.checksum(document)
    path.write_text(json.dumps(document), encoding="utf-8")


# As in the published file, for smaller images.
DINOV2_IMAGES = {
    "image_processor_type": "BitImageProcessor",
    "do_resize": True,
    "size": {"shortest_edge": 32},
    "resample": 3,
    "do_center_crop": True,
    "crop_size": {"height": 28, "width": 28},
    "do_convert_rgb": True,
    "do_rescale": True,
    "rescale_factor": 0.00392156862745098,
    "do_normalize": True,
    "image_mean": [0.485, 0.456, 0.406],
    "image_std": [0.229, 0.224, 0.225],
}


def save_tiny_dinov2(folder):
    """Save DINOv2 with four narrow layers on 28-pixel images, and its image processor."""
    import torch
    import transformers

    torch.manual_seed(0)
    config = transformers.Dinov2Config(
        hidden_size=32,
        num_hidden_layers=4,
        num_attention_heads=4,
        image_size=28,
        patch_size=14,
        initializer_range=0.4,
    )
    transformers.Dinov2Model(config).save_pretrained(folder)
    (folder / "preprocessor_config.json").write_text(json.dumps(DINOV2_IMAGES))
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
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.address = f"http://127.0.0.1:{port}"
        code = "from klda.cli import main; main()"
        command = [sys.executable, "-c", code, "serve", "--model", str(model), "--quiet"]
        if memory:
            command = ["sh", "-c", f'ulimit -v {memory * 1024}; exec "$0" "$@"', *command]
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 (held as long as the process)
        self.process = subprocess.Popen([*command, "--port", str(port), *options], stderr=self._log)

    def starts(self):
        """Wait; return whether it serves: it may also end, with an error."""
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                return False
            try:
                urllib.request.urlopen(f"{self.address}/v1/health", timeout=120).close()
                return True
            except urllib.error.HTTPError:  # it has a problem, and says so
                return True
            except OSError:
                time.sleep(0.05)
        raise AssertionError(f"neither served nor ended: {self.log()}")

    def wait(self):
        """Wait until it answers."""
        assert self.starts(), self.log()

    def log(self):
        """Return what it logged so far."""
        self._log.seek(0)
        return self._log.read().decode(errors="replace")

    def kill(self):
        """End it without warning."""
        self.process.kill()
        self.process.wait()

    def stop(self):
        """End it gracefully; return its exit code."""
        if self.process.poll() is None:
            self.process.terminate()
        return self.process.wait(timeout=120)
