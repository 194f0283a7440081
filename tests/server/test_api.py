from __future__ import annotations

import json
import re

import pytest

from klda import Learner
from klda.server import api, label_studio, page
from klda.server.gate import READS_BY_POST
from klda.server.journal import JournalError
from klda.server.settings import MAX_ITEMS
from klda.storage.folder import JOURNAL

from .conftest import ASK, CENTRES, FIRST, KEYS, TEACH, rows, serving, unlike_anything

X = rows("ants", 2)


def test_predict_answers_each_input_in_order(client):
    body = {"features": [rows("bees", 1)[0], rows("cats", 1)[0]], "top": 2}
    answer = client.post("/v1/predict", json=body).json()
    assert [p["label"] for p in answer["predictions"]] == ["bees", "cats"]
    for prediction in answer["predictions"]:
        assert len(prediction["top"]) == 2
        assert prediction["top"][0]["probability"] == prediction["probability"] > 0.5
        assert prediction["known"] is True


def test_learn_forget_undo_rename(client):
    learned = client.post("/v1/learn", json={"features": rows("dogs", 5), "labels": ["dogs"] * 5})
    assert learned.json() == {
        "learned": 5,
        "new_classes": ["dogs"],
        "similar": {},
        "classes": 4,
        "samples": 125,
        "version": FIRST,
        "forgotten": [],
        "exact": False,
        "undo": FIRST,
        "repeated": False,
    }
    forgotten = client.post("/v1/forget", json={"labels": ["dogs"]}).json()
    assert (forgotten["forgotten"], forgotten["classes"]) == (["dogs"], 3)
    undone = client.post("/v1/undo", json={"undo": forgotten["undo"]}).json()
    assert (undone["samples"], undone["learned"], undone["classes"]) == (125, 0, 4)
    renamed = client.post("/v1/rename", json={"old": "dogs", "new": "hounds"})
    assert renamed.status_code == 200
    found = client.get("/v1/classes?search=HOUND").json()
    assert found == {"classes": [{"label": "hounds", "samples": 5}], "total": 1}
    body = {"old": "hounds", "new": "ants", "merge": True}
    merged = client.post("/v1/rename", json=body)
    assert (merged.json()["classes"], merged.json()["samples"]) == (3, 125)


def test_a_compact_model_is_served_and_says_that_it_only_predicts(features_model, tmp_path):
    Learner.load(features_model).save(tmp_path / "compact", compact=True)
    with serving(tmp_path / "compact") as client:
        assert client.post("/v1/predict", json={"features": X}).status_code == 200
        for path in ("learn", "suspects", "forget"):
            answer = client.post(f"/v1/{path}", json={"features": X, "labels": ["ants"] * 2})
            assert answer.status_code == 409, path
            assert "only predict" in answer.json()["error"]["message"]
    assert not (tmp_path / "compact" / JOURNAL).exists()


def test_the_page_of_the_api_has_every_call_and_tries_those_that_json_can(client):
    shown = client.get("/docs").text
    paths = set(client.get("/v1/openapi.json").json()["paths"])
    assert set(re.findall(r"<code>(/v1/[a-z-]+)</code>", shown)) == paths
    tried = paths - {"/v1/events", "/v1/learn-file"}
    assert set(re.findall(r'data-path="([^"]+)"', shown)) == tried
    assert '<code>texts</code></th><td class="muted">list of strings</td>' in shown


def test_a_retried_learn_counts_once(client):
    body = {"features": X, "labels": ["ants"] * 2}
    headers = {"Idempotency-Key": "abc"}
    first = client.post("/v1/learn", json=body, headers=headers).json()
    again = client.post("/v1/learn", json=body, headers=headers).json()
    assert (first["repeated"], again["repeated"]) == (False, True)
    assert (first["learned"], again["learned"]) == (2, 0)
    assert first["version"] == again["version"]
    assert client.get("/v1/model").json()["samples"] == 122
    other = client.post("/v1/learn", json={**body, "labels": ["bees"] * 2}, headers=headers)
    assert other.status_code == 409


