"""Networks of torch and transformers: device, number format, loading, and layers."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from klda.encoders.base import Layers, Precision
from klda.engine.cpus import usable_cpus
from klda.errors import KldaError, require

# Heads that features never pass through, and parameters that are copies of others.
_UNUSED = ("pooler", "lm_head", "position_ids", "mask_token", "embed_tokens", "logit_")
_NORMS = ("norm", "final_layer_norm", "final_layernorm", "final_norm", "layernorm", "ln_f")
# Architectures whose activations exceed float16's range.
_WIDE = ("t5", "mt5", "umt5", "longt5", "gemma", "gemma2", "gemma3", "gemma3_text")


@dataclass(frozen=True)
class Options:
    """How to run a network; the fields are parameters of :func:`klda.encoders.load`."""

    device: str = "auto"
    layers: Layers = "last"
    batch_size: int | None = None
    precision: Precision = "auto"
    engine: str = "auto"
    trust_remote_code: bool = False


def choose_device(device: str) -> Any:
    """Turn a ``device`` setting into a ``torch.device``; ``"auto"`` prefers CUDA."""
    torch = require("torch", "text")
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        chosen = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise KldaError(
            f'device={device!r} is not a device: give "auto", "cpu" or "cuda".'
        ) from error
    if chosen.type == "cuda" and (chosen.index or 0) >= torch.cuda.device_count():
        raise KldaError(
            f"device={device!r}: this computer has {torch.cuda.device_count()} CUDA devices. "
            'Give "auto" or "cpu".'
        )
    return chosen


def limit_threads() -> None:
    """Let torch use no more threads than this process has CPUs: it does not see a quota."""
    torch = require("torch", "text")
    torch.set_num_threads(min(torch.get_num_threads(), usable_cpus()))


def batch_sizes(device: Any, options: Options) -> tuple[int, int]:
    """Return how many texts and tokens a text network of torch gets at once."""
    if device.type == "cuda":
        return options.batch_size or 256, 65536
    limit_threads()
    return options.batch_size or 128, 1024  # tokens: a CPU's cache is small


def choose_dtype(precision: Precision, device: Any, config: dict[str, Any]) -> Any:
    """Choose the number format of the weights.

    ``"auto"`` is float32 on a CPU and half precision on a GPU: bfloat16 for models that exceed
    float16's range (T5) or were published in bfloat16, as their `config` says, else float16, whose
    rounding error is an eighth of bfloat16's.
    """
    torch = require("torch", "text")
    formats = {name: getattr(torch, name) for name in ("float32", "float16", "bfloat16")}
    if precision in formats:
        return formats[precision]
    if precision != "auto":
        raise KldaError(
            f'precision={precision!r} is not valid: give "auto", "float32", "float16" or '
            '"bfloat16".'
        )
    if device.type != "cuda":
        return torch.float32
    published = config.get("dtype") or config.get("torch_dtype")
    is_wide = config.get("model_type") in _WIDE or published == "bfloat16"
    return torch.bfloat16 if is_wide else torch.float16


def dtype_name(dtype: Any) -> str:
    """Return a torch dtype's name, as ``"float32"``."""
    return str(dtype).removeprefix("torch.")


@contextlib.contextmanager
def quiet(name: str) -> Iterator[None]:
    """Silence the progress bars and messages of transformers; add the model's name to errors."""
    logging = require("transformers", "text").utils.logging
    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    except (KldaError, MemoryError):
        raise
    except Exception as error:  # safetensors, tokenizers and the models raise their own errors
        hint = ""
        if "trust_remote_code" in str(error):
            hint = " It runs its own code: if you trust it, load it with trust_remote_code=True."
        raise KldaError(f"The model {name!r} can't be loaded: {error}{hint}") from error
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()


