"""What an encoder is, what identifies its features, and the one of features computed elsewhere."""

from __future__ import annotations

import json
from collections.abc import Iterator
from importlib import resources
from typing import Any, Protocol, runtime_checkable

import numpy as np

from klda.checks import Modality, finite_rows
from klda.engine.checks import check_rows
from klda.engine.feature_map import GAMMA_SCALE, median_squared_distance
from klda.errors import KldaError
from klda.progress import Show, progress_bar

# What identifies the features; the model's name and the location of its files do not.
_IDENTITY = ("modality", "revision", "pooling", "layers", "dimension", "prompt")


@runtime_checkable
class Encoder(Protocol):
    """A frozen foundation model: inputs in, one float32 feature row per input out.

    An encoder never changes after it is created, so several threads may call ``encode``. It may
    have more members:

    - ``max_length``: the number of tokens after which a text is cut off;
    - ``gamma_scale``: what `gamma_for` divides by the median squared distance between texts.
    """

    name: str
    """Name that the model was requested by."""
    modality: Modality
    """Kind of inputs: ``"text"``, ``"image"`` or ``"features"``."""
    dimension: int
    """Length of a feature row (0 for precomputed features of any length)."""

    def encode(self, inputs: Any, *, progress: Show = False) -> np.ndarray:
        """Return one row per input, in the given order; an error names the input at fault.

        `progress` shows a bar if standard error is a terminal, or is a function that is called with
        the number of inputs encoded so far.
        """

    def fingerprint(self) -> dict[str, Any]:
        """Describe the features in JSON-serializable values, which :func:`same_features` compares.

        These are the name, modality, source, revision (digest of the weights), pooling, layers and
        dimension, and where there are such, the prompt and a probe of the features.
        """


def same_features(first: dict[str, Any], second: dict[str, Any]) -> bool:
    """Check whether two fingerprints, which may come from JSON, describe the same features.

    Where the files are, the device and the numeric precision do not count.
    """
    same = all(json.dumps(first.get(key)) == json.dumps(second.get(key)) for key in _IDENTITY)
    if not same or "probe" not in first or "probe" not in second:
        return same
    # Far from each other for other features; other devices and servers round differently.
    return float(np.linalg.norm(np.subtract(first["probe"], second["probe"]))) < 0.2


def describe(encoder: Encoder, **about: Any) -> dict[str, Any]:
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
    finite = finite_rows(features)
    if not finite.all():
        raise KldaError(
            f"The model {encoder.name!r} gave infinite or undefined features for "
            f"inputs[{finite.argmin()}] in {encoder.precision}. If that is not float32, load it "
            'with precision="float32"; otherwise the weights may be damaged.'
        )
    return features


class PrecomputedFeatures(Encoder):
    """The encoder ``"features"``: checks rows that were computed elsewhere, and returns them."""

    name = "features"
    modality: Modality = "features"
    dimension = 0  # any: the classifier requires the length of its first batch

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
        with np.errstate(over="ignore"):
            rows = np.ascontiguousarray(rows, dtype=np.float32)
        check_rows(rows, "inputs")
        return rows

    def fingerprint(self) -> dict[str, Any]:
        """Describe the features, which are the same for all that klda can tell."""
        return describe(self)


def gamma_for(encoder: Encoder) -> float:
    """Return the kernel's ``gamma`` for the features of a text encoder.

    Taken from the first batch, it would depend on that batch: a file learned at once and class by
    class would get different kernels, and models trained separately could not be merged. The
    distance between unrelated sentences belongs to the encoder, so it is measured on fixed ones.
    """
    texts = resources.files(__package__).joinpath("probe_texts.txt").read_text("utf-8").splitlines()
    scale = getattr(encoder, "gamma_scale", GAMMA_SCALE)
    # Rounded, so that another machine or half precision gives the same value.
    return float(f"{scale / median_squared_distance(encoder.encode(texts)):.2g}")