def test_every_retried_change_is_made_once(client):
    bodies = [
        ("learn", {"features": rows("dogs", 60), "labels": ["dogs"] * 60}),
        ("rename", {"old": "dogs", "new": "hounds"}),
        ("forget", {"features": rows("cats", 40)[:2], "labels": ["cats"] * 2}),
        ("forget", {"labels": ["bees"]}),
        ("undo", {"undo": FIRST + 3}),
        ("tune-unknown", {"known": {"features": X}, "unknown": {"features": rows("z", 9)}}),
    ]
    for number, (path, body) in enumerate(bodies):
        headers = {"Idempotency-Key": f"key-{number}"}
        first = client.post(f"/v1/{path}", json=body, headers=headers).json()
        again = client.post(f"/v1/{path}", json=body, headers=headers).json()
        assert (first.pop("repeated"), again.pop("repeated")) == (False, True)
        assert {**first, "learned": 0} == {**again, "learned": 0}
    assert len(client.get("/v1/history").json()["changes"]) == len(bodies)


def test_model_map_scores_health_and_metrics(client):
    client.post("/v1/learn", json={"features": X, "labels": ["ants"] * 2})
    model = client.get("/v1/model").json()
    assert (model["modality"], model["classes"], model["version"]) == ("features", 3, FIRST)
    assert len(client.get("/v1/map").json()["places"]) == 3
    scores = client.get("/v1/scores").json()
    assert scores["accuracy"] == 1.0
    assert [set(tally) for tally in scores["tallies"]] == [{"when", "right", "wrong", "new"}]
    assert client.get("/v1/health").json() == {"status": "ok", "version": FIRST}
    text = client.get("/v1/metrics").text
    assert 'klda_requests_total{method="POST",path="/v1/learn",status="200"} 1.0' in text
    for name in ("klda_classes 3.0", "klda_samples 122.0", "klda_queue", "klda_request_seconds"):
        assert name in text


def test_the_history_has_all_changes_the_latest_first(client):
    client.post("/v1/learn", json={"features": rows("dogs", 2), "labels": ["dogs"] * 2})
    client.post("/v1/rename", json={"old": "ants", "new": "bees", "merge": True})
    client.post("/v1/forget", json={"labels": ["cats"]})
    forget, merge, learn = client.get("/v1/history").json()["changes"]
    assert (learn["kind"], learn["samples"], learn["new_classes"]) == ("learn", 2, ["dogs"])
    assert (merge["kind"], merge["classes"], merge["by"]) == ("merge", ["ants", "bees"], "api")
    assert (forget["kind"], forget["samples"], forget["undoable"]) == ("forget", -40, True)
    assert client.get("/v1/history?limit=1").json()["changes"] == [forget]
    assert client.get(f"/v1/history?before={FIRST + 1}").json()["changes"] == [learn]
    assert client.get("/v1/history?limit=0").status_code == 422


def test_quality_is_that_of_the_learner(client, features_model):
    expected = Learner.load(features_model).quality()
    found = client.get("/v1/quality").json()
    assert found["accuracy"] == pytest.approx(expected.accuracy)
    assert [one["label"] for one in found["classes"]] == list(CENTRES)
    for label in CENTRES:
        client.post("/v1/forget", json={"labels": [label]})
    assert client.get("/v1/quality").json()["accuracy"] is None


def test_suspects_are_those_of_the_learner(client, features_model):
    x, y = rows("ants", 4, seed=7) + rows("bees", 4, seed=7), ["ants"] * 4 + ["bees"] * 3 + ["ants"]
    expected = Learner.load(features_model).suspects(x, y)
    assert [(one.row, one.suggested) for one in expected] == [(7, "bees")]
    found = client.post("/v1/suspects", json={"features": x, "labels": y}).json()["suspects"]
    assert found == [
        one.to_dict() | {"confidence": pytest.approx(one.confidence)} for one in expected
    ]
    assert client.get("/v1/model").json()["samples"] == 120  # nothing was learned
    assert client.post("/v1/suspects", json={"features": x, "labels": y[:3]}).status_code == 422


