"""Texts through a frozen transformer."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from klda.encoders.base import (
    FrozenModel,
    Layers,
    Precision,
    check_batch_size,
    choose_device,
    choose_dtype,
    length_batches,
    resolve_layers,
    unit_rows,
)
from klda.encoders.files import ModelFiles
from klda.encoders.networks import (
    final_norm,
    load_network,
    load_tokenizer,
    narrow_range,
    quiet,
)
from klda.errors import KldaError, require

_WINDOW = 16384  # texts tokenised at a time: bounds memory, still sorts well by length
_ENCODER_ONLY = {"t5": "T5EncoderModel", "mt5": "MT5EncoderModel", "umt5": "UMT5EncoderModel"}
# Settings of sentence-transformers' Transformer module that are read here, and those that say no
# more than "the last hidden state of a text".
_READ = ("max_seq_length", "do_lower_case")
_PLAIN = {
    "transformer_task": "feature-extraction",
    "modality_config": {"text": {"method": "forward", "method_output_name": "last_hidden_state"}},
    "module_output_name": "token_embeddings",
}


@dataclass(frozen=True)
class Recipe:
    """How a folder's model makes one row of token features.

    Parameters
    ----------
    transformer : str
        Subfolder with the network and the tokenizer.
    pooling : {"mean", "cls"}
        Over the last hidden state: mean of the tokens, or the first token.
    unit : bool
        Whether the row is scaled to unit length.
    max_length : int or None
        Most tokens of a text, where the folder says so.
    lowercase : bool
        Whether texts are lowercased first.
    """

    transformer: str = ""
    pooling: str = "mean"
    unit: bool = False
    max_length: int | None = None
    lowercase: bool = False


@dataclass(frozen=True)
class Tokens:
    """Texts as the numbers of their tokens, ready for a network.

    Parameters
    ----------
    ids : list of list of int
        The tokens of each text.
    """

    ids: list[list[int]]

    def __len__(self) -> int:
        return len(self.ids)


def read_recipe(files: ModelFiles) -> Recipe | None:
    """Read how a folder's features are made.

    Parameters
    ----------
    files : ModelFiles
        A plain transformers folder (mean pooling over the last hidden state, as in the paper) or a
        sentence-transformers folder (as its modules say).

    Returns
    -------
    Recipe or None
        None for a sentence-transformers folder with more than a transformer, pooling and
        normalisation: sentence-transformers itself has to run that one.
    """
    modules = files.read_json("modules.json")
    if modules is None:
        return Recipe()
    kinds = [str(module["type"]).rsplit(".", 1)[-1] for module in modules]
    if kinds not in (["Transformer", "Pooling"], ["Transformer", "Pooling", "Normalize"]):
        return None
    folders = [f"{module['path']}/".lstrip("/") for module in modules]
    pooling = _pooling_mode(files.read_json(f"{folders[1]}config.json") or {})
    settings = files.read_json(f"{folders[0]}sentence_bert_config.json") or {}
    prompts = files.read_json("config_sentence_transformers.json") or {}
    special = {key: value for key, value in settings.items() if key not in _READ and value}
    # A new kind of setting may change the features: what is not known here is not guessed at.
    if pooling is None or prompts.get("default_prompt_name") or _PLAIN | special != _PLAIN:
        return None
    return Recipe(
        transformer=folders[0],
        pooling=pooling,
        unit=len(kinds) == 3,
        max_length=settings.get("max_seq_length"),
        lowercase=bool(settings.get("do_lower_case")),
    )


def _pooling_mode(config: dict[str, Any]) -> str | None:
    if "pooling_mode" in config:  # written by sentence-transformers 6 and later
        mode = config["pooling_mode"]
        return mode if mode in ("mean", "cls") else None
    chosen = [key for key, on in config.items() if key.startswith("pooling_mode_") and on is True]
    named = {"pooling_mode_mean_tokens": "mean", "pooling_mode_cls_token": "cls"}
    return named.get(chosen[0]) if len(chosen) == 1 else None


def load_text(
    name: str,
    files: ModelFiles,
    *,
    device: str,
    layers: Layers,
    batch_size: int | None,
    precision: Precision,
    trust_remote_code: bool,
) -> FrozenModel:
    """Load a text encoder from a folder.

    Parameters
    ----------
    name : str
        Name that the model was asked for by.
    files : ModelFiles
        Its files.
    device, layers, batch_size, precision, trust_remote_code
        As in :func:`klda.encoders.load`.

    Returns
    -------
    FrozenModel
        The encoder.
    """
    recipe = read_recipe(files)
    if recipe is not None:
        return TextEncoder(
            name,
            files,
            recipe,
            device=device,
            layers=layers,
            batch_size=batch_size,
            precision=precision,
            trust_remote_code=trust_remote_code,
        )
    if layers != "last":
        raise KldaError(
            f"layers={layers!r}: the model {name!r} is made of more than one transformer, so only "
            'layers="last" has a meaning.'
        )
    return SentenceTransformersEncoder(
        name,
        files,
        device=device,
        batch_size=batch_size,
        precision=precision,
        trust_remote_code=trust_remote_code,
    )


def check_texts(inputs: Any) -> list[str]:
    """Return texts as a list.

    Parameters
    ----------
    inputs : sequence of str
        A list, tuple, array or column of texts.

    Returns
    -------
    list of str
        The same texts.

    Raises
    ------
    KldaError
        If it is one text, not a sequence, or holds something that is not a text.
    """
    if isinstance(inputs, str | bytes):
        raise KldaError("inputs is one text: give a list of texts, [text] for one.")
    try:
        texts = list(inputs)
    except TypeError as error:
        raise KldaError(f"inputs must be a list of texts; got {type(inputs).__name__}.") from error
    for position, text in enumerate(texts):
        if not isinstance(text, str):
            raise KldaError(
                f"inputs[{position}] must be a text; got {type(text).__name__}: {text!r:.80}."
            )
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise KldaError(f"inputs[{position}] is not valid Unicode: {error}.") from error
    return texts


class TextEncoder(FrozenModel):
    """Texts through one transformer, pooled over its tokens.

    With ``layers="last"`` a row is what the model's makers made of the last hidden state: for a
    plain transformer, decoders included, the mean over the tokens, as in the paper. For BART that
    state is the decoder's, which is what sentence-transformers, and so the authors, read from it;
    of T5 only the encoder is loaded.

    With layer numbers a row is the mean over the tokens of each of these layers, scaled to unit
    length, side by side, from the same forward pass. Layer 0 is the embedding; BART's layers are
    counted through the encoder and on through the decoder. Earlier layers of a network that
    normalises only at its end (T5, Mistral) go through that final normalisation first.

    Parameters
    ----------
    name : str
        Name that the model was asked for by.
    files : ModelFiles
        Its files.
    recipe : Recipe
        How its features are made.
    device, layers, batch_size, precision, trust_remote_code
        As in :func:`klda.encoders.load`.
    """

    modality = "text"

    def __init__(
        self,
        name: str,
        files: ModelFiles,
        recipe: Recipe,
        *,
        device: str = "auto",
        layers: Layers = "last",
        batch_size: int | None = None,
        precision: Precision = "auto",
        trust_remote_code: bool = False,
    ) -> None:
        self._device = choose_device(device)
        folder = files.folder / recipe.transformer
        config = files.read_json(f"{recipe.transformer}config.json") or {}
        dtype = choose_dtype(precision, self._device, wide_range=not narrow_range(config))
        self._tokenizer = load_tokenizer(folder, name, trust_remote_code=trust_remote_code)
        self._tokenizing = threading.Lock()  # a tokenizer keeps state of its own while it works
        self._pad = _pad_token(self._tokenizer)
        self._network = load_network(
            folder,
            name,
            kind=_ENCODER_ONLY.get(config.get("model_type", ""), "AutoModel"),
            dtype=dtype,
            device=self._device,
            trust_remote_code=trust_remote_code,
        )
        self._norm = final_norm(self._network)
        self._recipe = recipe
        self._max_length = recipe.max_length or _max_length(self._tokenizer, self._network)
        on_gpu = self._device.type == "cuda"
        self._max_tokens = 65536 if on_gpu else 1024  # a CPU's cache is small
        layers = self._resolve(layers, name)
        super().__init__(
            name=name,
            files=files,
            layers=layers,
            pooling=_pooling_name(recipe, layers),
            dimension=0,
            batch_size=check_batch_size(batch_size, 256 if on_gpu else 32),
        )
        self.dimension = self._forward([self._probe()]).shape[1]

    @property
    def precision(self) -> str:
        """Number format of the weights."""
        return str(self._network.dtype).removeprefix("torch.")

    @property
    def max_length(self) -> int | None:
        """Most tokens of a text that are read; the rest is cut off."""
        return self._max_length

    def prepare(self, inputs: Any) -> Tokens:
        """Tokenise texts, for instance in a thread while the network works on others.

        Parameters
        ----------
        inputs : sequence of str
            The texts.

        Returns
        -------
        Tokens
            What `encode` takes in their place, with the same result.
        """
        texts = check_texts(inputs)
        windows = range(0, len(texts), _WINDOW)
        parts = [self._tokenize(texts[start : start + _WINDOW], start) for start in windows]
        return Tokens([ids for part in parts for ids in part])

    def _check(self, inputs: Any) -> Any:
        return inputs if isinstance(inputs, Tokens) else check_texts(inputs)

    def _encode_batches(self, inputs: Any) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        for start in range(0, len(inputs), _WINDOW):
            if isinstance(inputs, Tokens):
                tokens = inputs.ids[start : start + _WINDOW]
            else:
                tokens = self._tokenize(inputs[start : start + _WINDOW], start)
            lengths = [len(ids) for ids in tokens]
            for batch in length_batches(lengths, self.batch_size, self._max_tokens):
                with self._lock:
                    rows = self._forward([tokens[position] for position in batch])
                yield batch + start, rows

    def _tokenize(self, texts: Sequence[str], start: int) -> list[list[int]]:
        texts = [text.strip() for text in texts]
        if self._recipe.lowercase:
            texts = [text.lower() for text in texts]
        with self._tokenizing:
            tokens = self._tokenizer(
                texts,
                truncation=self._max_length is not None,
                max_length=self._max_length,
                padding=False,
                return_attention_mask=False,
                return_token_type_ids=False,
            )["input_ids"]
        empty = next((at for at, ids in enumerate(tokens) if not ids), None)
        if empty is not None:
            raise KldaError(
                f"inputs[{start + empty}] is empty, and the model {self.name!r} has no features "
                "for an empty text: leave it out."
            )
        return tokens

    def _run(self, tokens: Sequence[Sequence[int]], *, all_layers: bool) -> tuple[Any, Any]:
        """Run the network on padded tokens; return its outputs and the tokens' mask."""
        import torch

        longest = max(len(ids) for ids in tokens)
        # Padding on the right whatever the tokenizer says: positions stay those of a text alone.
        padded = np.full((len(tokens), longest), self._pad, dtype=np.int64)
        mask = np.zeros((len(tokens), longest), dtype=np.int64)
        for row, ids in enumerate(tokens):
            padded[row, : len(ids)] = ids
            mask[row, : len(ids)] = 1
        there = torch.from_numpy(mask).to(self._device)
        with torch.inference_mode():
            outputs = self._network(
                input_ids=torch.from_numpy(padded).to(self._device),
                attention_mask=there,
                output_hidden_states=all_layers,
                return_dict=True,
            )
        return outputs, there

    def _forward(self, tokens: Sequence[Sequence[int]]) -> np.ndarray:
        import torch

        outputs, mask = self._run(tokens, all_layers=self.layers != "last")
        with torch.inference_mode():
            if self.layers == "last":
                hidden = outputs.last_hidden_state
                if self._recipe.pooling == "cls":
                    rows = hidden[:, 0].float()
                else:
                    rows = _mean_over_tokens(hidden, mask)
                rows = unit_rows(rows) if self._recipe.unit else rows
            else:
                states = _hidden_states(outputs)
                rows = torch.cat([self._pool(states, at, mask) for at in self.layers], dim=1)
            return rows.float().cpu().numpy()

    def _pool(self, states: list[Any], layer: int, mask: Any) -> Any:
        hidden = states[layer]
        if self._norm is not None and layer < len(states) - 1:
            hidden = self._norm(hidden)
        return unit_rows(_mean_over_tokens(hidden, mask))

    def _probe(self) -> list[int]:
        return [self._pad, self._pad]

    def _resolve(self, layers: Layers, name: str) -> Layers:
        if layers == "last":
            return layers
        outputs, _ = self._run([self._probe()], all_layers=True)
        return resolve_layers(layers, len(_hidden_states(outputs)) - 1, name)


