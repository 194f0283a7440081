"""Everything that the laboratory takes from klda beyond its top-level names, in one place."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np

from klda import KLDA, features, storage
from klda.classifiers.discriminants import AUTO_RIDGES
from klda.errors import MissingDependencyError
from klda.evaluation import Reliability
from klda.features import MODELS, OfflineModelError
from klda.features.cache import default_cache_folder
from klda.kernel import GAMMA_SCALE
from klda.shrinkage import LEAST_OF_AVERAGE, PRIOR_WEIGHT
from klda.tables import open_table

__all__ = [
    "AUTO_MEANINGS",
    "GAMMA_SCALE",
    "MODELS",
    "MissingDependencyError",
    "OfflineModelError",
    "Reliability",
    "cluster_session",
    "default_cache_folder",
    "image_network",
    "learn_on_cluster",
    "lifted",
    "load_encoder",
    "read_table",
    "saved_rows",
]

AUTO_MEANINGS: dict[str, Any] = {
    "gamma": GAMMA_SCALE,
    "ridge": list(AUTO_RIDGES),
    "priors": [PRIOR_WEIGHT, LEAST_OF_AVERAGE],
}
"""The numbers behind each parameter of KLDA that can be ``"auto"``."""


def load_encoder(name: str, **options: Any) -> Any:
    """Load a foundation model that turns texts or images into feature rows."""
    return features.load(name, **options)


def read_table(file: Path, *, labels: bool = True) -> tuple[Any, list[str], Any]:
    """Read a file or folder of samples: its inputs, its labels, and its modality."""
    table = open_table(file)
    chunks = list(table.chunks(labels=labels))
    names = [label for chunk in chunks for label in chunk.labels or ()]
    if chunks and isinstance(chunks[0].inputs, np.ndarray):
        return np.concatenate([chunk.inputs for chunk in chunks]), names, table.modality
    return [item for chunk in chunks for item in chunk.inputs], names, table.modality


def cluster_session(address: str, workers: int) -> AbstractContextManager[Any]:
    """Return a connection to a Ray cluster for the length of a block."""
    from klda.cluster.pool import Resources, connected

    return connected(address, Resources(workers))


def learn_on_cluster(file: Path, learner: Any, workers: int, watch: Callable[[Any], None]) -> None:
    """Have Ray's workers learn a file on CPUs; `watch` is called with the status now and then."""
    from klda import cluster

    cluster.learn(file, learner=learner, workers=workers, progress=watch, device="cpu")


def saved_rows(model: Path) -> int:
    """Rows in the last checkpoint of a ``klda learn`` that has not finished; 0 without one."""
    folder = model / storage.LEARNING
    try:
        found = storage.load(folder) if storage.exists(folder) else None
    except storage.ModelFolderError:  # it was complete, and removed, between the two looks
        return 0
    return 0 if found is None else int(found.document["learning"]["samples"])


def lifted(model: KLDA, X: np.ndarray) -> list[np.ndarray]:
    """Random features of rows, one array for each member of a fitted model."""
    arrays, _ = model.to_state()
    names = sorted(name for name in arrays if name.endswith("frequencies"))
    maps = [(arrays[name], arrays[name.replace("frequencies", "phases")]) for name in names]
    return [
        np.sqrt(np.float32(2 / len(phases))) * np.cos(X @ frequencies + phases)
        for frequencies, phases in maps
    ]


def image_network(encoder: Any) -> tuple[Any, Any, Any]:
    """Return what training an image encoder takes: its network, ``read(image, i)``, ``forward``."""
    return encoder._network, encoder._prepare, encoder._forward
