"""Tiny models of the paper's architectures with random weights, and their tokenizers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytest.importorskip("tokenizers")

from tokenizers import (  # noqa: E402
    Tokenizer,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

TEXTS = [
    "where is my card",
    "Please block my card, I lost it on the train from Zürich to Milan yesterday evening!",
    "hi",
    "what is the weather like tomorrow in the mountains",
    "transfer 250 euros to my brother's savings account and tell me when it has arrived",
    "play some music",
]
CORPUS = [*TEXTS, "a cash machine kept my card", "the quick brown fox", "0123456789 ?!.,'-"] * 3


def _save(tokenizer: Tokenizer, folder: Path, template: str, special: list[str], **named) -> int:
    """Save a tokenizer whose texts look like the template; return the size of its vocabulary."""
    numbers = [(token, special.index(token)) for token in template.split() if token in special]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=template, special_tokens=numbers
    )
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, **named)
    fast.save_pretrained(folder)
    return tokenizer.get_vocab_size()


def _wordpiece(folder: Path) -> int:
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(vocab_size=200, special_tokens=special)
    tokenizer.train_from_iterator(CORPUS, trainer)
    named = {"pad_token": "[PAD]", "unk_token": "[UNK]", "model_max_length": 64}
    return _save(tokenizer, folder, "[CLS] $A [SEP]", special, **named)


def _byte_level(folder: Path, template: str, special: list[str], **named) -> int:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=350, special_tokens=special, initial_alphabet=alphabet)
    tokenizer.train_from_iterator(CORPUS, trainer)
    return _save(tokenizer, folder, template, special, **named)


def _roberta_tokenizer(folder: Path) -> int:
    named = {"pad_token": "<pad>", "model_max_length": 64}
    return _byte_level(folder, "<s> $A </s>", ["<s>", "<pad>", "</s>"], **named)


def _mistral_tokenizer(folder: Path) -> int:
    """It has no padding token and no limit of length."""
    return _byte_level(folder, "<s> $A", ["<unk>", "<s>", "</s>"], eos_token="</s>")


def _t5_tokenizer(folder: Path) -> int:
    named = {"pad_token": "<pad>", "eos_token": "</s>", "model_max_length": 64}
    return _byte_level(folder, "$A </s>", ["<pad>", "</s>"], **named)


SMALL = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4}
SMALL |= {"intermediate_size": 48, "initializer_range": 0.4}
BERT = SMALL | {"num_hidden_layers": 4, "max_position_embeddings": 64}
ROBERTA = SMALL | {"max_position_embeddings": 66, "pad_token_id": 1}  # counted from the padding's
HALVES = {"layers": 2, "attention_heads": 4, "ffn_dim": 48}
BART = {f"{half}_{name}": n for half in ("encoder", "decoder") for name, n in HALVES.items()}
BART |= {"d_model": 32, "max_position_embeddings": 64, "init_std": 0.4}
BART |= {"pad_token_id": 1, "decoder_start_token_id": 2}
T5 = {"d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 3, "num_heads": 4}
MISTRAL = SMALL | {"num_key_value_heads": 2, "max_position_embeddings": 128, "sliding_window": 32}


def _built(tokenize: Callable[[Path], int], family: str, task: str, settings: dict):
    def build(folder: Path, **changes) -> None:
        size = tokenize(folder)
        config = getattr(transformers, f"{family}Config")(vocab_size=size, **settings | changes)
        getattr(transformers, f"{family}{task}")(config).save_pretrained(folder)

    return build


_bert = _built(_wordpiece, "Bert", "ForMaskedLM", BERT)


def _paraphrase(folder: Path) -> None:
    library = pytest.importorskip("sentence_transformers")
    inner = folder.with_name("inner")
    _bert(inner, num_hidden_layers=3)
    library.SentenceTransformer(str(inner), device="cpu").save(str(folder))


BUILDERS: dict[str, Callable[[Path], None]] = {
    "bart-base": _built(_roberta_tokenizer, "Bart", "Model", BART),
    "paraphrase-minilm-l3": _paraphrase,
    "bert-base": _bert,
    "roberta-large": _built(_roberta_tokenizer, "Roberta", "ForMaskedLM", ROBERTA),
    "t5-3b": _built(_t5_tokenizer, "T5", "ForConditionalGeneration", T5),
    "mistral-7b": _built(_mistral_tokenizer, "Mistral", "ForCausalLM", MISTRAL),
}


@pytest.fixture
def texts() -> list[str]:
    """Six texts, from one word to a long sentence."""
    return list(TEXTS)


@pytest.fixture(scope="session")
def tiny_models(tmp_path_factory) -> Callable[[str], Path]:
    """Folder of a tiny model with the architecture of a named one; created on first use."""
    made: dict[str, Path] = {}

    def folder_of(name: str) -> Path:
        if name not in made:
            made[name] = tmp_path_factory.mktemp(name) / "model"
            torch.manual_seed(len(made))
            BUILDERS[name](made[name])
        return made[name]

    return folder_of


@pytest.fixture
def pictures() -> np.ndarray:
    """A stack of eight random images."""
    return np.random.default_rng(0).integers(0, 256, size=(8, 40, 50, 3), dtype=np.uint8)
