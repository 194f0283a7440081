"""``load``: from a model's name to an encoder."""

from __future__ import annotations

import difflib
import os
import pkgutil
from pathlib import Path
from typing import Any, get_args

from klda.checks import Modality
from klda.encoders.encoder import Encoder, PrecomputedFeatures
from klda.encoders.endpoint import endpoint_encoder
from klda.encoders.model_files import OTHER_MODULES, ModelFiles
from klda.encoders.named_models import MODELS
from klda.encoders.networks import ImageEncoder, TextEncoder
from klda.encoders.ngrams import NgramEncoder
from klda.encoders.onnx_bert import OnnxBert, is_bert
from klda.encoders.pretrained import (
    PretrainedImageNetwork,
    PretrainedTextNetwork,
    sentence_transformers_encoder,
)
from klda.encoders.runtime import Precision, RunOptions, Runtime, can_run_onnx, is_installed
from klda.encoders.sources import Hub, OfflineModelError
from klda.encoders.wrapped import OWN, wrap
from klda.errors import KldaError

_TOKENIZERS = ("tokenizer.json", "tokenizer_config.json", "vocab.txt", "vocab.json")
_PROCESSORS = ("preprocessor_config.json", "processor_config.json")
_MEMBERS = ("name", "modality", "dimension", "encode", "fingerprint")  # of any encoder


def load(
    name_or_path: Any,
    *,
    device: str = "auto",
    layers: Any = "last",
    batch_size: int | None = None,
    trust_remote_code: bool = False,
    modality: Modality | None = None,
    precision: Precision = "auto",
    runtime: Runtime = "auto",
    revision: str | None = None,
    prompt: str | None = None,
    model: str | None = None,
    name: str | None = None,
) -> Encoder:
    """Load a frozen foundation model.

    Parameters
    ----------
    name_or_path : str, path-like, callable or object
        A name in :data:`MODELS` (``"ngrams"`` needs nothing but klda), a folder with a model, a
        name on the model hub, or ``"features"`` for rows that you have computed yourself. A model
        that is already on this computer is used without a request to the hub.

        The URL of a server with OpenAI's embeddings, such as ``"http://localhost:11434/v1"``; the
        environment variable KLDA_EMBEDDINGS_KEY has its key.

        A function from a list of texts to rows, or an object with such a method ``encode``
        (sentence-transformers, model2vec), ``embed`` (fastembed) or ``embed_documents``
        (LangChain); or an encoder, which is returned as it is.
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
    runtime : {"auto", "onnx", "torch"}, default="auto"
        What runs a text model. ``"auto"`` is ONNX Runtime for BERT-like models on a CPU and torch
        for all others. The features are the same, up to rounding.
    revision : str, optional
        Branch, tag or commit on the hub; "1" for the n-grams of version 0.2.0.
    prompt : str, optional
        Put before each text, as ``"query: "``; by default what the model's authors put there.
    model : str, optional
        Which model of a server; the URL can also end with it, as in ``"...:11434/v1#nomic"``.
    name : str, optional
        What identifies the features of a function or object; by default its own name.

    Raises
    ------
    OfflineModelError
        If the model is not on this computer and can't be downloaded.
    KldaError
        If a parameter is invalid or the model is damaged.
    """
    if all(hasattr(name_or_path, member) for member in _MEMBERS):
        return name_or_path
    if modality not in (None, *get_args(Modality)):
        raise KldaError(f'modality={modality!r} is not valid: give "text", "image" or "features".')
    if model is not None and not is_url(name_or_path):
        raise KldaError(f"model={model!r}: {name_or_path!r} is not a server's URL. Leave it out.")
    asked = os.fspath(name_or_path) if isinstance(name_or_path, str | os.PathLike) else None
    options = RunOptions(device, layers, batch_size, precision, runtime, trust_remote_code, prompt)
    if asked is None:
        return wrap(name_or_path, name, options)
    if is_url(asked):
        return endpoint_encoder(asked, model, options)
    return _named(asked, options, modality, revision)


