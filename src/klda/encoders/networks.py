"""Encoders that run a network, on texts or on images."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Generic, Protocol, Self, TypeVar

import numpy as np

from klda.checks import Modality, checked_texts
from klda.cpus import usable_cpus
from klda.encoders.encoder import Encoder, describe, gather
from klda.encoders.images import ACCEPTED, open_image
from klda.encoders.model_files import ModelFiles
from klda.encoders.runtime import Layers, RunOptions
from klda.errors import KldaError
from klda.progress import Show

_WINDOW = 16384  # texts tokenized at a time: bounds memory, and still sorts well by length


class Network(Protocol):
    """What runs a foundation model: a `TextNetwork` or an `ImageNetwork`."""

    dimension: int  # length of a row
    precision: str  # number format of the weights, as "float32"
    runtime: str  # the library that runs it
    layers: Layers  # counted from 0
    pooling: str  # how token or pixel features become one row
    batch_size: int  # most inputs in one forward pass


class TextNetwork(Network, Protocol):
    """What runs a text model."""

    max_tokens: int  # most in a batch, with padding
    max_length: int | None  # of a text, in tokens

    def tokenize(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the tokens of each text, cut to the maximum length."""

    def rows(self, tokens: Sequence[Sequence[int]]) -> np.ndarray:
        """Return one float32 row per text, given its tokens."""


class ImageNetwork(Network, Protocol):
    """What runs an image model."""

    def pixels(self, image: Any) -> np.ndarray:
        """Resize and scale an RGB image of Pillow."""

    def rows(self, pixels: np.ndarray) -> np.ndarray:
        """Return one float32 row per image, given the pixels of images of one size."""


N = TypeVar("N", bound=Network)


class NetworkEncoder(Encoder, Generic[N]):
    """An encoder that runs a network, which is made of a model's files."""

    def __init__(
        self,
        files: ModelFiles,
        options: RunOptions,
        network: Callable[[ModelFiles, RunOptions], N],
    ) -> None:
        self.name, self.files = files.name, files
        self.network = network(files, options)
        self.dimension, self.precision = self.network.dimension, self.network.precision
        self.runtime = self.network.runtime
        self.prompt = files.recipe.prompt if options.prompt is None else options.prompt
        # A network uses all cores by itself and a tokenizer has state, so threads take turns.
        self._lock = threading.Lock()
        self._made_of = (files, options, network)

    def fingerprint(self) -> dict[str, Any]:
        """Describe the features; see :meth:`Encoder.fingerprint`."""
        layers = self.network.layers
        return describe(
            self,
            source=self.files.source,
            revision=self.files.revision,
            pooling=self.network.pooling,
            layers=layers if layers == "last" else list(layers),
            **({"prompt": self.prompt} if self.prompt else {}),
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), self._made_of  # opened again, from the same files

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self


class TextEncoder(NetworkEncoder[TextNetwork]):
    """Texts to rows: tokenizes, groups texts of similar length, and runs a network on them."""

    modality: Modality = "text"

    @property
    def max_length(self) -> int | None:
        """Number of tokens after which a text is cut off, if it is."""
        return self.network.max_length

    def encode(self, inputs: Any, *, progress: Show = False) -> np.ndarray:
        """Turn texts into features."""
        texts = checked_texts(inputs)
        return gather(self, len(texts), self._batches(texts), progress=progress)

    def tokenize(self, texts: Sequence[str], first: int = 0) -> list[list[int]]:
        """Return the tokens of texts; errors count them from `first`."""
        given = [f"{self.prompt}{text.strip()}".strip() for text in texts]
        if self.files.recipe.lowercase:
            given = [text.lower() for text in given]
        with self._lock:
            tokens = self.network.tokenize(given)
        empty = next((at for at, ids in enumerate(tokens, first) if not ids), None)
        if empty is not None:
            raise KldaError(
                f"inputs[{empty}] is empty, and the model {self.name!r} has no features for an "
                "empty text: leave it out."
            )
        return tokens

    def _batches(self, texts: Sequence[str]) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        network = self.network
        for start in range(0, len(texts), _WINDOW):
            tokens = self.tokenize(texts[start : start + _WINDOW], start)
            lengths = [len(ids) for ids in tokens]
            for batch in length_batches(lengths, network.batch_size, network.max_tokens):
                with self._lock:
                    rows = network.rows([tokens[position] for position in batch])
                yield batch + start, rows


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


class ImageEncoder(NetworkEncoder[ImageNetwork]):
    """Images to rows: reads the next batch while the network runs on one."""

    modality: Modality = "image"

    def encode(self, inputs: Any, *, progress: Show = False) -> np.ndarray:
        """Turn paths, PIL images, bytes of image files or uint8 arrays into features."""
        single = isinstance(inputs, str | bytes | os.PathLike) or hasattr(inputs, "getpixel")
        if single or (isinstance(inputs, np.ndarray) and inputs.ndim in (2, 3)):
            raise KldaError(
                "inputs is one image: give a list of images, [image] for one, or a stacked uint8 "
                "array (n, height, width, 3)."
            )
        try:
            images = list(inputs)
        except TypeError as error:
            raise KldaError(
                f"inputs must be a list of images ({ACCEPTED}); got {type(inputs).__name__}."
            ) from error
        return gather(self, len(images), self._batches(images), progress=progress)

    def _batches(self, inputs: Sequence[Any]) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        size = self.network.batch_size
        with ThreadPoolExecutor(min(8, usable_cpus())) as pool:
            ahead: list[Future[np.ndarray]] = []
            for start in (*range(0, len(inputs), size), len(inputs)):
                current, numbers = ahead, range(start, min(start + size, len(inputs)))
                ahead = [pool.submit(self._read, inputs[at], at) for at in numbers]
                if current:
                    rows = self._rows([future.result() for future in current])
                    yield np.arange(start - len(rows), start), rows

    def _read(self, item: Any, position: int) -> np.ndarray:
        return self.network.pixels(open_image(item, position))

    def _rows(self, pixels: list[np.ndarray]) -> np.ndarray:
        # Some processors keep an image's shape; images of different shapes are encoded one by one.
        same = len({array.shape for array in pixels}) == 1
        groups = [pixels] if same else [[array] for array in pixels]
        with self._lock:
            return np.concatenate([self.network.rows(np.stack(group)) for group in groups])
