from __future__ import annotations

import asyncio
import json
import logging
import signal
import socket

import pytest
from typer.testing import CliRunner

from klda.cli.app import app as klda
from klda.cli.console import notes_to
from klda.errors import KldaError
from klda.server.run import JsonFormatter, PlainFormatter, configure_logs, listen, serve
from klda.server.settings import ServiceSettings, find_keys, is_loopback, read_keys

from .conftest import serving

GOOD = "k" * 20


def run(monkeypatch, *arguments):
    monkeypatch.setattr("sys.argv", ["klda", "serve", *arguments])
    return CliRunner().invoke(klda, ["serve", *arguments])


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "example.org"])
def test_it_refuses_to_be_open_to_strangers(monkeypatch, features_model, host):
    result = run(monkeypatch, "--model", str(features_model), "--host", host)
    assert result.exit_code == 1
    assert "no API key" in result.output
    ServiceSettings(model=features_model, host=host, keys=read_keys([f"ask {GOOD}"], "")).check()


def test_what_is_loopback():
    assert all(map(is_loopback, ["127.0.0.1", "localhost", "::1", "[::1]", "127.9.9.9"]))
    assert not any(map(is_loopback, ["0.0.0.0", "::", "10.0.0.1", "localhost.evil.example"]))


def test_a_model_folder_that_is_not_there(monkeypatch, tmp_path):
    result = run(monkeypatch, "--model", str(tmp_path / "none"), "--port", "0")
    assert result.exit_code == 1
    assert "There is no model in" in result.output
    assert "Traceback" not in result.output
    assert not (tmp_path / "none").exists()


@pytest.fixture
def own_process(monkeypatch):
    """Leave the signals and the log of the tests alone."""
    monkeypatch.setattr("klda.server.run.configure_logs", lambda quiet: None)
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def test_a_service_whose_server_cannot_start_releases_the_folder(
    monkeypatch, features_model, own_process
):
    async def broken(scope, receive, send):
        raise RuntimeError("on purpose")

    with monkeypatch.context() as patched:
        patched.setattr("klda.server.app.create_app", lambda service: broken)
        with pytest.raises(KldaError, match="could not start"):
            serve(ServiceSettings(model=features_model, port=0), lambda address: None)
    with serving(features_model) as client:
        assert client.get("/v1/health").status_code == 200


def test_a_response_does_not_wait_for_the_acknowledgement_of_the_one_before():
    """TCP_NODELAY is set on every connection, as asyncio does for sockets that are named TCP."""

    async def accepted():
        found = asyncio.get_running_loop().create_future()

        class Protocol(asyncio.Protocol):
            def connection_made(self, transport):
                connection = transport.get_extra_info("socket")
                found.set_result(connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))

        listener = listen("127.0.0.1", 0)
        async with await asyncio.get_running_loop().create_server(Protocol, sock=listener):
            _, writer = await asyncio.open_connection(*listener.getsockname()[:2])
            try:
                return await asyncio.wait_for(found, 20)
            finally:
                writer.close()

    assert asyncio.run(accepted())


def test_keys_come_from_a_file_and_from_the_environment(monkeypatch, tmp_path):
    file = tmp_path / "keys"
    file.write_text(f"# ours\n\nteach {GOOD}\n  ask   {GOOD[::-1]}x\n")
    monkeypatch.setenv("KLDA_ASK_KEYS", "a" * 16 + ", " + "b" * 16)
    assert [key.role for key in find_keys(file)] == ["teach", "ask", "ask", "ask"]
    assert GOOD not in repr(find_keys(file))


@pytest.mark.parametrize("line", [GOOD, f"admin {GOOD}", "teach short", "teach a b"])
def test_bad_keys_are_refused_without_being_repeated(line):
    with pytest.raises(KldaError, match="line 1") as caught:
        read_keys([line], "keys.txt")
    assert GOOD not in str(caught.value)


@pytest.mark.parametrize("quiet, times", [(False, 1), (True, 0)])
def test_notes_of_the_reader_are_logged_once_or_not_at_all(monkeypatch, capfd, quiet, times):
    names = ("klda", "klda.data", "uvicorn", "py.warnings")
    before = {name: vars(logging.getLogger(name)).copy() for name in names}
    notes_to(print)  # as the command line does
    try:
        configure_logs(quiet)
        logging.getLogger("klda.data").info("reads texts")
    finally:
        logging.captureWarnings(False)
        for name, values in before.items():
            vars(logging.getLogger(name)).update(values)
            logging.getLogger(name)._cache.clear()
    said = capfd.readouterr()
    assert (said.out, said.err.count("reads texts")) == ("", times)


def test_logs_are_one_json_object_a_line():
    record = logging.makeLogRecord(
        {"name": "klda.server", "levelname": "INFO", "msg": "request\nx", "status": 200}
    )
    line = JsonFormatter().format(record)
    assert "\n" not in line
    entry = json.loads(line)
    assert (entry["event"], entry["status"], entry["level"]) == ("request\nx", 200, "info")
    assert PlainFormatter().format(record).endswith(" info request\nx status=200")
