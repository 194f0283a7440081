"""Where output goes: results to standard output, everything else to standard error."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

from rich.console import Console
from rich.text import Text

from klda.errors import KldaError

messages = Console(stderr=True, highlight=False)


def results() -> Console:
    """Return a console for results; a new one sees a redirected standard output."""
    return Console(highlight=False)


def say(text: str) -> None:
    """Tell the user something, on standard error.

    Parameters
    ----------
    text : str
        Shown as it is; file names and labels need no escaping.
    """
    messages.print(text, markup=False, soft_wrap=True)


def complain(text: str) -> None:
    """Report an error, on standard error.

    Parameters
    ----------
    text : str
        What went wrong and what to do about it.
    """
    messages.print(Text.assemble(("Error:", "bold red"), " ", text), soft_wrap=True)


def counted(number: int, one: str, many: str) -> str:
    """Return a number with what it counts.

    Parameters
    ----------
    number : int
        How many.
    one, many : str
        What one of them is called, and several.

    Returns
    -------
    str
        For instance ``"1 class"`` or ``"1,200 classes"``.
    """
    return f"{number:,} {one if number == 1 else many}"


def print_json(value: Any) -> None:
    """Print one JSON object on standard output.

    Parameters
    ----------
    value : object
        Anything that JSON can hold.
    """
    sys.stdout.write(printable(json.dumps(value, ensure_ascii=False, indent=2)) + "\n")


def printable(text: str) -> str:
    """Escape what UTF-8 can't write: the rest of a file's name that is not UTF-8.

    Parameters
    ----------
    text : str
        Perhaps with halves of surrogate pairs.

    Returns
    -------
    str
        With these as JSON and Python write them.
    """
    return text.encode(errors="backslashreplace").decode()


@contextmanager
def interrupts_ignored() -> Iterator[None]:
    """Ignore Ctrl-C while a model is saved.

    An interrupt between the save and the end of a command would leave the model changed by a
    command that says it was interrupted.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)


@contextmanager
def output(path: Path | None) -> Iterator[TextIO]:
    """Open where results are written: standard output, or a file that appears when complete.

    Parameters
    ----------
    path : Path or None
        The file; None is standard output.

    Yields
    ------
    text file
        To write to.
    """
    if path is None:
        yield sys.stdout
        return
    if path.is_dir():
        raise KldaError(f"--output {path} is a folder: name a file.")
    partial = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        opened = partial.open("w", encoding="utf-8", newline="")
    except OSError as error:
        raise KldaError(f"--output {path} can't be written: {error.strerror}.") from error
    try:
        with opened as file:
            yield file
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
