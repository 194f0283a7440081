"""Texts: how a model's folder says that rows are made, tokens, and batches of similar length."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from klda.encoders.base import FrozenModel
from klda.encoders.files import ModelFiles
from klda.errors import KldaError

if TYPE_CHECKING:
    from klda.encoders.text_networks import TextNetwork

_WINDOW = 16384  # texts tokenized at a time: bounds memory, and still sorts well by length
# Settings of sentence-transformers' Transformer module that are read here, and those that only
# say "the last hidden state of a text".
_READ = ("max_seq_length", "do_lower_case")
_PLAIN = {
    "transformer_task": "feature-extraction",
    "modality_config": {"text": {"method": "forward", "method_output_name": "last_hidden_state"}},
    "module_output_name": "token_embeddings",
}


@dataclass(frozen=True)
class Tokens:
    """The tokens of each text: what `TextEncoder.prepare` returns and ``encode`` accepts."""

    ids: list[list[Any]]

    def __len__(self) -> int:
        return len(self.ids)


class TextEncoder(FrozenModel):
    """Texts to rows: tokenizes, groups texts of similar length, and runs a network on them."""

    modality = "text"

    def __init__(self, name: str, files: ModelFiles, network: TextNetwork) -> None:
        super().__init__(name, files, network)
        self.network = network
        self._tokenizer_lock = threading.Lock()  # a tokenizer has state while it works

    def encode(self, inputs: Any, *, progress: bool = False) -> np.ndarray:
        """Turn texts, or the `Tokens` that `prepare` made of them, into features."""
        checked = inputs if isinstance(inputs, Tokens) else check_texts(inputs)
        return self.collect(len(checked), self._batches(checked), progress=progress)

    def prepare(self, inputs: Any) -> Tokens:
        """Tokenize texts, for instance in a thread while the network encodes others."""
        texts = check_texts(inputs)
        windows = range(0, len(texts), _WINDOW)
        parts = [self._tokenize(texts[start : start + _WINDOW], start) for start in windows]
        return Tokens([ids for part in parts for ids in part])

    def _batches(self, inputs: Any) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        network = self.network
        for start in range(0, len(inputs), _WINDOW):
            if isinstance(inputs, Tokens):
                tokens = inputs.ids[start : start + _WINDOW]
            else:
                tokens = self._tokenize(inputs[start : start + _WINDOW], start)
            lengths = [len(ids) for ids in tokens]
            for batch in length_batches(lengths, network.batch_size, network.max_tokens):
                with self.lock:
                    rows = network.rows([tokens[position] for position in batch])
                yield batch + start, rows

    def _tokenize(self, texts: Sequence[str], start: int) -> list[list[Any]]:
        with self._tokenizer_lock:
            tokens = self.network.tokenize(texts)
        empty = next((at for at, ids in enumerate(tokens) if not ids), None)
        if empty is not None:
            raise KldaError(
                f"inputs[{start + empty}] is empty, and the model {self.name!r} has no features "
                "for an empty text: leave it out."
            )
        return tokens


def check_texts(inputs: Any) -> list[str]:
    """Return a list, tuple, array or column of texts as a list; reject anything else."""
    if isinstance(inputs, str | bytes):
        raise KldaError("inputs is one text: give a list of texts, [text] for one.")
    try:
        texts = list(inputs)
    except TypeError as error:
        raise KldaError(f"inputs must be a list of texts; got {type(inputs).__name__}.") from error
    for position, text in enumerate(texts):
        if not isinstance(text, str):
            raise KldaError(
                f"inputs[{position}] must be a text; got {type(text).__name__}: {text!r:.80}."
            )
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise KldaError(f"inputs[{position}] is not valid Unicode: {error}.") from error
    return texts


def length_batches(
    lengths: Sequence[int], batch_size: int, max_tokens: int
) -> Iterator[np.ndarray]:
    """Group items of similar length, so that there is almost no padding.

    Yields the positions of at most `batch_size` items, which have at most `max_tokens` tokens with
    padding; a longer item is a batch of its own. The longest come first, so that a lack of memory
    shows at once and not after an hour.
    """
    order = np.argsort(-np.asarray(lengths, dtype=np.int64), kind="stable")
    start = 0
    while start < len(order):
        longest = max(1, lengths[order[start]])
        count = max(1, min(batch_size, max_tokens // longest))
        yield order[start : start + count]
        start += count


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
