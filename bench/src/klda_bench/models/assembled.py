"""Models that come in pieces in Python packages, made into ordinary model folders in the cache."""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from klda.encoders.sources import Package, default_cache_folder, made_once
from klda.errors import KldaError
from klda_bench.environment import require

_EXPORTED = "model.0.auto_model."  # what sentence-transformers' own names begin with in the graph


@dataclass(frozen=True)
class Assembled:
    """A model folder that `make` writes, given the paths of `parts`, in the user's cache."""

    name: str
    parts: tuple[Package, ...]
    sha256: str  # of the parts that are files, read one after another
    make: Callable[[Sequence[Path], Path], None]

    def is_here(self) -> bool:
        """Check whether all packages are installed."""
        return all(part.is_here() for part in self.parts)

    def path(self) -> Path:
        """Return the model's folder, made on first use and checked then."""
        paths = [part.path() for part in self.parts]

        def make(folder: Path) -> None:
            self._check([path for path in paths if path.is_file()])
            self.make(paths, folder)

        target = default_cache_folder() / "models" / f"{self.name}-{self.sha256[:12]}"
        return made_once(target, make)

    def _check(self, files: Sequence[Path]) -> None:
        digest = hashlib.sha256()
        for path in files:
            digest.update(path.read_bytes())
        if digest.hexdigest() != self.sha256:
            raise KldaError(
                f"The files of the model {self.name!r} have the SHA-256 {digest.hexdigest()}, not "
                f"{self.sha256}: a package is damaged or was changed. Install it again: "
                f"{', '.join(part.module for part in self.parts)}."
            )


def bert_from_onnx(parts: Sequence[Path], target: Path) -> None:
    """Write the folder of an exported MiniLM, given its graph and the folder of a larger MiniLM.

    The two have the same tokenizer and the same settings, but for the number of layers, the number
    of tokens, and the scaling to unit length that comes last in the larger one.
    """
    graph, relative = parts
    weights = onnx_weights(graph)
    n_layers = sum(name.endswith("intermediate.dense.bias") for name in weights)
    shutil.copytree(
        relative, target, ignore=shutil.ignore_patterns("*.safetensors", "*.md"), dirs_exist_ok=True
    )

    def change(name: str, changed: Callable[[Any], Any]) -> None:
        path = target / name
        path.write_text(json.dumps(changed(json.loads(path.read_text("utf-8")))), "utf-8")

    change("config.json", lambda config: config | {"num_hidden_layers": n_layers})
    change("sentence_bert_config.json", lambda settings: settings | {"max_seq_length": 128})
    change("modules.json", lambda modules: modules[:2])
    save = require("safetensors.numpy", "minilm-l3").save_file
    save(weights, target / "model.safetensors", {"format": "pt"})


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


def folder_from_zip(parts: Sequence[Path], target: Path) -> None:
    """Write the one folder in a zip archive that was cut into parts."""
    with tempfile.TemporaryFile(dir=target) as joined:
        for path in parts:
            with path.open("rb") as part:
                shutil.copyfileobj(part, joined)
        with zipfile.ZipFile(joined) as archive:
            archive.extractall(target)
    (top,) = target.iterdir()
    for path in top.iterdir():
        path.rename(target / path.name)
    top.rmdir()
