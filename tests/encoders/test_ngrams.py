"""The encoder without a foundation model."""

from __future__ import annotations

import math
import re
import time
from collections import Counter

import numpy as np
import pytest
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.pipeline import make_pipeline
from sklearn.svm import LinearSVC

from klda import Learner, encoders
from klda.data import open_table
from klda.errors import KldaError

# Of the row of a short text, found once: revision and absolute sum.
FIXED = [("1", 12.016655), ("2", 11.842163)]
TEXTS = [
    "Where is my card?",
    "the cat sat on the mat, the cat",
    "日本語のテキストを分類する",
    "分类日本的文本",
    "Ünïcödé wörds, naïve café",
    "x",
    "a much longer text that has many words in it and goes on and on, " * 5,
]


HAN = re.compile("[\u4e00-\u9fff]").search


def ngram_weights(text: str) -> dict[str, float]:
    """Weight each n-gram by 1 + log(count), to unit length: the definition, one text at a time."""
    counts: Counter[str] = Counter()
    for word in text.lower().split():
        padded = f" {word} "
        for length in range(1, 6):
            grams = [padded[at : at + length] for at in range(len(padded) - length + 1)]
            counts.update(gram for gram in grams if (length <= 2 if HAN(gram) else length > 1))
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


@pytest.mark.parametrize("revision, absolute_sum", FIXED)
def test_features_are_the_same_on_every_machine(revision, absolute_sum):
    # Fixed: a model that was saved elsewhere, or by another version, must mean the same rows.
    encoder = encoders.load("ngrams", revision=revision)
    (row,) = encoder.encode(["klda 日本"])
    assert np.flatnonzero(row)[:6].tolist() == [13, 14, 19, 31, 44, 45]
    assert np.isclose(np.abs(row).sum(), absolute_sum, atol=1e-5)
    again = encoders.reopen(encoder.fingerprint())
    np.testing.assert_array_equal(again.encode(["klda 日本"]), [row])


@pytest.mark.parametrize(
    "options, says",
    [
        ({"layers": (1, 2)}, "no layers"),
        ({"modality": "image"}, "encodes texts"),
        ({"revision": "main"}, "revision='main'"),
    ],
)
def test_options_without_a_meaning_are_refused(options, says):
    with pytest.raises(KldaError, match=says):
        encoders.load("ngrams", **options)


def test_encoding_is_fast(ngrams):
    texts = [f"how do I change the address on my account number {i}?" for i in range(4000)]
    ngrams.encode(texts[:200])
    start = time.process_time()
    ngrams.encode(texts)
    assert len(texts) / (time.process_time() - start) > 3000


def rows_of(folder):
    for part in ("train", "test"):
        yield next(open_table(folder / f"{part}.csv.gz").batches(rows=1 << 20))


@pytest.mark.data
@pytest.mark.slow
def test_accuracy_on_a_benchmark_set(data_dir):
    train, test = rows_of(data_dir / "paper" / "hwu")
    bot = Learner("ngrams").learn(train.inputs, train.labels)
    assert np.mean(bot.predict(test.inputs) == test.labels) >= 0.845


@pytest.mark.data
def test_chinese_without_spaces_is_level_with_characters_and_tf_idf(data_dir):
    train, test = rows_of(data_dir / "more" / "xsid-zh")
    joined, asked = (["".join(text.split()) for text in part.inputs] for part in (train, test))
    bot = Learner("ngrams").learn(joined, train.labels)
    vectors = TfidfVectorizer(analyzer="char", ngram_range=(1, 2), sublinear_tf=True)
    peer = make_pipeline(vectors, LinearSVC()).fit(joined, train.labels)
    assert np.mean(bot.predict(asked) == test.labels) >= peer.score(asked, test.labels) - 0.03
