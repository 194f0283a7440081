"""``load``: from a model's name to an encoder."""

from __future__ import annotations

import difflib
import os
from pathlib import Path
from typing import Any

from klda.encoders.base import Encoder, Modality, Precision, parse_layers
from klda.encoders.cache import CachedEncoder, FeatureCache
from klda.encoders.files import (
    ModelFiles,
    OfflineModelError,
    from_hub,
    in_folder,
    package_folder,
    sha256,
)
from klda.encoders.precomputed import PrecomputedFeatures
from klda.encoders.registry import MODELS, ModelInfo, offline_names
from klda.errors import KldaError

_TOKENIZERS = ("tokenizer.json", "tokenizer_config.json", "vocab.txt", "vocab.json")
_PROCESSORS = ("preprocessor_config.json", "processor_config.json")


def load(
    name_or_path: str | os.PathLike[str],
    *,
    device: str = "auto",
    layers: Any = "last",
    batch_size: int | None = None,
    cache: bool | str | os.PathLike[str] | FeatureCache | None = None,
    trust_remote_code: bool = False,
    modality: Modality | None = None,
    precision: Precision = "auto",
    revision: str | None = None,
) -> Encoder:
    """Load a frozen foundation model.

    Parameters
    ----------
    name_or_path : str or path-like
        A name in :data:`MODELS`, a folder with a model, a name on the model hub, or
        ``"features"`` for rows that you have computed yourself. What is on this computer is used
        without asking the hub.
    device : str, default="auto"
        ``"auto"`` (a CUDA GPU if there is one, else the CPU), ``"cpu"``, ``"cuda"``.
    layers : "last", "auto", int, str or sequence of int, default="last"
        ``"last"``: the model's own feature, as in the paper. Layer numbers, as ``(4, 5, 6)``,
        ``"4,5,6"`` or ``(-3, -2, -1)``: each layer pooled, scaled to unit length and put side by
        side. ``"auto"``: what measures best for the model, where that is known.
    batch_size : int, optional
        Most inputs in one forward pass; chosen by device if not given.
    cache : bool, path-like or FeatureCache, optional
        Keep features on disk: True for the default folder. Off by default.
    trust_remote_code : bool, default=False
        Whether code that comes with a model may run.
    modality : {"text", "image", "features"}, optional
        What the inputs are; needed only where the model's folder does not tell.
    precision : {"auto", "float32", "float16", "bfloat16"}, default="auto"
        Number format of the weights; ``"auto"`` is half precision on a GPU.
    revision : str, optional
        Branch, tag or commit on the hub.

    Returns
    -------
    Encoder
        With ``encode``, ``name``, ``modality``, ``dimension`` and ``fingerprint``.

    Raises
    ------
    OfflineModelError
        If the model is not on this computer and can't be fetched.
    KldaError
        If a parameter is wrong or the model is damaged.
    """
    name = os.fspath(name_or_path)
    layers = parse_layers(layers)
    if modality == "features" or (name == "features" and modality is None):
        return PrecomputedFeatures()
    info = MODELS.get(name)
    files = _locate(name, info, revision)
    modality = _modality(name, info, files, modality)
    if layers == "auto":
        layers = info.default_layers if info is not None else "last"
    options: dict[str, Any] = {
        "device": device,
        "layers": layers,
        "batch_size": batch_size,
        "precision": precision,
        "trust_remote_code": trust_remote_code,
    }
    encoder = _build(name, files, modality, options)
    kept = _open_cache(cache)
    return encoder if kept is None else CachedEncoder(encoder, kept)


def modality_of(name_or_path: str | os.PathLike[str]) -> Modality:
    """Say what a foundation model takes, without loading it.

    Parameters
    ----------
    name_or_path : str or path-like
        As for :func:`load`. A model from the hub that is not on this computer is fetched.

    Returns
    -------
    {"text", "image", "features"}
        What it encodes.
    """
    name = os.fspath(name_or_path)
    if name == "features":
        return "features"
    if name in MODELS:
        return MODELS[name].modality
    return _modality(name, None, _locate(name, None, None), None)


def _build(name: str, files: ModelFiles, modality: Modality, options: dict[str, Any]) -> Encoder:
    if modality == "text":
        from klda.encoders.text import load_text

        return load_text(name, files, **options)
    from klda.encoders.images import EfficientNetLite, VisionEncoder

    if name != "efficientnet-lite0":
        return VisionEncoder(name, files, **options)
    layers = options.pop("layers")
    if layers != "last":
        raise KldaError(
            f'layers={layers!r}: the model {name!r} offers layers="last" only. dinov2-small and '
            "other transformers offer more."
        )
    options.pop("trust_remote_code")
    return EfficientNetLite(name, files, **options)


def _locate(name: str, info: ModelInfo | None, revision: str | None) -> ModelFiles:
    if info is None:
        folder = Path(name).expanduser()
        if folder.exists():
            return in_folder(folder, name)
        try:
            found = from_hub(name, name, revision=revision, offline_names=offline_names())
        except OfflineModelError as error:
            raise OfflineModelError(f"{error}{_hint(name)}") from error.__cause__
        return in_folder(found, name)
    files = _named(info, revision)
    if info.sha256 and sha256(files.weights[0]) != info.sha256:
        raise KldaError(
            f"The weights of {name!r} in {files.weights[0]} are not the published ones (SHA-256 "
            f"{info.sha256}): the file is damaged or was changed. Install or fetch it again."
        )
    return files


def _named(info: ModelInfo, revision: str | None) -> ModelFiles:
    if info.package and revision is None:
        path = package_folder(info.package, info.package_path)
        if path is not None and path.is_file():
            return ModelFiles(source=info.name, folder=path.parent, weights=(path,))
        if path is not None:
            return in_folder(path, info.hub_id)
    if not info.hub_id:
        raise OfflineModelError(
            f"The model {info.name!r} is not on this computer: the package {info.package} is not "
            f"installed. Install it with: {info.how_to_get}"
        )
    found = from_hub(info.name, info.hub_id, revision=revision, offline_names=offline_names())
    return in_folder(found, info.hub_id)


def _hint(name: str) -> str:
    close = difflib.get_close_matches(name.lower(), MODELS, n=1)
    meant = f" Did you mean {close[0]!r}?" if close else ""
    return f"\n  Named models: {', '.join(MODELS)}.{meant}"


def _modality(
    name: str, info: ModelInfo | None, files: ModelFiles, asked: Modality | None
) -> Modality:
    if asked not in (None, "text", "image"):
        raise KldaError(f'modality={asked!r} is not known: give "text", "image" or "features".')
    if info is not None:
        if asked not in (None, info.modality):
            raise KldaError(f"modality={asked!r}: the model {name!r} encodes {info.modality}s.")
        return info.modality
    if asked is not None:
        return asked
    parts = [files.folder, *(path for path in files.folder.iterdir() if path.is_dir())]
    is_text = any((part / file).is_file() for part in parts for file in _TOKENIZERS)
    is_image = any((files.folder / file).is_file() for file in _PROCESSORS)
    if is_text == is_image:
        has = "both a tokenizer and" if is_text else "neither a tokenizer nor"
        raise KldaError(
            f"The model {name!r} has {has} an image processor: say which inputs it is for with "
            'modality="text" or modality="image".'
        )
    return "text" if is_text else "image"


def _open_cache(cache: bool | str | os.PathLike[str] | FeatureCache | None) -> FeatureCache | None:
    if cache is None or cache is False:
        return None
    if isinstance(cache, FeatureCache):
        return cache
    return FeatureCache() if cache is True else FeatureCache(cache)
