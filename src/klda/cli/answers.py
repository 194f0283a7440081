"""How answers are written: as rows of a table, for people, and with reasons."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TextIO

from rich.text import Text

from klda.cli.console import open_output, printable, replaced, results, table, visible
from klda.data.writing import FILE_WRITERS, TEXT_WRITERS, write_csv, write_jsonl
from klda.errors import KldaError
from klda.labels import unknown_like

if TYPE_CHECKING:
    from klda.data import Batch
    from klda.engine.solution import Answer
    from klda.inspection.explanation import Explanation
    from klda.labels import Label
    from klda.learner import Learner

SHOWN_TEXT = 80  # characters of an input in a table
Record = dict[str, Any]  # cells by the names of their columns
Likeliest = list[tuple["Label", float]]


class Answered(NamedTuple):
    """An input and its answer."""

    value: str | int  # a text or a path; of features the number of the row
    cells: Record  # its row
    said: Record  # label, probability, known; the likeliest classes as "top", if there are several


def iter_answers(
    batches: Iterable[Batch], answer: Callable[[Any], Iterable[Answer | Likeliest]], rejecting: bool
) -> Iterator[Answered]:
    """Yield each input with its answer; `rejecting` answers unknown for what is not known."""
    done = 0
    for batch in batches:
        for i, (value, said) in enumerate(zip(batch.inputs, answer(batch.inputs), strict=True)):
            shown = shown_input(value, done + i + 1)
            cells = {name: _plain(column[i]) for name, column in (batch.cells or {}).items()}
            yield Answered(shown, cells or {"row": shown}, _said(said, rejecting))
        done += len(batch)


def shown_input(value: Any, number: int) -> str | int:
    """Return an input as it is shown: a text or a path; of features the number of the row."""
    return printable(str(value)) if isinstance(value, str | Path) else number


def shortened(value: str | int) -> str:
    """Return an input for a table: its beginning, if it is a long text."""
    text = " ".join(str(value).split())
    return text if len(text) <= SHOWN_TEXT else f"{text[: SHOWN_TEXT - 1]}…"


def _plain(cell: Any) -> Any:
    return printable(str(cell)) if isinstance(cell, Path) else cell


def _said(answer: Answer | Likeliest, rejecting: bool) -> Record:
    likeliest, known = (
        (answer, {}) if isinstance(answer, list) else (answer.top, {"known": answer.known})
    )
    top: list[tuple[Label, float | None]] = [(label, round(p, 6)) for label, p in likeliest]
    if rejecting and known["known"] is False:
        top = [(unknown_like(top[0][0]), None), *top[:-1]]
    ranked = [{"label": label, "probability": p} for label, p in top]
    return ranked[0] | known | ({"top": ranked} if len(ranked) > 1 else {})


def rows_of(answers: Iterable[Answered], *, nested: bool) -> Iterator[Record]:
    """Yield rows with their answers; a column that the file has already keeps its name.

    The likeliest classes are one list, `nested`, or columns of their own.
    """
    for one in answers:
        added = one.said if nested else _flat(one.said)
        yield one.cells | {
            f"predicted_{name}" if name in one.cells else name: value
            for name, value in added.items()
        }


def _flat(said: Record) -> Record:
    """Return an answer as cells: the second class as label_2 and probability_2, and so on."""
    cells = {"label": said["label"], "probability": said["probability"]}
    for i, one in enumerate(said.get("top", ())[1:], 2):
        cells |= {f"{name}_{i}": value for name, value in one.items()}
    return cells | ({"known": said["known"]} if "known" in said else {})


def wrong_rows(batches: Iterable[Batch], learner: Learner) -> Iterator[Record]:
    """Yield the rows that a learner does not answer with their label, and what it answers."""
    for batch in batches:
        answers = iter_answers([batch], partial(learner.answer, top=1), rejecting=False)
        for truth, one in zip(batch.labels or (), answers, strict=True):
            if one.said["label"] != truth:
                said = {"label": truth, "answer": one.said["label"]}
                yield one.cells | said | {"probability": one.said["probability"]}


def check_output(path: Path | None, option: str = "--output") -> str:
    """Return what kind of file a name asks for, as a suffix; raise if it is none of ours."""
    kind = "" if path is None else path.suffix.lower()
    if kind not in ("", ".txt", *TEXT_WRITERS, *FILE_WRITERS):
        *some, last = (*TEXT_WRITERS, *FILE_WRITERS)
        raise KldaError(f"{option} {path}: give a name that ends in {', '.join(some)} or {last}.")
    return kind


def write_rows(path: Path | None, rows: Iterable[Record], kind: str = "") -> None:
    """Write rows to a file of the kind that its name says, if not told which; CSV by default."""
    kind = kind or check_output(path)
    if kind in FILE_WRITERS and path is not None:
        with replaced(path) as unfinished:
            FILE_WRITERS[kind](unfinished, rows)
        return
    with open_output(path) as stream:
        TEXT_WRITERS.get(kind, write_csv)(stream, rows)


def write_answers(stream: TextIO, answers: Iterable[Answered]) -> None:
    """Write a table for people: the inputs and their answers, without the rest of the rows."""
    rows, heads = [], ["input"]
    for one in answers:
        cells = _flat(one.said)
        rows.append([one.value, *map(words, cells.values())])
        names = (name.replace("_", " ").replace("probability", "prob.") for name in cells)
        heads = ["input", *names]
    made = table(*heads, rows=rows)
    if rows:
        made.columns[0].overflow, made.columns[1].style = "fold", "bold"
    results(stream).print(made)


def words(cell: Any) -> str:
    """Return a cell as a table shows it."""
    if isinstance(cell, bool):
        return "yes" if cell else "no"
    return "-" if cell is None else f"{cell:.1%}" if isinstance(cell, float) else str(cell)


def write_explanations(
    stream: TextIO,
    batches: Iterable[Batch],
    explain: Callable[[Any], Iterable[Explanation]],
    *,
    as_json: bool,
) -> None:
    """Write why inputs get their answers, for programs or for people."""
    console, number = results(stream), 0
    for batch in batches:
        for value, why in zip(batch.inputs, explain(batch.inputs), strict=True):
            number += 1
            shown = shown_input(value, number)
            if as_json:
                write_jsonl(stream, [{"input": shown} | why.to_dict()])
                continue
            console.print(Text(visible(str(shown)), style="bold"), soft_wrap=True)
            lines = (f"  {visible(line)}".rstrip() for line in str(why).splitlines())
            console.print(Text("\n".join(lines)), end="\n\n", soft_wrap=True)