class SentenceTransformersEncoder(FrozenModel):
    """Texts through sentence-transformers itself, for folders with modules of other kinds.

    Parameters
    ----------
    name : str
        Name that the model was asked for by.
    files : ModelFiles
        Its files.
    device, batch_size, precision, trust_remote_code
        As in :func:`klda.encoders.load`.
    """

    modality = "text"

    def __init__(
        self,
        name: str,
        files: ModelFiles,
        *,
        device: str = "auto",
        batch_size: int | None = None,
        precision: Precision = "auto",
        trust_remote_code: bool = False,
    ) -> None:
        chosen = choose_device(device)
        dtype = choose_dtype(precision, chosen, wide_range=False)
        library = require("sentence_transformers", "text")
        with quiet(name):
            self._model = library.SentenceTransformer(
                str(files.folder),
                device=str(chosen),
                trust_remote_code=trust_remote_code,
                local_files_only=True,
            )
        self._model.to(dtype).eval()
        self._precision = str(dtype).removeprefix("torch.")
        super().__init__(
            name=name,
            files=files,
            layers="last",
            pooling="sentence-transformers",
            dimension=0,
            batch_size=check_batch_size(batch_size, 256 if chosen.type == "cuda" else 32),
        )
        self.dimension = self._rows(["a"]).shape[1]

    @property
    def precision(self) -> str:
        """Number format of the weights."""
        return self._precision

    def _check(self, inputs: Any) -> list[str]:
        return check_texts(inputs)

    def _encode_batches(self, inputs: Sequence[str]) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        window = 32 * self.batch_size
        for start in range(0, len(inputs), window):
            with self._lock:
                rows = self._rows(list(inputs[start : start + window]))
            yield np.arange(start, start + len(rows)), rows

    def _rows(self, texts: list[str]) -> np.ndarray:
        rows = self._model.encode(
            texts, batch_size=self.batch_size, convert_to_tensor=True, show_progress_bar=False
        )
        return rows.float().cpu().numpy()


