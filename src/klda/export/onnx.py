"""A learner as an ONNX file: answers in any language that ONNX Runtime has a package for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from klda.encoders import Encoder
from klda.encoders.networks import TextEncoder
from klda.encoders.onnx_bert import OnnxBert, is_bert
from klda.encoders.onnx_graph import Graph
from klda.encoders.runtime import RunOptions
from klda.engine.feature_map import FourierMap, KernelMap
from klda.engine.novelty import RelativeMahalanobis
from klda.engine.solution import Solution
from klda.errors import KldaError

LARGEST = 2**31 - 1  # bytes: the format's limit
_FLOAT, _DOUBLE = 1, 11  # element types


def export_onnx(
    folder: str | Path, encoder: Encoder, solution: Solution, limits: float | np.ndarray
) -> dict[str, Any]:
    """Write a foundation model and a solution; see :meth:`klda.Learner.export_onnx`.

    `limits` is the novelty beyond which inputs are unknown, for all classes or each of them;
    infinite if that can't be told.
    """
    folder = Path(folder)
    if folder.exists() and any(folder.iterdir()):
        raise KldaError(f"{folder} is not empty: give a folder that is new or empty.")
    files = {"head.onnx": _head(solution, limits)}
    about: dict[str, Any] = {
        "classes": solution.classes.tolist(),
        "features": solution.n_features,
        "foundation": encoder.fingerprint().get("name"),
        "knows_unknown": bool(np.isfinite(limits).all()),
    }
    if isinstance(encoder, TextEncoder) and (network := _network(encoder)) is not None:
        files["model.onnx"] = _whole(network, solution, limits)
        files["tokenizer.json"] = network.padding_tokenizer().to_str(pretty=True).encode()
        about["max_tokens"] = network.max_length
        about["prompt"] = encoder.prompt
        about["lowercase"] = bool(encoder.files.recipe.lowercase)
    files["klda.json"] = json.dumps(about, indent=2, ensure_ascii=False).encode()
    for name, content in files.items():
        if len(content) > LARGEST:
            raise KldaError(
                f"{name} would have {len(content):,} bytes, and an ONNX file has at most "
                f"{LARGEST:,}: use a model with fewer random features."
            )
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return about | {"files": sorted(files)}


def _network(encoder: TextEncoder) -> OnnxBert | None:
    """Return an encoder's network if it can be part of the graph."""
    if isinstance(encoder.network, OnnxBert):
        return encoder.network
    if not is_bert(encoder.files):
        return None
    return OnnxBert(encoder.files, RunOptions(layers=encoder.network.layers))


def _head(solution: Solution, limits: float | np.ndarray) -> bytes:
    graph = Graph()
    return _finish(graph, "features", {"features": "float32"}, solution, limits)


def _whole(network: OnnxBert, solution: Solution, limits: float | np.ndarray) -> bytes:
    graph = Graph()
    inputs = {"input_ids": "int64", "attention_mask": "int64"}
    return _finish(graph, network.write(graph), inputs, solution, limits)


def _finish(
    graph: Graph, rows: str, inputs: dict[str, str], solution: Solution, limits: float | np.ndarray
) -> bytes:
    """Add the answers to rows of features; return the file."""
    scores = _scores(graph, rows, solution)
    graph.add("Cast", scores, output="scores", to=_FLOAT)
    best = graph.add("ArgMax", scores, axis=1, keepdims=0)
    labels = graph.strings(map(str, solution.classes.tolist()))
    graph.add("Gather", labels, best, output="label")
    divided = graph.add("Div", scores, _number(graph, solution.temperature))
    chances = graph.add("Softmax", divided, axis=1)
    graph.add("Cast", chances, output="probabilities", to=_FLOAT)
    outputs = {"label": "string", "probabilities": "float32", "scores": "float32"}
    if np.isfinite(limits).all():
        novelty = _novelty(graph, scores, solution.distance)
        of_classes = _number(graph, np.broadcast_to(limits, len(solution.classes)))
        limit = graph.add("Gather", of_classes, best)
        graph.add("LessOrEqual", novelty, limit, output="known")
        outputs["known"] = "bool"
    return graph.serialize(inputs, outputs, embed=True)


