from __future__ import annotations

import numpy as np
import pytest

from klda.client import Client, ServerError
from klda.errors import KldaError

from .conftest import ASK, CENTRES, KEYS, TEACH, listening, samples


@pytest.fixture
def address(features_model):
    with listening(features_model) as address:
        yield address


def test_it_has_the_learners_verbs(address):
    with Client(address) as client:
        assert client.modality == "features"
        assert client.classes == dict.fromkeys(CENTRES, 40)
        x = samples("dogs", 6)
        assert client.learn(x, ["dogs"] * 6) is client
        assert client.predict(x).tolist() == ["dogs"] * 6
        assert client.predict_top(x[:1], 2)[0][0][0] == "dogs"
        assert client.is_known(np.concatenate([x[:1], x[:1] * 0 + 90.0])).tolist() == [True, False]
        assert client.explain(x[0])["label"] == "dogs"
        client.rename("dogs", "hounds").forget("hounds")
        assert "hounds" not in client.classes
        client.undo()
        assert client.samples == 126
        client.forget("hounds", x)
        assert client.samples == 120


def test_large_inputs_go_in_parts(address):
    with Client(address) as client:
        x = np.concatenate([samples("ants", 700, seed=1), samples("bees", 601, seed=1)])
        y = np.array(["ants"] * 700 + ["bees"] * 601)
        client.learn(x, y)
        assert client.samples == 120 + 1301
        assert (client.predict(x) == y).mean() > 0.95


def test_a_lost_answer_is_asked_for_again_and_counts_once(address):
    import httpx

    class Lossy(httpx.HTTPTransport):
        """Loses the answer to every first try of a change."""

        lost = 0

        def handle_request(self, request):
            answer = super().handle_request(request)
            if "idempotency-key" in request.headers and self.lost < 1:
                self.lost += 1
                answer.read()
                raise httpx.ReadError("lost")
            return answer

    transport = Lossy()
    with Client(address, transport=transport) as client:
        client.learn(samples("dogs", 4), ["dogs"] * 4)
        assert transport.lost == 1
        assert client.classes["dogs"] == 4


def test_errors_say_what_the_service_said(address):
    with Client(address) as client:
        with pytest.raises(ServerError, match="no class 'nobody'") as caught:
            client.forget("nobody")
        assert (caught.value.status, caught.value.code) == (404, "not_found")
        with pytest.raises(KldaError, match="one label"):
            client.learn(samples("dogs", 2), ["dogs"])
        with pytest.raises(KldaError, match="empty"):
            client.predict([])
    with pytest.raises(ServerError, match="klda serve"):
        Client("http://127.0.0.1:9", timeout=1).undo(1)


def test_keys(features_model):
    with listening(features_model, keys=KEYS) as address:
        with pytest.raises(ServerError) as caught:
            Client(address).predict(samples("ants", 1))
        assert caught.value.status == 401
        asker = Client(address, key=ASK)
        assert asker.predict(samples("ants", 1)).tolist() == ["ants"]
        with pytest.raises(ServerError, match="may ask but not teach"):
            asker.learn(samples("ants", 1), ["ants"])
        Client(address, key=TEACH).learn(samples("ants", 1), ["ants"])
