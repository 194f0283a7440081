"""The encoder without a foundation model."""

from __future__ import annotations

import math
import time
from collections import Counter

import numpy as np
import pytest

from klda import Learner, encoders
from klda.data import open_table
from klda.errors import KldaError

# Of the row of a short text, found once.
FIRST_CELLS = [13, 14, 19, 31, 44, 45]
ABSOLUTE_SUM = 12.016655
TEXTS = [
    "Where is my card?",
    "the cat sat on the mat, the cat",
    "日本語のテキストを分類する",
    "Ünïcödé wörds, naïve café",
    "x",
    "a much longer text that has many words in it and goes on and on, " * 5,
]


def ngram_weights(text: str) -> dict[str, float]:
    """Weight each n-gram by 1 + log(count), to unit length: the definition, one text at a time."""
    counts: Counter[str] = Counter()
    for word in text.lower().split():
        padded = f" {word} "
        for length in range(2, 6):
            counts.update(padded[at : at + length] for at in range(len(padded) - length + 1))
    weights = {gram: 1 + math.log(count) for gram, count in counts.items()}
    norm = math.sqrt(sum(weight**2 for weight in weights.values()))
    return {gram: weight / norm for gram, weight in weights.items()}


@pytest.fixture(scope="module")
def ngrams():
    return encoders.load("ngrams")


def test_inner_products_are_those_of_the_ngrams(ngrams):
    vocabulary: dict[str, int] = {}
    exact = np.zeros((len(TEXTS), 5000))
    for row, text in enumerate(TEXTS):
        for gram, weight in ngram_weights(text).items():
            exact[row, vocabulary.setdefault(gram, len(vocabulary))] = weight
    rows = ngrams.encode(TEXTS)
    # The noise of one inner product has a standard deviation of about 1 / sqrt(4096).
    np.testing.assert_allclose(rows @ rows.T, exact @ exact.T, atol=5 / math.sqrt(4096))
    assert (exact @ exact.T)[0, 1] > 0.02  # or this would prove nothing


def test_a_row_is_the_sum_of_what_its_ngrams_add(ngrams):
    # "ab" alone has the n-grams " a", "ab", "b ", " ab", "ab " and " ab ": 48 signs in all.
    (row,) = ngrams.encode(["ab"])
    assert np.isclose(np.abs(row).sum(), 48 / math.sqrt(8 * 6)) or np.count_nonzero(row) < 48


@pytest.mark.parametrize(
    "one, other", [("CARD", "card"), ("my  card\n", "my card"), ("cafe\u0301", "caf\u00e9")]
)
def test_case_spaces_and_composition_do_not_matter(one, other, ngrams):
    np.testing.assert_array_equal(*ngrams.encode([one, other]))


def test_the_features_of_a_text_do_not_depend_on_its_batch(ngrams):
    together = ngrams.encode(TEXTS * 60)  # several chunks
    alone = np.concatenate([ngrams.encode([text]) for text in TEXTS])
    np.testing.assert_allclose(together, np.tile(alone, (60, 1)), atol=1e-7)


def test_texts_without_characters_have_rows_of_zeros(ngrams):
    assert ngrams.encode(["", "  \n", "a"]).any(axis=1).tolist() == [False, False, True]
    assert ngrams.encode([]).shape == (0, ngrams.dimension)


def test_features_are_the_same_on_every_machine(ngrams):
    # Fixed: a model that was saved elsewhere must mean the same rows.
    (row,) = ngrams.encode(["klda 日本"])
    assert np.flatnonzero(row)[:6].tolist() == FIRST_CELLS
    assert np.isclose(np.abs(row).sum(), ABSOLUTE_SUM, atol=1e-5)


@pytest.mark.parametrize(
    "options, says",
    [
        ({"layers": (1, 2)}, "no layers"),
        ({"modality": "image"}, "encodes texts"),
        ({"engine": "nonsense"}, "engine='nonsense'"),
        ({"precision": "q"}, "precision='q'"),
        ({"device": "xyz"}, "device='xyz'"),
    ],
)
def test_options_without_a_meaning_are_refused(options, says):
    with pytest.raises(KldaError, match=says):
        encoders.load("ngrams", **options)


def test_a_learner_learns_saves_and_loads(tmp_path):
    bot = Learner("ngrams")
    bot.learn(["where is my card?", "lost card", "will it rain?", "rainy weather"], [*"ccww"])
    bot.save(tmp_path / "bot")
    again = Learner.load(tmp_path / "bot")
    assert again.predict(["my cards", "raining"]).tolist() == ["c", "w"]
    assert again.encoder.engine == "numpy"


def test_encoding_is_fast(ngrams):
    texts = [f"how do I change the address on my account number {i}?" for i in range(4000)]
    ngrams.encode(texts[:200])
    start = time.process_time()
    ngrams.encode(texts)
    assert len(texts) / (time.process_time() - start) > 3000


@pytest.mark.data
@pytest.mark.slow
def test_accuracy_on_a_benchmark_set(data_dir):
    train, test = (
        next(open_table(data_dir / f"paper/hwu/{part}.csv.gz").batches(rows=1 << 20))
        for part in ("train", "test")
    )
    bot = Learner("ngrams").learn(train.inputs, train.labels)
    assert np.mean(bot.predict(test.inputs) == test.labels) >= 0.845
