"""Networks that turn a text's tokens into one row: torch's, a static one, and which is chosen."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from klda.encoders.base import Layers
from klda.encoders.bert import BertNetwork, why_not_bert
from klda.encoders.engines import choose_engine
from klda.encoders.files import ModelFiles
from klda.encoders.onnx_network import OnnxNetwork
from klda.encoders.pretrained import (
    Options,
    batch_sizes,
    choose_device,
    choose_dtype,
    dtype_name,
    final_norm,
    from_folder,
    load_frozen,
    quiet,
    resolve_layers,
    text_rows,
)
from klda.encoders.recipes import Recipe, padded, read_recipe
from klda.errors import KldaError, require

_ENCODER_ONLY = {"t5": "T5EncoderModel", "mt5": "MT5EncoderModel", "umt5": "UMT5EncoderModel"}
_TOKENIZER = "tokenizers/l2_supercat_tokenizer_config.json"  # beside the folder of the weights


def load_network(name: str, files: ModelFiles, options: Options) -> TextNetwork:
    """Load the network that fits a model's folder."""
    if name == "wordllama":
        return StaticNetwork(name, files, options)
    recipe = read_recipe(files)
    not_bert = why_not_bert(files, recipe)
    engine = choose_engine(name, options, not_bert)
    if recipe is None:
        return SentenceTransformersNetwork(name, files, options)
    if not_bert is not None:
        return TransformerNetwork(name, files, recipe, options)
    network = OnnxNetwork if engine == "onnx" else TorchBert
    return network(name, files, recipe, options)