def test_suggestions_are_those_of_the_learner(client, features_model):
    x = [*rows("ants", 4, seed=7), [90.0] * 8, *rows("bees", 4, seed=7)]
    (best,) = Learner.load(features_model).suggest(x, 1)
    (found,) = client.post("/v1/suggest", json={"features": x, "n": 1}).json()["suggestions"]
    assert (found["row"], found["known"]) == (best.row, best.known)
    assert client.post("/v1/suggest", json={"features": x, "n": 0}).status_code == 422


def test_thresholds_are_fitted_as_by_the_learner(client, features_model, tmp_path):
    known = [row for label in CENTRES for row in rows(label, 30, seed=7)]
    unknown = [[x + 1.0 for x in row] for row in rows("ants", 30, seed=8)]
    body = {"known": {"features": known}, "unknown": {"features": unknown}, "by_class": True}
    learner = Learner.load(features_model)
    expected = learner.tune_unknown(known, unknown, by_class=True).to_dict()
    found = client.post("/v1/tune-unknown", json=body).json()
    assert {name: found[name] for name in expected} == expected
    predictions = client.post("/v1/predict", json={"features": unknown}).json()["predictions"]
    assert [one["known"] for one in predictions] == learner.is_known(unknown).tolist()
    (made,) = client.get("/v1/history").json()["changes"]
    assert (made["kind"], made["undoable"]) == ("tune", True)
    client.post("/v1/undo", json={"undo": found["undo"]})
    again = client.post("/v1/predict", json={"features": unknown}).json()["predictions"]
    before = Learner.load(features_model).is_known(unknown).tolist()
    assert [one["known"] for one in again] == before != [one["known"] for one in predictions]


def test_methods_that_clients_make_up_are_counted_as_one(client):
    for i in range(5):
        client.request(f"METHOD{i}", "/v1/model")
    text = client.get("/v1/metrics").text
    assert "METHOD" not in text
    assert 'method="other",path="/v1/model",status="405"} 5.0' in text


def test_integer_labels_stay_integers(tmp_path):
    from klda import KLDA
    from klda.learner import Learner

    learner = Learner("features", classifier=KLDA(n_components=50, random_state=0))
    learner.learn(rows("ants", 9) + rows("bees", 9), [1] * 9 + [2] * 9)
    learner.save(tmp_path / "m")
    with serving(tmp_path / "m") as client:
        client.post("/v1/learn", json={"features": rows("cats", 5), "labels": [7] * 5})
        (answer,) = client.post("/v1/predict", json={"features": rows("cats", 1)}).json()[
            "predictions"
        ]
        assert answer["label"] == 7


def test_labels_of_another_kind_are_a_conflict_and_no_error_in_the_log(client, caplog):
    answer = client.post("/v1/learn", json={"features": X, "labels": [3, 3]})
    assert answer.status_code == 409
    assert [one for one in caplog.records if one.levelname == "ERROR"] == []


NAN = '{"features": [[NaN, 1, 2, 3, 4, 5, 6, 7]], "labels": ["a"]}'
HUGE = '{"features": [[1e999, 1, 2, 3, 4, 5, 6, 7]], "labels": ["a"]}'
DEEP = '{"features": ' + "[" * 100_000 + "]" * 100_000 + "}"

TWICE = json.dumps({"features": X, "labels": ["a"] * 2})[:-1] + ', "labels": ["b", "b"]}'

