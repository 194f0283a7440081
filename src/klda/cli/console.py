"""Where output goes: results to standard output, everything else to standard error."""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
import signal
import sys
import textwrap
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from klda.errors import KldaError
from klda.messages import counted

WIDEST_FIGURE = 24  # characters, as "91.2 (90.1 to 92.3)"
_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f]")  # all but the tab and the line's end


def results(stream: TextIO | None = None) -> Console:
    """Return a console for results; a new one sees a redirected standard output."""
    return Console(highlight=False, file=stream)


def say(text: str) -> None:
    """Tell the user something, on standard error; above a progress bar if there is one."""
    sys.stderr.write(_wrapped(visible(text)) + "\n")


def complain(text: str) -> None:
    """Report an error, on standard error."""
    console = Console(stderr=True, highlight=False)
    said = _wrapped(f"Error: {visible(text)}").removeprefix("Error:")
    console.print(Text.assemble(("Error:", "bold red"), said), soft_wrap=True)


def _wrapped(text: str) -> str:
    """Break lines between words on a terminal; elsewhere a line is one."""
    if not sys.stderr.isatty():
        return text
    width = shutil.get_terminal_size().columns
    how: Any = {"break_long_words": False, "break_on_hyphens": False}
    return "\n".join(textwrap.fill(line, width, **how) for line in text.splitlines())


def notes_to(say: Callable[[str], None]) -> None:
    """Let a function say what readers of files note, each thing once."""
    log, said = logging.getLogger("klda.data"), set[str]()

    class Notes(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            text = record.getMessage()
            if text not in said:
                said.add(text)
                say(text)

    log.handlers = [Notes()]
    log.setLevel(logging.INFO)


def knowledge(classes: int, samples: int) -> str:
    """Return what a model knows, as ``"2 classes from 1 sample"``."""
    return f"{counted(classes, 'class')} from {counted(samples, 'sample')}"


def table(
    *columns: str, rows: Sequence[Sequence[Any]], most: int | None = None, all_by: str = "--json"
) -> RichTable:
    """Return a table without lines, with numbers to the right.

    Of more than `most` rows it has the first, and says which option shows all.
    """
    made = RichTable(box=None, caption_justify="left", pad_edge=False)
    if most is not None and len(rows) > most:
        made.caption = f"{most} of {len(rows):,}; see all with {all_by}"
    for i, name in enumerate(columns):
        is_number = are_figures(str(row[i]) for row in rows[:most])
        made.add_column(
            name, justify="right" if is_number else "left", no_wrap=is_number, overflow="fold"
        )
    for row in rows[:most]:  # as texts: a name may look like markup
        made.add_row(
            *(cell if isinstance(cell, Text) else Text(visible(str(cell))) for cell in row)
        )
    return made


def are_figures(cells: Iterable[str]) -> bool:
    """Whether most cells of a column are figures, such as a mean and its spread, not words."""
    some = [cell for cell in cells if cell not in ("", "-")]
    figures = (c.lstrip("+-")[:1].isdigit() and len(c) < WIDEST_FIGURE for c in some)
    return 2 * sum(figures) >= len(some)


def print_parts(parts: Iterable[Any]) -> None:
    """Print tables and texts on standard output, with an empty line between them."""
    console = results()
    for i, part in enumerate(parts):
        if i:
            console.print()
        console.print(part)


def print_json(value: Any) -> None:
    """Print one JSON object on standard output."""
    sys.stdout.write(printable(json.dumps(value, ensure_ascii=False, indent=2)) + "\n")


def report(as_json: bool, values: dict[str, Any], *sentences: str) -> None:
    """Tell what a command did: as a JSON object on standard output, or in sentences."""
    if as_json:
        print_json(values)
        return
    for sentence in sentences:
        say(sentence)


def printable(text: str) -> str:
    """Escape what UTF-8 can't write: parts of file names that are not UTF-8."""
    return text.encode(errors="backslashreplace").decode()


def visible(text: str) -> str:
    """Escape also what controls a terminal: labels of older models and file names may hold it."""
    return _CONTROLS.sub(lambda found: repr(found[0])[1:-1], printable(text))


@contextmanager
def interrupts_ignored() -> Iterator[None]:
    """Ignore Ctrl-C while a model is saved, and from then on until the process ends.

    An interrupt after the save would leave the model changed by a command that says it was
    interrupted.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    except BaseException:
        signal.signal(signal.SIGINT, previous)
        raise


@contextmanager
def open_output(path: Path | None) -> Iterator[TextIO]:
    """Open standard output, or a text file that appears when it is complete."""
    if path is None:
        yield sys.stdout
        return
    with replaced(path) as partial, partial.open("w", encoding="utf-8", newline="") as file:
        yield file


@contextmanager
def replaced(path: Path) -> Iterator[Path]:
    """Yield where to write a file, which appears when it is complete and is then named."""
    if path.is_dir():
        raise KldaError(f"{path} is a folder: name a file to write.")
    done = "Replaced" if path.exists() else "Wrote"
    partial = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        partial.touch()
    except OSError as error:
        raise KldaError(f"{path} can't be written: {error.strerror}.") from error
    try:
        yield partial
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
    say(f"{done} {path}.")
