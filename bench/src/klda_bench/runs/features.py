"""Foundation models and the features of data sets, each kept while it is used again."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from klda import encoders
from klda.cli.console import say
from klda.encoders import MODELS
from klda.errors import KldaError
from klda_bench.data.datasets import Dataset, Samples
from klda_bench.models.feature_cache import CachedEncoder

HALF_PRECISION = ("t5-3b", "mistral-7b")  # models that need it to fit on a GPU
_UNITS = {"M": 1e6, "B": 1e9}


@lru_cache(maxsize=2)
def load_encoder(backbone: str, layers: str = "last", device: str = "auto") -> CachedEncoder:
    """Open a foundation model whose features are kept on disk."""
    # The same features on every device, wherever that is possible.
    precision: Any = "auto" if backbone in HALF_PRECISION else "float32"
    half = precision == "auto" and device != "cpu"
    say_memory(backbone, 2 if half else 4, "its weights")
    encoder = encoders.load(backbone, device=device, layers=layers, precision=precision)
    return CachedEncoder(encoder)


@lru_cache(maxsize=2)
def features(
    dataset: Dataset, backbone: str, layers: str = "last", device: str = "auto"
) -> tuple[Samples, Samples]:
    """Return the rows to learn and those to test on; features are given as they are."""
    if dataset.modality == "features":
        return dataset.train, dataset.test
    encoder = load_encoder(backbone, layers, device)
    if encoder.modality != dataset.modality:
        raise KldaError(
            f"backbone={backbone!r} encodes {encoder.modality} inputs; the data set holds "
            f"{dataset.modality} inputs."
        )
    train, test = (
        Samples(encoder.encode(part.X, progress=True), part.y)
        for part in (dataset.train, dataset.test)
    )
    return train, test


def say_memory(backbone: str, per_parameter: int, what: str) -> None:
    """Print the memory that a model needs, before it is loaded."""
    info = MODELS.get(backbone)
    if info is not None and info.n_parameters[-1] in _UNITS:
        parameters = float(info.n_parameters[:-1]) * _UNITS[info.n_parameters[-1]]
        gigabytes = parameters * per_parameter / 1e9
        size = f"{backbone} ({info.n_parameters} parameters)"
        say(f"{size} needs about {gigabytes:.1f} GB of memory for {what}.")