# name, path, body, status, code
BAD = [
    ("no JSON", "/v1/learn", "{", 400, "malformed"),
    ("too deep", "/v1/learn", DEEP, 400, "malformed"),
    ("empty", "/v1/learn", "", 422, "invalid"),
    ("a field twice", "/v1/learn", TWICE, 422, "invalid"),
    ("a class twice", "/v1/declare", '{"classes": {"a": "x", "a": null}}', 422, "invalid"),
    ("a list", "/v1/learn", "[]", 422, "invalid"),
    ("NaN", "/v1/learn", NAN, 422, "invalid"),
    ("infinite", "/v1/learn", HUGE, 422, "invalid"),
    ("too large for float32", "/v1/predict", {"features": [[1e39] * 8]}, 422, "invalid"),
    ("a number as text", "/v1/predict", {"features": [["1"] * 8]}, 422, "invalid"),
    ("rows of two lengths", "/v1/predict", {"features": [[1.0], [1.0, 2.0]]}, 422, "invalid"),
    ("wrong length", "/v1/predict", {"features": [[1.0, 2.0]]}, 422, "invalid"),
    ("texts for features", "/v1/predict", {"texts": ["hello"]}, 422, "invalid"),
    ("nothing", "/v1/predict", {}, 422, "invalid"),
    ("two kinds", "/v1/predict", {"texts": ["x"], "features": X}, 422, "invalid"),
    ("no inputs", "/v1/predict", {"features": []}, 422, "invalid"),
    ("top of 0", "/v1/predict", {"features": X, "top": 0}, 422, "invalid"),
    ("unknown field", "/v1/predict", {"features": X, "model": "../x"}, 422, "invalid"),
    ("a text of 1 MB", "/v1/predict", {"texts": ["x" * (1 << 20)]}, 422, "invalid"),
    ("labels missing", "/v1/learn", {"features": X}, 422, "invalid"),
    ("too few labels", "/v1/learn", {"features": X, "labels": ["a"]}, 422, "invalid"),
    ("10,000 labels", "/v1/learn", {"features": X, "labels": ["a"] * 10_000}, 422, "invalid"),
    ("too many inputs", "/v1/predict", {"features": [X[0]] * (MAX_ITEMS + 1)}, 422, "invalid"),
    ("an empty label", "/v1/learn", {"features": X, "labels": ["", "a"]}, 422, "invalid"),
    ("a blank label", "/v1/learn", {"features": X, "labels": [" ", "a"]}, 422, "invalid"),
    ("a long label", "/v1/learn", {"features": X, "labels": ["x" * 201] * 2}, 422, "invalid"),
    ("a label with a line", "/v1/learn", {"features": X, "labels": ["a\nb"] * 2}, 422, "invalid"),
    ("a null label", "/v1/learn", {"features": X, "labels": [None, "a"]}, 422, "invalid"),
    ("a true label", "/v1/learn", {"features": X, "labels": [True, True]}, 422, "invalid"),
    ("mixed labels", "/v1/learn", {"features": X, "labels": [1, "a"]}, 422, "invalid"),
    ("lone surrogate", "/v1/learn", '{"texts": ["\\ud800"], "labels": ["a"]}', 422, "invalid"),
    ("unknown class", "/v1/forget", {"labels": ["nobody"]}, 404, "not_found"),
    ("unknown undo", "/v1/undo", {"undo": 999}, 404, "not_found"),
    ("rename of nobody", "/v1/rename", {"old": "nobody", "new": "x"}, 404, "not_found"),
    ("rename onto another", "/v1/rename", {"old": "ants", "new": "bees"}, 409, "conflict"),
    ("nothing unknown", "/v1/tune-unknown", {"known": {"features": X}}, 422, "invalid"),
    (
        "refuse all",
        "/v1/tune-unknown",
        {"known": {"features": X}, "unknown": {"features": X}, "reject": 1.0},
        422,
        "invalid",
    ),
    ("a date", "/v1/expire-undo", {"before": "2026-01-01"}, 422, "invalid"),
    ("more than learned", "/v1/forget", {"features": X * 21, "labels": ["ants"] * 42}, 409, ""),
]


