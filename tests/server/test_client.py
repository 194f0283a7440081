from __future__ import annotations

import numpy as np
import pytest

from klda import KLDA
from klda.errors import KldaError
from klda.learner import Learner, SimilarClassWarning
from klda.server.client import Client, ServerError

from .conftest import ASK, CENTRES, FIRST, KEYS, TEACH, listening, samples


@pytest.fixture
def address(features_model):
    with listening(features_model) as address:
        yield address


def test_it_has_the_learners_verbs(address):
    with Client(address) as client:
        assert repr(client) == f"<Client {address[:-1]}>"
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
        known, far = samples("ants", 9, seed=5), samples("dogs", 9) * 0 + 90.0
        assert client.tune_unknown(known, far, reject=0.5).chosen.unknown_accepted == 0
        assert client.is_known(known).mean() < 0.7
        client.undo()
        assert client.is_known(known).mean() > 0.7
        kinds = ["learn", "rename", "forget", "undo", "remove", "tune", "undo"]
        assert [made["kind"] for made in client.history] == kinds
        assert client.history[3]["undoes"] == client.history[2]["change"] == FIRST + 2
        assert client.quality()["accuracy"] > 0.9
        wrong = ["ants"] * 6
        assert {one.label for one in client.suspects(samples("bees", 6), wrong)} == {"ants"}
        assert len(client.suggest(samples("bees", 6), 2)) <= 2


def test_it_answers_as_the_learner_does(address, features_model):
    learner = Learner.load(features_model)
    x = np.concatenate([samples("ants", 3, seed=5), samples("bees", 2, seed=5), [[90.0] * 8]])
    y = ["ants"] * 3 + ["bees"] * 2 + ["nobody"]
    with Client(address) as client:
        assert client.predict_proba(x) == pytest.approx(learner.predict_proba(x), abs=1e-5)
        assert client.novelty(x) == pytest.approx(learner.novelty(x), rel=1e-3)
        rejected = client.predict(x, reject=0.05)
        assert rejected.tolist() == learner.predict(x, reject=0.05).tolist()
        assert rejected[-1] == "unknown"
        assert client.predict(x, reject=False).tolist() == client.predict(x).tolist()
        assert client.evaluate(x, y).accuracy == learner.evaluate(x, y).accuracy == 5 / 6
        with pytest.raises(KldaError, match=r"reject=0.2 .* 0.05"):
            client.predict(x, reject=0.2)


def test_probabilities_of_many_classes_are_refused(address):
    x = np.concatenate([samples(f"class {i}", 1) for i in range(98)])
    with Client(address) as client:
        client.learn(x, [f"class {i}" for i in range(98)])
        with pytest.raises(KldaError, match=r"101 classes, .* predict_top"):
            client.predict_proba(x)


def test_one_text_is_no_list_of_texts(address):
    with Client(address) as client:
        before = client.classes
        with pytest.raises(KldaError, match="one text"):
            client.learn("hello", "world")
        with pytest.raises(KldaError, match="one label"):
            client.learn(samples("dogs", 4), "dogs")
        with pytest.raises(KldaError, match="one text"):
            client.evaluate("hello", ["a"])
        with pytest.raises(KldaError, match="one text"):
            client.forget("ants", "hello")
        assert client.classes == before


def test_labels_of_numpy_and_inputs_of_a_generator(tmp_path):
    learner = Learner("features", classifier=KLDA(n_components=200, random_state=0))
    for i, label in enumerate(CENTRES):
        learner.learn(samples(label, 40), [i] * 40)
    learner.save(tmp_path / "numbered")
    with listening(tmp_path / "numbered") as address, Client(address) as client:
        assert client.predict([[90.0] * 8], reject=0.05).tolist() == [-1]
        client.learn((row for row in samples("dogs", 3)), [np.int64(3)] * 3)
        assert client.classes == {0: 40, 1: 40, 2: 40, 3: 3}
        client.rename(np.int64(3), np.int64(4)).forget(np.int64(4))
        assert client.classes == {0: 40, 1: 40, 2: 40}
        client.undo()
        client.forget([np.int64(4)])
        assert client.classes == {0: 40, 1: 40, 2: 40}


