"""BERT-like text encoders on ONNX Runtime: a CPU and a few megabytes of packages are enough.

Also which library runs a text model: ONNX Runtime for BERT-like models on a CPU, else torch.
"""

from __future__ import annotations

import ctypes
import importlib.util
import sys
from collections.abc import Sequence
from typing import Any, Literal, get_args

import numpy as np

from klda.encoders.bert import BertNetwork, why_not_bert
from klda.encoders.files import ModelFiles
from klda.encoders.onnx_graph import MICROSOFT, Graph
from klda.encoders.pretrained import Options
from klda.encoders.text import Recipe, padded, read_recipe
from klda.engine.cpus import usable_cpus
from klda.errors import KldaError, require

Engine = Literal["auto", "onnx", "torch"]
_CUDA_DRIVERS = ("libcuda.so.1", "nvcuda.dll")


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
    return why_not_bert(files, read_recipe(files))


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