@pytest.mark.parametrize("path, body, status, code", [b[1:] for b in BAD], ids=[b[0] for b in BAD])
def test_bad_requests_get_the_documented_error(client, path, body, status, code):
    content = body if isinstance(body, str) else json.dumps(body)
    headers = {"Content-Type": "application/json"}
    before = client.get("/v1/model").json()
    answer = client.post(path, content=content, headers=headers)
    assert answer.status_code == status
    error = answer.json()["error"]
    assert code in ("", error["code"])
    assert error["message"]
    assert "Traceback" not in answer.text
    assert len(answer.text) < 1000
    assert client.get("/v1/model").json() == before
    responses = client.get("/v1/openapi.json").json()["paths"][path]["post"]["responses"]
    assert str(status) in responses


@pytest.mark.parametrize(
    "content, headers, told",
    [
        (b"", {}, "body: give a JSON object"),
        (b"null", {}, "body: give a JSON object"),
        (b"[]", {}, "body: give a JSON object"),
        (b'{"undo": 4}', {"Content-Type": "text/plain"}, "Content-Type: application/json"),
        (b'{"undo": 4,}', {}, "not valid JSON at character 1"),
        (b'{"undo": 4, "undo": 5}', {}, "'undo' is there twice: give each name once."),
        (b'{"undo": 4}', {"Idempotency-Key": "a b"}, "Idempotency-Key: give ASCII characters"),
    ],
)
def test_a_request_that_is_no_json_object_is_told_what_to_send(client, content, headers, told):
    headers = {"Content-Type": "application/json", **headers}
    answer = client.post("/v1/undo", content=content, headers=headers)
    assert told in answer.json()["error"]["message"]


ROW = [[0.0] * 8]


@pytest.mark.parametrize(
    "path, body, told",
    [
        ("learn", {"features": X}, "labels: it is missing"),
        ("learn", {"features": X, "labels": "ants"}, "labels: give a valid list."),
        ("learn", {"features": X, "labels": []}, "labels: give at least 1 item, not 0."),
        ("learn", {"features": X, "labels": ["a", True]}, "labels.1: give a string or an integer."),
        ("learn", {"features": ROW, "labels": [2**60]}, "labels.0: give a number less than"),
        ("learn", {"features": X, "labels": ["a"]}, "features has 2 items, labels has 1; give one"),
        ("learn", {"features": X, "labels": [3, 3]}, "an integer, but the known classes are str"),
        ("predict", {"features": X, "top": 0}, "top: give a number greater than or equal to 1."),
        ("predict", {"features": X, "top": 1.5}, "top: give a valid integer"),
        ("predict", {"features": [[None]]}, "features.0.0: give a valid number."),
        ("tune-unknown", {"known": 5, "unknown": 5}, "known: give a JSON object."),
        ("declare", {"classes": ["a"]}, "classes: give a JSON object."),
        ("rename", {"old": "ants", "new": "bees"}, 'already: choose another name, or send "merge"'),
        ("forget", {"features": X * 21, "labels": ["ants"] * 42}, "only 40 were learned; give"),
        ("nothing", {}, "There is no such path; /docs lists those"),
        ("model", {}, "This path has other methods"),
        ("learn-file", {}, "file: it is missing"),
    ],
)
def test_errors_say_what_to_send(client, path, body, told):
    answer = client.post(f"/v1/{path}", json=body)
    assert 400 <= answer.status_code < 500
    assert told in answer.json()["error"]["message"]
    assert "(" not in answer.json()["error"]["message"]


@pytest.mark.parametrize("chunked", [False, True])
def test_a_body_over_the_limit_is_refused(features_model, chunked):
    body = json.dumps({"features": X * 400}).encode()
    content = iter([body[:5000], body[5000:]]) if chunked else body
    with serving(features_model, max_body=10_000) as client:
        headers = {"Content-Type": "application/json"}
        answer = client.post("/v1/predict", content=content, headers=headers)
        assert answer.status_code == 413
        assert answer.json()["error"]["code"] == "too_large"
        assert client.post("/v1/predict", json={"features": X}).status_code == 200


