"""Fingerprints: what identifies the features of an encoder, stored with every model."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

# What identifies the features; the model's name and the location of its files do not.
_IDENTITY = ("modality", "revision", "pooling", "layers", "dimension", "prompt")


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
