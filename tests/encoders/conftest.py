"""Tiny models of the paper's architectures with random weights, and their tokenizers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
tokenizers = pytest.importorskip("tokenizers")

from tokenizers import (  # noqa: E402
    Tokenizer,
    decoders,
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


def _wordpiece(folder: Path) -> int:
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    tokenizer.train_from_iterator(
        CORPUS, trainers.WordPieceTrainer(vocab_size=200, special_tokens=special)
    )
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    transformers.BertTokenizerFast(tokenizer_object=tokenizer, model_max_length=64).save_pretrained(
        folder
    )
    return tokenizer.get_vocab_size()


def _byte_level(folder: Path, wrapper: str) -> int:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(
        CORPUS,
        trainers.BpeTrainer(vocab_size=350, special_tokens=special, initial_alphabet=alphabet),
    )
    tokenizer.post_processor = processors.RobertaProcessing(
        ("</s>", 2), ("<s>", 0), add_prefix_space=False
    )
    kind = getattr(transformers, wrapper)
    kind(tokenizer_object=tokenizer, model_max_length=64).save_pretrained(folder)
    return tokenizer.get_vocab_size()


def _unigram(folder: Path) -> int:
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    special = ["<pad>", "</s>", "<unk>"]
    tokenizer.train_from_iterator(
        CORPUS,
        trainers.UnigramTrainer(vocab_size=120, special_tokens=special, unk_token="<unk>"),
    )
    tokenizer.post_processor = processors.TemplateProcessing(
        single="$A </s>", special_tokens=[("</s>", 1)]
    )
    transformers.T5TokenizerFast(
        tokenizer_object=tokenizer, extra_ids=0, model_max_length=64
    ).save_pretrained(folder)
    return tokenizer.get_vocab_size()


def _llama_bpe(folder: Path) -> int:
    """Like Mistral's: byte fallback, a start token, no padding token, no length limit."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    special = ["<unk>", "<s>", "</s>"]
    tokenizer.train_from_iterator(
        CORPUS, trainers.BpeTrainer(vocab_size=250, special_tokens=special)
    )
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 1)]
    )
    transformers.LlamaTokenizerFast(tokenizer_object=tokenizer).save_pretrained(folder)
    return tokenizer.get_vocab_size()


def _bert(folder: Path, layers: int = 4) -> None:
    config = transformers.BertConfig(
        vocab_size=_wordpiece(folder),
        hidden_size=32,
        num_hidden_layers=layers,
        num_attention_heads=4,
        intermediate_size=48,
        max_position_embeddings=64,
        initializer_range=0.4,
    )
    transformers.BertForMaskedLM(config).save_pretrained(folder)


def _bart(folder: Path) -> None:
    config = transformers.BartConfig(
        vocab_size=_byte_level(folder, "BartTokenizerFast"),
        d_model=32,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=48,
        decoder_ffn_dim=48,
        max_position_embeddings=64,
        init_std=0.4,
        bos_token_id=0,
        pad_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=2,
    )
    transformers.BartModel(config).save_pretrained(folder)


def _roberta(folder: Path) -> None:
    config = transformers.RobertaConfig(
        vocab_size=_byte_level(folder, "RobertaTokenizerFast"),
        hidden_size=32,
        num_hidden_layers=3,
        num_attention_heads=4,
        intermediate_size=48,
        max_position_embeddings=66,
        initializer_range=0.4,
        bos_token_id=0,
        pad_token_id=1,
        eos_token_id=2,
    )
    transformers.RobertaForMaskedLM(config).save_pretrained(folder)


def _t5(folder: Path) -> None:
    config = transformers.T5Config(
        vocab_size=_unigram(folder),
        d_model=32,
        d_kv=8,
        d_ff=48,
        num_layers=3,
        num_heads=4,
        decoder_start_token_id=0,
    )
    transformers.T5ForConditionalGeneration(config).save_pretrained(folder)


def _mistral(folder: Path) -> None:
    config = transformers.MistralConfig(
        vocab_size=_llama_bpe(folder),
        hidden_size=32,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        intermediate_size=48,
        max_position_embeddings=128,
        sliding_window=32,
        initializer_range=0.4,
        bos_token_id=1,
        eos_token_id=2,
    )
    transformers.MistralForCausalLM(config).save_pretrained(folder)


def _paraphrase(folder: Path) -> None:
    library = pytest.importorskip("sentence_transformers")
    inner = folder.with_name("inner")
    _bert(inner, layers=3)
    library.SentenceTransformer(str(inner), device="cpu").save(str(folder))


BUILDERS: dict[str, Callable[[Path], None]] = {
    "bart-base": _bart,
    "paraphrase-minilm-l3": _paraphrase,
    "bert-base": _bert,
    "roberta-large": _roberta,
    "t5-3b": _t5,
    "mistral-7b": _mistral,
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