def test_methods_and_paths_that_do_not_exist(client):
    assert client.get("/v1/learn").status_code == 405
    assert "POST" in client.get("/v1/learn").headers["Allow"]
    for path in (
        "/v1/nothing",
        *(f"{page.STATIC_URL}/{up}/settings.py" for up in ("..", "%2e%2e")),
    ):
        answer = client.get(path)
        assert answer.status_code == 404
        assert "import" not in answer.text


# ------------------------------------------------------------------ keys


def bearer(key):
    return {"Authorization": f"Bearer {key}"}


def test_every_path_needs_a_key_unless_it_reveals_nothing(features_model):
    with serving(features_model, keys=KEYS) as client:
        routes = [
            route
            for router in (api.router, api.open_router, label_studio.router, page.router)
            for route in router.routes
        ]
        paths = {(method, route.path) for route in routes for method in route.methods}
        paths |= {("GET", "/v1/nothing"), ("POST", "/page/nothing")}
        refused = {(m, p) for m, p in paths if client.request(m, p).status_code == 401}
        health = {"/v1/health", "/label-studio/health", "/label-studio/"}
        screens = {path for _, path in paths - refused} - health - {"/login", "/logout"}
        assert "/" in screens
        for path in screens:
            sent = client.get(path, follow_redirects=False)
            assert (sent.status_code, sent.headers["Location"]) == (303, "/login")
        for method, path in sorted(paths):
            status = client.request(method, path, headers=bearer(ASK)).status_code
            asks = method == "GET" or path in READS_BY_POST
            if path.startswith("/v1/"):
                assert (status == 403) is not asks
        text = client.get("/v1/metrics", headers=bearer(ASK)).text
        assert 'method="POST",path="/v1/learn",status="401"} 1.0' in text


def test_nothing_is_computed_for_a_screen_without_a_session(features_model, monkeypatch):
    def fail(*args, **options):
        raise AssertionError("computed")

    with serving(features_model, keys=KEYS) as client:
        monkeypatch.setattr("klda.server.service.Service.quality", fail)
        for path in ("/", "/quality", "/classes", "/classes/map", "/import/0123"):
            sent = client.get(path, follow_redirects=False)
            assert (sent.status_code, sent.headers["Location"]) == (303, "/login")
        assert client.get(f"{page.STATIC_URL}/page.css").status_code == 200


def test_a_host_header_that_looks_like_a_path_opens_nothing(features_model):
    with serving(features_model, keys=KEYS) as client:
        for host in ("x/foo?", "x/v1/health?"):
            answer = client.post("/v1/learn", json={}, headers={"Host": host})
            assert answer.status_code in (400, 401)


def test_nothing_is_parsed_for_those_who_have_no_key(features_model, monkeypatch):
    def fail(*args, **options):
        raise AssertionError("parsed")

    headers = {"Content-Type": "application/json"}
    with serving(features_model, keys=KEYS) as client:
        monkeypatch.setattr("starlette.requests.Request.json", fail)
        monkeypatch.setattr("starlette.requests.Request.form", fail)
        for path in ("learn", "predict", "forget", "undo", "rename", "explain"):
            for content in (b"{", b'{"features": [' + b"[]," * 9 + b"[]]}"):
                answer = client.post(f"/v1/{path}", content=content, headers=headers)
                assert answer.status_code == 401
        for path in ("ask", "teach", "why", "upload", "rename", "forget", "undo"):
            assert client.post(f"/page/{path}", data={"value": "x"}).status_code == 401
        assert client.post("/v1/learn", content=b"{", headers=bearer(ASK)).status_code == 403
        assert client.post("/login", data={"key": "x" * 5000}).status_code == 413


def test_the_rate_is_limited_by_client(features_model, monkeypatch):
    monkeypatch.setattr("klda.server.gate.BURST", 3)
    with serving(features_model, keys=KEYS, rate=0.001) as client:
        ask = [client.get("/v1/model", headers=bearer(ASK)) for _ in range(5)]
        assert [a.status_code for a in ask] == [200, 200, 200, 429, 429]
        assert ask[-1].json()["error"]["code"] == "rate"
        assert ask[-1].headers["Retry-After"]
        assert client.get("/v1/model", headers=bearer(TEACH)).status_code == 200
        # Guessing keys counts by address, not by the key that is guessed.
        guesses = [client.get("/v1/model", headers=bearer(f"guess{i}" * 4)) for i in range(5)]
        assert [g.status_code for g in guesses] == [401, 401, 401, 429, 429]
        assert client.get("/v1/health").status_code == 200


