"""BERT-like text encoders on ONNX Runtime: a CPU and a few megabytes of packages are enough.

Also which library runs a text model: ONNX Runtime for BERT-like models on a CPU, else torch.
"""

from __future__ import annotations

import ctypes
import importlib.util
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

from klda.encoders.base import Layers
from klda.encoders.files import ModelFiles
from klda.encoders.onnx_graph import MICROSOFT, Graph
from klda.encoders.pretrained import Options, resolve_layers
from klda.encoders.text import Recipe, padded, read_recipe
from klda.engine.cpus import usable_cpus
from klda.errors import KldaError, require

Engine = Literal["auto", "onnx", "torch"]
_CUDA_DRIVERS = ("libcuda.so.1", "nvcuda.dll")
# Architectures that are BERT under another name, with the prefix that their weights may have.
_ARCHITECTURES = {"bert": "bert.", "roberta": "roberta.", "xlm-roberta": "roberta."}
_DTYPES = {"F32": "<f4", "F16": "<f2", "F64": "<f8"}
_OLD_NAMES = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}


def choose_engine(name: str, files: ModelFiles, options: Options) -> str:
    """Return ``"onnx"`` or ``"torch"``; an engine that was asked for must be able to run it."""
    if options.engine not in get_args(Engine):
        raise KldaError(f'engine={options.engine!r} is not valid: give "auto", "onnx" or "torch".')
    if options.engine == "torch":
        return "torch"
    reason = _why_not(files, options)
    if options.engine == "auto":
        return "onnx" if reason is None and prefers_onnx(options.device) else "torch"
    if reason is not None:
        raise KldaError(
            f'engine="onnx" can\'t run the model {name!r}: {reason}. Give "auto" or "torch".'
        )
    return "onnx"


def prefers_onnx(device: str = "auto") -> bool:
    """Check whether ONNX Runtime is the better choice for models that it can run."""
    if not is_installed("torch"):
        return True
    return can_run_onnx() and not _uses_gpu(device)


def _uses_gpu(device: str) -> bool:
    """Check whether a device setting means a GPU, importing torch only if there may be one."""
    if device != "auto" or not ("torch" in sys.modules or _has_cuda_driver()):
        return False
    import torch

    return bool(torch.cuda.is_available())


def can_run_onnx() -> bool:
    """Check whether ONNX Runtime and tokenizers are installed, without importing them."""
    return is_installed("onnxruntime") and is_installed("tokenizers")


def is_installed(module: str) -> bool:
    """Check whether a module is installed, without importing it."""
    return importlib.util.find_spec(module) is not None


def _has_cuda_driver() -> bool:
    for library in _CUDA_DRIVERS:
        try:
            ctypes.CDLL(library)
        except OSError:
            continue
        return True
    return False


def _why_not(files: ModelFiles, options: Options) -> str | None:
    """Return why a model can't run on ONNX Runtime; None if it can."""
    if options.precision not in ("auto", "float32"):
        return f"it computes in float32, not in {options.precision}"
    if options.device not in ("auto", "cpu"):
        return f"it runs on the CPU, not on {options.device}"
    recipe = read_recipe(files)
    if recipe is None:
        return "it has more parts than one transformer"
    config = files.read_json(f"{recipe.folder}config.json") or {}
    kind = config.get("model_type", "unknown")
    if kind not in _ARCHITECTURES or config.get("auto_map") or config.get("is_decoder"):
        return f"its architecture ({kind}) is not BERT's"
    if config.get("hidden_act", "gelu") != "gelu":
        return f"its activation is {config['hidden_act']}"
    if config.get("position_embedding_type", "absolute") != "absolute":
        return f"its position embedding is {config['position_embedding_type']}"
    if any(path.suffix != ".safetensors" for path in files.weights):
        return "its weights are not in safetensors files"
    return _why_not_tokenizer(files, recipe)


def _why_not_tokenizer(files: ModelFiles, recipe: Recipe) -> str | None:
    tokenizer = files.read_json(f"{recipe.folder}tokenizer.json")
    if tokenizer is None:
        return "it has no tokenizer.json"
    settings = files.read_json(f"{recipe.folder}tokenizer_config.json") or {}
    normalizer = tokenizer.get("normalizer") or {}
    for setting, name in {"do_lower_case": "lowercase", "strip_accents": "strip_accents"}.items():
        # transformers lets the second file decide.
        if name in normalizer and settings.get(setting, normalizer[name]) != normalizer[name]:
            return f"tokenizer.json and tokenizer_config.json disagree about {setting}"
    return None


