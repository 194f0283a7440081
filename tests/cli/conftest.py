from __future__ import annotations

import csv

import numpy as np
import pytest

from tests.factories import examples

LABELS = "abcdef"


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


@pytest.fixture
def model(make):
    """A model of six classes that keeps a ledger."""
    return make("m", LABELS, "--ridge", 0.01, "--keep", "features")


def folder_content(folder):
    """All that a model folder holds."""
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name != ".lock"}


def read_csv(text):
    """Rows of a table that a command printed."""
    return list(csv.DictReader(text.splitlines()))


def words(result):
    """All that a command printed, in one line."""
    return " ".join(result.output.split())
