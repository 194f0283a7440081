"""BERT and its relatives, read from their files without transformers: what two engines share.

Importing transformers takes longer than most of what is asked of a text encoder.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from klda.encoders.base import Layers
from klda.encoders.files import ModelFiles
from klda.encoders.pretrained import Options, resolve_layers
from klda.encoders.recipes import Recipe
from klda.errors import KldaError, require

# Architectures that are BERT under another name, with the prefix that their weights may have.
_ARCHITECTURES = {"bert": "bert.", "roberta": "roberta.", "xlm-roberta": "roberta."}
_DTYPES = {"F32": "<f4", "F16": "<f2", "F64": "<f8"}
_OLD_NAMES = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}


def why_not_bert(files: ModelFiles, recipe: Recipe | None) -> str | None:
    """Return why a model can't be read as BERT; None if it can."""
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


class BertNetwork:
    """Tokens, layers and weights of a BERT-like encoder; subclasses compute the rows."""

    def __init__(self, name: str, files: ModelFiles, recipe: Recipe, options: Options) -> None:
        config = files.read_json(f"{recipe.folder}config.json")
        settings = files.read_json(f"{recipe.folder}tokenizer_config.json") or {}
        self.config: dict[str, Any] = config
        self.weights = Weights(name, files.weights, _ARCHITECTURES[config["model_type"]])
        self.eps = float(config.get("layer_norm_eps", 1e-12))
        self.layers: Layers = options.layers
        self.n_layers = config["num_hidden_layers"]  # that are computed
        if options.layers != "last":
            self.layers = resolve_layers(options.layers, self.n_layers, name)
            self.n_layers = max(self.layers)
        self.pooling = recipe.pooling if options.layers == "last" else "mean+unit"
        self.dimension = config["hidden_size"] * (1 if self.layers == "last" else len(self.layers))
        self.words = self.weights["embeddings.word_embeddings.weight"]
        self.positions = _position_rows(self.weights, config)
        most = len(self.positions)
        limit = settings.get("model_max_length") or most  # 1e30 means none
        self.max_length = recipe.max_length or int(min(limit, most))
        self._recipe = recipe
        self._tokenizer = _tokenizer(name, files.folder / recipe.folder, self.max_length)

    def tokenize(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the token ids of each text, cut to the model's maximum length."""
        found = self._tokenizer.encode_batch_fast(self._recipe.cleaned(texts))
        return [tokens.ids for tokens in found]

    def joint(self, layer: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the weights and biases of a layer's queries, keys and values in one piece."""
        start = f"encoder.layer.{layer}.attention.self"

        def joined(kind: str) -> np.ndarray:
            parts = ("query", "key", "value")
            return np.concatenate([self.weights[f"{start}.{part}.{kind}"] for part in parts])

        return joined("weight"), joined("bias")


class Weights:
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


def _position_rows(weights: Weights, config: dict[str, Any]) -> np.ndarray:
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