class OnnxNetwork:
    """A BERT-like encoder that ONNX Runtime runs on the CPU, in float32.

    The rows are those of :class:`~klda.encoders.text_networks.TransformerNetwork` on the same
    files, to rounding. The graph is written from the settings and the weights in safetensors
    files when the model is loaded, which takes less time than reading a stored one would.
    """

    precision = "float32"
    engine = "onnx"

    def __init__(self, name: str, files: ModelFiles, recipe: Recipe, options: Options) -> None:
        runtime = require("onnxruntime", "minilm")
        config = files.read_json(f"{recipe.folder}config.json")
        settings = files.read_json(f"{recipe.folder}tokenizer_config.json") or {}
        weights = _Weights(name, files.weights, _ARCHITECTURES[config["model_type"]])
        self.layers: Layers = options.layers
        if options.layers != "last":
            self.layers = resolve_layers(options.layers, config["num_hidden_layers"], name)
        self.pooling = recipe.pooling if options.layers == "last" else "mean+unit"
        self.dimension = config["hidden_size"] * (1 if self.layers == "last" else len(self.layers))
        self._words = weights["embeddings.word_embeddings.weight"]
        self._positions = _position_rows(weights, config)
        most = len(self._positions)
        limit = settings.get("model_max_length") or most  # 1e30 means none
        self.max_length = recipe.max_length or int(min(limit, most))
        self._recipe = recipe
        self._tokenizer = _tokenizer(name, files.folder / recipe.folder, self.max_length)
        self.batch_size = options.batch_size or 64
        self.max_tokens = 2048
        graph, output = _bert(config, weights, self.layers, self.pooling)
        self._session = _session(runtime, graph, output, config["hidden_size"])

    def tokenize(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the token ids of each text, cut to the model's maximum length."""
        found = self._tokenizer.encode_batch_fast(self._recipe.cleaned(texts))
        return [tokens.ids for tokens in found]

    def rows(self, tokens: Sequence[Sequence[int]]) -> np.ndarray:
        """Return one float32 row per text, given its tokens."""
        ids, mask = padded(tokens)
        # Looked up here and not in the graph: of the largest table, half of MiniLM, only the rows
        # that texts need are then read from the file.
        embedded = self._words[ids]
        embedded += self._positions[: ids.shape[1]]
        feed = {"embedded": embedded, "mask": mask.astype(np.int32)}
        (rows,) = self._session.run(None, feed)
        return rows


class _Weights:
    """The arrays of safetensors files, mapped into memory, under the names of the plain network."""

    def __init__(self, name: str, paths: Sequence[Path], prefix: str) -> None:
        self._name, self._paths, self._prefix = name, paths, prefix
        self._arrays = {key: array for path in paths for key, array in _mapped(path)}

    def __getitem__(self, key: str) -> np.ndarray:
        old = next((key.replace(new, old) for new, old in _OLD_NAMES.items() if new in key), key)
        for known in (key, f"{self._prefix}{key}", old, f"{self._prefix}{old}"):
            if known in self._arrays:
                return self._arrays[known].astype(np.float32, copy=False)
        raise KldaError(
            f"The model {self._name!r} in {self._paths[0].parent} lacks some of its weights "
            f"({key} ...): download it again."
        )


def _mapped(path: Path) -> Iterator[tuple[str, np.ndarray]]:
    try:
        content = np.memmap(path, dtype=np.uint8, mode="r")
        start = 8 + int(content[:8].view("<u8")[0])
        described = json.loads(bytes(content[8:start]))
        described.pop("__metadata__", None)
        for key, about in described.items():
            first, last = (start + offset for offset in about["data_offsets"])
            values = content[first:last]
            if about["dtype"] == "BF16":  # the upper half of a float32
                wide = np.zeros((len(values) // 2, 2), dtype="<u2")
                wide[:, 1] = values.view("<u2")
                yield key, wide.view("<f4").reshape(about["shape"])
            elif about["dtype"] in _DTYPES:  # others are positions and masks, not weights
                yield key, values.view(_DTYPES[about["dtype"]]).reshape(about["shape"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise KldaError(f"The model can't be loaded: {path} is damaged: {error}.") from error


def _position_rows(weights: _Weights, config: dict[str, Any]) -> np.ndarray:
    """Return what is added to the embedding of the first, second, ... token of a text."""
    table = weights["embeddings.position_embeddings.weight"]
    if config["model_type"] != "bert":  # RoBERTa counts positions from its padding index
        table = table[config.get("pad_token_id", 1) + 1 :]
    return table + weights["embeddings.token_type_embeddings.weight"][0]


def _tokenizer(name: str, folder: Path, max_length: int) -> Any:
    library = require("tokenizers", "minilm")
    try:
        tokenizer = library.Tokenizer.from_file(str(folder / "tokenizer.json"))
    except Exception as error:  # the library raises plain exceptions
        raise KldaError(f"The model {name!r} can't be loaded: tokenizer.json: {error}") from error
    tokenizer.no_padding()
    tokenizer.enable_truncation(max_length)
    return tokenizer


def _bert(
    config: dict[str, Any], weights: _Weights, layers: Layers, pooling: str
) -> tuple[Graph, str]:
    """Write a BERT encoder with its pooling; return the graph and the name of its output."""
    graph = Graph()
    eps = float(config.get("layer_norm_eps", 1e-12))

    def matrix(key: str) -> str:
        return graph.weight(weights[f"{key}.weight"].T)

    def vector(key: str) -> str:
        return graph.weight(weights[key])

    def norm(key: str) -> list[str]:
        return [vector(f"{key}.LayerNorm.weight"), vector(f"{key}.LayerNorm.bias")]

    def add_and_norm(key: str, new: str, old: str) -> str:
        new = graph.add("MatMul", new, matrix(f"{key}.dense"))
        inputs = [new, old, *norm(key), vector(f"{key}.dense.bias")]
        return graph.add("SkipLayerNormalization", *inputs, domain=MICROSOFT, epsilon=eps)

    states = [graph.add("LayerNormalization", "embedded", *norm("embeddings"), epsilon=eps)]
    n_layers = config["num_hidden_layers"] if layers == "last" else max(layers)
    for layer in range(n_layers):
        key, before = f"encoder.layer.{layer}", states[-1]
        parts = [f"{key}.attention.self.{part}" for part in ("query", "key", "value")]
        joint = graph.weight(np.concatenate([weights[f"{part}.weight"] for part in parts]).T)
        bias = graph.weight(np.concatenate([weights[f"{part}.bias"] for part in parts]))
        heads = config["num_attention_heads"]
        attended = graph.add(
            "Attention", before, joint, bias, "mask", domain=MICROSOFT, num_heads=heads
        )
        attended = add_and_norm(f"{key}.attention.output", attended, before)
        inner = graph.add("MatMul", attended, matrix(f"{key}.intermediate.dense"))
        inner = graph.add(
            "BiasGelu", inner, vector(f"{key}.intermediate.dense.bias"), domain=MICROSOFT
        )
        states.append(add_and_norm(f"{key}.output", inner, attended))
    chosen = [states[-1]] if layers == "last" else [states[layer] for layer in layers]
    return graph, _pooled(graph, chosen, pooling)


def _pooled(graph: Graph, states: list[str], pooling: str) -> str:
    """Add the pooling of token features into rows; return the name of the rows."""
    axis = graph.constant(np.array([1], dtype=np.int64))
    tiny = graph.constant(np.array(1e-12, dtype=np.float32))
    if pooling.startswith("cls"):
        first = graph.constant(np.array(0, dtype=np.int64))
        rows = [graph.add("Gather", state, first, axis=1) for state in states]
    else:
        mask = graph.add("Cast", "mask", to=1)
        mask = graph.add("Div", mask, graph.add("ReduceSum", mask, axis))
        mask = graph.add("Unsqueeze", mask, axis)
        rows = [graph.add("Squeeze", graph.add("MatMul", mask, state), axis) for state in states]
    if pooling.endswith("+unit"):
        lengths = [graph.add("Max", graph.add("ReduceL2", row, axis), tiny) for row in rows]
        rows = [graph.add("Div", row, length) for row, length in zip(rows, lengths, strict=True)]
    return graph.add("Concat", *rows, axis=1)


def _session(runtime: Any, graph: Graph, output: str, width: int) -> Any:
    options = runtime.SessionOptions()
    options.intra_op_num_threads = usable_cpus()
    options.log_severity_level = 3  # errors: the graph is written in its final form
    options.graph_optimization_level = runtime.GraphOptimizationLevel.ORT_DISABLE_ALL
    values = [runtime.OrtValue.ortvalue_from_numpy(array) for array in graph.weights.values()]
    options.add_external_initializers(list(graph.weights), values)
    inputs: dict[str, tuple[str, tuple[int | str, ...]]] = {
        "embedded": ("float32", ("texts", "tokens", width)),
        "mask": ("int32", ("texts", "tokens")),
    }
    content = graph.serialize(inputs, output)
    return runtime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
