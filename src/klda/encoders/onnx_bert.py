"""BERT and its relatives on ONNX Runtime, without transformers and torch.

Importing those takes longer than most of what is asked of a text encoder.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from klda.cpus import usable_cpus
from klda.encoders.model_files import OTHER_MODULES, ModelFiles
from klda.encoders.networks import padded
from klda.encoders.onnx_graph import MICROSOFT, Graph
from klda.encoders.runtime import RunOptions
from klda.errors import KldaError, require

# Architectures that are BERT under another name, with the prefix that their weights may have.
_ARCHITECTURES = {"bert": "bert.", "roberta": "roberta.", "xlm-roberta": "roberta."}
_DTYPES = {"F32": "<f4", "F16": "<f2", "F64": "<f8"}


def is_bert(files: ModelFiles) -> bool:
    """Check whether a model computes as BERT does and shows how it tokenizes."""
    config = files.config
    computes = (
        files.recipe.pooling != OTHER_MODULES
        and config.get("model_type") in _ARCHITECTURES
        and "bfloat16" not in (config.get("dtype"), config.get("torch_dtype"))
        and not config.get("auto_map")
        and not config.get("is_decoder")
        and config.get("hidden_act", "gelu") == "gelu"
        and config.get("position_embedding_type", "absolute") == "absolute"
    )
    if not computes or any(path.suffix != ".safetensors" for path in files.weights):
        return False
    tokenizer = files.read_json(f"{files.recipe.folder}tokenizer.json")
    settings = files.read_json(f"{files.recipe.folder}tokenizer_config.json")
    normalizer = tokenizer.get("normalizer") or {}
    # Where the two files disagree, transformers follows the second.
    return bool(tokenizer) and all(
        settings.get(setting, normalizer[name]) == normalizer[name]
        for setting, name in {
            "do_lower_case": "lowercase",
            "strip_accents": "strip_accents",
        }.items()
        if name in normalizer
    )


class OnnxBert:
    """A BERT-like encoder that ONNX Runtime runs on the CPU, in float32.

    The rows are those that transformers gives on the same files, to rounding. The graph is written
    when the model is loaded, which takes less time than reading a stored one would.
    """

    precision = "float32"
    runtime = "onnx"
    max_tokens = 2048

    def __init__(self, files: ModelFiles, options: RunOptions) -> None:
        runtime = require("onnxruntime", "minilm")
        recipe = files.recipe
        self._files, self._config = files, files.config
        self._weights = _read_weights(files)
        self.layers = options.resolve_layers(self._config["num_hidden_layers"], files.name)
        self.pooling, self.dimension = recipe.pooling, self._config["hidden_size"]
        if self.layers != "last":
            self.pooling, self.dimension = "mean+unit", self.dimension * len(self.layers)
        self.batch_size = options.batch_size or 64
        self._words = self._weight("embeddings.word_embeddings.weight")
        table = self._weight("embeddings.position_embeddings.weight")
        if self._config["model_type"] != "bert":  # RoBERTa counts positions from its padding index
            table = table[self._config.get("pad_token_id", 1) + 1 :]
        self._positions = table + self._weight("embeddings.token_type_embeddings.weight")[0]
        settings = files.read_json(f"{recipe.folder}tokenizer_config.json")
        limit = settings.get("model_max_length") or len(self._positions)  # 1e30 means none
        self.max_length = int(min(recipe.max_length or limit, len(self._positions)))
        self._tokenizer = _tokenizer(files, self.max_length)
        graph = Graph()
        self._session = _session(runtime, graph, self._write_layers(graph))

    def tokenize(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the token ids of each text, cut to the model's maximum length."""
        return [tokens.ids for tokens in self._tokenizer.encode_batch_fast(texts)]

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

    def _weight(self, key: str) -> np.ndarray:
        """Return an array of weights in float32, by its name in the plain network."""
        if key not in self._weights:
            raise KldaError(
                f"The model {self._files.name!r} in {self._files.folder} lacks some of its weights "
                f"({key} ...): download it again."
            )
        return self._weights[key].astype(np.float32, copy=False)

    def write(self, graph: Graph) -> str:
        """Add the whole network, from ``input_ids`` and ``attention_mask``; return the rows' name.

        Both inputs are int64, of shape (texts, tokens).
        """
        words = graph.add("Gather", graph.weight(self._words), "input_ids")
        start, axis = (graph.constant(np.array([0], dtype=np.int64)) for _ in range(2))
        length = graph.add("Shape", "input_ids", start=1, end=2)
        positions = graph.add("Slice", graph.weight(self._positions), start, length, axis)
        graph.add("Add", words, positions, output="embedded")
        graph.add("Cast", "attention_mask", to=6, output="mask")  # int32
        return self._write_layers(graph)

    def padding_tokenizer(self) -> Any:
        """Return a tokenizer that cuts texts to the maximum length and pads them to the longest."""
        tokenizer = _tokenizer(self._files, self.max_length)
        tokenizer.enable_padding()
        return tokenizer

    def _write_layers(self, graph: Graph) -> str:
        """Add layers and pooling, from ``embedded`` and ``mask``; return the name of the rows."""
        heads = self._config["num_attention_heads"]
        last = self._config["num_hidden_layers"]
        chosen = (last,) if isinstance(self.layers, str) else self.layers
        eps = float(self._config.get("layer_norm_eps", 1e-12))

        def vector(key: str) -> str:
            return graph.weight(self._weight(key))

        def dense(key: str, hidden: str) -> str:
            return graph.add("MatMul", hidden, graph.weight(self._weight(f"{key}.weight").T))

        def norm(key: str) -> list[str]:
            return [vector(f"{key}.LayerNorm.weight"), vector(f"{key}.LayerNorm.bias")]

        def joint(key: str, kind: str) -> str:
            parts = [self._weight(f"{key}.{part}.{kind}") for part in ("query", "key", "value")]
            return graph.weight(np.concatenate(parts).T)

        def add_and_norm(key: str, new: str, old: str) -> str:
            inputs = [dense(f"{key}.dense", new), old, *norm(key), vector(f"{key}.dense.bias")]
            return graph.add("SkipLayerNormalization", *inputs, domain=MICROSOFT, epsilon=eps)

        states = [graph.add("LayerNormalization", "embedded", *norm("embeddings"), epsilon=eps)]
        for layer in range(max(chosen)):
            key, before = f"encoder.layer.{layer}", states[-1]
            own = f"{key}.attention.self"
            inputs = [before, joint(own, "weight"), joint(own, "bias"), "mask"]
            attended = graph.add("Attention", *inputs, domain=MICROSOFT, num_heads=heads)
            attended = add_and_norm(f"{key}.attention.output", attended, before)
            inner = dense(f"{key}.intermediate.dense", attended)
            bias = vector(f"{key}.intermediate.dense.bias")
            inner = graph.add("BiasGelu", inner, bias, domain=MICROSOFT)
            states.append(add_and_norm(f"{key}.output", inner, attended))
        return _pooled(graph, [states[layer] for layer in chosen], self.pooling)


