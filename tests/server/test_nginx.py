"""The service behind nginx, as packaging/nginx.conf sets it up."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import time
from pathlib import Path

import httpx
import pytest

from klda import Client
from klda.server.errors import ServerError

from .conftest import ASK, CENTRES, KEYS, TEACH, listening, rows, samples, wait_for

CONF = (Path(__file__).resolve().parents[2] / "packaging" / "nginx.conf").read_text()
pytestmark = pytest.mark.skipif(
    not (shutil.which("nginx") and shutil.which("openssl")), reason="needs nginx and openssl"
)


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tls")
    made = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-keyout"]
    made += [folder / "key", "-out", folder / "cert", "-subj", "/CN=localhost"]
    made += ["-addext", "subjectAltName=DNS:localhost"]
    subprocess.run(list(map(str, made)), check=True, capture_output=True)
    return folder


@pytest.fixture
def proxied(certificate, tmp_path, monkeypatch):
    """A function that puts nginx in front of an address, and returns its own."""
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate / "cert"))
    started = []

    def start(address):
        port = free_port()
        site = CONF
        for old, new in {
            "listen 443 ssl": f"listen 127.0.0.1:{port} ssl",
            "klda.example.org": "localhost",
            "/etc/ssl/klda.pem": certificate / "cert",
            "/etc/ssl/klda.key": certificate / "key",
            "http://127.0.0.1:8000": address.rstrip("/"),
        }.items():
            assert old in site
            site = site.replace(old, str(new))
        places = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
        temporary = "".join(f"{name}_temp_path {tmp_path}/{name};" for name in places)
        user = "user root;" if os.geteuid() == 0 else ""  # the worker writes to temporary folders
        frame = f"{user} daemon off; pid {tmp_path}/pid; error_log stderr; events {{}}"
        frame += f"http {{ access_log off; {temporary}\n{site} }}"
        (tmp_path / "nginx.conf").write_text(frame)
        log = (tmp_path / "log").open("w")
        command = ["nginx", "-p", tmp_path, "-c", tmp_path / "nginx.conf", "-e", "stderr"]
        started.append(subprocess.Popen(list(map(str, command)), stderr=log))
        base = f"https://localhost:{port}"

        def answers():
            try:
                return httpx.get(f"{base}/v1/health").status_code
            except httpx.TransportError:
                assert started[-1].poll() is None, (tmp_path / "log").read_text()
                return 0

        wait_for(answers)
        return base

    yield start
    for process in started:
        process.terminate()
        process.wait(20)


@pytest.fixture
def served(features_model, proxied):
    options = {"keys": KEYS, "allowed_hosts": ("localhost",)}
    with listening(features_model, **options) as address:
        yield proxied(address)


def bearer(key):
    return {"Authorization": f"Bearer {key}"}


def test_programs_ask_and_teach(served):
    with Client(served, key=TEACH) as client:
        client.learn(samples("dogs", 600), ["dogs"] * 600)
        assert client.classes == {**dict.fromkeys(CENTRES, 40), "dogs": 600}
        assert client.predict(samples("dogs", 1)).tolist() == ["dogs"]
    with Client(served, key=ASK) as client, pytest.raises(ServerError, match="may ask but not"):
        client.forget("dogs")


def test_a_request_may_be_as_large_as_the_service_takes(served):
    for size, status in ((15 << 20, 422), (17 << 20, 413)):
        answer = httpx.post(f"{served}/v1/learn", content=b"x" * size, headers=bearer(TEACH))
        assert answer.status_code == status


def test_changes_arrive_when_they_are_made(served, monkeypatch):
    monkeypatch.setattr("klda.server.events.STREAM_SECONDS", 60.0)
    monkeypatch.setattr("klda.server.events.KEEP_ALIVE_SECONDS", 30.0)
    with Client(served, key=TEACH) as client:
        states = client.follow()
        began = time.monotonic()
        assert next(states)["classes"] == 3
        client.learn(rows("dogs", 2), ["dogs"] * 2)
        assert next(states)["classes"] == 4
        assert time.monotonic() - began < 20
        states.close()


def test_people_sign_in_and_teach_on_the_page(served):
    with httpx.Client(base_url=served) as browser:
        own = {"Origin": served}
        assert browser.get("/").headers["location"] == "/login"
        answer = browser.post("/login", data={"key": TEACH}, headers=own)
        cookie = answer.headers["set-cookie"]
        assert answer.status_code == 303
        assert "Secure" in cookie
        assert "HttpOnly" in cookie
        assert answer.headers["strict-transport-security"]
        value = " ".join(map(str, rows("bees", 1)[0]))
        asked = browser.post("/page/ask", data={"value": value}, headers=own)
        assert re.search("bees", asked.text)
        foreign = browser.post(
            "/page/ask", data={"value": value}, headers={"Origin": "https://x.org"}
        )
        assert foreign.status_code == 403


def test_a_service_that_is_away_is_said(features_model, proxied):
    with listening(features_model, allowed_hosts=("localhost",)) as address:
        base = proxied(address)
    with Client(base) as client, pytest.raises(ServerError) as caught:
        client.predict(rows("ants", 1))
    assert caught.value.status == 502
