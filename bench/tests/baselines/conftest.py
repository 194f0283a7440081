"""Tiny random models, made from config, with tokenizers of a toy language."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from baselines.toys import NAMES, make_task, topic_words

try:
    import torch
    import transformers
except ImportError:  # the baselines are an extra: klda[baselines]
    collect_ignore_glob = ["test_*.py"]

SPECIAL = ["<pad>", "<s>", "</s>", "<unk>"]
PAD, START, END = 0, 1, 2


@pytest.fixture(scope="session")
def tasks():
    """Two tasks of two classes each; test texts are new."""
    first, second = NAMES[:2], NAMES[2:]
    return SimpleNamespace(
        first=make_task(first),
        second=make_task(second),
        first_test=make_task(first, 12, seed=9),
        second_test=make_task(second, 12, seed=9),
        all=make_task(NAMES),
        all_test=make_task(NAMES, 12, seed=9),
    )


def _tokenizer(template: str | None):
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    words = ["the", "and", "of", "to", "Which", "class", "is", "this", "text", "?", "Label", ":"]
    for label in NAMES:
        words += [*label.split("_"), *topic_words(label)]
    vocabulary = {word: i for i, word in enumerate([*SPECIAL, *words, "a"])}
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    if template is not None:
        backend.post_processor = processors.TemplateProcessing(
            single=template, special_tokens=[("<s>", START), ("</s>", END)]
        )
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token="<pad>",
        bos_token="<s>",
        eos_token="</s>",
        unk_token="<unk>",
        model_max_length=40,
    )


def _bert(size: int):
    config = transformers.BertConfig(
        vocab_size=size,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=80,
        initializer_range=0.2,  # wide enough that a word shows in the other places' outputs
        pad_token_id=PAD,
    )
    return transformers.BertModel(config)


def _bart(size: int):
    config = transformers.BartConfig(
        vocab_size=size,
        d_model=32,
        encoder_layers=1,
        decoder_layers=1,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=64,
        decoder_ffn_dim=64,
        max_position_embeddings=80,
        init_std=0.1,
        pad_token_id=PAD,
        bos_token_id=START,
        eos_token_id=END,
        decoder_start_token_id=END,
        forced_eos_token_id=None,
    )
    return transformers.BartForConditionalGeneration(config)


def _t5(size: int):
    config = transformers.T5Config(
        vocab_size=size,
        d_model=32,
        d_kv=16,
        d_ff=64,
        num_layers=1,
        num_heads=2,
        pad_token_id=PAD,
        eos_token_id=END,
        decoder_start_token_id=PAD,
    )
    return transformers.T5ForConditionalGeneration(config)


def _llama(size: int):
    config = transformers.LlamaConfig(
        vocab_size=size,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=80,
        initializer_range=0.1,
        pad_token_id=PAD,
        bos_token_id=START,
        eos_token_id=END,
        tie_word_embeddings=True,
    )
    return transformers.LlamaForCausalLM(config)


_MODELS = {
    "bert": (_bert, "<s> $A </s>"),
    "bart": (_bart, "<s> $A </s>"),
    "t5": (_t5, "$A </s>"),
    "llama": (_llama, None),
}


@pytest.fixture(scope="session")
def tiny(tmp_path_factory):
    """Folder of a tiny random model, by kind: bert, bart, t5, llama."""
    folders = {}
    torch.set_num_threads(1)
    for kind, (build, template) in _MODELS.items():
        folder = tmp_path_factory.mktemp(kind)
        tokenizer = _tokenizer(template)
        torch.manual_seed(0)
        build(len(tokenizer)).save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        folders[kind] = str(folder)
    return folders


# Small models from scratch learn at larger steps than the paper's pretrained ones.
FAST = {
    "epochs": 12,
    "batch_size": 16,
    "head_lr": 1e-2,
    "backbone_lr": 5e-3,
    "max_length": 16,
    "device": "cpu",
    "progress": False,
}


@pytest.fixture(scope="session")
def fast():
    """Training options for the tiny models."""
    return FAST