def _read_weights(files: ModelFiles) -> dict[str, np.ndarray]:
    """Map the weights into memory, under the names of the plain network."""
    weights, prefix = {}, _ARCHITECTURES[files.config["model_type"]]
    for path in files.weights:
        try:
            content = np.memmap(path, dtype=np.uint8, mode="r")
            start = 8 + int(content[:8].view("<u8")[0])
            for key, about in json.loads(bytes(content[8:start])).items():
                if about.get("dtype") in _DTYPES:  # others are positions and masks, not weights
                    first, last = (start + offset for offset in about["data_offsets"])
                    values = content[first:last].view(_DTYPES[about["dtype"]])
                    name = key.removeprefix(prefix).replace("LayerNorm.gamma", "LayerNorm.weight")
                    name = name.replace("LayerNorm.beta", "LayerNorm.bias")
                    weights[name] = values.reshape(about["shape"])
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise KldaError(f"The model can't be loaded: {path} is damaged: {error}.") from error
    return weights


def _tokenizer(files: ModelFiles, max_length: int) -> Any:
    library = require("tokenizers", "minilm")
    path = files.folder / files.recipe.folder / "tokenizer.json"
    try:
        tokenizer = library.Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises plain exceptions
        raise KldaError(f"The model can't be loaded: {path}: {error}") from error
    tokenizer.no_padding()
    tokenizer.enable_truncation(max_length)
    return tokenizer


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


def _session(runtime: Any, graph: Graph, output: str) -> Any:
    options = runtime.SessionOptions()
    options.intra_op_num_threads = usable_cpus()
    options.log_severity_level = 3  # errors: the graph is written in its final form
    options.graph_optimization_level = runtime.GraphOptimizationLevel.ORT_DISABLE_ALL
    values = [runtime.OrtValue.ortvalue_from_numpy(array) for array in graph.weights.values()]
    options.add_external_initializers(list(graph.weights), values)
    content = graph.serialize({"embedded": "float32", "mask": "int32"}, {output: "float32"})
    return runtime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
