"""Static encoders: the mean of stored token rows."""

from __future__ import annotations

import numpy as np
import pytest
from safetensors.numpy import save_file

from klda import Learner, encoders
from klda.encoders.files import ModelFiles
from klda.encoders.options import Options
from klda.encoders.text import StaticNetwork, TextEncoder
from klda.errors import KldaError

WORDS = ("card", "rain", "where", "is", "my")


@pytest.fixture
def table():
    return np.random.default_rng(0).normal(size=(len(WORDS), 8)).astype(np.float16)


@pytest.fixture
def files(tmp_path, table) -> ModelFiles:
    """A package as WordLlama's: weights and tokenizer in two folders."""
    tokenizers = pytest.importorskip("tokenizers")
    vocabulary = {word: number for number, word in enumerate(WORDS)}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="is"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    for folder in ("weights", "tokenizers"):
        (tmp_path / folder).mkdir()
    tokenizer.save(str(tmp_path / "tokenizers" / "l2_supercat_tokenizer_config.json"))
    weights = tmp_path / "weights" / "rows.safetensors"
    save_file({"embedding.weight": table}, weights)
    return ModelFiles.at(weights, "tiny")


@pytest.fixture
def encoder(files) -> TextEncoder:
    return TextEncoder(files, StaticNetwork(files, Options()))


def test_a_row_is_the_mean_of_its_tokens_scaled_to_unit_length(encoder, table):
    texts = ["where is my card", "rain", "card rain card"]
    means = [table[[WORDS.index(word) for word in text.split()]].mean(0) for text in texts]
    expected = np.stack([mean / np.linalg.norm(mean) for mean in means])
    rows = encoder.encode(texts)
    assert rows.dtype == np.float32
    np.testing.assert_allclose(rows, expected, atol=2e-3)  # half precision's, eight numbers
    np.testing.assert_array_equal(encoder.encode(texts[1:]), rows[1:])


def test_what_a_static_encoder_can_not_do_is_said(encoder, files):
    with pytest.raises(KldaError, match=r"inputs\[1\] is empty"):
        encoder.encode(["card", " "])
    with pytest.raises(KldaError, match="no layers"):
        StaticNetwork(files, Options(layers=(1, 2)))


def test_wordllama_tells_topics_apart():
    if not encoders.MODELS["wordllama"].available_offline():
        pytest.skip("WordLlama's wheel was not downloaded: encoders.load('wordllama') does it")
    assert encoders.engine_of("wordllama") == "numpy"
    taught = ["where is my card?", "my card has not come", "will it rain?", "a sunny day"]
    learner = Learner("wordllama").learn(taught, ["card", "card", "weather", "weather"])
    assert list(learner.predict(["lost credit card", "storms tomorrow"])) == ["card", "weather"]
