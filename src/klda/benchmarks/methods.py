"""Every method that a table can have as a row, by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from klda.benchmarks.identity import NOT_OPTIONS
from klda.benchmarks.peers import GACL, SLDA, AnaCP, FeCAM, RanPAC
from klda.benchmarks.protocol import Method
from klda.benchmarks.reference import AuthorsKLDA
from klda.classifiers import KLDA, LDA, NCM, KLDAEnsemble
from klda.errors import KldaError

Group = Literal["paper", "ours", "peer", "reference", "fine-tuned"]
Curve = Literal["each", "first-seed", "end"]

# all-MiniLM-L6-v2 is not among the paper's models; 0.2 is the protocol's value for its unit-length
# features.
PROTOCOL_GAMMA = {"minilm": 0.2}


@dataclass(frozen=True)
class Context:
    """What a method is built for.

    Parameters
    ----------
    backbone : str
        Foundation model.
    gamma : float or "auto"
        Kernel parameter of the paper's KLDA.
    seed : int
        Seed of the method's random draws.
    device : str
        Device of methods that can use one.
    options : mapping
        Settings of this method that replace its defaults.
    checkpoints : str or None
        Folder in which a long method may keep its state.
    """

    backbone: str = "minilm"
    gamma: float | Literal["auto"] = 0.2
    seed: int = 0
    device: str = "cpu"
    options: Mapping[str, Any] = field(default_factory=dict)
    checkpoints: str | None = None


class Estimator:
    """A classifier of this package behind the protocol's interface.

    Parameters
    ----------
    name : str
        Name in tables.
    estimator : object
        With ``partial_fit`` and ``predict``.
    """

    needs: str = "features"

    def __init__(self, name: str, estimator: Any) -> None:
        self.name = name
        self.estimator = estimator

    def learn_task(self, X: np.ndarray, y: np.ndarray) -> None:
        """Learn the task's rows."""
        self.estimator.partial_fit(X, y)

    def predict(self, X: np.ndarray) -> np.ndarray:
        """Label rows among all classes seen."""
        labels: np.ndarray = self.estimator.predict(X)
        return labels


@dataclass(frozen=True)
class MethodSpec:
    """A method, how to build it and how to show it.

    Parameters
    ----------
    name : str
        Name on the command line.
    title : str
        Name in tables.
    group : str
        Where it comes from.
    curve : {"each", "first-seed", "end"}
        When it is measured unless asked otherwise: after each task, so for the first seed only,
        or at the end only. What a measurement costs decides: a system of 5,000 unknowns, or five.
    build : callable
        ``build(context, options)`` makes a fresh method.
    defaults : callable
        ``defaults(context)``: the settings that determine its numbers.
    needs : {"features", "inputs"}
        What it learns from.
    about : str
        One line for the report.
    """

    name: str
    title: str
    group: Group
    curve: Curve
    build: Callable[[Context, dict[str, Any]], Method]
    defaults: Callable[[Context], dict[str, Any]]
    needs: str = "features"
    about: str = ""

    @property
    def on_device(self) -> bool:
        """Whether it can use a GPU; the peers are NumPy programs and run on the CPU."""
        return self.group != "peer"

    def options(self, context: Context) -> dict[str, Any]:
        """Return the settings of a run: the defaults, with what was asked for in their place."""
        return self.defaults(context) | dict(context.options)

    def check(self, context: Context) -> None:
        """Raise an error if an option was given that the method doesn't have.

        Cheap: no network is loaded.
        """
        if not context.options:
            return
        if self.needs == "features":
            self.make(context)
            return
        known = sorted({*self.defaults(context), "backbone"})
        unknown = sorted(set(context.options) - set(known))
        if unknown:
            raise KldaError(
                f"Method {self.name!r} does not take the option {unknown[0]!r}: choose from "
                f"{', '.join(known)}."
            )

    def make(self, context: Context) -> Method:
        """Build a fresh method."""
        try:
            return self.build(context, self.options(context))
        except TypeError as error:
            raise KldaError(
                f"Method {self.name!r} does not take these options: {dict(context.options)} "
                f"({error})."
            ) from error


def _estimator(name: str, make: Callable[..., Any], *, random: bool) -> Callable[..., Method]:
    def build(context: Context, options: dict[str, Any]) -> Method:
        extra: dict[str, Any] = {"device": context.device}
        if random:
            extra["random_state"] = context.seed
        return Estimator(name, make(**extra, **options))

    return build


def _peer(make: Callable[..., Method], *, random: bool) -> Callable[..., Method]:
    def build(context: Context, options: dict[str, Any]) -> Method:
        return make(**options, random_state=context.seed) if random else make(**options)

    return build


def _authors(context: Context, options: dict[str, Any]) -> Method:
    return AuthorsKLDA(random_state=context.seed, device=context.device, **options)


def _paper_settings(context: Context) -> dict[str, Any]:
    return {"gamma": context.gamma, "n_components": 5000}


def _own_settings(context: Context) -> dict[str, Any]:
    """All of KLDA's own defaults: a changed default is another cell, not the old one's figures."""
    settings = KLDA().get_params()
    return {name: value for name, value in settings.items() if name not in NOT_OPTIONS}


def _constant(**options: Any) -> Callable[[Context], dict[str, Any]]:
    return lambda context: dict(options)


