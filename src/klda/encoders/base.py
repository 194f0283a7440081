"""What every encoder shares: the interface, fingerprints, and batches; and given features."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np

from klda.checks import Modality, first_not_finite
from klda.encoders.files import ModelFiles
from klda.encoders.progress import Show, progress_bar
from klda.errors import KldaError

Layers = tuple[int, ...] | Literal["last"]
Precision = Literal["auto", "float32", "float16", "bfloat16"]

# What identifies the features; the model's name and the location of its files do not.
_IDENTITY = ("modality", "revision", "pooling", "layers", "dimension")


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
            dimension; compared by :func:`same_features`.
        """


def same_features(first: dict[str, Any], second: dict[str, Any]) -> bool:
    """Check whether two fingerprints describe the same features.

    Modality, weights, pooling, layers and dimension decide. The name, the folder or package that
    holds the files, the device and the numeric precision do not.

    A fingerprint may have been read back from JSON.
    """
    free = 0 in (first.get("dimension"), second.get("dimension"))  # precomputed, of any length
    keys = [key for key in _IDENTITY if key != "dimension" or not free]
    return all(json.dumps(first.get(key)) == json.dumps(second.get(key)) for key in keys)


def describe(encoder: Any, **about: Any) -> dict[str, Any]:
    """Return the fingerprint of an encoder that has no weights, but for what `about` says."""
    return {
        "name": encoder.name,
        "modality": encoder.modality,
        "source": encoder.name,
        "revision": "",
        "pooling": "none",
        "layers": "last",
        "dimension": encoder.dimension,
    } | about


class Network(Protocol):
    """What runs a foundation model; a text or an image encoder needs some methods more."""

    dimension: int  # length of a row
    precision: str  # number format of the weights, as "float32"
    engine: str  # the library that runs it
    layers: Layers  # counted from 0
    pooling: str  # how token or pixel features become one row


class FrozenModel:
    """What the encoders that run a network have in common: identity and bookkeeping."""

    modality: Modality

    def __init__(self, files: ModelFiles, network: Network) -> None:
        self.name = files.name
        self.files = files
        self.network: Any = network
        self.dimension = network.dimension
        self.precision = network.precision
        self.engine = network.engine
        # A network uses all cores by itself, so calls from several threads take turns.
        self.lock = threading.Lock()

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


def collect(
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


class PrecomputedFeatures:
    """The encoder of ``modality="features"``: checks rows and returns them.

    Parameters
    ----------
    dimension : int, default=0
        Required length of a row; with 0, the classifier requires the length of its first batch.
    """

    name = "features"
    modality: Modality = "features"

    def __init__(self, dimension: int = 0) -> None:
        self.dimension = dimension

    def encode(self, inputs: Any, *, progress: Show = False) -> np.ndarray:
        """Return feature rows, a 2-D array of finite numbers, as float32."""
        try:
            rows = np.asarray(inputs)
            # Checked before the conversion, which would turn "1.5" into a number.
            if rows.dtype.kind not in "fiub":
                raise TypeError(f"got values of type {rows.dtype}")
        except (TypeError, ValueError) as error:
            raise KldaError(
                f"inputs must be a 2-D array of numbers, one feature row per sample: {error}."
            ) from error
        if rows.ndim != 2 or rows.shape[1] == 0:
            raise KldaError(
                f"inputs must be a 2-D array, one feature row per sample; got shape {rows.shape}. "
                "For a single row x, give x[None, :]."
            )
        if self.dimension and rows.shape[1] != self.dimension:
            raise KldaError(
                f"inputs has rows of length {rows.shape[1]}, but the model uses rows of length "
                f"{self.dimension}: compute them with the same foundation model."
            )
        broken = first_not_finite(rows)
        if broken is not None:
            raise KldaError(
                f"inputs[{broken}] is not finite in float32 (NaN, infinite or too large): "
                "remove or repair such rows."
            )
        return np.ascontiguousarray(rows, dtype=np.float32)

    def fingerprint(self) -> dict[str, Any]:
        """Describe the features; only the dimension varies."""
        return describe(self)
