"""Text models that transformers or sentence-transformers runs."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from klda.encoders.model_files import OTHER_MODULES, ModelFiles
from klda.encoders.options import Options
from klda.encoders.pretrained import (
    PretrainedNetwork,
    device_and_dtype,
    from_folder,
    hidden_states,
    quiet,
)
from klda.encoders.text import padded
from klda.encoders.wrapped import WrappedEncoder
from klda.errors import require

_ENCODER_ONLY = {"t5": "T5EncoderModel", "mt5": "MT5EncoderModel", "umt5": "UMT5EncoderModel"}


class PretrainedTextNetwork(PretrainedNetwork):
    """A transformer whose token features are pooled into one row per text.

    With ``layers="last"`` as the model's authors pool them: for a plain transformer, decoders
    included, the mean over the tokens, as in the paper. BART's last hidden state is the decoder's,
    which sentence-transformers and the paper's authors use. Of T5 only the encoder is loaded. With
    layer numbers it is the mean over the tokens.
    """

    def __init__(self, files: ModelFiles, options: Options) -> None:
        kind = _ENCODER_ONLY.get(files.config.get("model_type", ""), "AutoModel")
        super().__init__(kind, files, options)
        self._recipe = files.recipe
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
        n_layers = len(hidden_states(self._run(*padded(probe), all_layers=True))) - 1
        self.layers = options.resolve_layers(n_layers, files.name)
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

        ids, mask = padded(tokens, self.pad_token)
        outputs = self._run(ids, mask, all_layers=self.layers != "last")
        # In float32: a sum over hundreds of tokens loses digits in half precision.
        weights = torch.from_numpy(mask).to(self.device).unsqueeze(-1).float()

        def pool(hidden: Any) -> Any:
            if self.pooling.startswith("cls"):
                return hidden[:, 0]
            return (hidden.float() * weights).sum(dim=1) / weights.sum(dim=1)

        return self.pooled(outputs, pool, unit=self.pooling.endswith("+unit"))

    def _run(self, ids: np.ndarray, mask: np.ndarray, *, all_layers: bool) -> Any:
        return self.run(all_layers=all_layers, input_ids=ids, attention_mask=mask)


def sentence_transformers_encoder(files: ModelFiles, options: Options) -> WrappedEncoder:
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
    about: dict[str, Any] = {
        "source": files.source,
        "revision": files.revision,
        "pooling": OTHER_MODULES,
    }
    if options.prompt:
        encode, about["prompt"] = partial(encode, prompt=options.prompt), options.prompt
    return WrappedEncoder(encode, files.name, **about)


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
