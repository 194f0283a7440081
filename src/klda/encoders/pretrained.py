"""Networks that transformers and sentence-transformers run; and layers, for all on torch."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from klda.encoders.base import Layers
from klda.encoders.files import OTHER_MODULES, ModelFiles
from klda.encoders.options import Options
from klda.errors import KldaError, require

# Heads that features never pass through, and parameters that are copies of others.
_UNUSED = ("pooler", "lm_head", "position_ids", "mask_token", "embed_tokens", "logit_")
_NORMS = ("norm", "final_layer_norm", "final_layernorm", "final_norm", "layernorm", "ln_f")
_ENCODER_ONLY = {"t5": "T5EncoderModel", "mt5": "MT5EncoderModel", "umt5": "UMT5EncoderModel"}


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


def load_frozen(kind: str, files: ModelFiles, options: Options, *, dtype: Any, device: Any) -> Any:
    """Load a frozen network from its folder.

    Missing weights are an error: transformers would fill them with random numbers.
    """
    network, report = from_folder(kind, files, options, dtype=dtype, output_loading_info=True)
    absent = sorted(
        key for key in report["missing_keys"] if not any(part in key for part in _UNUSED)
    )
    if absent:
        raise KldaError(
            f"The model {files.name!r} in {files.folder} lacks {len(absent)} of its weights "
            f"({absent[0]} ...): download it again."
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


def hidden_states(outputs: Any) -> list[Any]:
    """Return the hidden states of all layers in order of computation."""
    if outputs.get("decoder_hidden_states") is not None:
        states = [*outputs.encoder_hidden_states, *outputs.decoder_hidden_states[1:]]
    else:
        states = list(outputs.hidden_states)
    if states[-1].shape == outputs.last_hidden_state.shape:
        states[-1] = outputs.last_hidden_state  # with the final normalization
    return states


def pooled_layers(
    states: list[Any],
    layers: Layers,
    pool: Callable[[Any], Any],
    *,
    unit: bool = True,
    norm: Any = None,
) -> Any:
    """Pool the hidden states of some layers, scale each to unit length, and concatenate them.

    `norm` is the network's final normalization: all layers but the last still need it.
    """
    import torch

    def row(layer: int) -> Any:
        hidden = states[layer]
        weight = getattr(norm, "weight", None)
        fits = norm is not None and (weight is None or weight.shape == hidden.shape[-1:])
        if fits and layer not in (-1, len(states) - 1):
            hidden = norm(hidden)
        rows = pool(hidden).float()
        return torch.nn.functional.normalize(rows, dim=1) if unit else rows

    return torch.cat([row(layer) for layer in ((-1,) if layers == "last" else layers)], dim=1)


def padded(tokens: Sequence[Sequence[int]], pad_token: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return the ids of some texts in one array, and where they are tokens.

    Padded on the right whatever the tokenizer says, so that a text's positions stay the same.
    """
    lengths = np.array([len(ids) for ids in tokens])
    mask = np.arange(lengths.max()) < lengths[:, None]
    ids = np.full(mask.shape, pad_token, dtype=np.int64)
    ids[mask] = np.concatenate([np.asarray(row) for row in tokens])
    return ids, mask.astype(np.int64)


