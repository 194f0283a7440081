"""How a model's folder says that a text's tokens become one row, and tokens as arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from klda.encoders.files import ModelFiles

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
    """How a model makes one row out of token features."""

    folder: str = ""  # subfolder with the network and the tokenizer
    pooling: str = "mean"  # or "cls", the first token; "+unit" scales rows to unit length
    max_length: int | None = None  # in tokens, where the model's folder states it
    lowercase: bool = False

    def cleaned(self, texts: Sequence[str]) -> list[str]:
        """Return texts as the tokenizer gets them."""
        return [text.strip().lower() if self.lowercase else text.strip() for text in texts]


def padded(tokens: Sequence[Sequence[int]], pad_token: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return the ids of some texts in one array, and where they are tokens.

    Padded on the right whatever the tokenizer says, so that a text's positions stay the same.
    """
    lengths = np.array([len(ids) for ids in tokens])
    mask = np.arange(lengths.max()) < lengths[:, None]
    ids = np.full(mask.shape, pad_token, dtype=np.int64)
    ids[mask] = np.concatenate([np.asarray(row) for row in tokens])
    return ids, mask.astype(np.int64)


def read_recipe(files: ModelFiles) -> Recipe | None:
    """Read how a model's features are made.

    A plain transformers folder means mean pooling over the last hidden state, as in the paper; a
    sentence-transformers folder describes its modules. None for a folder with more than a
    transformer, pooling and normalization, which only sentence-transformers itself can run.
    """
    modules = files.read_json("modules.json")
    if modules is None:
        return Recipe()
    kinds = [str(module["type"]).rsplit(".", 1)[-1] for module in modules]
    if kinds not in (["Transformer", "Pooling"], ["Transformer", "Pooling", "Normalize"]):
        return None
    folders = [f"{module['path']}/".lstrip("/") for module in modules]
    pooling = _pooling_mode(files.read_json(f"{folders[1]}config.json") or {})
    settings = files.read_json(f"{folders[0]}sentence_bert_config.json") or {}
    prompts = files.read_json("config_sentence_transformers.json") or {}
    special = {key: value for key, value in settings.items() if key not in _READ and value}
    # A setting that is not known here may change the features.
    if pooling is None or prompts.get("default_prompt_name") or _PLAIN | special != _PLAIN:
        return None
    return Recipe(
        folder=folders[0],
        pooling=f"{pooling}+unit" if len(kinds) == 3 else pooling,
        max_length=settings.get("max_seq_length"),
        lowercase=bool(settings.get("do_lower_case")),
    )


def _pooling_mode(config: dict[str, Any]) -> str | None:
    if "pooling_mode" in config:  # written by sentence-transformers 6 and later
        mode = config["pooling_mode"]
        return mode if mode in ("mean", "cls") else None
    chosen = [key for key, on in config.items() if key.startswith("pooling_mode_") and on is True]
    named = {"pooling_mode_mean_tokens": "mean", "pooling_mode_cls_token": "cls"}
    return named.get(chosen[0]) if len(chosen) == 1 else None
