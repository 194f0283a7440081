from __future__ import annotations

import csv
import json
import signal

import numpy as np
import pytest
from typer.testing import CliRunner

from klda.cli.app import app
from tests.factories import examples


class Cli:
    """Runs commands in this process, as a user would type them."""

    def __init__(self):
        self.runner = CliRunner()

    def __call__(self, *arguments, code=0, stdin=None):
        words = [str(word) for word in arguments]
        heard = signal.getsignal(signal.SIGINT)  # a command ignores it from its save on
        result = self.runner.invoke(app, words, input=stdin, prog_name="klda")
        signal.signal(signal.SIGINT, heard)
        if result.exception and not isinstance(result.exception, SystemExit):
            raise result.exception
        assert result.exit_code == code, result.output
        return result

    def json(self, *arguments):
        return json.loads(self(*arguments, "--json").stdout)


@pytest.fixture(scope="session")
def cli():
    return Cli()


@pytest.fixture
def rows(tmp_path):
    """Writes .npz files of feature rows around one centre a class."""

    def write(name, labels, *, count=25, seed=0):
        inputs, names = [], []
        for label in labels:
            centre = np.random.default_rng(sum(map(ord, label))).normal(size=16)
            noise = np.random.default_rng(seed).normal(size=(count, 16))
            inputs.append(2 * centre + noise)
            names += [label] * count
        path = tmp_path / f"{name}.npz"
        np.savez(path, features=np.concatenate(inputs).astype(np.float32), labels=np.array(names))
        return path

    return write


@pytest.fixture
def make(cli, rows, tmp_path):
    """Makes a model folder from feature rows."""

    def make_model(name, labels, *options):
        folder = tmp_path / name
        cli(
            *("learn", rows(f"{name}-rows", labels), "--model", folder),
            *("--components", 300, "--gamma", 0.02, *options),
        )
        return folder

    return make_model


@pytest.fixture(scope="session")
def bot(tmp_path_factory, cli):
    """A model of four intents of the demonstration's texts, and a file to test it."""
    folder = tmp_path_factory.mktemp("bot")
    chosen = ("check_balance", "book_flight", "play_music", "order_pizza")
    for part in ("learn", "test"):
        with (folder / f"{part}.csv").open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(["utterance", "intent"])
            data = [e for e in examples(part) if e.intent in chosen]
            writer.writerows((example.text, example.intent) for example in data)
    cli("learn", folder / "learn.csv", "--model", folder / "model", "--components", 1000)
    return folder
