"""Frozen features of data sets, computed once for a foundation model and a data set."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from klda import encoders
from klda.cli.console import say
from klda.encoders import MODELS, OfflineModelError
from klda.errors import KldaError
from klda_bench.data import Dataset, Samples
from klda_bench.models.feature_cache import CachedEncoder

Features = tuple[Samples, Samples, Any]
HALF_PRECISION = ("t5-3b", "mistral-7b")  # models that need it to fit on a GPU
_UNITS = {"M": 1e6, "B": 1e9}


class FeatureSource:
    """Encodes data sets and keeps the last one's features, of all layers asked for.

    `notify` is told what is being computed.
    """

    def __init__(self, cache: str | None, device: str, notify: Callable[[str], None]) -> None:
        self._cache, self._device, self._notify = cache, device, notify
        self._encoders: dict[tuple[str, str], Any] = {}  # or why there is none
        self._held: dict[tuple[str, str, str], Features] = {}

    def of(self, dataset: Dataset, backbone: str, layers: str) -> Features:
        """Return the feature rows of both parts, and the encoder that made them, if one did."""
        if dataset.modality == "features":
            return dataset.train, dataset.test, None
        key = (dataset.sha256, backbone, layers)
        if key not in self._held:
            self._held = {k: v for k, v in self._held.items() if k[:2] == key[:2]}
            encoder = self._encoder(backbone, layers, dataset.modality)
            self._notify(f"features of {dataset.title} from {backbone}")
            train, test = (
                Samples(encoder.encode(part.X, progress=True), part.y)
                for part in (dataset.train, dataset.test)
            )
            self._held[key] = (train, test, encoder)
        return self._held[key]

    def _encoder(self, backbone: str, layers: str, modality: str) -> Any:
        key = (backbone, layers)
        if key not in self._encoders:
            # The same features on every device, wherever that is possible.
            precision = "auto" if backbone in HALF_PRECISION else "float32"
            half = precision == "auto" and self._device != "cpu"
            say_memory(backbone, 2 if half else 4, "its weights")
            options: dict[str, Any] = {"layers": layers, "precision": precision}
            try:
                encoder = encoders.load(backbone, device=self._device, **options)
                self._encoders[key] = CachedEncoder(encoder, self._cache)
            except OfflineModelError as error:
                # Asking the hub again for each run would take minutes of time-outs.
                self._encoders[key] = error
        encoder = self._encoders[key]
        if isinstance(encoder, OfflineModelError):
            raise encoder
        if encoder.modality != modality:
            raise KldaError(
                f"backbone={backbone!r} encodes {encoder.modality} inputs; the data set holds "
                f"{modality} inputs."
            )
        return encoder


def say_memory(backbone: str, per_parameter: int, what: str) -> None:
    """Print the memory that a model needs, before it is loaded."""
    info = MODELS.get(backbone)
    if info is not None and info.n_parameters[-1] in _UNITS:
        parameters = float(info.n_parameters[:-1]) * _UNITS[info.n_parameters[-1]]
        gigabytes = parameters * per_parameter / 1e9
        size = f"{backbone} ({info.n_parameters} parameters)"
        say(f"{size} needs about {gigabytes:.1f} GB of memory for {what}.")
