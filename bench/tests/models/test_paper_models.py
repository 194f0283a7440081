"""Every foundation model of the paper runs with one command, with the settings of its authors."""

from __future__ import annotations

import shutil

import numpy as np
import pytest
from typer.testing import CliRunner

from klda.encoders import MODELS
from klda_bench.cli import app
from klda_bench.results import Results

# Pooling and kernel parameter that the authors publish, and the weights' size in single precision.
TEXTS = {
    "bart-base": ("mean", 1e-4, "0.6 GB"),
    "bert-base": ("mean", 5e-3, "0.4 GB"),
    "roberta-large": ("mean", 5e-3, "1.4 GB"),
    "t5-3b": ("mean", 5e-2, "4.8 GB"),
    "mistral-7b": ("mean", 5e-6, "28.0 GB"),
}
IMAGES = {"dinov2-small": ("cls", 1e-4, "0.1 GB"), "dinov2-base": ("cls", 1e-4, "0.3 GB")}


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """A hub's cache, into which a model of the same architecture is put under a published name."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))

    def put(name, folder):
        place = tmp_path / "hub" / f"models--{MODELS[name].hub_id.replace('/', '--')}"
        shutil.copytree(folder, place / "snapshots" / "1")
        (place / "refs").mkdir()
        (place / "refs" / "main").write_text("1")

    return put


def run(table, name, dataset, method, output):
    words = [table, "--backbone", name, "--datasets", dataset, "--methods", method]
    words += ["--seeds", "1", "--device", "cpu", "--set", f"{method}.n_components=60"]
    answer = CliRunner().invoke(app, [*words, "--output", str(output)])
    assert answer.exit_code == 0, answer.output
    (row,) = Results.of(output).rows()
    return row, answer


def check(row, answer, name, pooling, gamma, size):
    assert row["settings"]["options"]["gamma"] == row["gamma"] == gamma
    assert row["settings"]["layers"] == "last"
    assert row["features"]["pooling"] == pooling
    assert row["features"]["layers"] == "last"
    assert row["features"]["source"] == MODELS[name].hub_id
    assert f"{name} ({MODELS[name].n_parameters} parameters) needs about {size}" in answer.stderr


@pytest.mark.parametrize("name", TEXTS)
@pytest.mark.usefixtures("small_clinc")
def test_a_text_model_has_the_published_settings(name, hub, tiny_models, tmp_path):
    hub(name, tiny_models(name))
    row, answer = run("table2", name, "clinc", "klda-e", tmp_path / "out")
    check(row, answer, name, *TEXTS[name])


@pytest.mark.parametrize("name", IMAGES)
@pytest.mark.usefixtures("small_clinc")
def test_an_image_model_has_the_published_settings(name, hub, tiny_dinov2, tmp_path):
    hub(name, tiny_dinov2)
    folder = tmp_path / "paper" / "cifar10"
    folder.mkdir()
    for part, rows in (("train", 20), ("test", 10)):
        images = np.random.default_rng(0).integers(0, 256, (rows, 32, 32, 3), dtype=np.uint8)
        np.savez(folder / f"{part}.npz", images=images, labels=np.arange(rows) % 10)
    row, answer = run("table3", name, "cifar10", "klda", tmp_path / "out")
    check(row, answer, name, *IMAGES[name])
