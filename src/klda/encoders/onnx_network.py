"""BERT-like text encoders on ONNX Runtime: a CPU and a few megabytes of packages are enough."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from klda.encoders.bert import BertNetwork
from klda.encoders.files import ModelFiles
from klda.encoders.onnx_graph import MICROSOFT, Graph
from klda.encoders.pretrained import Options
from klda.encoders.recipes import Recipe, padded
from klda.engine.cpus import usable_cpus
from klda.errors import require


class OnnxNetwork(BertNetwork):
    """A BERT-like encoder that ONNX Runtime runs on the CPU, in float32.

    The rows are those that transformers gives on the same files, to rounding. The graph is written
    from the settings and the weights when the model is loaded, which takes less time than reading
    a stored one would.
    """

    precision = "float32"
    engine = "onnx"

    def __init__(self, name: str, files: ModelFiles, recipe: Recipe, options: Options) -> None:
        runtime = require("onnxruntime", "minilm")
        super().__init__(name, files, recipe, options)
        self.batch_size = options.batch_size or 64
        self.max_tokens = 2048
        graph, output = _bert(self)
        self._session = _session(runtime, graph, output, self.config["hidden_size"])

    def rows(self, tokens: Sequence[Sequence[int]]) -> np.ndarray:
        """Return one float32 row per text, given its tokens."""
        ids, mask = padded(tokens)
        # Looked up here and not in the graph: of the largest table, half of MiniLM, only the rows
        # that texts need are then read from the file.
        embedded = self.words[ids]
        embedded += self.positions[: ids.shape[1]]
        feed = {"embedded": embedded, "mask": mask.astype(np.int32)}
        (rows,) = self._session.run(None, feed)
        return rows


def _bert(network: BertNetwork) -> tuple[Graph, str]:
    """Write a BERT encoder with its pooling; return the graph and the name of its output."""
    graph, weights, eps = Graph(), network.weights, network.eps

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
    for layer in range(network.n_layers):
        key, before = f"encoder.layer.{layer}", states[-1]
        matrices, biases = network.joint(layer)
        joint, bias = graph.weight(matrices.T), graph.weight(biases)
        heads = network.config["num_attention_heads"]
        attended = graph.add(
            "Attention", before, joint, bias, "mask", domain=MICROSOFT, num_heads=heads
        )
        attended = add_and_norm(f"{key}.attention.output", attended, before)
        inner = graph.add("MatMul", attended, matrix(f"{key}.intermediate.dense"))
        inner = graph.add(
            "BiasGelu", inner, vector(f"{key}.intermediate.dense.bias"), domain=MICROSOFT
        )
        states.append(add_and_norm(f"{key}.output", inner, attended))
    layers = network.layers
    chosen = states[-1:] if layers == "last" else [states[layer] for layer in layers]
    return graph, _pooled(graph, chosen, network.pooling)


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