def _scores(graph: Graph, rows: str, solution: Solution) -> str:
    """Add the scores of rows, in double precision; return their name."""
    own, to_numpy = solution.map, solution.backend.to_numpy
    weights = to_numpy(solution.weights).T.astype(np.float64)
    biases = graph.constant(to_numpy(solution.biases).astype(np.float64))
    if isinstance(own, FourierMap):
        frequencies, phases = map(to_numpy, own.spectrum)
        angles = graph.add("MatMul", rows, graph.weight(frequencies))
        lifted = graph.add("Cos", graph.add("Add", angles, graph.weight(phases)))
        scale = np.sqrt(2 / own.n_components)
        linear = graph.add("MatMul", lifted, graph.weight(scale * weights))
        return graph.add("Add", graph.add("Cast", linear, to=_DOUBLE), biases)
    rows = graph.add("Cast", rows, to=_DOUBLE)
    if isinstance(own, KernelMap):
        lifted = _kernel(graph, rows, own)
        weights = to_numpy(own.whitener) @ weights
    else:
        lifted = graph.add("Sub", rows, graph.constant(to_numpy(own.centre).astype(np.float64)))
    linear = graph.add("MatMul", lifted, graph.weight(weights, "float64"))
    return graph.add("Add", linear, biases)


def _kernel(graph: Graph, rows: str, own: KernelMap) -> str:
    """Add the kernel between rows and the samples held, relative to their mean."""
    to_numpy = own.backend.to_numpy
    support, gamma = to_numpy(own.support), own.gamma
    axis = graph.constant(np.array([1], dtype=np.int64))
    scaled = graph.add("Mul", rows, graph.constant(to_numpy(own.scales)))
    rows = graph.add("Sub", scaled, graph.constant(to_numpy(own.centre)))
    lengths = graph.add("ReduceSum", graph.add("Mul", rows, rows), axis)
    others = (support * support).sum(axis=1)
    products = graph.add("MatMul", rows, graph.weight(-2 * support.T, "float64"))
    squares = graph.add("Add", graph.add("Add", products, lengths), graph.constant(others))
    squares = graph.add("Max", squares, _number(graph, 0))

    def kernel(distances: str) -> str:
        return graph.add("Exp", graph.add("Mul", distances, _number(graph, -gamma)))

    relative = graph.add("Sub", kernel(squares), kernel(lengths))
    return graph.add("Add", relative, graph.constant(-np.expm1(-gamma * others)))


def _novelty(graph: Graph, scores: str, distance: RelativeMahalanobis) -> str:
    """Add how unlike anything learned inputs are, as `RelativeMahalanobis.of_scores` says it."""
    axis = graph.constant(np.array([1], dtype=np.int64))
    linear = graph.add("Sub", scores, _number(graph, distance.offsets))
    if len(distance.unblend):
        linear = graph.add("MatMul", linear, graph.weight(distance.unblend, "float64"))
    from_classes = graph.add(
        "Sub", _number(graph, distance.lengths), graph.add("Mul", linear, _number(graph, 2))
    )
    nearest = graph.add("ReduceMin", from_classes, axis)
    chosen = graph.add("Gather", linear, graph.constant(distance.chosen.astype(np.int64)), axis=1)
    of_mean = graph.add("MatMul", chosen, _number(graph, distance.fractions[:, None]))
    mean_length = float(distance.fractions @ distance.shifts)
    centred = graph.add("Sub", chosen, of_mean)
    centred = graph.add("Add", centred, _number(graph, mean_length - distance.shifts))
    root = np.sqrt(distance.fractions)
    whitener = root[:, None] * np.linalg.inv(distance.factor).T
    between = graph.add("MatMul", centred, graph.weight(whitener, "float64"))
    between = graph.add("ReduceSum", graph.add("Mul", between, between), axis)
    of_all = graph.add("Add", graph.add("Mul", of_mean, _number(graph, 2)), between)
    novelty = graph.add("Add", nearest, graph.add("Sub", of_all, _number(graph, mean_length)))
    return graph.add("Squeeze", novelty, axis)


def _number(graph: Graph, values: Any) -> str:
    return graph.constant(np.asarray(values, np.float64))
