"""Whether the engine gives the answers of a plain re-implementation of the authors' program.

For each data set, `KLDAEnsemble.paper` and the plain form get the same random features. The plain
form adds up each class's centred outer products, takes the pseudo-inverse of the sum, and scores by
the Mahalanobis distance; its members' answers are averaged once as the paper says (softmax of
scores with the covariance divided by N) and once as the authors' program does (without that
division). It is run with the engine's ridge on its scatter, and without any.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

import numpy as np
import typer
from scipy.special import softmax

from klda import KLDAEnsemble, encoders
from klda_bench import data as datasets_
from klda_bench.environment import allow_tf32, describe_device, require, require_device
from klda_bench.measure.common import Components, Data, Device, Names, Seeds, Tf32
from klda_bench.results import Row

CUT_OFF = 1e-15  # of torch.pinverse, relative to the largest eigenvalue


class PlainForm:
    """The plain form, in features already lifted: pseudo-inverse, Mahalanobis distance.

    The covariance is the sum of outer products, not divided by the number of samples. The
    pseudo-inverse of a symmetric matrix comes from its eigenvectors, which serve for all ridges.
    """

    def __init__(self, train: np.ndarray, groups: np.ndarray, device: str = "cpu") -> None:
        self._torch = torch = require("torch", "baselines")
        rows = torch.from_numpy(train).to(device)
        n_classes, size = int(groups.max()) + 1, train.shape[1]
        self._means, scatter = rows.new_zeros(n_classes, size), rows.new_zeros(size, size)
        for m in range(n_classes):
            mine = rows[torch.from_numpy(np.flatnonzero(groups == m)).to(device)]
            self._means[m] = mine.mean(0)
            centred = mine - self._means[m]
            scatter += centred.T @ centred
        self.mean_diagonal = float(scatter.diagonal().mean())
        self._values, self._vectors = torch.linalg.eigh(scatter)

    def scores(self, test: np.ndarray, ridge: float) -> np.ndarray:
        """Minus half the squared distances to all classes, with a ridge on the scatter."""
        torch = self._torch
        values = self._values.double() + ridge
        least = values.abs().max() * CUT_OFF
        inverse = torch.where(values.abs() > least, 1 / values, 0.0)
        queries = (torch.from_numpy(test).to(values.device) @ self._vectors).double()
        means = (self._means @ self._vectors).double()
        cross = (queries * inverse) @ means.T
        lengths = (queries**2 @ inverse)[:, None] + means**2 @ inverse
        return np.asarray((cross - 0.5 * lengths).cpu())


def compare(
    X: np.ndarray,
    y: np.ndarray,
    X_test: np.ndarray,
    y_test: np.ndarray,
    *,
    device: str = "cpu",
    tf32: bool = False,
    **options: Any,
) -> dict[str, float]:
    """Fractions of test labels on which the engine and the plain form agree, and accuracies.

    With `tf32` the engine's matrix products may round to TF32; the plain form's never do. `options`
    are parameters of `KLDAEnsemble.paper`.
    """
    if device != "cpu":
        allow_tf32(tf32)
    model = KLDAEnsemble.paper(device=device, **options).fit(X, y)
    names, groups = np.unique(y, return_inverse=True)
    ours = model.predict(X_test)
    if device != "cpu":
        allow_tf32(False)
    result = {"accuracy": float(np.mean(ours == y_test))}
    ways: dict[str, np.ndarray] = {}
    engine = model.model_
    for member in engine.maps:
        train, queries = (engine.backend.to_numpy(member.lift(part)) for part in (X, X_test))
        plain = PlainForm(train, groups, device)
        for ridge, kind in ((model.ridge_ * plain.mean_diagonal, "ridge"), (0.0, "no ridge")):
            scores = plain.scores(queries, ridge)
            for scale, way in ((len(X), "as the paper says"), (1, "as the program does")):
                name = f"{kind}, averaged {way}"
                ways[name] = ways.get(name, 0) + softmax(scale * scores, axis=1)
    for name, total in ways.items():
        theirs = names[total.argmax(axis=1)]
        result[f"agreement: {name}"] = float(np.mean(theirs == ours))
        result[f"accuracy: {name}"] = float(np.mean(theirs == y_test))
    return result


def agreement(
    datasets: Names = "clinc,banking,hwu,dbpedia",
    data: Data = None,
    backbone: Annotated[str, typer.Option(help="Foundation model.")] = "minilm",
    device: Device = "cpu",
    tf32: Tf32 = False,
    gamma: Annotated[float, typer.Option(help="Kernel parameter.")] = 0.2,
    n_components: Components = 5000,
    members: Annotated[int, typer.Option(help="Members of the ensemble.")] = 5,
    seeds: Seeds = 1,
) -> Iterator[Row]:
    """Compare the engine's answers with those of a plain re-implementation."""
    require_device(device)
    encoder = encoders.load(backbone, layers="last", cache=True, device=device)
    for name in datasets.split(","):
        found = datasets_.load(name, data=data)
        X, X_test = encoder.encode(found.train.X), encoder.encode(found.test.X)
        for seed in range(seeds):
            options: Row = {"gamma": gamma, "n_components": n_components}
            options |= {"n_members": members, "random_state": seed}
            where: Row = {"device": device, "tf32": tf32}
            result = compare(X, found.train.y, X_test, found.test.y, **where, **options)
            where |= {"device": describe_device(device), "backbone": backbone}
            yield {"what": "agreement", "dataset": name, **where, **options, **result}
