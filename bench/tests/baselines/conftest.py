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


SMALL = {"num_hidden_layers": 2, "num_attention_heads": 2, "hidden_size": 32}
SMALL |= {"intermediate_size": 64, "max_position_embeddings": 80, "pad_token_id": PAD}
ENDS = {"bos_token_id": START, "eos_token_id": END}
HALVES = {"layers": 1, "attention_heads": 2, "ffn_dim": 64}
BART = {f"{half}_{name}": n for half in ("encoder", "decoder") for name, n in HALVES.items()}
BART |= {"d_model": 32, "max_position_embeddings": 80, "init_std": 0.1, "pad_token_id": PAD, **ENDS}
BART |= {"decoder_start_token_id": END, "forced_eos_token_id": None}
T5 = {"d_model": 32, "d_kv": 16, "d_ff": 64, "num_layers": 1, "num_heads": 2, "eos_token_id": END}
T5 |= {"pad_token_id": PAD, "decoder_start_token_id": PAD}
LLAMA = {**SMALL, **ENDS, "num_key_value_heads": 2, "initializer_range": 0.1}
# BERT's weights: wide enough that a word shows in the other places' outputs.
_MODELS = {
    "bert": ("Bert", "Model", {**SMALL, "initializer_range": 0.2}, "<s> $A </s>"),
    "bart": ("Bart", "ForConditionalGeneration", BART, "<s> $A </s>"),
    "t5": ("T5", "ForConditionalGeneration", T5, "$A </s>"),
    "llama": ("Llama", "ForCausalLM", {**LLAMA, "tie_word_embeddings": True}, None),
}


@pytest.fixture(scope="session")
def tiny(tmp_path_factory):
    """Folder of a tiny random model, by kind: bert, bart, t5, llama."""
    folders = {}
    torch.set_num_threads(1)
    for kind, (family, task, settings, template) in _MODELS.items():
        folder = tmp_path_factory.mktemp(kind)
        tokenizer = _tokenizer(template)
        torch.manual_seed(0)
        config = getattr(transformers, f"{family}Config")(vocab_size=len(tokenizer), **settings)
        getattr(transformers, f"{family}{task}")(config).save_pretrained(folder)
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
}


@pytest.fixture(scope="session")
def fast():
    """Training options for the tiny models."""
    return FAST