class TransformerNetwork:
    """A transformer whose token features are pooled into one row per text.

    With ``layers="last"`` a row is pooled from the last hidden state as the model's authors do:
    for a plain transformer, decoders included, the mean over the tokens, as in the paper. BART's
    last hidden state is the decoder's, which sentence-transformers and the paper's authors use. Of
    T5 only the encoder is loaded.

    With layer numbers a row is the mean over the tokens of each of these layers, scaled to unit
    length and concatenated, from one forward pass. Layer 0 is the embedding; BART's layers are
    counted through the encoder and then the decoder. If a network normalizes only at its end (T5,
    Mistral), earlier layers pass through that final normalization first.
    """

    engine = "torch"

    def __init__(self, files: ModelFiles, options: Options) -> None:
        self._recipe = files.recipe
        config = files.read_json(f"{files.recipe.folder}config.json")
        self.device, dtype = options.on_torch(config)
        self.tokenizer = from_folder("AutoTokenizer", files, options)
        self.pad_token = _pad_token(self.tokenizer)
        kind = _ENCODER_ONLY.get(config.get("model_type", ""), "AutoModel")
        self.model = load_frozen(kind, files, options, dtype=dtype, device=self.device)
        self.precision = dtype_name(self.model.dtype)
        self._norm = final_norm(self.model)
        self.max_length = _max_length(files.recipe.max_length, self.tokenizer, self.model)
        on_gpu = self.device.type == "cuda"
        # On an H200, 1,024 short texts at once through MiniLM's layers are encoded four times as
        # fast as 256, which leave the GPU waiting for the host.
        self.batch_size = options.batch_size or (1024 if on_gpu else 128)
        self.max_tokens = 65536 if on_gpu else 1024  # a CPU's cache is small
        self.pooling = files.recipe.pooling if options.layers == "last" else "mean+unit"
        self.layers: Layers = options.layers
        probe = [[self.pad_token, self.pad_token]]
        if options.layers != "last":
            outputs, _ = self._run(probe, all_layers=True)
            self.layers = resolve_layers(
                options.layers, len(hidden_states(outputs)) - 1, files.name
            )
        self.dimension = self.rows(probe).shape[1]

    def tokenize(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the token ids of each text, cut to the model's maximum length."""
        return self.tokenizer(
            self._recipe.cleaned(texts),
            truncation=self.max_length is not None,
            max_length=self.max_length,
            padding=False,
            return_attention_mask=False,
            return_token_type_ids=False,
        )["input_ids"]

    def rows(self, tokens: Sequence[Sequence[int]]) -> np.ndarray:
        """Return one float32 row per text, given its tokens."""
        import torch

        all_layers, unit = self.layers != "last", self.pooling.endswith("+unit")
        outputs, mask = self._run(tokens, all_layers=all_layers)
        states = hidden_states(outputs) if all_layers else [outputs.last_hidden_state]
        # In float32: a sum over hundreds of tokens loses digits in half precision.
        weights = mask.unsqueeze(-1).float()

        def pool(hidden: Any) -> Any:
            if self.pooling.startswith("cls"):
                return hidden[:, 0]
            return (hidden.float() * weights).sum(dim=1) / weights.sum(dim=1)

        with torch.inference_mode():
            rows = pooled_layers(states, self.layers, pool, unit=unit, norm=self._norm)
        return rows.cpu().numpy()

    def _run(self, tokens: Sequence[Sequence[int]], *, all_layers: bool) -> tuple[Any, Any]:
        """Run the network on padded tokens; return its outputs and the tokens' mask."""
        import torch

        ids, mask = padded(tokens, self.pad_token)
        attention = torch.from_numpy(mask).to(self.device)
        with torch.inference_mode():
            outputs = self.model(
                input_ids=torch.from_numpy(ids).to(self.device),
                attention_mask=attention,
                output_hidden_states=all_layers,
                return_dict=True,
            )
        return outputs, attention


class SentenceTransformersNetwork:
    """A model run by sentence-transformers itself, for folders with other kinds of modules."""

    layers: Layers = "last"
    pooling = OTHER_MODULES
    engine = "torch"
    max_tokens = 65536

    def __init__(self, files: ModelFiles, options: Options) -> None:
        options.require_last_layer(files.name)
        device, dtype = options.on_torch({})
        library = require("sentence_transformers", "text")
        with quiet(files.name):
            self.model = library.SentenceTransformer(
                str(files.folder),
                device=str(device),
                trust_remote_code=options.trust_remote_code,
                local_files_only=True,
            )
        self.model.to(dtype).eval()
        self.precision = dtype_name(dtype)
        self._forward_size = options.batch_size or (256 if device.type == "cuda" else 32)
        self.batch_size = 32 * self._forward_size  # the library sorts these by length itself
        self.dimension = self.rows([["a"]]).shape[1]

    def tokenize(self, texts: Sequence[str]) -> list[list[str]]:
        """Return each text as one token: the library tokenizes by itself."""
        return [[text] for text in texts]

    def rows(self, tokens: Sequence[Sequence[str]]) -> np.ndarray:
        """Return one float32 row per text."""
        rows = self.model.encode(
            [text for (text,) in tokens],
            batch_size=self._forward_size,
            convert_to_tensor=True,
            show_progress_bar=False,
        )
        return rows.float().cpu().numpy()


def _pad_token(tokenizer: Any) -> int:
    # Some models (Mistral) have no padding token. Padding is masked out, so any token will do.
    if tokenizer.pad_token_id is None and tokenizer.eos_token is not None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer.pad_token_id if tokenizer.pad_token_id is not None else 0


def _max_length(stated: int | None, tokenizer: Any, network: Any) -> int | None:
    """Return the number of tokens that the folder or the tokenizer, and the positions, allow."""
    limits = []
    if stated:
        limits.append(stated)
    elif tokenizer.model_max_length and tokenizer.model_max_length < 10**9:  # 1e30 means none
        limits.append(int(tokenizer.model_max_length))
    positions = getattr(network.config, "max_position_embeddings", None)
    table = getattr(getattr(network, "embeddings", None), "position_embeddings", None)
    if positions and (table is not None or not stated):  # rotary positions have no end
        # RoBERTa counts positions from its padding index.
        first = getattr(table, "padding_idx", None)
        limits.append(int(positions) - (0 if first is None else first + 1))
    return min(limits, default=None)
