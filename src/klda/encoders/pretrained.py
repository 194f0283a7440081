"""Frozen networks that transformers runs: loaded, put on a device, layers made into rows."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from klda.cpus import usable_cpus
from klda.encoders.model_files import OTHER_MODULES, ModelFiles
from klda.encoders.networks import padded
from klda.encoders.runtime import Layers, RunOptions
from klda.encoders.wrapped import WrappedEncoder
from klda.errors import KldaError, require

# Architectures whose activations exceed float16's range.
_WIDE = ("t5", "mt5", "umt5", "longt5", "gemma", "gemma2", "gemma3", "gemma3_text")
# Heads that features never pass through, and parameters that are copies of others.
_UNUSED = ("pooler", "lm_head", "position_ids", "mask_token", "embed_tokens", "logit_")
_NORMS = ("norm", "final_layer_norm", "final_layernorm", "final_norm", "layernorm", "ln_f")
_ENCODER_ONLY = {"t5": "T5EncoderModel", "mt5": "MT5EncoderModel", "umt5": "UMT5EncoderModel"}
_CLASS_TOKENS = ("cls_token", "class_embedding", "class_token")


class PretrainedNetwork:
    """A frozen network; `kind` is the class of transformers that loads it, as ``"AutoModel"``.

    With ``layers="last"`` a row is pooled from the last hidden state. With layer numbers it is
    pooled from each of these layers, scaled to unit length and concatenated, from one forward pass.
    Layer 0 is the embedding; BART's layers are counted through the encoder and then the decoder. If
    a network normalizes only at its end (T5, Mistral, DINOv2), earlier layers pass through that
    final normalization first.
    """

    runtime = "torch"

    def __init__(self, kind: str, files: ModelFiles, options: RunOptions) -> None:
        self.device, self.dtype = device_and_dtype(options, files.config)
        self.precision = str(self.dtype).removeprefix("torch.")
        # Weights that are missing transformers would draw at random.
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
        self.model = model.to(self.device).eval().requires_grad_(False)
        self.layers: Layers = "last" if options.layers == "auto" else options.layers
        # What is applied once, after the last layer; not so in BERT, RoBERTa and BART.
        parts = (model, getattr(model, "encoder", None))
        norms = (getattr(part, name, None) for part in parts for name in _NORMS)
        self._norm = next((norm for norm in norms if norm is not None), None)

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
        states = [outputs.last_hidden_state] if last else _hidden_states(outputs)
        rows = []
        for layer in (0,) if isinstance(self.layers, str) else self.layers:
            hidden = states[layer]
            if layer < len(states) - 1 and self._norm is not None:
                weight = getattr(self._norm, "weight", None)
                if weight is None or weight.shape == hidden.shape[-1:]:
                    hidden = self._norm(hidden)
            pooled = pool(hidden).float()
            rows.append(torch.nn.functional.normalize(pooled, dim=1) if unit else pooled)
        return torch.cat(rows, dim=1).cpu().numpy()


class PretrainedTextNetwork(PretrainedNetwork):
    """A transformer whose token features are pooled into one row per text.

    ``layers="last"`` pools as the model's authors do: for a plain transformer, decoders included,
    the mean over the tokens, as in the paper. BART's last hidden state is the decoder's, as the
    paper's authors use it. Of T5 only the encoder is loaded.
    """

    def __init__(self, files: ModelFiles, options: RunOptions) -> None:
        kind = _ENCODER_ONLY.get(files.config.get("model_type", ""), "AutoModel")
        super().__init__(kind, files, options)
        self.tokenizer = from_folder("AutoTokenizer", files, options)
        # Padding is masked out, so any token will do where there is none for it (Mistral).
        self.pad_token = self.tokenizer.pad_token_id or 0
        self.max_length = _max_length(files.recipe.max_length, self.tokenizer, self.model)
        on_gpu = self.device.type == "cuda"
        # On an H200, 1,024 short texts at once through MiniLM's layers are encoded four times as
        # fast as 256, which leave the GPU waiting for the host.
        self.batch_size = options.batch_size or (1024 if on_gpu else 128)
        self.max_tokens = 65536 if on_gpu else 1024  # a CPU's cache is small
        self.pooling = files.recipe.pooling if self.layers == "last" else "mean+unit"
        probe = [[self.pad_token, self.pad_token]]
        ids, mask = padded(probe)
        outputs = self.run(all_layers=True, input_ids=ids, attention_mask=mask)
        n_layers = len(_hidden_states(outputs)) - 1
        self.layers = options.resolve_layers(n_layers, files.name)
        self.dimension = self.rows(probe).shape[1]

    def tokenize(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the token ids of each text, cut to the model's maximum length."""
        return self.tokenizer(
            texts,
            truncation=self.max_length is not None,
            max_length=self.max_length,
            padding=False,
            return_attention_mask=False,
            return_token_type_ids=False,
        )["input_ids"]

    def rows(self, tokens: Sequence[Sequence[int]]) -> np.ndarray:
        """Return one float32 row per text, given its tokens."""
        import torch

        ids, mask = padded(tokens, self.pad_token)
        every = self.layers != "last"
        outputs = self.run(all_layers=every, input_ids=ids, attention_mask=mask)
        # In float32: a sum over hundreds of tokens loses digits in half precision.
        weights = torch.from_numpy(mask).to(self.device).unsqueeze(-1).float()

        def pool(hidden: Any) -> Any:
            if self.pooling.startswith("cls"):
                return hidden[:, 0]
            return (hidden.float() * weights).sum(dim=1) / weights.sum(dim=1)

        return self.pooled(outputs, pool, unit=self.pooling.endswith("+unit"))


