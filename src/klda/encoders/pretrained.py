"""Frozen networks of transformers: loaded, placed on a device, and their layers made into rows."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from klda.cpus import usable_cpus
from klda.encoders.model_files import ModelFiles
from klda.encoders.options import Layers, Options
from klda.errors import KldaError, require

# Architectures whose activations exceed float16's range.
_WIDE = ("t5", "mt5", "umt5", "longt5", "gemma", "gemma2", "gemma3", "gemma3_text")
# Heads that features never pass through, and parameters that are copies of others.
_UNUSED = ("pooler", "lm_head", "position_ids", "mask_token", "embed_tokens", "logit_")
_NORMS = ("norm", "final_layer_norm", "final_layernorm", "final_norm", "layernorm", "ln_f")


class PretrainedNetwork:
    """A frozen network; `kind` is the class of transformers that loads it, as ``"AutoModel"``.

    With ``layers="last"`` a row is pooled from the last hidden state. With layer numbers it is
    pooled from each of these layers, scaled to unit length and concatenated, from one forward pass.
    Layer 0 is the embedding; BART's layers are counted through the encoder and then the decoder. If
    a network normalizes only at its end (T5, Mistral, DINOv2), earlier layers pass through that
    final normalization first.
    """

    engine = "torch"

    def __init__(self, kind: str, files: ModelFiles, options: Options) -> None:
        self.device, self.dtype = device_and_dtype(options, files.config)
        self.precision = dtype_name(self.dtype)
        self.model = self._load(kind, files, options)
        self.layers: Layers = options.layers
        self._norm = _final_norm(self.model)

    def _load(self, kind: str, files: ModelFiles, options: Options) -> Any:
        """Load the weights; missing ones, which transformers would draw at random, are an error."""
        model, report = from_folder(
            kind, files, options, dtype=self.dtype, output_loading_info=True
        )
        absent = [key for key in report["missing_keys"] if not any(part in key for part in _UNUSED)]
        if absent:
            raise KldaError(
                f"The model {files.name!r} in {files.folder} lacks {len(absent)} of its weights "
                f"({min(absent)} ...): download it again."
            )
        model.config.use_cache = False  # nothing is generated
        return model.to(self.device).eval().requires_grad_(False)

    def run(self, *, all_layers: bool, **inputs: np.ndarray) -> Any:
        """Run the network on arrays; return its outputs, with the hidden states of all layers."""
        import torch

        arrays = {name: torch.from_numpy(array).to(self.device) for name, array in inputs.items()}
        given = {
            name: a.to(self.dtype) if a.is_floating_point() else a for name, a in arrays.items()
        }
        with torch.inference_mode():
            return self.model(**given, output_hidden_states=all_layers, return_dict=True)

    def pooled(self, outputs: Any, pool: Callable[[Any], Any], *, unit: bool) -> np.ndarray:
        """Pool each of the layers, scale it to unit length if asked to, and concatenate them."""
        import torch

        last = self.layers == "last"
        states = [outputs.last_hidden_state] if last else hidden_states(outputs)
        rows = []
        for layer in (0,) if isinstance(self.layers, str) else self.layers:
            hidden = states[layer]
            if layer < len(states) - 1 and self._norm_fits(hidden):
                hidden = self._norm(hidden)
            pooled = pool(hidden).float()
            rows.append(torch.nn.functional.normalize(pooled, dim=1) if unit else pooled)
        return torch.cat(rows, dim=1).cpu().numpy()

    def _norm_fits(self, hidden: Any) -> bool:
        weight = getattr(self._norm, "weight", None)
        return self._norm is not None and (weight is None or weight.shape == hidden.shape[-1:])


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


def from_folder(kind: str, files: ModelFiles, options: Options, **settings: Any) -> Any:
    """Load a part of a model from its folder, without asking the hub.

    `kind` is a class of transformers, as ``"AutoTokenizer"``; its ``from_pretrained`` also gets the
    `settings`.
    """
    loader = getattr(require("transformers", "text"), kind)
    with quiet(files.name):
        return loader.from_pretrained(
            files.folder / files.recipe.folder,
            local_files_only=True,
            trust_remote_code=options.trust_remote_code,
            **settings,
        )


def device_and_dtype(options: Options, config: dict[str, Any]) -> tuple[Any, Any]:
    """Choose torch's device, a GPU if there is one, and the number format of the weights.

    ``"auto"`` is float32 on a CPU and half precision on a GPU: bfloat16 for models that exceed
    float16's range (T5) or were published in bfloat16, as their `config` says, else float16, whose
    rounding error is an eighth of bfloat16's.
    """
    torch = require("torch", "text")
    has_gpu = torch.cuda.is_available()
    chosen = options.device if options.device != "auto" else "cuda" if has_gpu else "cpu"
    device = torch.device(chosen)
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise KldaError(
            f"device={options.device!r}: this computer has {torch.cuda.device_count()} CUDA "
            'devices. Give "auto" or "cpu".'
        )
    if device.type == "cpu":
        # torch does not see a quota of this process.
        torch.set_num_threads(min(torch.get_num_threads(), usable_cpus()))
    if options.precision != "auto":
        return device, getattr(torch, options.precision)
    if device.type != "cuda":
        return device, torch.float32
    published = config.get("dtype") or config.get("torch_dtype")
    is_wide = config.get("model_type") in _WIDE or published == "bfloat16"
    return device, torch.bfloat16 if is_wide else torch.float16


def dtype_name(dtype: Any) -> str:
    """Return a torch dtype's name, as ``"float32"``."""
    return str(dtype).removeprefix("torch.")


def hidden_states(outputs: Any) -> list[Any]:
    """Return the hidden states of all layers in order of computation."""
    if outputs.get("decoder_hidden_states") is not None:
        states = [*outputs.encoder_hidden_states, *outputs.decoder_hidden_states[1:]]
    else:
        states = list(outputs.hidden_states)
    if states[-1].shape == outputs.last_hidden_state.shape:
        states[-1] = outputs.last_hidden_state  # with the final normalization
    return states


def _final_norm(network: Any) -> Any:
    """Find the normalization that a network applies once, after its last layer.

    None for networks that normalize the output of every layer (BERT, RoBERTa, BART).
    """
    for part in (network, getattr(network, "encoder", None)):
        for name in _NORMS:
            found = getattr(part, name, None)
            if found is not None:
                return found
    return None
