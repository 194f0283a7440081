"""The files of one foundation model on this computer, and how they turn tokens into a row."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any

from klda.errors import KldaError

_SHA256 = re.compile(r"[0-9a-f]{64}")
# In order of preference; an index file lists the shards of a model stored in several files.
_WEIGHTS = ("model.safetensors", "pytorch_model.bin")
_SETTINGS = (".json", ".txt", ".model", ".spm", ".vocab", ".jinja")
_NOT_SETTINGS = ("README", "data_config.json", "train_script")

OTHER_MODULES = "sentence-transformers"  # the pooling of what only that library can run
# Settings of sentence-transformers' Transformer module that are read here, and those that only
# say "the last hidden state of a text".
_READ = ("max_seq_length", "do_lower_case")
_PLAIN = {
    "transformer_task": "feature-extraction",
    "modality_config": {"text": {"method": "forward", "method_output_name": "last_hidden_state"}},
    "module_output_name": "token_embeddings",
}


@dataclass(frozen=True)
class Recipe:
    """How a text model makes one row out of token features."""

    folder: str = ""  # subfolder with the network and the tokenizer
    pooling: str = "mean"  # or "cls", the first token; "+unit" scales rows to unit length
    max_length: int | None = None  # in tokens, where the model's folder states it
    lowercase: bool = False
    prompt: str = ""  # that the model's authors put before each text


@dataclass(frozen=True)
class ModelFiles:
    """The files of one foundation model on this computer."""

    name: str  # that the model was requested by
    source: str  # hub name or folder: what to request to get the files again
    folder: Path
    weights: tuple[Path, ...]
    sha256: str = ""  # of the weights, where it is known

    @classmethod
    def at(cls, path: Path, name: str, source: str = "", sha256: str = "") -> ModelFiles:
        """Describe a file of weights, or a folder as ``save_pretrained`` writes it."""
        source = source or name
        if path.is_file():
            return cls(name, source, path.parent, (path,), sha256)
        weights = find_weights(path)
        if not weights:
            raise KldaError(
                f"The folder {path} holds no complete model: it needs a config.json and all parts "
                "of model.safetensors or pytorch_model.bin. Download it again."
            )
        return cls(name, source, path, tuple(weights), sha256)

    @cached_property
    def revision(self) -> str:
        """Digest of the weights: the same wherever the files are."""
        if self.sha256:
            return f"sha256:{self.sha256}"
        digests = []
        for path in self.weights:
            # The hub's cache names a large file by its SHA-256, which saves reading 14 GB.
            target = path.resolve()
            known = target.parent.name == "blobs" and _SHA256.fullmatch(target.name)
            digests.append(target.name if known else sha256(path))
        if len(digests) == 1:
            return f"sha256:{digests[0]}"
        return f"sha256:{hashlib.sha256(' '.join(digests).encode()).hexdigest()}"

    def __getstate__(self) -> dict[str, Any]:
        return {field.name: getattr(self, field.name) for field in fields(self)}  # no digest

    def read_json(self, name: str) -> Any:
        """Return the content of a settings file in the folder; empty if there is no such file."""
        path = self.folder / name
        if not path.is_file():
            return {}
        try:
            return json.loads(path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise KldaError(f"The file {path} of the model is damaged: {error}.") from error

    @cached_property
    def config(self) -> dict[str, Any]:
        """The settings of the network."""
        return self.read_json(f"{self.recipe.folder}config.json")

    @cached_property
    def recipe(self) -> Recipe:
        """How a text model's features are made.

        A plain transformers folder means mean pooling over the last hidden state, as in the paper;
        a sentence-transformers folder describes its modules. One with more than a transformer,
        pooling and normalization is for sentence-transformers itself.
        """
        modules = self.read_json("modules.json")
        if not modules:
            return Recipe()
        kinds = [str(module["type"]).rsplit(".", 1)[-1] for module in modules]
        if kinds not in (["Transformer", "Pooling"], ["Transformer", "Pooling", "Normalize"]):
            return Recipe(pooling=OTHER_MODULES)
        folders = [f"{module['path']}/".lstrip("/") for module in modules]
        pooling = _pooling_mode(self.read_json(f"{folders[1]}config.json"))
        settings = self.read_json(f"{folders[0]}sentence_bert_config.json")
        prompts = self.read_json("config_sentence_transformers.json")
        prompt = prompts.get("prompts", {}).get(prompts.get("default_prompt_name"), "")
        special = {key: value for key, value in settings.items() if key not in _READ and value}
        # A setting that is not known here may change the features.
        if pooling is None or _PLAIN | special != _PLAIN:
            return Recipe(pooling=OTHER_MODULES)
        return Recipe(
            folder=folders[0],
            pooling=f"{pooling}+unit" if len(kinds) == 3 else pooling,
            max_length=settings.get("max_seq_length"),
            lowercase=bool(settings.get("do_lower_case")),
            prompt=prompt,
        )


def _pooling_mode(config: dict[str, Any]) -> str | None:
    if config.get("include_prompt") is False:  # a prompt that is left out of the mean
        return None
    if "pooling_mode" in config:  # written by sentence-transformers 6 and later
        mode = config["pooling_mode"]
        return mode if mode in ("mean", "cls") else None
    chosen = [key for key, on in config.items() if key.startswith("pooling_mode_") and on is True]
    named = {"pooling_mode_mean_tokens": "mean", "pooling_mode_cls_token": "cls"}
    return named.get(chosen[0]) if len(chosen) == 1 else None


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file's content as hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def is_settings(path: Path) -> bool:
    """Check whether a file beside the weights can change the features."""
    return path.suffix in _SETTINGS and not path.name.startswith(_NOT_SETTINGS)


def find_weights(folder: Path) -> list[Path]:
    """Return a model's weight files; none if the model or a part of it is missing."""
    try:
        modules = json.loads((folder / "modules.json").read_text(encoding="utf-8"))
        parts = [folder, *(folder / module["path"] for module in modules if module["path"])]
    except (OSError, ValueError, KeyError, TypeError):
        parts = [folder]  # not one of sentence-transformers, which has subfolders
    weights = [path for part in parts for path in _weights_of(part)]
    has_settings = any(part.joinpath("config.json").is_file() for part in parts)
    return weights if has_settings and all(path.is_file() for path in weights) else []


def _weights_of(folder: Path) -> list[Path]:
    """Return the weight files that one folder has, or names in an index."""
    for name in _WEIGHTS:
        if (folder / name).is_file():
            return [folder / name]
        index = folder / f"{name}.index.json"
        if index.is_file():
            try:
                shards = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
            except (ValueError, KeyError, TypeError, AttributeError):
                return [folder / name]  # which is missing: the model is incomplete
            return [folder / shard for shard in sorted(shards)]
    return []