class Proxy:
    """Loses the response to every first try of a change; without `passes`, every change itself."""

    def __init__(self, passes):
        import httpx

        self.httpx, self.passes, self.lost = httpx, passes, set()
        self.service = httpx.HTTPTransport()

    def client(self, address):
        client = Client(address)
        transport = self.httpx.MockTransport(self.handle)
        client._http = self.httpx.Client(base_url=address, transport=transport)
        return client

    def handle(self, request):
        key = request.headers.get("idempotency-key")
        if key is None or (self.passes and key in self.lost):
            return self.service.handle_request(request)
        self.lost.add(key)
        if self.passes:
            self.service.handle_request(request).read()
        return self.httpx.Response(504)


def test_a_change_whose_answer_was_lost_is_sent_again_and_counts_once(address):
    proxy = Proxy(passes=True)
    with proxy.client(address) as client:
        client.rename("ants", "wasps").forget("bees")
        assert client.classes == {"cats": 40, "wasps": 40}
        client.undo()
        assert client.classes == {"bees": 40, "cats": 40, "wasps": 40}
        assert len(proxy.lost) == 3
        assert client.info["version"] == FIRST + 2


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


@pytest.mark.parametrize("content", ["<html>", "[]", '"x"'])
def test_a_web_server_that_is_no_klda_is_said_to_be_none(content):
    with Client("http://127.0.0.1:9") as client:
        httpx = pytest.importorskip("httpx")
        other = httpx.MockTransport(lambda _: httpx.Response(200, text=content))
        client._http = httpx.Client(base_url="http://bot.example", transport=other)
        for ask in (lambda: client.classes, lambda: client.predict(["x"])):
            with pytest.raises(ServerError, match=r"http://bot.example/v1/.* not as klda serve"):
                ask()


def test_a_name_that_looks_like_another_is_pointed_out(address):
    client = Client(address)
    with pytest.warns(SimilarClassWarning, match="'Ants' is a new class. Did you mean 'ants'"):
        client.learn(samples("dogs", 2), ["Ants", "ants"])
    with pytest.raises(ServerError, match="inputs: there is no such field; /docs lists"):
        client._call("POST", "/v1/predict", {"inputs": ["hello"]})


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


def test_large_inputs_go_in_parts(address):
    with Client(address) as client:
        x = np.concatenate([samples("ants", 700, seed=1), samples("bees", 601, seed=1)])
        y = np.array(["ants"] * 700 + ["bees"] * 601)
        client.learn(x, y)
        assert client.samples == 120 + 1301
        assert (client.predict(x) == y).mean() > 0.95


def test_an_undo_of_several_parts_that_fails_goes_on_where_it_stopped(address):
    proxy = Proxy(passes=True)
    with proxy.client(address) as client, Client(address) as other:
        client.learn(samples("bees", 2), ["bees"] * 2)
        client.learn(samples("dogs", 1201), ["dogs"] * 1201)  # three parts
        passed_on = proxy.service.handle_request

        def fail(request):
            is_first = f'"undo":{FIRST + 1}}}' in request.content.decode().replace(" ", "")
            return proxy.httpx.Response(500) if is_first else passed_on(request)

        proxy.service.handle_request = fail
        other.undo(FIRST + 2)
        with pytest.raises(ServerError) as caught:
            client.undo()
        assert (caught.value.status, client.classes["dogs"]) == (500, 500)
        proxy.service.handle_request = passed_on
        assert "dogs" not in client.undo().classes
        assert client.undo().samples == 120


def test_an_undo_of_what_someone_else_has_undone_says_so_once(address):
    with Client(address) as client, Client(address) as other:
        client.learn(samples("bees", 2), ["bees"] * 2)
        client.learn(samples("dogs", 1201), ["dogs"] * 1201)
        other.undo(FIRST + 2)
        with pytest.raises(ServerError, match=f"undo={FIRST + 2} is not a change"):
            client.undo()
        assert "dogs" not in client.classes
        assert client.undo().samples == 120


def test_a_rename_that_did_not_arrive_is_an_error(address):
    proxy = Proxy(passes=False)
    with proxy.client(address) as client:
        with pytest.raises(ServerError) as caught:
            client.rename("ants", "wasps")
        assert caught.value.status == 504
        assert "ants" in client.classes


def test_a_change_that_failed_is_not_what_undo_takes_back(address):
    with Client(address) as client:
        client.learn(samples("dogs", 4), ["dogs"] * 4)
        with pytest.raises(ServerError, match="numbers"):
            client.learn([[1.0, 2.0]], ["dogs"])
        client.undo()
        assert "dogs" not in client.classes
        with pytest.raises(KldaError, match="nothing to undo"):
            client.undo()