def _named(
    name: str, options: RunOptions, modality: Modality | None, revision: str | None
) -> Encoder:
    """Load a model by its name or folder."""
    known = None if name == "features" else MODELS.get(name)
    if known is not None:
        if modality not in (None, known.modality):
            raise KldaError(f"modality={modality!r}: the model {name!r} encodes {known.modality}s.")
        options = known.complete(options)
    elif (modality or name) == "features":
        options.require_last_layer(name)
        return PrecomputedFeatures()
    if name == NgramEncoder.name:
        options.require_last_layer(name)
        return NgramEncoder(revision)
    files = _locate(name, revision)
    is_image = (modality or _modality(files)) == "image"
    if known is not None and known.network:
        network = pkgutil.resolve_name(known.network)
    elif is_image:
        network = PretrainedImageNetwork
    elif options.choose_runtime(name, is_bert(files)) == "onnx":
        network = OnnxBert
    elif files.recipe.pooling == OTHER_MODULES:
        return sentence_transformers_encoder(files, options)
    else:
        network = PretrainedTextNetwork
    return (ImageEncoder if is_image else TextEncoder)(files, options, network)


def is_url(model: Any) -> bool:
    """Check whether a foundation model is given by the URL of a server."""
    return isinstance(model, str) and model.startswith(("http://", "https://"))


def reopen(fingerprint: dict[str, Any], model: Any = None, **options: Any) -> Encoder:
    """Load the encoder that a fingerprint describes; `model` is where it is now, or itself."""
    name, revision = fingerprint["name"], fingerprint["revision"]
    if model is None and revision.startswith(OWN):
        raise KldaError(
            f"This model was made with your own encoder {name!r}, which is not stored: give it "
            "again, as in Learner.load(folder, model=encoder)."
        )
    keys = ["layers", "modality", "prompt", *(["revision"] if name == NgramEncoder.name else [])]
    fixed = {key: fingerprint[key] for key in keys if key in fingerprint}
    return load(name if model is None else model, **fixed | options)


def modality_of(name_or_path: str | os.PathLike[str]) -> Modality:
    """Return the kind of inputs of a foundation model, ``"text"``, ``"image"`` or ``"features"``.

    It is named as for :func:`load`, and not loaded; one that is only on the hub is downloaded.
    """
    name = os.fspath(name_or_path)
    if name == "features":
        return "features"
    if name in MODELS:
        return MODELS[name].modality
    return "text" if is_url(name) else _modality(_locate(name))


def default_text_model() -> str:
    """Return the best model for texts that the installed packages can run."""
    return "minilm" if can_run_onnx() or is_installed("transformers") else NgramEncoder.name


def _locate(name: str, revision: str | None = None) -> ModelFiles:
    """Find the files of a named model, of a folder, or of a model on the hub."""
    try:
        if name in MODELS:
            return MODELS[name].locate(revision)
        path = Path(name).expanduser()
        if path.is_file():
            raise KldaError(f"The model {name!r} is a file, not a folder with a model's files.")
        if path.exists():
            path = path.resolve()  # a stored model must find it from any working directory
            return ModelFiles.at(path, str(path))
        return ModelFiles.at(Hub(name, revision).path(), name)
    except OfflineModelError as error:
        raise OfflineModelError(_missing(name, str(error))) from error.__cause__
    except OSError as error:  # such as a name that is too long for a file
        raise KldaError(f"model={name!r} can't be opened: {error.strerror or error}.") from error


def _missing(name: str, reason: str) -> str:
    """Say why a model is not here, how to get it, and which ones are."""
    if name in MODELS:
        advice = f" To get it: {MODELS[name].how_to_get}."
    else:
        close = difflib.get_close_matches(name.lower(), MODELS, n=1)
        advice = f" Did you mean {close[0]!r}?" if close else ""
    offline = [info.name for info in MODELS.values() if info.available_offline()]
    return (
        f"The model {name!r} is not on this computer: {reason}.{advice}\n"
        f"  Available offline: {', '.join(offline)}; any folder that holds a model, by its path.\n"
        f"  Named models: {', '.join(MODELS)}. A model that was downloaded once stays available."
    )


def _modality(files: ModelFiles) -> Modality:
    """Return what a named model, or a folder's tokenizer or image processor, is for."""
    if files.name in MODELS:
        return MODELS[files.name].modality
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
