"""Models that other packages register."""

from __future__ import annotations

import numpy as np
import pytest

from klda import encoders
from klda.encoders.models import OWN_MODELS, REGISTERED, ModelInfo, _Models

CODE = """
import dataclasses
import numpy as np
from pathlib import Path
from klda.encoders.models import OWN_MODELS, ModelInfo


class Here:
    how = ""

    def is_here(self):
        return True

    def path(self):
        return Path(__file__).parent / "weights"


class Network:
    layers, pooling, precision, engine = "last", "length", "float32", "numpy"
    dimension, batch_size, max_tokens = 2, 4, 100

    def __init__(self, files, options):
        options.require_last_layer(files.name)

    def tokenize(self, texts):
        return [list(range(len(text))) for text in texts]

    def rows(self, tokens):
        return np.array([[len(ids), 1.0] for ids in tokens], np.float32)


own = {info.name: info for info in OWN_MODELS}
MODELS = [
    ModelInfo(name="lengths", dimension=2, note="", n_parameters="0", needs=(), package=Here(),
              lightest_engine="numpy", install="get lengths", network=Network),
    dataclasses.replace(own["bert-base"], note="mine"),
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
    return _Models(OWN_MODELS)


def test_a_registered_model_is_found_by_its_name(registered, monkeypatch):
    with pytest.warns(UserWarning, match="no_such_package"):
        assert "lengths" in registered
    monkeypatch.setattr("klda.encoders.loading.MODELS", registered)
    encoder = encoders.load("lengths")
    np.testing.assert_array_equal(encoder.encode(["ab", "abcd"]), [[2, 1], [4, 1]])
    assert encoder.fingerprint()["pooling"] == "length"
    assert registered["lengths"].how_to_get == "get lengths"


@pytest.mark.filterwarnings("ignore:The models that no_such_package")
def test_a_registered_model_goes_before_the_one_of_that_name(registered):
    assert registered["bert-base"].note == "mine"
    assert set(registered) >= {info.name for info in OWN_MODELS}
    assert len(registered) == len(list(registered))


def test_a_model_that_comes_with_klda_needs_no_look_at_packages(registered, monkeypatch):
    def refuse(**_):
        raise AssertionError("looked for packages")

    monkeypatch.setattr("klda.encoders.models.entry_points", refuse)
    for name in ("minilm", "ngrams"):
        assert isinstance(registered[name], ModelInfo)