def _mean_over_tokens(hidden: Any, mask: Any) -> Any:
    # In float32: a sum over hundreds of tokens loses digits in half precision.
    weights = mask.unsqueeze(-1).float()
    return (hidden.float() * weights).sum(dim=1) / weights.sum(dim=1)


def _hidden_states(outputs: Any) -> list[Any]:
    """All layers' tokens in order of computation, the last as the model itself hands it out."""
    if outputs.get("decoder_hidden_states") is not None:
        states = [*outputs.encoder_hidden_states, *outputs.decoder_hidden_states[1:]]
    else:
        states = list(outputs.hidden_states)
    states[-1] = outputs.last_hidden_state
    return states


def _pooling_name(recipe: Recipe, layers: Layers) -> str:
    if layers != "last":
        return "mean+unit"
    return f"{recipe.pooling}+unit" if recipe.unit else recipe.pooling


def _pad_token(tokenizer: Any) -> int:
    # Some models (Mistral) come without a padding token. It is masked out, so any will do.
    if tokenizer.pad_token_id is None and tokenizer.eos_token is not None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer.pad_token_id if tokenizer.pad_token_id is not None else 0


def _max_length(tokenizer: Any, network: Any) -> int | None:
    """Most tokens that both the tokenizer and the network's position table allow."""
    limits = []
    if tokenizer.model_max_length and tokenizer.model_max_length < 10**9:  # 1e30 means none
        limits.append(int(tokenizer.model_max_length))
    positions = getattr(network.config, "max_position_embeddings", None)
    if positions:
        # RoBERTa counts positions from its padding index on.
        table = getattr(getattr(network, "embeddings", None), "position_embeddings", None)
        first = getattr(table, "padding_idx", None)
        limits.append(int(positions) - (0 if first is None else first + 1))
    return min(limits, default=None)
