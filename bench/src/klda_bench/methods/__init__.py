"""Every method that a table can have as a row: one interface, one registry."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np

from klda import KLDA, LDA, NCM, KLDAEnsemble, KldaError
from klda_bench import baselines
from klda_bench.engine import MODELS
from klda_bench.methods.authors import AuthorsKLDA
from klda_bench.methods.peers import GACL, SLDA, AnaCP, FeCAM, RanPAC
from klda_bench.results import NOT_OPTIONS

Group = Literal["paper", "ours", "peer", "reference", "fine-tuned", "own"]
Curve = Literal["each", "first-seed", "end"]
Gamma = float | Literal["auto"]

# all-MiniLM-L6-v2 is not among the paper's models; 0.2 is the protocol's value for its unit-length
# features.
PROTOCOL_GAMMA = {"minilm": 0.2}


@runtime_checkable
class Method(Protocol):
    """What learns task by task and answers. `X` holds feature rows, or the texts or images."""

    def learn_task(self, X: Any, y: Any, /) -> None:
        """Learn one task: all of its rows, once."""

    def predict(self, X: Any, /) -> np.ndarray:
        """Labels of the rows, among all classes seen."""


class Estimator:
    """A classifier with ``partial_fit`` and ``predict`` as a method."""

    def __init__(self, estimator: Any) -> None:
        self.estimator = estimator

    def learn_task(self, X: np.ndarray, y: np.ndarray) -> None:
        """Learn the task's rows."""
        self.estimator.partial_fit(X, y)

    def predict(self, X: np.ndarray) -> np.ndarray:
        """Label rows among all classes seen."""
        labels: np.ndarray = self.estimator.predict(X)
        return labels


@dataclass(frozen=True)
class Context:
    """What a method is built for.

    `gamma` is the kernel parameter of the paper's KLDA, `options` replace the method's defaults,
    and `checkpoints` is a folder in which a long method may keep its state.
    """

    backbone: str = "minilm"
    gamma: Gamma = 0.2
    seed: int = 0
    device: str = "cpu"
    options: Mapping[str, Any] = field(default_factory=dict)
    checkpoints: str | None = None


@dataclass(frozen=True)
class MethodSpec:
    """A method, how to build it and how to show it.

    `factory` takes the method's options, and ``device`` and ``random_state`` where its signature
    has them. `defaults` are the settings that determine its numbers. `curve` says when it is
    measured unless asked otherwise: after each task, so for the first seed only, or at the end
    only. What a measurement costs decides: a system of 5,000 unknowns, or five.
    """

    name: str
    title: str
    group: Group
    curve: Curve
    factory: Callable[..., Any]
    defaults: Callable[[Context], dict[str, Any]]
    about: str

    @property
    def needs(self) -> Literal["features", "inputs"]:
        """What it learns from: frozen feature rows, or the texts or images themselves."""
        return "inputs" if self.group == "fine-tuned" else "features"

    @property
    def on_device(self) -> bool:
        """Whether it can use a GPU; the peers are NumPy programs and run on the CPU."""
        return self.group != "peer"

    def options(self, context: Context) -> dict[str, Any]:
        """Return the settings of a run: the defaults, with what was asked for in their place."""
        return self.defaults(context) | dict(context.options)

    def check(self, context: Context) -> None:
        """Raise an error if an option was given that the method doesn't have; loads no network."""
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
        options = self.options(context)
        if self.needs == "inputs":
            options = {"seed": context.seed, "checkpoint_dir": context.checkpoints} | options
            backbone = options.pop("backbone", context.backbone)
            return baselines.make(self.name, backbone, context.device, **options)
        place = {"device": context.device, "random_state": context.seed}
        taken = inspect.signature(self.factory).parameters
        everything = any(parameter.kind is parameter.VAR_KEYWORD for parameter in taken.values())
        place = {name: value for name, value in place.items() if name in taken or everything}
        try:
            made = self.factory(**place, **options)
        except TypeError as error:
            raise KldaError(
                f"Method {self.name!r} does not take these options: {dict(context.options)} "
                f"({error})."
            ) from error
        return made if isinstance(made, Method) else Estimator(made)


def _constant(**options: Any) -> Callable[[Context], dict[str, Any]]:
    return lambda context: dict(options)


def _paper_settings(context: Context) -> dict[str, Any]:
    return {"gamma": context.gamma, "n_components": 5000}


def _own_settings(context: Context) -> dict[str, Any]:
    """All of KLDA's own defaults: a changed default is another run, not the old one's figures."""
    settings = KLDA().get_params()
    return {name: value for name, value in settings.items() if name not in NOT_OPTIONS}


def _tuned_settings(name: str) -> Callable[[Context], dict[str, Any]]:
    def settings(context: Context) -> dict[str, Any]:
        own = baselines.defaults(name).items()
        return {option: value for option, value in own if option not in NOT_OPTIONS}

    return settings


