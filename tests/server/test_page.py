from __future__ import annotations

import re

import pytest

from klda.server.errors import ServiceError
from klda.server.pasted import read_rows
from klda.server.pictures import chart

from .conftest import ASK, CENTRES, KEYS, TEACH, rows, serving

EVIL = "<img src=x onerror=alert(1)>"


def numbers(label, seed=0):
    return ", ".join(str(value) for value in rows(label, 1, seed)[0])


def test_the_page_shows_the_classes(client):
    text = client.get("/").text
    for label in CENTRES:
        assert label in text
    assert "<strong>3</strong> classes" in text
    assert "http://" not in text.replace("http://www.w3.org", "")
    assert "https://" not in text


def test_everything_shown_is_escaped(client):
    client.post("/v1/learn", json={"features": rows("dogs", 3), "labels": [EVIL] * 3})
    pages = [
        client.get(path).text for path in ("/", "/page/classes", "/page/overview", "/page/map")
    ]
    pages.append(client.post("/page/ask", data={"value": numbers("dogs")}).text)
    pages.append(client.post("/page/forget", data={"label": EVIL}).text)
    pages.append(client.post("/page/rename", data={"old": EVIL, "new": "x"}).text)
    for text in pages:
        assert "<img src=x" not in text
    assert "&lt;img src=x" in pages[0]


def test_ask_correct_and_confirm(client):
    answer = client.post("/page/ask", data={"value": numbers("ants")})
    assert re.search(r'id="verdict">\s*ants', answer.text)
    corrected = client.post("/page/teach", data={"value": numbers("dogs"), "label": "dogs"})
    assert "A new class" in corrected.text
    assert corrected.headers["HX-Trigger"] == "model-changed"
    right = {"value": numbers("ants", 3), "label": "ants", "said": "ants"}
    assert "Confirmed" in client.post("/page/teach", data=right).text
    assert client.get("/v1/classes").json()["total"] == 4
    assert "sample" in client.get("/page/scores").text


def test_forget_offers_an_undo(client):
    gone = client.post("/page/forget", data={"label": "bees"}).text
    number = re.search(r'name="number" value="(\d+)"', gone)[1]
    assert "bees" not in client.get("/page/classes").text
    client.post("/page/undo", data={"number": number})
    assert "bees" in client.get("/page/classes").text


@pytest.mark.parametrize(
    "path, data",
    [
        ("/page/ask", {"value": ""}),
        ("/page/ask", {"value": "not numbers"}),
        ("/page/ask", {"value": "1, nan"}),
        ("/page/ask", {"value": "1, 2"}),
        ("/page/teach", {"value": numbers("ants"), "label": " "}),
        ("/page/forget", {"label": "nobody"}),
        ("/page/rename", {"old": "ants", "new": "bees"}),
        ("/page/undo", {"number": "17"}),
        ("/page/upload", {"rows": "a,b"}),
    ],
)
def test_errors_are_shown_on_the_page(client, path, data):
    answer = client.post(path, data=data)
    assert 400 <= answer.status_code < 500
    assert 'class="message error"' in answer.text
    assert answer.headers["Content-Type"].startswith("text/html")


def test_signing_in(features_model):
    with serving(features_model, keys=KEYS) as client:
        assert client.get("/", follow_redirects=False).headers["Location"] == "/login"
        assert client.post("/page/ask", data={"value": "1"}).status_code == 401
        assert client.post("/login", data={"key": "wrong"}).status_code == 401
        signed = client.post("/login", data={"key": ASK}, follow_redirects=False)
        cookie = signed.headers["Set-Cookie"]
        assert "HttpOnly" in cookie
        assert "SameSite=strict" in cookie
        assert ASK not in cookie
        page = client.get("/").text
        assert "Sign out" in page
        assert "Forget" not in page
        assert client.post("/page/ask", data={"value": numbers("ants")}).status_code == 200
        assert client.post("/page/forget", data={"label": "ants"}).status_code == 403
        client.post("/logout")
        assert client.get("/", follow_redirects=False).status_code == 303
        client.post("/login", data={"key": TEACH})
        assert client.post("/page/forget", data={"label": "ants"}).status_code == 200


@pytest.mark.parametrize(
    "content, expected",
    [
        ("text,label\nhello,a\nbye,b\n", (["hello", "bye"], ["a", "b"])),
        ("label\ttext\na\thello, you\n", (["hello, you"], ["a"])),
        ("intent;utterance\r\na;hi\r\n\r\nb;yo\r\n", (["hi", "yo"], ["a", "b"])),
        ('"a, b",x\n"say ""hi""",y', (["a, b", 'say "hi"'], ["x", "y"])),
        ("\ufefftext,label\nmany\u00e9,a", (["manyé"], ["a"])),
        ("id,text,label\n1,hello,a", (["hello"], ["a"])),
    ],
)
def test_tables_are_read_as_people_paste_them(content, expected):
    assert read_rows(content) == expected


@pytest.mark.parametrize(
    "content, message",
    [
        ("", "nothing"),
        ("text,label\n", "no row"),
        ("just one column\nmore", "1 columns"),
        ("text,label\nhello,\n", "Line 2 has no label"),
        ("text,label\n,a\n", "Line 2 has no text"),
        ("text,label\nhello," + "x" * 201, "Line 2"),
    ],
)
def test_tables_that_can_not_be_read_say_where(content, message):
    with pytest.raises(ServiceError, match=message):
        read_rows(content)


def test_the_chart_follows_the_latest_answers():
    drawn = chart([(0.0, 0, 10, 2), (1.0, 30, 0, 0)])
    assert drawn.share == 0.75
    assert (drawn.asked, drawn.new) == (40, 2)
    heights = [float(point.split(",")[1]) for point in drawn.points.split()]
    assert heights[0] == 40.0
    assert heights[-1] == 0.0
    assert chart([]).share is None


def test_a_table_is_taught_with_progress(text_model):
    with serving(text_model) as client:
        table = "text,label\n" + "\n".join(f"bring me sandwich number {i},lunch" for i in range(70))
        files = {"file": ("t.csv", table.encode(), "text/csv")}
        begun = client.post("/page/upload", files=files).text
        job = re.search(r"/page/upload/(\w+)", begun)[1]
        for _ in range(600):
            text = client.get(f"/page/upload/{job}").text
            if "Taught 70 rows" in text:
                break
        assert "1 new class" in text
        assert client.get("/v1/classes?search=lunch").json()["classes"][0]["samples"] == 70
