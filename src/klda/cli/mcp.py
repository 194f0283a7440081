"""``klda mcp``: a model as tools of the Model Context Protocol, for assistants and agents."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any

import typer

from klda.cli import options
from klda.cli.options import option
from klda.errors import KldaError, require
from klda.labels import closest

BUSY = 30.0  # seconds that a change waits for another writer of the folder
ABOUT = (
    "A text classifier that learns while it is used. Ask with `classify`; if an answer is wrong or "
    "`known` is false and you know the right class, `teach` it. Classes can be added at any time."
)


def mcp(
    model: Annotated[
        Path | None, option("Folder of the model.", "--model", "-m", metavar="FOLDER")
    ] = None,
    new: Annotated[
        str | None,
        option("Start a new model with this foundation model if there is none.", metavar="NAME"),
    ] = None,
    server: options.Server = None,
    key: options.Key = None,
    read_only: Annotated[bool, option("Offer no tools that change it.", "--read-only")] = False,
) -> None:
    """Offer a model to an AI agent, as tools of the Model Context Protocol.

    The tools are classify, classes, teach, declare, forget and undo. They are offered over standard
    input and output, which is how assistants start local tools. A change is on disk when its tool
    returns.

    **klda mcp --model** bot/

    **klda mcp --model** new-bot/ **--new** minilm

    **klda mcp --server** http://127.0.0.1:8000 **--read-only**
    """
    if (model is None) == (server is None):
        raise typer.BadParameter("Give either --model or --server.")
    if new is not None and model is None:
        raise typer.BadParameter("--new goes with --model.")
    require("mcp", "mcp")
    place: Any = _Folder(model, new) if model is not None else _service(str(server), key)
    make_server(place, read_only=read_only).run("stdio")


class _Folder:
    """A model in a folder, which other programs may change, too."""

    def __init__(self, path: Path, new: str | None) -> None:
        from klda.learner import Learner
        from klda.storage import folder

        self._path, self._folder = path, folder
        self._learner = Learner.load(path) if new is None or folder.exists(path) else Learner(new)
        self._seen = self._now()
        if self._learner.modality != "text":
            raise KldaError(f"The model in {path} takes {self._learner.modality}s, not texts.")

    def _now(self) -> Any:
        document = self._path / self._folder.DOCUMENT
        return document.stat().st_mtime_ns if document.exists() else None

    def current(self) -> Any:
        """Return the learner, loaded again if the folder has changed."""
        from klda.learner import Learner

        now = self._now()
        if now != self._seen:
            self._learner = Learner.load(self._path, model=self._learner.encoder)
            self._seen = now
        return self._learner

    @contextmanager
    def change(self) -> Iterator[Any]:
        """Yield a copy of the learner, and save it once it has changed."""
        with self._folder.writer_lock(self._path, timeout=BUSY):
            changed = self.current().copy()
            yield changed
            changed.save(self._path)
            self._learner, self._seen = changed, self._now()


def _service(url: str, key: str | None) -> Any:
    """Return a running ``klda serve``, which keeps the changes of its client."""
    from klda.server.client import Client

    client = Client(url, key=key)
    if client.modality != "text":
        raise KldaError(f"The model at {url} takes {client.modality}s, not texts.")
    return SimpleNamespace(current=lambda: client, change=lambda: nullcontext(client))


def make_server(place: Any, *, read_only: bool = False) -> Any:
    """Return an MCP server of the tools for a model."""
    from mcp.server import MCPServer
    from mcp.server.mcpserver.exceptions import ToolError
    from mcp.types import ToolAnnotations

    from klda.version import __version__

    def reporting(function: Callable) -> Callable:
        @functools.wraps(function)
        def call(*given: Any, **named: Any) -> Any:
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # standard output belongs to the protocol
                    return function(*given, **named)
            except (KldaError, OSError) as error:
                raise ToolError(str(error)) from error

        return call

    found = MCPServer("klda", instructions=ABOUT, version=__version__)
    asks, changes = _asking(place), () if read_only else _changing(place)
    for tool in asks:
        found.add_tool(reporting(tool), annotations=ToolAnnotations(read_only_hint=True))
    for tool in changes:
        hint = ToolAnnotations(destructive_hint=tool.__name__ == "forget")
        found.add_tool(reporting(tool), annotations=hint)
    return found


def _asking(place: Any) -> Sequence[Callable]:
    def classify(texts: list[str], top: int = 3) -> list[dict[str, Any]]:
        """Classify texts.

        For each text: `label`, the likeliest class; `known`, false if the text is unlike anything
        learned, so that the label means little; and the `top` classes with their probabilities.
        """
        answers = place.current().answer(texts, top=top)
        return [
            {
                "text": text,
                "label": answer.top[0][0],
                "known": answer.known,
                "classes": [{"label": label, "probability": p} for label, p in answer.top],
            }
            for text, answer in zip(texts, answers, strict=True)
        ]

    def classes() -> dict[str, int]:
        """List the classes, with the number of examples that each was taught."""
        return {str(label): count for label, count in place.current().classes.items()}

    return classify, classes


def _changing(place: Any) -> Sequence[Callable]:
    def teach(texts: list[str], labels: list[str]) -> dict[str, Any]:
        """Learn texts, with one label for each. A label that is not a class yet becomes one.

        Call `classes` first, and use the names it lists: another spelling would be another class.
        """
        with place.change() as model:
            before = model.classes
            model.learn(texts, labels)
            added = [label for label in dict.fromkeys(labels) if label not in before]
        alike = {label: close for label in added if (close := closest(label, before)) is not None}
        done = {"learned": len(texts), "new_classes": added}
        return done | ({"looks_like_existing": alike} if alike else {})

    def declare(classes: dict[str, str | None]) -> dict[str, Any]:
        """Add classes by name, without examples: each name with a short description, or null."""
        with place.change() as model:
            model.declare(classes)
            return {"classes": len(model.classes)}

    def forget(labels: list[str], texts: list[str] | None = None) -> dict[str, Any]:
        """Forget whole classes; or, if `texts` are given, these examples, with one label each."""
        with place.change() as model:
            model.forget(labels, texts)
            return {"classes": len(model.classes)}

    def undo(number: int | None = None) -> dict[str, Any]:
        """Take back the last change, or the one with this number in the model's history."""
        with place.change() as model:
            undone = model.undo(number)
            done = {"undone": undone["action"]} if isinstance(undone, dict) else {}
            return done | {"classes": len(model.classes)}

    return teach, declare, forget, undo
