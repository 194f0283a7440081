"""Models that come in pieces in Python packages become ordinary model folders."""

import dataclasses
import hashlib
import json
import shutil
import zipfile
from pathlib import Path

import numpy as np
import pytest

from klda import encoders
from klda.encoders.sources import Package
from klda.errors import KldaError
from klda_bench.models.assembled import Assembled, bert_from_onnx, folder_from_zip

transformers = pytest.importorskip("transformers")

TEXTS = ["where is my card?", "no", "The quick brown fox jumps over the lazy dog. " * 2]


PARAPHRASE_MINILM_L3 = encoders.MODELS["paraphrase-minilm-l3"].package
ALL_MPNET_BASE_V2 = encoders.MODELS["all-mpnet-base-v2"].package


def assembled(paths, make):
    """Describe a model that is made from some paths, as if these were in packages."""
    content = b"".join(path.read_bytes() for path in paths if path.is_file())
    parts = tuple(Package(str(path.parent), path.name) for path in paths)
    return Assembled("m", parts, hashlib.sha256(content).hexdigest(), make)


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
    target = assembled([tmp_path / "model.onnx", larger], bert_from_onnx).path()
    encoder = encoders.load(target)
    rows = encoder.encode(TEXTS)
    np.testing.assert_allclose(rows, encoders.load(folder).encode(TEXTS), atol=1e-6)
    assert encoder.fingerprint()["pooling"] == "mean"
    assert encoders.load(target, layers=(0, 1, 2)).dimension == 3 * encoder.dimension


def test_a_zip_in_parts_becomes_its_folder(plain_paths, tmp_path):
    whole = tmp_path / "whole.zip"
    with zipfile.ZipFile(whole, "w") as archive:
        archive.writestr("top/config.json", "{}")
        archive.writestr("top/1_Pooling/config.json", "[]")
        archive.writestr("top/../../outside", "no")
    content = whole.read_bytes()
    parts = [tmp_path / "a.001", tmp_path / "a.002"]
    for part, piece in zip(parts, (content[:50], content[50:]), strict=True):
        part.write_bytes(piece)
    made = assembled(parts, folder_from_zip).path()
    assert (made / "config.json").read_text() == "{}"
    assert (made / "1_Pooling" / "config.json").read_text() == "[]"
    assert [path for path in tmp_path.rglob("outside") if made not in path.parents] == []


def test_a_folder_is_made_once_and_whole(plain_paths, tmp_path):
    source = tmp_path / "part"
    source.write_bytes(b"weights")
    made = []

    def make(paths, target):
        made.append(target)
        (target / "half").touch()
        if len(made) == 1:
            raise OSError("disk full")

    model = assembled([source], make)
    with pytest.raises(OSError, match="disk full"):
        model.path()
    assert not list((tmp_path / "cache" / "models").iterdir())
    first = model.path()
    assert model.path() == first
    assert len(made) == 2


def test_changed_parts_are_refused(plain_paths, tmp_path):
    source = tmp_path / "part"
    source.write_bytes(b"weights")
    model = assembled([source], lambda *_: None)
    source.write_bytes(b"wEights")
    with pytest.raises(KldaError, match=r"'m' have the SHA-256 .* Install it again"):
        model.path()


def test_without_its_packages_a_model_is_not_here(plain_paths):
    assert not PARAPHRASE_MINILM_L3.is_here()
    assert not ALL_MPNET_BASE_V2.is_here()
    info = dataclasses.replace(encoders.MODELS["paraphrase-minilm-l3"], hub_id="")
    assert not info.available_offline()
    assert 'pip install -e "bench[minilm-l3]"' in info.how_to_get


def test_the_real_model_gives_the_graphs_own_features():
    if not PARAPHRASE_MINILM_L3.is_here():
        pytest.skip("the packages of bench[minilm-l3] are not installed")
    onnx = pytest.importorskip("onnx", reason="onnx is not installed (bench[minilm-l3])")
    from onnx.reference import ReferenceEvaluator

    encoder = encoders.load("paraphrase-minilm-l3", device="cpu")
    graph = ReferenceEvaluator(onnx.load(PARAPHRASE_MINILM_L3.parts[0].path()))
    texts = [*TEXTS, "longer than the model reads " * 50]
    for text, row in zip(texts, encoder.encode(texts), strict=True):
        ids = np.array(encoder.prepare([text]), dtype=np.int64)
        inputs = {"input_ids": ids, "attention_mask": np.ones_like(ids)}
        expected = next(out for out in graph.run(None, inputs) if out.shape == (1, 384))
        np.testing.assert_allclose(row, expected[0], atol=1e-5)


def test_mpnet_is_the_published_folder():
    if not ALL_MPNET_BASE_V2.is_here():
        pytest.skip("the packages of bench[mpnet] are not installed")
    rows = encoders.load("all-mpnet-base-v2", device="cpu").encode(TEXTS)
    assert rows.shape == (3, 768)
    np.testing.assert_allclose(np.linalg.norm(rows, axis=1), 1, atol=1e-5)
