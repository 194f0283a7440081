"""Clients that never finish a request, too many of them, and slow ones that do."""

from __future__ import annotations

import http.client
import json
import math
import resource
import socket
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from urllib.parse import urlsplit

import pytest

from klda.server.connections import OTHER_FILES, ROUNDS, Connection, Limits
from klda.server.snapshot import Snapshot
from tests.factories import ServiceProcess

from .conftest import KEYS, TEACH, listening, rows

HEALTH = b"GET /v1/health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
HALF_HEADERS = b"GET /v1/health HTTP/1.1\r\nHost: 127"
HALF_BODY = b"POST /v1/predict HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 999\r\n\r\n{"
SECONDS = 30.0  # far more than anything here may take


WAIT = 0.4  # seconds that a client has
IMPATIENT = {"seconds": WAIT}


def connected(address):
    place = urlsplit(address)
    return socket.create_connection((place.hostname, place.port), timeout=SECONDS)


def is_closed(connection):
    """Whether the other end closes a connection, after what it may still send."""
    try:
        while connection.recv(4096):
            pass
    except ConnectionResetError:
        pass
    except TimeoutError:
        return False
    return True


def status(address):
    """What a client is answered that goes on until its request was sent in time."""
    while True:
        client = http.client.HTTPConnection(urlsplit(address).netloc, timeout=SECONDS)
        try:
            client.request("GET", "/v1/health")
            return client.getresponse().status
        except ConnectionError:  # on a busy computer, the request came too late
            continue
        finally:
            client.close()


def answered(connection):
    """The status of the next answer, which is read to its end."""
    response = http.client.HTTPResponse(connection)
    response.begin()
    response.read()
    return response.status


@pytest.mark.parametrize("before", [b"", HEALTH], ids=["first", "second"])
@pytest.mark.parametrize("sent", [b"", b"G", HALF_HEADERS, HALF_BODY])
@pytest.mark.parametrize("keys", [(), KEYS], ids=["open", "keyed"])
def test_a_request_that_is_not_finished_ends_its_connection(features_model, sent, before, keys):
    with (
        listening(features_model, IMPATIENT, keys=keys) as address,
        connected(address) as connection,
    ):
        connection.sendall(before + sent)
        assert is_closed(connection)
        assert status(address) == 200


@pytest.mark.parametrize("sent", [HALF_HEADERS, HALF_BODY])
def test_a_request_that_drips_ends_its_connection(features_model, sent):
    with listening(features_model, IMPATIENT) as address, connected(address) as connection:
        connection.sendall(sent)
        connection.settimeout(0.05)
        until = time.monotonic() + SECONDS
        while time.monotonic() < until:
            try:
                connection.sendall(b" ")
                if not connection.recv(4096):
                    return
            except TimeoutError:
                continue
            except (ConnectionResetError, BrokenPipeError):
                return
        pytest.fail("a byte now and then kept the connection open")


def test_a_large_body_may_take_its_time(features_model):
    body = json.dumps({"features": rows("ants", 20)}).encode()
    limits = {
        "seconds": 2.0,
        "least": 100,
    }  # long beside the pause of a busy computer
    with listening(features_model, limits) as address, connected(address) as connection:
        head = f"POST /v1/predict HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(body)}\r\n"
        connection.sendall(
            f"{head}Connection: close\r\nContent-Type: application/json\r\n\r\n".encode()
        )
        began, step = time.monotonic(), len(body) // 10
        for start in range(0, len(body), step):
            connection.sendall(body[start : start + step])
            time.sleep(0.5)
        assert time.monotonic() - began > 2 * limits["seconds"]
        assert connection.recv(4096).startswith(b"HTTP/1.1 200")


def test_an_answer_may_take_longer_than_a_request(features_model, monkeypatch):
    real = Snapshot.answer

    def slow(*args):
        time.sleep(3 * WAIT)
        return real(*args)

    monkeypatch.setattr(Snapshot, "answer", slow)
    with listening(features_model, IMPATIENT) as address:
        client = http.client.HTTPConnection(urlsplit(address).netloc, timeout=SECONDS)
        for _ in range(2):  # also on a connection that is kept alive
            body, kind = json.dumps({"features": rows("ants", 1)}), "application/json"
            client.request("POST", "/v1/predict", body, {"Content-Type": kind})
            response = client.getresponse()
            response.read()
            assert response.status == 200
        client.close()


def test_the_least_recently_used_connection_makes_room(features_model):
    with listening(features_model, {"connections": 16}) as address, ExitStack() as stack:
        first, *others = [stack.enter_context(connected(address)) for _ in range(16)]
        for one in (first, *others, first):  # once there is an answer, the next may be used
            one.sendall(HEALTH)
            assert answered(one) == 200
        for one in others:
            one.sendall(HALF_HEADERS)
        first.sendall(HEALTH)
        assert answered(first) == 200
        assert status(address) == 200
        assert is_closed(others[0])
        first.sendall(HEALTH)
        assert answered(first) == 200


def test_a_uvicorn_with_other_names_for_its_state_cuts_no_request_off():
    assert Connection.__new__(Connection).has_request()  # no attribute is set


@pytest.mark.skipif(sys.platform == "win32", reason="limits descriptors as POSIX does")
@pytest.mark.parametrize("sent", [HALF_HEADERS, HALF_BODY])
def test_half_sent_requests_do_not_lock_the_service_out(features_model, sent):
    """300 of them, against 256 file descriptors, from someone without a key."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    keys = features_model.parent / "keys"
    keys.write_text(f"teach {TEACH}\n")
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, limits[1]))
    try:
        server = ServiceProcess(features_model, "--keys", str(keys))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    server.wait()
    address = server.address
    try:
        with ExitStack() as stack:
            with ThreadPoolExecutor(16) as rush:
                for connection in rush.map(lambda _: connected(address), range(300)):
                    stack.enter_context(connection)
                    with suppress(ConnectionResetError, BrokenPipeError):  # made room already
                        connection.sendall(sent)
            for _ in range(5):
                assert status(address) == 200
    finally:
        assert server.stop() == 0
    log = server.log()
    assert "Too many open files" not in log
    assert len(log) < 4000


@pytest.mark.parametrize("descriptors", [100, 200, 1000, 10_000, math.inf])
def test_a_rush_leaves_descriptors_for_other_files(descriptors):
    limits = Limits().fitted(descriptors)
    in_a_rush = limits.connections + ROUNDS * (limits.backlog + 1)
    assert in_a_rush + OTHER_FILES <= descriptors
    assert limits.connections >= min(1000, descriptors) / 4


@pytest.mark.skipif(sys.platform == "win32", reason="stops with a POSIX signal")
@pytest.mark.parametrize("sent", [HALF_HEADERS, HALF_BODY])
def test_a_half_sent_request_does_not_delay_a_stop(features_model, sent):
    server = ServiceProcess(features_model)
    server.wait()
    with connected(server.address) as connection:
        connection.sendall(sent)
        time.sleep(0.3)
        began = time.monotonic()
        assert server.stop() == 0
        assert time.monotonic() - began < 20  # Uvicorn would wait for 30 seconds
