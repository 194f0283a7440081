"""Answers from a model folder with little to import: what ``klda predict`` waits for.

A Learner holds an estimator of scikit-learn, whose import takes longer than an answer.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from klda import __version__
from klda.engine.fitted import Fitted
from klda.engine.model import choose_backend
from klda.engine.rule import Settings
from klda.engine.solution import Solution
from klda.labels import Label
from klda.learner import folder
from klda.learner.inputs import InputEncoder

NEAREST_MEAN = "NCM"  # the one classifier without a covariance


class Predictor:
    """The foundation model and the solution of a model folder; it answers as the Learner does."""

    def __init__(self, inputs: InputEncoder, solution: Solution, dtype: str) -> None:
        self._inputs, self._solution, self._dtype = inputs, solution, dtype

    @classmethod
    def load(cls, path: str | Path, **options: Any) -> Predictor | None:
        """Open a model folder; None if it takes a Learner to open it.

        That is so for folders of other versions, which have to be looked at more closely, for
        features, whose width a Learner checks, and without classes. Options are those of
        :func:`klda.encoders.load`.
        """
        stored = folder.load(path)
        document = stored.document
        own_version = stored.has_checksum and document["klda_version"] == __version__
        is_features = document["foundation_model"]["modality"] == "features"
        if not own_version or is_features or not document["classes"]:
            return None
        with folder.damage_named(Path(path)):
            meta = document["classifier"]
            parameters = meta["parameters"]
            device = options.get("device", parameters["device"])
            backend = choose_backend(device, parameters["dtype"])
            settings = Settings.of(parameters, nearest_mean=meta["kind"] == NEAREST_MEAN)
            fitted = Fitted.unpack(stored.arrays, meta, settings, backend)
            solution = fitted.calibrated_solution(settings)
            inputs = InputEncoder.of_stored(dict(document["foundation_model"]), options, None)
            return cls(inputs, solution, parameters["dtype"])

    @property
    def modality(self) -> str:
        """What it takes: ``"text"`` or ``"image"``."""
        return self._inputs.modality

    @property
    def n_classes(self) -> int:
        """Number of classes."""
        return len(self._solution.classes)

    def predict_top(self, inputs: Any, k: int = 3) -> list[list[tuple[Label, float]]]:
        """Answer with the likeliest classes and their probabilities; see `Learner.predict_top`."""
        rows = self._inputs.encode(inputs).astype(self._dtype, copy=False)
        labels, probabilities = self._solution.likeliest(rows, k)
        return [
            list(zip(names, values, strict=True))
            for names, values in zip(labels.tolist(), probabilities.tolist(), strict=True)
        ]
