"""Messy exports: command line, Python and HTTP find the same classes and counts, or one error."""

from __future__ import annotations

import re
from collections import Counter

import pytest

from klda import Learner
from klda.data import TableError, open_bytes, open_table
from klda.errors import KldaError
from tests.data.exports import make_exports

EXPORTS = make_exports()
LARGE = "fifty thousand"
SAID = "How do I change my PIN?"  # one of the tickets of all others
WORDS = {"input": "--text-column", "label": "--label-column", "encoding": "--encoding"}


def written(export, folder):
    path = folder / export.name
    path.write_bytes(export.content)
    return path


def without_place(message, path):
    """A message as all doors say it, whatever they call the file."""
    return " ".join(message.replace(str(path), path.name).split())


@pytest.mark.parametrize("case", EXPORTS)
def test_the_reader_finds_the_classes_or_says_what_is_wrong(tmp_path, case):
    export = EXPORTS[case]
    layout, path = export.layout, written(export, tmp_path)
    for table in (
        open_table(path, layout=layout),
        open_bytes(export.content, name=export.name, layout=layout),
    ):
        if export.error:
            with pytest.raises(TableError, match=re.escape(export.error)):
                list(table.batches())
            continue
        batches = list(table.batches())
        assert Counter(name for batch in batches for name in batch.labels) == export.classes
        texts = [text for batch in batches for text in batch.inputs]
        assert case == LARGE or any(SAID in text for text in texts)
        if case != LARGE:
            texts = [text for batch in batches for text in batch.inputs]
            assert any("Can I have" in text and "second card" in text for text in texts)
            assert case == "fasttext" or any("Orléans" in text for text in texts)


@pytest.mark.parametrize("case", [case for case in EXPORTS if case != LARGE])
def test_command_line_and_python_agree(cli, tmp_path, case):
    export = EXPORTS[case]
    path, model = written(export, tmp_path), tmp_path / "m"
    asked = export.layout._asdict()
    words = [word for name in WORDS if asked[name] for word in (WORDS[name], asked[name])]
    new = ("--foundation", "ngrams", "--components", 50)
    done = cli("learn", path, "--model", model, *new, *words, code=1 if export.error else 0)
    bot = Learner("ngrams")
    if export.error:
        assert not model.exists()
        with pytest.raises(KldaError) as caught:
            bot.learn(path, text=export.layout.input)
        said = without_place(done.stderr, path).rpartition("Error: ")[2]
        assert said.startswith(without_place(str(caught.value), path))
        return
    assert Learner.load(model).classes == export.classes
    if not export.layout.encoding:
        assert bot.learn(path).classes == export.classes


@pytest.mark.slow
def test_http_agrees(tmp_path):
    pytest.importorskip("fastapi", reason='needs the extra: pip install "klda[server]"')
    from tests.server.conftest import serving

    Learner("ngrams").learn(["hello"], ["greeting"]).save(tmp_path / "m")
    with serving(tmp_path / "m") as client:

        def counts():
            found = client.get("/v1/classes?limit=1000").json()["classes"]
            return Counter({one["label"]: one["samples"] for one in found})

        for case, export in EXPORTS.items():
            if case == LARGE:
                continue
            before, said = counts(), export.layout._asdict() | {"text": export.layout.inputs}
            said = {name: value for name, value in said.items() if value and name != "input"}
            upload = {"file": (export.name, export.content)}
            sent = client.post("/v1/learn-file", files=upload, data=said)
            if export.error:
                assert sent.status_code == 422, case
                assert export.error in sent.json()["error"]["message"], case
            else:
                assert sent.status_code == 200, (case, sent.text)
            assert counts() - before == export.classes, case