def test_people_behind_a_proxy_do_not_share_a_limit_once_they_signed_in(
    features_model, monkeypatch
):
    monkeypatch.setattr("klda.server.gate.BURST", 3)
    with serving(features_model, keys=KEYS, rate=0.001) as client:
        for _ in range(2):
            client.post("/login", data={"key": ASK}, follow_redirects=False)
            shown = [client.get("/page/classes").status_code for _ in range(4)]
            assert shown == [200, 200, 200, 429]
            client.cookies.clear()
        client.cookies.set("klda_session", "made up")
        found = [client.get("/page/classes").status_code for _ in range(2)]
        assert found == [401, 429]  # by address, with the two that signed in


# ------------------------------------------------------------------ other sites' pages


def test_requests_of_other_sites_pages_are_refused(client):
    body = {"features": X, "labels": ["ants"] * 2}
    for origin in ("http://evil.example", "null", "http://127.0.0.1:9999"):
        answer = client.post("/v1/learn", json=body, headers={"Origin": origin})
        assert answer.status_code == 403
    own = client.post("/v1/learn", json=body, headers={"Origin": "http://127.0.0.1:8000"})
    assert own.status_code == 200
    assert client.get("/v1/model").json()["samples"] == 122


def test_an_open_service_answers_for_loopback_names_only(client):
    for host in ("evil.example", "127.0.0.1.evil.example:8000", ""):
        assert client.get("/v1/model", headers={"Host": host}).status_code == 403
    for host in ("localhost:8000", "127.0.0.1", "[::1]:8000"):
        assert client.get("/v1/model", headers={"Host": host}).status_code == 200


def test_health_is_told_whatever_the_service_is_called(features_model):
    with serving(features_model, allowed_hosts=("bot.example",)) as client:
        assert client.get("/v1/health").status_code == 200
        assert client.get("/v1/model").status_code == 403
        assert client.get("/v1/model", headers={"Host": "bot.example"}).status_code == 200


@pytest.mark.parametrize("host, name", [("127.0.0.2", "127.0.0.2:80"), ("0::1", "[0::1]")])
def test_an_open_service_answers_for_the_address_it_listens_on(features_model, host, name):
    with serving(features_model, host=host) as client:
        assert client.get("/v1/model", headers={"Host": name}).status_code == 200
        assert client.get("/v1/model", headers={"Host": "evil.example"}).status_code == 403


def test_security_headers_are_on_every_answer(client):
    for path in ("/", "/v1/model", "/nothing", f"{page.STATIC_URL}/page.css"):
        headers = client.get(path).headers
        assert "default-src 'none'" in headers["Content-Security-Policy"]
        assert "unsafe" not in headers["Content-Security-Policy"]
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert headers["X-Frame-Options"] == "DENY"
        assert headers["X-Request-Id"]
        assert "Access-Control-Allow-Origin" not in headers
        assert "server" not in headers
    preflight = client.options("/v1/learn", headers={"Access-Control-Request-Method": "POST"})
    assert preflight.status_code == 405


def test_pages_are_compressed_and_browsers_keep_what_never_changes(client):
    for path in ("/", f"{page.STATIC_URL}/page.js"):
        assert client.get(path).headers["Content-Encoding"] == "gzip"
    assert "immutable" in client.get(f"{page.STATIC_URL}/page.css").headers["Cache-Control"]
    assert page.STATIC_URL in client.get("/").text
    for path in ("/", "/v1/model", f"{page.STATIC_URL}/nothing.css"):
        assert client.get(path).headers["Cache-Control"] == "no-store"


