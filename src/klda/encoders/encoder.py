"""What an encoder is, what identifies its features, and what encoders with a network share."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from typing import Any, Protocol, runtime_checkable

import numpy as np

from klda.checks import Modality, first_not_finite
from klda.encoders.model_files import ModelFiles
from klda.encoders.options import Layers, Options
from klda.errors import KldaError
from klda.progress import Show, progress_bar

# What identifies the features; the model's name and the location of its files do not.
_IDENTITY = ("modality", "revision", "pooling", "layers", "dimension", "prompt")


@runtime_checkable
class Encoder(Protocol):
    """A frozen foundation model: inputs in, one float32 feature row per input out.

    An encoder never changes after it is created, so several threads may call ``encode``.
    """

    @property
    def name(self) -> str:
        """Name that the model was requested by."""

    @property
    def modality(self) -> Modality:
        """Kind of inputs: ``"text"``, ``"image"`` or ``"features"``."""

    @property
    def dimension(self) -> int:
        """Length of a feature row (0 for precomputed features of any length)."""

    def encode(self, inputs: Any, *, progress: Show = False) -> np.ndarray:
        """Turn inputs into features.

        Parameters
        ----------
        inputs : sequence
            The texts, images or feature rows.
        progress : bool or callable, default=False
            Show a progress bar if standard error is a terminal; or a function that is called with
            the number of inputs encoded so far.

        Returns
        -------
        ndarray of shape (n, dimension), float32
            One row per input, in the given order.

        Raises
        ------
        KldaError
            If an input is of the wrong kind or can't be read; the message says which.
        """

    def fingerprint(self) -> dict[str, Any]:
        """Describe the features in JSON-serializable values.

        Returns
        -------
        dict
            Name, modality, source, revision (digest of the weights), pooling, layers and
            dimension, and where there are such, the prompt and a probe of the features; compared
            by :func:`same_features`.
        """


def same_features(first: dict[str, Any], second: dict[str, Any]) -> bool:
    """Check whether two fingerprints describe the same features.

    Modality, weights, pooling, layers, dimension and prompt decide. The name, the folder or package
    that holds the files, the device and the numeric precision do not.

    A fingerprint may have been read back from JSON.
    """
    same = all(json.dumps(first.get(key)) == json.dumps(second.get(key)) for key in _IDENTITY)
    if not same or "probe" not in first or "probe" not in second:
        return same
    # Far from each other for other features; other devices and servers round differently.
    return float(np.linalg.norm(np.subtract(first["probe"], second["probe"]))) < 0.2


def probe(row: np.ndarray) -> list[float]:
    """Return a part of the row of a fixed text, for fingerprints of features known by name alone.

    A name says little about what a function or a server computes, or computes by now.
    """
    part = row[:16].astype(np.float64)
    return np.round(part / max(float(np.linalg.norm(part)), 1e-12), 4).tolist()


def describe(encoder: Any, **about: Any) -> dict[str, Any]:
    """Return a fingerprint: what an encoder without weights or layers has, then `about`."""
    return {
        "name": encoder.name,
        "modality": encoder.modality,
        "source": encoder.name,
        "revision": "",
        "pooling": "none",
        "layers": "last",
        "dimension": encoder.dimension,
    } | about


def gather(
    encoder: Any, count: int, batches: Iterator[tuple[Any, np.ndarray]], *, progress: Show
) -> np.ndarray:
    """Put an encoder's batches, pairs of positions and rows, into one array of `count` rows."""
    features = np.empty((count, encoder.dimension), dtype=np.float32)
    with progress_bar(f"Encoding with {encoder.name}", count, show=progress) as report:
        done = 0
        for positions, rows in batches:
            features[positions] = rows
            done += len(rows)
            report(done, f"{done:,} of {count:,}")
    broken = first_not_finite(features)
    if broken is not None:
        raise KldaError(
            f"The model {encoder.name!r} gave infinite or undefined features for inputs[{broken}] "
            f'in {encoder.precision}. If that is not float32, load it with precision="float32"; '
            "otherwise the weights may be damaged."
        )
    return features


class Network(Protocol):
    """What runs a foundation model.

    That of a text model has ``tokenize(texts)`` and ``rows(tokens)``, and `max_tokens`, the most in
    a batch; that of an image model ``pixels(image)`` and ``rows(pixels)``.
    """

    dimension: int  # length of a row
    precision: str  # number format of the weights, as "float32"
    engine: str  # the library that runs it
    layers: Layers  # counted from 0
    pooling: str  # how token or pixel features become one row
    batch_size: int  # most inputs in one forward pass


class NetworkEncoder:
    """An encoder that runs a network, which is made of a model's files."""

    modality: Modality

    def __init__(
        self,
        files: ModelFiles,
        options: Options,
        network: Callable[[ModelFiles, Options], Network],
    ) -> None:
        self.name = files.name
        self.files = files
        self.network: Any = network(files, options)
        self.dimension = self.network.dimension
        self.precision = self.network.precision
        self.engine = self.network.engine
        # A network uses all cores by itself, so calls from several threads take turns.
        self.lock = threading.Lock()
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
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), self._made_of  # opened again, from the same files

    def __deepcopy__(self, memo: dict[int, Any]) -> NetworkEncoder:
        return self
