"""Everything that the laboratory takes from klda beyond its top-level names, in one place."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np

from klda import KLDA, encoders
from klda.data import open_table
from klda.encoders import MODELS, OfflineModelError
from klda.encoders.cache import default_cache_folder
from klda.engine.feature_map import GAMMA_SCALE
from klda.engine.regression import FADES_BELOW, LDA_PART, MOST_FADED
from klda.engine.shrinkage import LEAST_OF_AVERAGE, PRIOR_WEIGHT
from klda.engine.solve import AUTO_RIDGES
from klda.errors import MissingDependencyError
from klda.learner import folder as folders
from klda.learner.evaluation import Reliability

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
    "rule": [LDA_PART, FADES_BELOW, MOST_FADED],
}
"""The numbers behind each parameter of KLDA that can be ``"auto"``."""


def load_encoder(name: str, **options: Any) -> Any:
    """Load a foundation model that turns texts or images into feature rows."""
    return encoders.load(name, **options)


def read_table(file: Path, *, labels: bool = True) -> tuple[Any, list[str], Any]:
    """Read a file or folder of samples: its inputs, its labels, and its modality."""
    table = open_table(file)
    batches = list(table.batches(labels=labels))
    names = [str(label) for batch in batches for label in batch.labels or ()]
    if batches and isinstance(batches[0].inputs, np.ndarray):
        return np.concatenate([batch.inputs for batch in batches]), names, table.modality
    return [item for batch in batches for item in batch.inputs], names, table.modality


def cluster_session(address: str, workers: int) -> AbstractContextManager[Any]:
    """Return a connection to a Ray cluster for the length of a block."""
    from klda.cluster.connection import Resources, connected

    return connected(address, Resources(workers))


def learn_on_cluster(file: Path, learner: Any, workers: int, watch: Callable[[Any], None]) -> None:
    """Have Ray's workers learn a file on CPUs; `watch` is called with the status now and then."""
    from klda import cluster

    cluster.learn(file, learner=learner, workers=workers, progress=watch, device="cpu")


def saved_rows(model: Path) -> int:
    """Rows in the last checkpoint of a ``klda learn`` that has not finished; 0 without one."""
    folder = model / folders.LEARNING
    try:
        found = folders.load(folder) if folders.exists(folder) else None
    except folders.ModelFolderError:  # it was complete, and removed, between the two looks
        return 0
    return 0 if found is None else int(found.document["learning"]["samples"])


def lifted(model: KLDA, X: np.ndarray) -> list[np.ndarray]:
    """Random features of rows, one array for each member of a fitted model."""
    model_ = model.model_
    return [model_.backend.to_numpy(each.lift(X)) for each in model_.maps]


def image_network(encoder: Any) -> tuple[Any, Callable[[Any, int], np.ndarray], Any]:
    """Return what training an image encoder takes: its network, ``read(image, i)``, ``forward``."""
    from klda.encoders.images import open_image

    network = encoder.network

    def read(image: Any, position: int) -> np.ndarray:
        return network.pixels(open_image(image, position))

    return network.model, read, network.forward
