"""A model of which a Python package has the exported graph alone, made a model folder."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from klda.encoders.sources import Package, default_cache_folder, made_once
from klda_bench.environment import require

_EXPORTED = "model.0.auto_model."  # what sentence-transformers' own names begin with in the graph


@dataclass(frozen=True)
class ExportedBert:
    """A MiniLM whose weights are in an ONNX graph, and a larger one that is a folder.

    The two have the same tokenizer and the same settings, but for the number of layers, the number
    of tokens, and the scaling to unit length that comes last in the larger one.
    """

    name: str
    graph: Package
    larger: Package

    def is_here(self) -> bool:
        """Check whether both packages are installed."""
        return self.graph.is_here() and self.larger.is_here()

    def path(self) -> Path:
        """Return the model's folder in the user's cache, made on first use."""
        return made_once(default_cache_folder() / "models" / self.name, self._make)

    def _make(self, folder: Path) -> None:
        weights = onnx_weights(self.graph.path())
        n_layers = sum(name.endswith("intermediate.dense.bias") for name in weights)
        skipped = shutil.ignore_patterns("*.safetensors", "*.md")
        shutil.copytree(self.larger.path(), folder, ignore=skipped, dirs_exist_ok=True)

        def change(name: str, changed: Callable[[Any], Any]) -> None:
            path = folder / name
            path.write_text(json.dumps(changed(json.loads(path.read_text("utf-8")))), "utf-8")

        change("config.json", lambda config: config | {"num_hidden_layers": n_layers})
        change("sentence_bert_config.json", lambda settings: settings | {"max_seq_length": 128})
        change("modules.json", lambda modules: modules[:2])
        save = require("safetensors.numpy", "minilm-l3").save_file
        save(weights, folder / "model.safetensors", {"format": "pt"})


def onnx_weights(file: Path) -> dict[str, Any]:
    """Read the weights of an exported BERT under transformers' names.

    The export names all but the matrices of linear layers, which it transposes and numbers; the
    nodes that use them have their layers' names.
    """
    onnx = require("onnx", "minilm-l3")
    graph = onnx.load(file).graph
    arrays = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in graph.initializer}
    weights = {
        name.removeprefix(_EXPORTED): array
        for name, array in arrays.items()
        if name.startswith(_EXPORTED)
    }
    for node in graph.node:
        matrix = arrays.get(node.input[1]) if node.op_type == "MatMul" else None
        if matrix is not None:
            layer = node.name.removesuffix("/MatMul").replace("/", ".").partition("auto_model.")[2]
            weights[f"{layer}.weight"] = matrix.T.copy()
    return weights