_FROZEN = (
    MethodSpec(
        "ncm",
        "NCM",
        "paper",
        "each",
        _estimator("ncm", NCM, random=False),
        _constant(),
        about="nearest class mean by cosine on the frozen features",
    ),
    MethodSpec(
        "lda",
        "LDA",
        "paper",
        "each",
        _estimator("lda", LDA, random=False),
        _constant(ridge=1e-3, small_sample_correction=False, priors="uniform"),
        about="linear discriminant analysis on the frozen features, no correction",
    ),
    MethodSpec(
        "klda",
        "KLDA",
        "paper",
        "first-seed",
        _estimator("klda", KLDA.paper, random=True),
        _paper_settings,
        about="the paper's KLDA: D = 5000, gamma given, ridge 1e-3, no correction",
    ),
    MethodSpec(
        "klda-e",
        "KLDA-E",
        "paper",
        "end",
        _estimator("klda-e", KLDAEnsemble.paper, random=True),
        _paper_settings,
        about="the paper's ensemble: five KLDA models, averaged probabilities",
    ),
    MethodSpec(
        "klda-default",
        "KLDA (our default)",
        "ours",
        "first-seed",
        _estimator("klda-default", KLDA, random=True),
        _own_settings,
        about="what KLDA() does: no parameter given",
    ),
    MethodSpec(
        "slda",
        "Deep SLDA",
        "peer",
        "each",
        _peer(SLDA, random=False),
        _constant(shrinkage=1e-4),
        about="Hayes and Kanan 2020: streaming LDA with shrinkage on the frozen features",
    ),
    MethodSpec(
        "ranpac",
        "RanPAC",
        "peer",
        "first-seed",
        _peer(RanPAC, random=True),
        _constant(n_components=10_000),
        about="McDonnell et al. 2023: random projection, ReLU, ridge chosen at each task",
    ),
    MethodSpec(
        "gacl",
        "GACL / ACIL",
        "peer",
        "first-seed",
        _peer(GACL, random=True),
        _constant(n_components=5000, ridge=100.0),
        about="Zhuang et al. 2022, 2024: recursive ridge regression on ReLU random features",
    ),
    MethodSpec(
        "fecam",
        "FeCAM",
        "peer",
        "each",
        _peer(FeCAM, random=False),
        _constant(gamma1=1.0),
        about="Goswami et al. 2023: Mahalanobis distance with a covariance for each class",
    ),
    MethodSpec(
        "anacp",
        "AnaCP (head)",
        "peer",
        "end",
        _peer(AnaCP, random=True),
        _constant(n_components=5000, ridge=100.0, n_heads=3, samples_per_class=100),
        about="Momeni et al. 2025: analytic contrastive projection, ridge head",
    ),
    MethodSpec(
        "authors",
        "KLDA (authors' form)",
        "reference",
        "first-seed",
        _authors,
        _paper_settings,
        about="plain form of the authors' program: pseudo-inverse of the scatter, no ridge",
    ),
)

_TUNED_TITLES = {
    "joint": "Joint",
    "vanilla": "Vanilla",
    "ewc": "EWC",
    "kd": "KD",
    "l2p": "L2P",
    "lamol": "LAMOL",
    "vag": "VAG",
}


def _tuned(name: str) -> MethodSpec:
    def build(context: Context, options: dict[str, Any]) -> Method:
        from klda import baselines

        chosen = {"seed": context.seed, "checkpoint_dir": context.checkpoints} | options
        backbone = chosen.pop("backbone", context.backbone)
        method: Method = baselines.make(name, backbone, context.device, **chosen)
        return method

    def settings(context: Context) -> dict[str, Any]:
        from klda import baselines

        own = baselines.defaults(name).items()
        return {option: value for option, value in own if option not in NOT_OPTIONS}

    title = _TUNED_TITLES.get(name, name)
    return MethodSpec(
        name,
        title,
        "fine-tuned",
        "each",
        build,
        settings,
        "inputs",
        f"{title}: the foundation model itself is trained",
    )


def registry() -> dict[str, MethodSpec]:
    """All methods by name, in the order of the tables: fine-tuned first, as in the paper."""
    from klda.baselines import METHODS

    tuned = [_tuned(name) for name in METHODS]
    return {spec.name: spec for spec in (*tuned, *_FROZEN)}


def select(names: str) -> list[MethodSpec]:
    """Methods named on a command line.

    Parameters
    ----------
    names : str
        Comma-separated names; ``all`` is every method but ``authors``, whose pseudo-inverses take
        minutes each; ``peers`` and ``fine-tuned`` are groups.

    Returns
    -------
    list of MethodSpec
        In the order of the tables.
    """
    known = registry()
    groups = {
        "all": [name for name, spec in known.items() if spec.group != "reference"],
        "peers": [name for name, spec in known.items() if spec.group == "peer"],
        "fine-tuned": [name for name, spec in known.items() if spec.group == "fine-tuned"],
    }
    chosen: set[str] = set()
    for name in (part.strip() for part in names.split(",") if part.strip()):
        if name not in known and name not in groups:
            raise KldaError(
                f"methods={name!r} is not known: choose from {', '.join(known)}, or the groups "
                f"{', '.join(groups)}."
            )
        chosen.update(groups.get(name, [name]))
    if not chosen:
        raise KldaError("methods is empty: give names such as ncm,lda,klda, or all.")
    return [spec for name, spec in known.items() if name in chosen]


def protocol_gamma(backbone: str, layers: str = "last") -> float | Literal["auto"]:
    """Kernel parameter of the paper's mode for a foundation model.

    The paper's value where it used the model, the protocol's for all-MiniLM-L6-v2, and ``"auto"``
    (from the first task's distances) for any other model or choice of layers.
    """
    from klda.encoders import MODELS

    if layers != "last":
        return "auto"
    info = MODELS.get(backbone)
    own = info.gamma if info is not None else None
    return own if own is not None else PROTOCOL_GAMMA.get(backbone, "auto")
