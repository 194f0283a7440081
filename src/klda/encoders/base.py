"""What every encoder shares: the interface, fingerprints, and batches; and given features."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

import numpy as np

from klda.encoders.progress import Show, progress_bar
from klda.errors import KldaError

if TYPE_CHECKING:
    from klda.encoders.files import ModelFiles
    from klda.encoders.images import VisionNetwork
    from klda.encoders.ngrams import NgramEncoder
    from klda.encoders.text import TextNetwork

Modality = Literal["text", "image", "features"]
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


def describe(encoder: Encoder | FrozenModel, **about: Any) -> dict[str, Any]:
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


class FrozenModel:
    """What the encoders that run a network have in common: identity and bookkeeping.

    `precision` is the number format of the weights, as ``"float32"``; `engine` is the library that
    runs the network. A network's `layers` are counted from 0; its `pooling` says how token or pixel
    features become one row.
    """

    modality: Modality

    def __init__(self, files: ModelFiles, network: TextNetwork | VisionNetwork) -> None:
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
        return describe(
            self,
            source=self.files.source,
            revision=self.files.revision,
            pooling=self.network.pooling,
            layers="last" if self.network.layers == "last" else list(self.network.layers),
        )


def collect(
    encoder: FrozenModel | NgramEncoder,
    count: int,
    batches: Iterator[tuple[Any, np.ndarray]],
    *,
    progress: Show,
) -> np.ndarray:
    """Put an encoder's batches, pairs of positions and rows, into one array of `count` rows."""
    name, precision = encoder.name, encoder.precision
    features = np.empty((count, encoder.dimension), dtype=np.float32)
    with progress_bar(f"Encoding with {name}", count, show=progress) as report:
        done = 0
        for positions, rows in batches:
            features[positions] = rows
            done += len(rows)
            report(done, f"{done:,} of {count:,}")
    broken = np.flatnonzero(~np.isfinite(features).all(axis=1))
    if len(broken):
        raise KldaError(
            f"The model {name!r} gave infinite or undefined features for inputs[{broken[0]}] in "
            f'{precision}. If that is not float32, load it with precision="float32"; otherwise the '
            "weights may be damaged."
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
            with np.errstate(over="ignore"):
                rows = rows.astype(np.float32, copy=False)
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
        broken = np.flatnonzero(~np.isfinite(rows).all(axis=1))
        if len(broken):
            raise KldaError(
                f"inputs[{broken[0]}] is not finite in float32 (NaN, infinite or too large): "
                "remove or repair such rows."
            )
        return np.ascontiguousarray(rows)

    def fingerprint(self) -> dict[str, Any]:
        """Describe the features; only the dimension varies."""
        return describe(self)