def from_folder(kind: str, name: str, folder: Path, options: Options, **settings: Any) -> Any:
    """Load a part of a model from its folder, without asking the hub.

    `kind` is a class of transformers, as ``"AutoTokenizer"``; its ``from_pretrained`` also gets the
    `settings`.
    """
    loader = getattr(require("transformers", "text"), kind)
    with quiet(name):
        return loader.from_pretrained(
            folder,
            local_files_only=True,
            trust_remote_code=options.trust_remote_code,
            **settings,
        )


def load_frozen(
    kind: str, name: str, folder: Path, options: Options, *, dtype: Any, device: Any
) -> Any:
    """Load a frozen network from its folder.

    Missing weights are an error: transformers would fill them with random numbers.
    """
    network, report = from_folder(
        kind, name, folder, options, dtype=dtype, output_loading_info=True
    )
    absent = sorted(
        key for key in report["missing_keys"] if not any(part in key for part in _UNUSED)
    )
    if absent:
        raise KldaError(
            f"The model {name!r} in {folder} lacks {len(absent)} of its weights ({absent[0]} ...): "
            "download it again."
        )
    network.config.use_cache = False  # nothing is generated
    return network.to(device).eval().requires_grad_(False)


def final_norm(network: Any) -> Any:
    """Find the normalization that a network applies once, after its last layer.

    None for networks that normalize the output of every layer (BERT, RoBERTa, BART).
    """
    for part in (network, getattr(network, "encoder", None)):
        for name in _NORMS:
            found = getattr(part, name, None)
            if found is not None:
                return found
    return None


def resolve_layers(layers: tuple[int, ...], n_layers: int, name: str) -> tuple[int, ...]:
    """Return layer numbers from 0 (the embedding) to `n_layers`; -1 is the last layer."""
    resolved = tuple(n_layers + 1 + layer if layer < 0 else layer for layer in layers)
    outside = [layer for layer, at in zip(layers, resolved, strict=True) if not 0 <= at <= n_layers]
    if outside:
        raise KldaError(
            f"layers={layers!r}: the model {name!r} has no layer {outside[0]}. It has layers 0 "
            f"(the embedding) to {n_layers} (the last one, also -1)."
        )
    if len(set(resolved)) < len(resolved):
        raise KldaError(f"layers={layers!r} names a layer of {name!r} twice: give each once.")
    return resolved


def concatenate_layers(
    states: list[Any], layers: tuple[int, ...], norm: Any, pool: Callable[[Any], Any]
) -> Any:
    """Pool the hidden states of some layers, scale each to unit length, and concatenate them.

    `norm` is the network's final normalization: all layers but the last still need it.
    """
    import torch

    def row(layer: int) -> Any:
        hidden = states[layer]
        weight = getattr(norm, "weight", None)
        fits = norm is not None and (weight is None or weight.shape == hidden.shape[-1:])
        if fits and layer < len(states) - 1:
            hidden = norm(hidden)
        return unit_rows(pool(hidden).float())

    return torch.cat([row(layer) for layer in layers], dim=1)


def text_rows(states: list[Any], mask: Any, layers: Layers, pooling: str, norm: Any = None) -> Any:
    """Pool token features into one float32 row per text, as a NumPy array.

    `states` are the hidden states of all layers in order, or the last one alone if no other counts.
    """
    # In float32: a sum over hundreds of tokens loses digits in half precision.
    weights = mask.unsqueeze(-1).float()

    def mean(hidden: Any) -> Any:
        return (hidden.float() * weights).sum(dim=1) / weights.sum(dim=1)

    if layers != "last":
        return concatenate_layers(states, layers, norm, mean).cpu().numpy()
    rows = states[-1][:, 0].float() if pooling.startswith("cls") else mean(states[-1])
    return (unit_rows(rows) if pooling.endswith("+unit") else rows).cpu().numpy()


def unit_rows(rows: Any) -> Any:
    """Scale each row of a tensor to unit length (a zero row stays zero)."""
    return rows / rows.norm(dim=-1, keepdim=True).clamp_min(1e-12)