def test_an_unforeseen_error_tells_nothing(client, monkeypatch):
    def fail(*args):
        raise ZeroDivisionError("secret detail")

    monkeypatch.setattr("klda.server.snapshot.Snapshot.search", fail)
    answer = client.get("/v1/classes")
    assert answer.status_code == 500
    assert answer.json()["error"]["code"] == "internal"
    assert "secret" not in answer.text


def test_a_full_disk_is_said_without_a_path(client, monkeypatch, features_model):
    def full(self, *args):
        raise JournalError(f"No space left on {features_model}")

    monkeypatch.setattr("klda.server.journal.Journal.add", full)
    answer = client.post("/v1/learn", json={"features": X, "labels": ["ants"] * 2})
    assert answer.status_code == 503
    assert str(features_model) not in answer.text
    monkeypatch.undo()
    again = client.post("/v1/learn", json={"features": X, "labels": ["ants"] * 2})
    assert again.status_code == 200


def test_the_api_document_has_examples_and_limits(client):
    document = client.get("/v1/openapi.json").json()
    assert {"/v1/learn", "/v1/predict", "/v1/forget", "/v1/explain"} <= set(document["paths"])
    for name in ("LearnBody", "PredictBody", "ForgetBody", "ExplainBody", "RenameBody"):
        assert document["components"]["schemas"][name]["examples"]
    assert not [path for path in document["paths"] if not path.startswith("/v1/")]


def test_the_api_document_describes_every_field(client):
    document = client.get("/v1/openapi.json").json()
    fields = [
        ((name, field), described)
        for name, schema in document["components"]["schemas"].items()
        for field, described in schema.get("properties", {}).items()
    ]
    fields += [
        ((path, parameter["name"]), parameter)
        for path, methods in document["paths"].items()
        for method in methods.values()
        for parameter in method.get("parameters", ())
    ]
    assert [place for place, one in fields if "description" not in one] == []


def test_a_prediction_says_what_it_amounts_to(client, tmp_path):
    def verdicts(client, rows):
        answers = client.post("/v1/predict", json={"features": rows}).json()["predictions"]
        return [(answer["verdict"], answer["known"]) for answer in answers]

    body = {"features": rows("ants", 40, seed=5), "labels": ["emmets"] * 40}  # the same as ants
    client.post("/v1/learn", json=body)
    asked = [[3.0] * 8, [0.0] * 8, unlike_anything(client)]
    assert verdicts(client, asked) == [("sure", True), ("not_sure", True), ("new", False)]
    with serving(tmp_path / "new", new="features") as alone:
        alone.post("/v1/learn", json={"features": rows("ants", 3), "labels": ["ants"] * 3})
        assert verdicts(alone, asked[:1]) == [("one_class", None)]


def test_classes_come_in_pages(client):
    page = client.get("/v1/classes?offset=1&limit=1").json()
    assert page == {"classes": [{"label": "bees", "samples": 40}], "total": 3}


@pytest.mark.parametrize(
    "headers, asks, teaches",
    [
        ({"Authorization": "Basic abc"}, 401, 401),
        (bearer(""), 401, 401),
        ({"X-API-Key": ASK}, 200, 403),
        (bearer(TEACH), 200, 200),
        ({"X-API-Key": TEACH}, 200, 200),
    ],
)
def test_roles(features_model, headers, asks, teaches):
    learn = {"features": X, "labels": ["ants"] * 2}
    tune = {"known": {"features": X}, "unknown": {"features": rows("z", 2)}}
    with serving(features_model, keys=KEYS) as client:
        ask = client.post("/v1/predict", json={"features": X}, headers=headers)
        assert ask.status_code == asks
        for path, body in (("learn", learn), ("tune-unknown", tune), ("expire-undo", {})):
            answer = client.post(f"/v1/{path}", json=body, headers=headers)
            assert answer.status_code == teaches
        if asks == 401:
            assert ask.headers["WWW-Authenticate"] == "Bearer"
