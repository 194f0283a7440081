"""Texts: checked, cut into tokens, and encoded in batches of similar length by a network."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from klda.checks import checked_texts
from klda.encoders.encoder import Network, NetworkEncoder, gather
from klda.encoders.model_files import ModelFiles
from klda.encoders.options import Options
from klda.errors import KldaError
from klda.progress import Show

_WINDOW = 16384  # texts tokenized at a time: bounds memory, and still sorts well by length


class Tokens(list[list[Any]]):
    """The tokens of each text: what `TextEncoder.prepare` returns and ``encode`` accepts."""


class TextEncoder(NetworkEncoder):
    """Texts to rows: tokenizes, groups texts of similar length, and runs a network on them."""

    modality = "text"

    def __init__(
        self,
        files: ModelFiles,
        options: Options,
        network: Callable[[ModelFiles, Options], Network],
    ) -> None:
        super().__init__(files, options, network)
        self.prompt = files.recipe.prompt if options.prompt is None else options.prompt
        self._tokenizer_lock = threading.Lock()  # a tokenizer has state while it works

    def fingerprint(self) -> dict[str, Any]:
        """Describe the features; see :meth:`Encoder.fingerprint`."""
        return super().fingerprint() | ({"prompt": self.prompt} if self.prompt else {})

    def encode(self, inputs: Any, *, progress: Show = False) -> np.ndarray:
        """Turn texts, or the `Tokens` that `prepare` made of them, into features."""
        checked = inputs if isinstance(inputs, Tokens) else checked_texts(inputs)
        return gather(self, len(checked), self._batches(checked), progress=progress)

    def prepare(self, inputs: Any) -> Tokens:
        """Tokenize texts, for instance in a thread while the network encodes others."""
        texts = checked_texts(inputs)
        return Tokens(ids for start in _windows(texts) for ids in self._tokenize(texts, start))

    def _batches(self, inputs: Any) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        network = self.network
        is_ready = isinstance(inputs, Tokens)
        for start in _windows(inputs):
            tokens = inputs[start : start + _WINDOW] if is_ready else self._tokenize(inputs, start)
            lengths = [len(ids) for ids in tokens]
            for batch in length_batches(lengths, network.batch_size, network.max_tokens):
                with self.lock:
                    rows = network.rows([tokens[position] for position in batch])
                yield batch + start, rows

    def _tokenize(self, texts: Sequence[str], start: int) -> list[list[Any]]:
        """Return the tokens of the texts in the window that begins at `start`."""
        window = texts[start : start + _WINDOW]
        if self.prompt:
            window = [f"{self.prompt}{text.strip()}" for text in window]
        with self._tokenizer_lock:
            tokens = self.network.tokenize(window)
        empty = next((at for at, ids in enumerate(tokens) if not ids), None)
        if empty is not None:
            raise KldaError(
                f"inputs[{start + empty}] is empty, and the model {self.name!r} has no features "
                "for an empty text: leave it out."
            )
        return tokens


def _windows(inputs: Sequence[Any]) -> range:
    return range(0, len(inputs), _WINDOW)


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


def padded(tokens: Sequence[Sequence[int]], pad_token: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return the ids of some texts in one array, and where they are tokens.

    Padded on the right whatever the tokenizer says, so that a text's positions stay the same.
    """
    lengths = np.array([len(ids) for ids in tokens])
    mask = np.arange(lengths.max()) < lengths[:, None]
    ids = np.full(mask.shape, pad_token, dtype=np.int64)
    ids[mask] = np.concatenate([np.asarray(row) for row in tokens])
    return ids, mask.astype(np.int64)
