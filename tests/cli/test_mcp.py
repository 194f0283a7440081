"""``klda mcp``, asked by the protocol's own client over standard input and output."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys

import pytest

mcp = pytest.importorskip("mcp")

from klda import Learner  # noqa: E402

CARD, RAIN = "where is my card?", "will it rain tomorrow?"


def session(options, talk):
    """Start ``klda mcp`` and let `talk`, an async function of a client, use it."""
    command = mcp.StdioServerParameters(
        command=sys.executable, args=["-m", "klda", "mcp", *map(str, options)], env=dict(os.environ)
    )

    async def run():
        async with mcp.Client(command) as client:
            return await talk(client)

    return asyncio.run(asyncio.wait_for(run(), 120))


async def call(client, tool, **arguments):
    done = await client.call_tool(tool, arguments)
    if done.is_error:
        raise RuntimeError(done.content[0].text)
    content = done.structured_content
    return content["result"] if set(content) == {"result"} else content


async def teach_and_ask(client):
    done = await call(client, "teach", texts=[CARD, RAIN], labels=["card", "weather"])
    assert done == {"learned": 2, "new_classes": ["card", "weather"]}
    await call(client, "declare", classes={"refund": "the customer wants money back"})
    assert await call(client, "classes") == {"card": 1, "refund": 0, "weather": 1}
    (answer,) = await call(client, "classify", texts=["is my card here?"], top=2)
    assert answer["label"] == "card"
    assert [each["label"] for each in answer["classes"]][:1] == ["card"]
    assert 0 < answer["classes"][0]["probability"] <= 1
    done = await call(client, "teach", texts=["a card"], labels=["Card"])
    assert done["looks_like_existing"] == {"Card": "card"}
    await call(client, "forget", labels=["Card"])
    await call(client, "forget", labels=["card"], texts=[CARD])
    with pytest.raises(RuntimeError, match="nosuch"):
        await call(client, "forget", labels=["nosuch"])
    return await call(client, "classes")


def test_an_agent_teaches_and_asks_a_model_folder(tmp_path):
    left = session(["--model", tmp_path / "bot", "--new", "ngrams"], teach_and_ask)
    assert left == {"refund": 0, "weather": 1} == Learner.load(tmp_path / "bot").classes


def test_an_agent_takes_changes_back(tmp_path):
    async def talk(client):
        await call(client, "teach", texts=[CARD, RAIN], labels=["card", "weather"])
        await call(client, "teach", texts=["a mistake"], labels=["oops"])
        await call(client, "forget", labels=["card"])
        undone = [(await call(client, "undo"))["undone"] for _ in range(2)]
        return undone, await call(client, "classes")

    undone, left = session(["--model", tmp_path / "bot", "--new", "ngrams"], talk)
    assert undone == ["forget", "learn"]
    assert left == {"card": 1, "weather": 1} == Learner.load(tmp_path / "bot").classes


def test_an_agent_teaches_and_asks_a_service(tmp_path):
    command = [sys.executable, "-m", "klda", "serve", "--new", "ngrams", "--port", "0"]
    service = subprocess.Popen(
        [*command, "--model", str(tmp_path / "bot")], stderr=subprocess.PIPE, text=True
    )
    try:
        line = next(line for line in service.stderr if "http://" in line)
        url = re.search(r"http://[\d.:]+", line)[0]
        assert session(["--server", url], teach_and_ask) == {"refund": 0, "weather": 1}
    finally:
        service.terminate()
        service.wait(30)


def test_what_others_save_to_the_folder_is_seen(tmp_path):
    folder = tmp_path / "bot"
    Learner("ngrams").learn([CARD, RAIN], ["card", "weather"]).save(folder)

    async def talk(client):
        before = await call(client, "classes")
        Learner.load(folder).learn(["a refund, please"], ["refund"]).save(folder)
        await call(client, "teach", texts=["my card"], labels=["card"])
        return before, await call(client, "classes")

    before, after = session(["--model", folder], talk)
    assert before == {"card": 1, "weather": 1}
    assert after == {"card": 2, "refund": 1, "weather": 1}


def test_read_only_offers_no_tool_that_changes_anything(tmp_path):
    Learner("ngrams").learn([CARD, RAIN], ["card", "weather"]).save(tmp_path / "bot")

    async def talk(client):
        return {tool.name for tool in (await client.list_tools()).tools}

    given = ["--model", tmp_path / "bot"]
    assert session([*given, "--read-only"], talk) == {"classify", "classes"}
    every = {"classify", "classes", "teach", "declare", "forget", "undo"}
    assert session(given, talk) == every


def test_a_model_is_needed_and_only_one(cli, tmp_path):
    for options in ([], ["--model", "a", "--server", "http://127.0.0.1:1"]):
        done = subprocess.run(
            [sys.executable, "-m", "klda", "mcp", *options], capture_output=True, text=True
        )
        assert done.returncode == 2
        assert "Give either --model or --server" in done.stderr