class StaticNetwork:
    """The token rows of WordLlama, averaged and scaled to unit length."""

    layers: Layers = "last"
    pooling = "mean+unit"
    precision = "float32"
    engine = "numpy"
    batch_size = 1024
    max_tokens = 65536

    def __init__(self, name: str, files: ModelFiles, options: Options) -> None:
        if options.layers != "last":
            raise KldaError(f"layers={options.layers!r}: {name} has no layers. Leave out layers.")
        tokenizers = require("tokenizers", "minilm")
        arrays = require("safetensors.numpy", "minilm").load_file(files.weights[0])
        self._rows = arrays["embedding.weight"].astype(np.float32)
        self.dimension = self._rows.shape[1]
        self._tokenizer = tokenizers.Tokenizer.from_file(str(files.folder.parent / _TOKENIZER))
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()

    def tokenize(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the token ids of each text."""
        found = self._tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        return [tokens.ids for tokens in found]

    def rows(self, tokens: Sequence[Sequence[int]]) -> np.ndarray:
        """Return one float32 row per text, given its tokens."""
        lengths = np.array([len(ids) for ids in tokens])
        rows = self._rows[np.concatenate([np.asarray(ids) for ids in tokens])]
        sums = np.add.reduceat(rows, lengths.cumsum() - lengths, axis=0)
        return sums / np.maximum(np.linalg.norm(sums, axis=1, keepdims=True), 1e-12)


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

    def __init__(self, name: str, files: ModelFiles, recipe: Recipe, options: Options) -> None:
        self.device = choose_device(options.device)
        folder = files.folder / recipe.folder
        config = files.read_json(f"{recipe.folder}config.json") or {}
        dtype = choose_dtype(options.precision, self.device, config)
        self.tokenizer = from_folder("AutoTokenizer", name, folder, options)
        self.pad_token = _pad_token(self.tokenizer)
        kind = _ENCODER_ONLY.get(config.get("model_type", ""), "AutoModel")
        self.model = load_frozen(kind, name, folder, options, dtype=dtype, device=self.device)
        self.precision = dtype_name(self.model.dtype)
        self._norm = final_norm(self.model)
        self._recipe = recipe
        self.max_length = recipe.max_length or _max_length(self.tokenizer, self.model)
        self.batch_size, self.max_tokens = batch_sizes(self.device, options)
        self.pooling = recipe.pooling if options.layers == "last" else "mean+unit"
        self.layers: Layers = options.layers
        probe = [[self.pad_token, self.pad_token]]
        if options.layers != "last":
            outputs, _ = self._run(probe, all_layers=True)
            self.layers = resolve_layers(options.layers, len(_hidden_states(outputs)) - 1, name)
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

        all_layers = self.layers != "last"
        outputs, mask = self._run(tokens, all_layers=all_layers)
        states = _hidden_states(outputs) if all_layers else [outputs.last_hidden_state]
        with torch.inference_mode():
            return text_rows(states, mask, self.layers, self.pooling, self._norm)

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


class TorchBert(BertNetwork):
    """A BERT-like encoder in torch alone: on a GPU, or in bfloat16.

    It computes what transformers does and starts sooner, without importing it.
    """

    engine = "torch"

    def __init__(self, name: str, files: ModelFiles, recipe: Recipe, options: Options) -> None:
        torch = require("torch", "text")
        super().__init__(name, files, recipe, options)
        self.device = choose_device(options.device)
        dtype = choose_dtype(options.precision, self.device, self.config)
        self.precision = dtype_name(dtype)
        self.batch_size, self.max_tokens = batch_sizes(self.device, options)

        def tensor(values: np.ndarray) -> Any:
            return torch.from_numpy(np.array(values)).to(self.device, dtype)

        def of(key: str) -> tuple[Any, Any]:
            return tensor(self.weights[f"{key}.weight"]), tensor(self.weights[f"{key}.bias"])

        self._words, self._places = tensor(self.words), tensor(self.positions)
        self._first_norm = of("embeddings.LayerNorm")
        self._stack = []
        for layer in range(self.n_layers):
            key = f"encoder.layer.{layer}"
            parts = ("attention.output.dense", "attention.output.LayerNorm", "intermediate.dense")
            rest = [of(f"{key}.{part}") for part in (*parts, "output.dense", "output.LayerNorm")]
            self._stack.append([tuple(map(tensor, self.joint(layer))), *rest])

    def rows(self, tokens: Sequence[Sequence[int]]) -> np.ndarray:
        """Return one float32 row per text, given its tokens."""
        import torch

        ids, mask = (torch.from_numpy(part).to(self.device) for part in padded(tokens))
        with torch.inference_mode():
            return text_rows(self._states(ids, mask), mask, self.layers, self.pooling)

    def _states(self, ids: Any, mask: Any) -> list[Any]:
        """Return the hidden states of all layers that are computed."""
        from torch.nn import functional as f

        def norm(hidden: Any, weights: tuple[Any, Any]) -> Any:
            return f.layer_norm(hidden, hidden.shape[-1:], *weights, self.eps)

        here = mask.bool()[:, None, None, :]
        shape = (*ids.shape, 3, self.config["num_attention_heads"], -1)
        states = [
            norm(f.embedding(ids, self._words) + self._places[: ids.shape[1]], self._first_norm)
        ]
        for joint, attended, attended_norm, inner, outer, outer_norm in self._stack:
            hidden = states[-1]
            query, key, value = f.linear(hidden, *joint).view(shape).permute(2, 0, 3, 1, 4)
            mixed = f.scaled_dot_product_attention(query, key, value, attn_mask=here)
            mixed = mixed.transpose(1, 2).reshape(hidden.shape)
            hidden = norm(hidden + f.linear(mixed, *attended), attended_norm)
            wide = f.gelu(f.linear(hidden, *inner))
            states.append(norm(hidden + f.linear(wide, *outer), outer_norm))
        return states


class SentenceTransformersNetwork:
    """A model run by sentence-transformers itself, for folders with other kinds of modules."""

    layers: Layers = "last"
    pooling = "sentence-transformers"
    engine = "torch"
    max_tokens = 65536

    def __init__(self, name: str, files: ModelFiles, options: Options) -> None:
        if options.layers != "last":
            raise KldaError(
                f"layers={options.layers!r}: the model {name!r} has more parts than one "
                'transformer, so it only supports layers="last".'
            )
        device = choose_device(options.device)
        dtype = choose_dtype(options.precision, device, {})
        library = require("sentence_transformers", "text")
        with quiet(name):
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


TextNetwork = (
    StaticNetwork | OnnxNetwork | TorchBert | TransformerNetwork | SentenceTransformersNetwork
)


def _hidden_states(outputs: Any) -> list[Any]:
    """Return the hidden states of all layers in order of computation."""
    if outputs.get("decoder_hidden_states") is not None:
        states = [*outputs.encoder_hidden_states, *outputs.decoder_hidden_states[1:]]
    else:
        states = list(outputs.hidden_states)
    states[-1] = outputs.last_hidden_state  # with the final normalization
    return states


def _pad_token(tokenizer: Any) -> int:
    # Some models (Mistral) have no padding token. Padding is masked out, so any token will do.
    if tokenizer.pad_token_id is None and tokenizer.eos_token is not None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer.pad_token_id if tokenizer.pad_token_id is not None else 0


def _max_length(tokenizer: Any, network: Any) -> int | None:
    """Return the number of tokens that the tokenizer and the position table both allow."""
    limits = []
    if tokenizer.model_max_length and tokenizer.model_max_length < 10**9:  # 1e30 means none
        limits.append(int(tokenizer.model_max_length))
    positions = getattr(network.config, "max_position_embeddings", None)
    if positions:
        # RoBERTa counts positions from its padding index.
        table = getattr(getattr(network, "embeddings", None), "position_embeddings", None)
        first = getattr(table, "padding_idx", None)
        limits.append(int(positions) - (0 if first is None else first + 1))
    return min(limits, default=None)
