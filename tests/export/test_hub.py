"""Models on the hub: a local server speaks as much of its protocol as the client needs."""

from __future__ import annotations

import base64
import hashlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

import numpy as np
import pytest

from klda import Learner
from klda.errors import KldaError

pytest.importorskip("huggingface_hub", reason='needs the extra: pip install "klda[hub]"')
NAME = "me/tickets"


class Hub(BaseHTTPRequestHandler):
    """Keeps the files of one repository; every file is sent as it is, none by LFS."""

    files: dict[str, bytes]
    made: dict[str, object]  # how the repository was asked for

    def log_message(self, *_):
        """Say nothing."""

    def send(self, body=b"", status=200, **headers):
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        for key, value in ({"Content-Length": str(len(content))} | headers).items():
            self.send_header(key.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    @property
    def address(self):
        return f"http://127.0.0.1:{self.server.server_port}/{NAME}"

    @property
    def commit(self):
        return hashlib.sha1(repr(sorted(type(self).files.items())).encode()).hexdigest()

    def do_GET(self):
        path, files = unquote(urlsplit(self.path).path), type(self).files
        if path.startswith(f"/{NAME}/resolve/"):
            content = files[path.split("/", 5)[5]]
            etag = f'"{hashlib.sha1(content).hexdigest()}"'
            return self.send(content, ETag=etag, X_Repo_Commit=self.commit)
        if path.startswith(f"/api/models/{NAME}/tree"):
            tree = [
                {"type": "file", "path": name, "size": len(content), "oid": "0" * 40}
                for name, content in files.items()
            ]
            return self.send(tree)
        if path.startswith(f"/api/models/{NAME}"):
            siblings = [{"rfilename": name} for name in files]
            return self.send({"id": NAME, "sha": self.commit, "siblings": siblings})
        return self.send({"error": "Repository not found"}, 404, X_Error_Code="RepoNotFound")

    do_HEAD = do_GET  # noqa: N815

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.path == "/api/repos/create":
            type(self).made = json.loads(body)
            return self.send({"url": self.address, "name": NAME})
        if "/preupload/" in self.path:
            wanted = json.loads(body)["files"]
            told = {"uploadMode": "regular", "shouldIgnore": False, "oid": None}
            files = [told | {"path": each["path"]} for each in wanted]
            return self.send({"files": files})
        if self.path == "/api/validate-yaml":
            return self.send({"errors": [], "warnings": []})
        for line in map(json.loads, body.splitlines()):
            value = line["value"]
            if line["key"] == "file":
                type(self).files[value["path"]] = base64.b64decode(value["content"])
            elif line["key"] == "deletedFile":
                del type(self).files[value["path"]]
        url = f"{self.address}/commit/{self.commit}"
        return self.send({"commitUrl": url, "commitOid": self.commit, "pullRequestUrl": None})


@pytest.fixture
def hub(monkeypatch, tmp_path):
    """A hub with no files, which the client takes for the real one."""
    kind = type("OneHub", (Hub,), {"files": {}, "made": {}})
    server = ThreadingHTTPServer(("127.0.0.1", 0), kind)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{server.server_port}"
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", address)
    monkeypatch.setattr(
        "huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE",
        address + "/{repo_id}/resolve/{revision}/{filename}",
    )
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_XET", True)
    monkeypatch.setattr("klda.export.hub.default_cache_folder", lambda: tmp_path / "cache")
    monkeypatch.setenv("HF_TOKEN", "hf_test")
    yield kind
    server.shutdown()
    server.server_close()


def taught(labels="ab"):
    rng = np.random.default_rng(0)
    learner = Learner("features")
    for at, label in enumerate(labels):
        learner.learn(rng.normal(size=(20, 8)).astype(np.float32) + 3 * np.eye(8)[at], [label] * 20)
    return learner


def test_what_is_pushed_is_what_is_loaded(hub):
    learner = taught()
    assert f"/{NAME}/commit/" in learner.push_to_hub(NAME)
    # Releases of the client before 2 send the first, later ones the second.
    assert hub.made.get("private") is True or hub.made.get("visibility") == "private"
    again = Learner.from_pretrained(NAME)
    rows = np.random.default_rng(1).normal(size=(30, 8)).astype(np.float32)
    np.testing.assert_array_equal(again.predict_proba(rows), learner.predict_proba(rows))
    again.learn(rows[:2], ["c", "c"])
    assert again.classes == {"a": 20, "b": 20, "c": 2}


def test_a_second_push_replaces_the_first(hub):
    taught().push_to_hub(NAME)
    before = set(hub.files)
    taught("abc").push_to_hub(NAME)
    assert Learner.from_pretrained(NAME).classes == {"a": 20, "b": 20, "c": 20}
    named = {file["name"] for file in json.loads(hub.files["model.json"])["files"]}
    assert {name for name in hub.files if name.endswith(".safetensors")} == named
    assert before - set(hub.files)


def test_the_card_says_what_is_in_the_model(hub):
    taught().push_to_hub(NAME)
    card = hub.files["README.md"].decode()
    assert "2 classes from 40 examples" in card
    assert "| a | 20 |" in card
    assert "One row of numbers (features) per example" in card
    assert f'Learner.from_pretrained("{NAME}")' in card


def test_a_folder_is_loaded_as_it_is(tmp_path):
    taught().save(tmp_path / "m")
    assert Learner.from_pretrained(tmp_path / "m").classes == {"a": 20, "b": 20}


@pytest.mark.parametrize("name", ["nothing here", "a/b/c", "tickets"])
def test_a_name_that_is_none_is_refused(name):
    with pytest.raises(KldaError, match="neither a model folder nor a name"):
        Learner.from_pretrained(name)


def test_a_model_that_is_not_there_is_said(hub):
    with pytest.raises(KldaError, match=r"'me/other' could not be downloaded: .*Learner\.load"):
        Learner.from_pretrained("me/other")


def test_without_a_connection_the_error_says_what_to_do(monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    with pytest.raises(KldaError, match="Check the connection"):
        taught().push_to_hub(NAME)
    with pytest.raises(KldaError, match="Check the connection"):
        Learner.from_pretrained(NAME)