def sentence_transformers_encoder(files: ModelFiles, options: RunOptions) -> WrappedEncoder:
    """Return a model that sentence-transformers itself runs: its folder has other modules."""
    options.require_last_layer(files.name)
    device, dtype = device_and_dtype(options, {})
    library = require("sentence_transformers", "text")
    with quiet(files.name):
        model = library.SentenceTransformer(
            str(files.folder),
            device=str(device),
            trust_remote_code=options.trust_remote_code,
            local_files_only=True,
        )
    size = options.batch_size or (256 if device.type == "cuda" else 32)
    encode = partial(model.to(dtype).eval().encode, batch_size=size, show_progress_bar=False)
    asked: Any = {"prompt": options.prompt} if options.prompt else {}
    about = asked | {"source": files.source, "revision": files.revision, "pooling": OTHER_MODULES}
    return WrappedEncoder(partial(encode, **asked), files.name, **about)


def _max_length(stated: int | None, tokenizer: Any, network: Any) -> int | None:
    """Return the number of tokens that the folder or the tokenizer, and the positions, allow."""
    length = stated or tokenizer.model_max_length
    limits = [int(length)] if length and length < 10**9 else []  # 1e30 means none
    positions = getattr(network.config, "max_position_embeddings", None)
    table = getattr(getattr(network, "embeddings", None), "position_embeddings", None)
    if positions and (table is not None or not stated):  # rotary positions have no end
        # RoBERTa counts positions from its padding index.
        first = getattr(table, "padding_idx", None)
        limits.append(int(positions) - (0 if first is None else first + 1))
    return min(limits, default=None)


class PretrainedImageNetwork(PretrainedNetwork):
    """A vision model whose features are pooled into one row per image.

    A row is the class token where the network has one (DINOv2, ViT), else, of the last layer, the
    model's own pooled output, else the mean over positions.
    """

    def __init__(self, files: ModelFiles, options: RunOptions) -> None:
        if options.runtime == "onnx":
            raise KldaError(
                f'runtime="onnx" runs text models; {files.name!r} takes images. Leave it out.'
            )
        pillow = require("PIL.Image", "images")
        super().__init__("AutoModel", files, options)
        # CLIP and similar models also have a text half, and pool the image half themselves.
        tower = getattr(self.model, "vision_model", None)
        self.model = self.model if tower is None else tower
        embeddings = getattr(self.model, "embeddings", None)
        has_token = any(getattr(embeddings, token, None) is not None for token in _CLASS_TOKENS)
        self._class_token = tower is None and has_token
        self.pooling = "cls" if self._class_token else "pooled"
        self.pooling += "" if self.layers == "last" else "+unit"
        # The processor that uses Pillow even if torchvision is installed: the two differ in the
        # last bits of a resized image.
        self.processor = from_folder("AutoImageProcessor", files, options, backend="pil")
        self.batch_size = options.batch_size or (64 if self.device.type == "cuda" else 16)
        probe = self.pixels(pillow.new("RGB", (64, 64)))[None]
        states = _hidden_states(self.run(all_layers=True, pixel_values=probe))
        self.layers = options.resolve_layers(len(states) - 1, files.name)
        self.dimension = self.rows(probe).shape[1]

    def pixels(self, image: Any) -> np.ndarray:
        """Resize and scale an RGB image."""
        return self.processor(images=[image], return_tensors="np")["pixel_values"][0]

    def rows(self, pixels: np.ndarray) -> np.ndarray:
        """Return one float32 row per image, given the pixels of images of one size."""
        outputs = self.run(all_layers=self.layers != "last", pixel_values=pixels)
        own = None if self._class_token else outputs.get("pooler_output")
        if self.layers == "last" and own is not None:
            return own.flatten(1).float().cpu().numpy()
        return self.pooled(outputs, self._pool, unit=self.layers != "last")

    def _pool(self, hidden: Any) -> Any:
        if hidden.ndim == 4:  # a convolutional network: channels first
            return hidden.mean(dim=(2, 3))
        return hidden[:, 0] if self._class_token else hidden.mean(dim=1)


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


def from_folder(kind: str, files: ModelFiles, options: RunOptions, **settings: Any) -> Any:
    """Load a part of a model, a class of transformers, from its folder, not asking the hub."""
    loader = getattr(require("transformers", "text"), kind)
    with quiet(files.name):
        return loader.from_pretrained(
            files.folder / files.recipe.folder,
            local_files_only=True,
            trust_remote_code=options.trust_remote_code,
            **settings,
        )


def device_and_dtype(options: RunOptions, config: dict[str, Any]) -> tuple[Any, Any]:
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


def _hidden_states(outputs: Any) -> list[Any]:
    """Return the hidden states of all layers in order of computation."""
    if outputs.get("decoder_hidden_states") is not None:
        states = [*outputs.encoder_hidden_states, *outputs.decoder_hidden_states[1:]]
    else:
        states = list(outputs.hidden_states)
    if states[-1].shape == outputs.last_hidden_state.shape:
        states[-1] = outputs.last_hidden_state  # with the final normalization
    return states
