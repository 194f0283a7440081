"""Every method that a table can have as a row: one interface, one registry.

A method learns task by task, ``learn_task(X, y)`` or ``partial_fit(X, y)``, each with all of the
task's rows, once; ``predict(X)`` labels rows among all classes seen. `X` holds feature rows, or the
texts or images.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import operator
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib import resources
from typing import Any, Literal

from klda.encoders import MODELS
from klda.errors import KldaError, MissingDependencyError
from klda_bench.results import NOT_OPTIONS

Group = Literal["paper", "ours", "peer", "reference", "fine-tuned", "own"]
Gamma = float | Literal["auto"]

# all-MiniLM-L6-v2 is not among the paper's models; 0.2 is the protocol's value for its unit-length
# features.
PROTOCOL_GAMMA = {"minilm": 0.2}


def learn_task(method: Any, X: Any, y: Any) -> None:
    """Teach a method one task: by its ``learn_task``, or as a classifier's ``partial_fit``."""
    (getattr(method, "learn_task", None) or method.partial_fit)(X, y)


@dataclass(frozen=True)
class MethodSpec:
    """A method, how to build it and how to show it.

    What `source` names (``module:name``) takes the method's options, and ``backbone``, ``device``
    and ``random_state`` or ``seed`` where its signature has them. `own` are the settings that
    determine its numbers, by default all that its signature has. `layers` are those it uses where
    no others are asked for. methods.toml says more.
    """

    name: str
    title: str
    group: Group
    source: str
    about: str
    own: Mapping[str, Any] | None = None
    layers: str = "last"
    why: str = ""

    @property
    def factory(self) -> Any:
        """Import what makes the method."""
        module, _, path = self.source.partition(":")
        try:
            return operator.attrgetter(path)(importlib.import_module(module))
        except MissingDependencyError:
            raise
        except (ImportError, AttributeError) as error:
            raise KldaError(
                f"methods={self.name!r} can't be imported ({error}): give module:name of a class "
                "or function that makes a method, with the module's folder on PYTHONPATH."
            ) from error

    def options(
        self,
        backbone: str = "minilm",
        layers: str = "last",
        given: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Return the settings of a run: the defaults, with what was asked for in their place."""
        found = self.own
        if found is None:
            # All defaults: a changed one is another run, not the old one's figures.
            taken = inspect.signature(self.factory).parameters.values()
            found = {p.name: p.default for p in taken if p.default is not p.empty}
        own = {name: value for name, value in found.items() if name not in NOT_OPTIONS}
        if own.get("gamma") == "protocol":
            own["gamma"] = protocol_gamma(backbone, layers)
        return own | dict(given or {})

    @property
    def needs(self) -> Literal["features", "inputs"]:
        """What it learns from: frozen feature rows, or the texts or images themselves."""
        return "inputs" if self.group == "fine-tuned" else "features"

    def check(self, given: Mapping[str, Any]) -> None:
        """Raise an error if an option was given that the method doesn't have; loads no network."""
        if self.needs == "features":
            self.make(self.options(given=given))
            return
        known = sorted({*self.options(), "backbone"})
        unknown = sorted(set(given) - set(known))
        if unknown:
            raise KldaError(
                f"Method {self.name!r} does not take the option {unknown[0]!r}: choose from "
                f"{', '.join(known)}."
            )

    def make(
        self,
        options: dict[str, Any],
        *,
        backbone: str = "minilm",
        seed: int = 0,
        device: str = "cpu",
        encoder: Any = None,
    ) -> Any:
        """Build a fresh method; `encoder` made the features that it will learn from."""
        place = {"device": device, "random_state": seed, "seed": seed}
        place |= {"backbone": backbone, "encoder": encoder}
        parameters = inspect.signature(self.factory).parameters
        taken = set(parameters)
        if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
            taken |= {"device", "random_state"}  # of an estimator, made by another function
        place = {name: value for name, value in place.items() if name in taken}
        try:
            return self.factory(**(place | options))
        except TypeError as error:
            raise KldaError(
                f"Method {self.name!r} does not take these options: {options} ({error})."
            ) from error


def registry(used: Iterable[str] = ()) -> dict[str, MethodSpec]:
    """All methods by name, in the order of the tables: fine-tuned first, as in the paper.

    Those of `used` that are not known here, such as a user's, come last, named as ``module:name``.
    """
    known = _described()
    others = (name for name in used if name not in known)
    return known | {
        name: MethodSpec(name, name.rpartition(":")[2], "own", name, "your own") for name in others
    }


@functools.cache
def _described() -> dict[str, MethodSpec]:
    text = (resources.files(__package__) / "methods.toml").read_text(encoding="utf-8")
    return {
        name: MethodSpec(name, own=row.pop("options", None), source=row.pop("make"), **row)
        for name, row in tomllib.loads(text).items()
    }


def select(names: str) -> list[MethodSpec]:
    """Methods named on a command line, in the order of the tables.

    `names` are separated by commas; ``all`` is every method but ``authors``, whose pseudo-inverses
    take minutes each; ``peers`` and ``fine-tuned`` are groups; ``module:name`` is a user's own
    method, which learns from features.
    """
    parts = [part.strip() for part in names.split(",") if part.strip()]
    known = registry(name for name in parts if ":" in name)
    groups = {"peers": "peer", "fine-tuned": "fine-tuned"}
    unknown = [name for name in parts if name not in (*known, *groups, "all")]
    if unknown or not parts:
        raise KldaError(
            f"methods={', '.join(unknown)!r} is not known: choose from {', '.join(known)}, all, "
            f"the groups {', '.join(groups)}, or module:name of your own."
        )
    asked = {groups.get(name, name) for name in parts}
    found = [
        spec
        for name, spec in known.items()
        if name in asked or spec.group in asked or ("all" in asked and spec.group != "reference")
    ]
    for spec in found:
        if spec.group == "own":
            spec.factory  # noqa: B018 (an error now, before hours are spent on the others)
    return found


def protocol_gamma(backbone: str, layers: str = "last") -> Gamma:
    """Kernel parameter of the paper's mode for a foundation model.

    The paper's value where it used the model, the protocol's for all-MiniLM-L6-v2, and ``"auto"``
    (from the first task's distances) for any other model or choice of layers.
    """
    if layers != "last":
        return "auto"
    own = MODELS[backbone].gamma if backbone in MODELS else None
    return PROTOCOL_GAMMA.get(backbone, "auto") if own is None else own
