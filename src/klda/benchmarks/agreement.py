"""Whether the engine gives the answers of a plain re-implementation of the authors' program.

Run as ``klda bench agreement``. For each data set, `KLDAEnsemble.paper` and the
plain form get the same random features. The plain form adds up each class's centred outer
products, takes the pseudo-inverse of the sum, and scores by the Mahalanobis distance; its members'
answers are averaged once as the paper says (softmax of scores with the covariance divided by N)
and once as the authors' program does (without that division). It is run with the engine's ridge on
its scatter, and without any.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np

from klda.benchmarks import datasets
from klda.benchmarks.resources import describe_device, require_device, versions
from klda.benchmarks.speed import allow_tf32
from klda.classifiers import KLDAEnsemble
from klda.decisions import softmax
from klda.errors import require

CUT_OFF = 1e-15  # of torch.pinverse, relative to the largest eigenvalue


class PlainForm:
    """The plain form, in features already lifted: pseudo-inverse, Mahalanobis distance.

    The covariance is the sum of outer products, not divided by the number of samples. The
    pseudo-inverse of a symmetric matrix comes from its eigenvectors, which serve for all ridges.
    """

    def __init__(self, train: np.ndarray, groups: np.ndarray, device: str = "cpu") -> None:
        torch = require("torch", "text")
        rows = torch.from_numpy(train).to(device)
        n_classes, size = int(groups.max()) + 1, train.shape[1]
        self._means, scatter = rows.new_zeros(n_classes, size), rows.new_zeros(size, size)
        for m in range(n_classes):
            mine = rows[torch.from_numpy(np.flatnonzero(groups == m)).to(device)]
            self._means[m] = mine.mean(0)
            centred = mine - self._means[m]
            scatter += centred.T @ centred
        self._values, self._vectors = torch.linalg.eigh(scatter)

    def scores(self, test: np.ndarray, ridge: float) -> np.ndarray:
        """Minus half the squared distances to all classes, with a ridge on the scatter."""
        torch = require("torch", "text")
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
    """Shares of test labels on which the engine and the plain form agree, and accuracies.

    Parameters
    ----------
    X, y, X_test, y_test : ndarray
        Features and labels.
    device : str
        Where both are worked out.
    tf32 : bool
        Whether the engine's matrix products may round to TF32; the plain form's never do.
    **options
        Parameters of `KLDAEnsemble.paper`.
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
    for member, solution in zip(model._members, model._solve(), strict=True):
        numpy = member.backend.to_numpy
        plain = PlainForm(numpy(member.transform(X)), groups, device)
        queries = numpy(member.transform(X_test))
        for ridge, kind in ((solution.rho, "ridge"), (0.0, "no ridge")):
            scores = plain.scores(queries, ridge)
            for scale, way in ((len(X), "as the paper says"), (1, "as the program does")):
                name = f"{kind}, averaged {way}"
                ways[name] = ways.get(name, 0) + softmax(scale * scores)
    for name, total in ways.items():
        theirs = names[total.argmax(axis=1)]
        result[f"agreement: {name}"] = float(np.mean(theirs == ours))
        result[f"accuracy: {name}"] = float(np.mean(theirs == y_test))
    return result


def main(arguments: list[str] | None = None) -> None:
    """Compare on the paper's text sets and print one JSON line a run."""
    from rich.console import Console

    from klda import encoders

    parser = argparse.ArgumentParser(prog="klda bench agreement", description=__doc__)
    parser.add_argument("--datasets", default="clinc,banking,hwu,dbpedia")
    parser.add_argument("--data", help="folder of data sets (default: KLDA_DATA)")
    parser.add_argument("--backbone", default="minilm", help="a foundation model (%(default)s)")
    parser.add_argument("--device", default="cpu", help="cpu, cuda, ... (%(default)s)")
    parser.add_argument("--tf32", action="store_true", help="allow TF32 in the engine's products")
    parser.add_argument("--gamma", type=float, default=0.2)
    parser.add_argument("--n-components", type=int, default=5000)
    parser.add_argument("--members", type=int, default=5)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--output", type=Path, help="file to append JSON lines to")
    chosen = parser.parse_args(arguments)
    require_device(chosen.device)
    encoder = encoders.load(chosen.backbone, layers="last", cache=True, device=chosen.device)
    console = Console(soft_wrap=True)
    for name in chosen.datasets.split(","):
        data = datasets.load(name, data=chosen.data)
        X, X_test = encoder.encode(data.train.X), encoder.encode(data.test.X)
        for seed in range(chosen.seeds):
            options = {
                "gamma": chosen.gamma,
                "n_components": chosen.n_components,
                "n_members": chosen.members,
                "random_state": seed,
            }
            where: dict[str, Any] = {"device": chosen.device, "tf32": chosen.tf32}
            truth = np.asarray(data.train.y), np.asarray(data.test.y)
            result = compare(X, truth[0], X_test, truth[1], **where, **options)
            where |= {"device": describe_device(chosen.device), "backbone": chosen.backbone}
            line = json.dumps(
                {"dataset": name, **where, **options, **result, "versions": versions()}
            )
            console.print(line)
            if chosen.output:
                chosen.output.parent.mkdir(parents=True, exist_ok=True)
                with chosen.output.open("a") as stream:
                    stream.write(line + "\n")


if __name__ == "__main__":
    main()