_ABOUT = {
    "ncm": "nearest class mean by cosine on the frozen features",
    "lda": "linear discriminant analysis on the frozen features, no correction",
    "klda": "the paper's KLDA: D = 5000, gamma given, ridge 1e-3, no correction",
    "klda-e": "the paper's ensemble: five KLDA models, averaged probabilities",
    "klda-default": "what KLDA() does: no parameter given",
    "slda": "Hayes and Kanan 2020: streaming LDA with shrinkage on the frozen features",
    "ranpac": "McDonnell et al. 2023: random projection, ReLU, ridge chosen at each task",
    "gacl": "Zhuang et al. 2022, 2024: recursive ridge regression on ReLU random features",
    "fecam": "Goswami et al. 2023: Mahalanobis distance with a covariance for each class",
    "anacp": "Momeni et al. 2025: analytic contrastive projection, ridge head",
    "authors": "plain form of the authors' program: pseudo-inverse of the scatter, no ridge",
}
_LDA = _constant(ridge=1e-3, small_sample_correction=False, priors="uniform")
_GACL = _constant(n_components=5000, ridge=100.0)
_ANACP = _constant(n_components=5000, ridge=100.0, n_heads=3, samples_per_class=100)
_FROZEN: tuple[tuple[str, str, Group, Curve, Callable[..., Any], Any], ...] = (
    ("ncm", "NCM", "paper", "each", NCM, _constant()),
    ("lda", "LDA", "paper", "each", LDA, _LDA),
    ("klda", "KLDA", "paper", "first-seed", KLDA.paper, _paper_settings),
    ("klda-e", "KLDA-E", "paper", "end", KLDAEnsemble.paper, _paper_settings),
    ("klda-default", "KLDA (our default)", "ours", "first-seed", KLDA, _own_settings),
    ("slda", "Deep SLDA", "peer", "each", SLDA, _constant(shrinkage=1e-4)),
    ("ranpac", "RanPAC", "peer", "first-seed", RanPAC, _constant(n_components=10_000)),
    ("gacl", "GACL / ACIL", "peer", "first-seed", GACL, _GACL),
    ("fecam", "FeCAM", "peer", "each", FeCAM, _constant(gamma1=1.0)),
    ("anacp", "AnaCP (head)", "peer", "end", AnaCP, _ANACP),
    ("authors", "KLDA (authors' form)", "reference", "first-seed", AuthorsKLDA, _paper_settings),
)


def registry() -> dict[str, MethodSpec]:
    """All methods by name, in the order of the tables: fine-tuned first, as in the paper."""
    tuned = [
        MethodSpec(name, title, "fine-tuned", "each", baselines.make, _tuned_settings(name), about)
        for name, (_, title, about) in baselines.METHODS.items()
    ]
    frozen = [MethodSpec(*row, about=_ABOUT[row[0]]) for row in _FROZEN]
    return {spec.name: spec for spec in (*tuned, *frozen)} | _OWN


_OWN: dict[str, MethodSpec] = {}  # methods that users named on a command line


def _own_method(name: str) -> MethodSpec:
    """Import a user's method by ``module:name``; the defaults in its signature are its options."""
    module, _, attribute = name.partition(":")
    try:
        factory = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise KldaError(
            f"methods={name!r} can't be imported ({error}): give module:name of a class or "
            "function that makes a method, with the module's folder on PYTHONPATH."
        ) from error
    taken = inspect.signature(factory).parameters.values()
    own = {p.name: p.default for p in taken if p.default is not p.empty}
    options = _constant(**{key: own[key] for key in own if key not in NOT_OPTIONS})
    about = (inspect.getdoc(factory) or "").partition("\n")[0]
    return MethodSpec(name, attribute, "own", "each", factory, options, about)


def select(names: str) -> list[MethodSpec]:
    """Methods named on a command line, in the order of the tables.

    `names` are separated by commas; ``all`` is every method but ``authors``, whose pseudo-inverses
    take minutes each; ``peers`` and ``fine-tuned`` are groups; ``module:name`` is a user's own
    method, which learns from features.
    """
    parts = [part.strip() for part in names.split(",") if part.strip()]
    _OWN.update({name: _own_method(name) for name in parts if ":" in name})
    known = registry()
    groups = {
        "all": [name for name, spec in known.items() if spec.group != "reference"],
        "peers": [name for name, spec in known.items() if spec.group == "peer"],
        "fine-tuned": [name for name, spec in known.items() if spec.group == "fine-tuned"],
    }
    chosen: set[str] = set()
    for name in parts:
        if name not in known and name not in groups:
            raise KldaError(
                f"methods={name!r} is not known: choose from {', '.join(known)}, the groups "
                f"{', '.join(groups)}, or module:name of your own."
            )
        chosen.update(groups.get(name, [name]))
    if not chosen:
        raise KldaError("methods is empty: give names such as ncm,lda,klda, or all.")
    return [spec for name, spec in known.items() if name in chosen]


def protocol_gamma(backbone: str, layers: str = "last") -> Gamma:
    """Kernel parameter of the paper's mode for a foundation model.

    The paper's value where it used the model, the protocol's for all-MiniLM-L6-v2, and ``"auto"``
    (from the first task's distances) for any other model or choice of layers.
    """
    if layers != "last":
        return "auto"
    info = MODELS.get(backbone)
    own = info.gamma if info is not None else None
    return own if own is not None else PROTOCOL_GAMMA.get(backbone, "auto")
