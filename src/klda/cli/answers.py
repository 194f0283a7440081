"""How answers are written: as rows of a table, for people, and with reasons."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TextIO

from rich.text import Text

from klda.cli.console import opened, printable, replaced, results, table, visible
from klda.data.writing import FILE_WRITERS, TEXT_WRITERS, write_csv

if TYPE_CHECKING:
    from klda.data import Batch
    from klda.engine.solution import Answer
    from klda.labels import Label
    from klda.learner import Learner

Record = dict[str, Any]  # cells by the names of their columns
Likeliest = list[tuple["Label", float]]


class Answered(NamedTuple):
    """An input and its answer."""

    value: str | int  # a text or a path; of features the number of the row
    cells: Record  # its row
    said: Record  # label, probability, known; the likeliest classes as "top", if there are several


def answered(
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


def _plain(cell: Any) -> Any:
    return printable(str(cell)) if isinstance(cell, Path) else cell


def _said(answer: Answer | Likeliest, rejecting: bool) -> Record:
    likeliest = answer if isinstance(answer, list) else answer.top
    known = {} if isinstance(answer, list) else {"known": answer.known}
    top: list[tuple[Label, float | None]] = [(label, round(p, 6)) for label, p in likeliest]
    if rejecting and known["known"] is False:
        from klda.learner import UNKNOWN, UNKNOWN_INTEGER

        unknown = UNKNOWN if isinstance(top[0][0], str) else UNKNOWN_INTEGER
        top = [(unknown, None), *top[:-1]]
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
        answers = answered([batch], partial(learner.answer, top=1), rejecting=False)
        for truth, one in zip(batch.labels or (), answers, strict=True):
            if one.said["label"] != truth:
                said = {"label": truth, "answer": one.said["label"]}
                yield one.cells | said | {"probability": one.said["probability"]}


def write_rows(path: Path, rows: Iterable[Record]) -> None:
    """Write rows to a file of the kind that its name says; CSV if it says none."""
    kind = path.suffix.lower()
    if kind in FILE_WRITERS:
        with replaced(path) as unfinished:
            FILE_WRITERS[kind](unfinished, rows)
        return
    with opened(path) as stream:
        TEXT_WRITERS.get(kind, write_csv)(stream, rows)


def write_results(output: Path | None, records: Sequence[Record], shown: Any) -> None:
    """Write records to a file, or standard output: as a table on a terminal, CSV elsewhere."""
    if output is not None:
        write_rows(output, records)
    elif sys.stdout.isatty():
        results().print(shown)
    else:
        write_csv(sys.stdout, records)


def write_answers(stream: TextIO, answers: Iterable[Answered]) -> None:
    """Write a table for people: the inputs and their answers, without the rest of the rows."""
    rows, heads = [], ["input"]
    for one in answers:
        cells = _flat(one.said)
        rows.append([one.value, *map(words, cells.values())])
        names = (name.replace("_", " ").replace("probability", "prob.") for name in cells)
        heads = ["input", *names]
    made = table(*heads, rows=rows, numbers=[name for name in heads if "prob." in name])
    if rows:
        made.columns[0].overflow, made.columns[1].style = "fold", "bold"
    results(stream).print(made)


def words(cell: Any) -> str:
    """Return a cell as a table shows it."""
    if isinstance(cell, bool):
        return "yes" if cell else "no"
    return "-" if cell is None else f"{cell:.1%}" if isinstance(cell, float) else str(cell)


def explained(
    learner: Learner, batches: Iterable[Batch], most: int, judged: dict[str, float]
) -> Iterator[Record]:
    """Yield why each input gets its answer, with the nearest classes and samples."""
    done = 0
    for batch in batches:
        found = learner.explain_all(batch.inputs, top=most, samples=most, **judged)
        for i, (value, explanation) in enumerate(zip(batch.inputs, found, strict=True), done + 1):
            yield {"input": shown_input(value, i)} | explanation.to_dict()
        done += len(batch)


def write_explanations(stream: TextIO, records: Iterable[Record]) -> None:
    """Write explanations for people."""
    from klda.inspection.verdict import verdict

    console = results(stream)
    layout: dict[str, Any] = {"padding": (0, 2), "pad_edge": True}
    for said in records:
        classes, label = said["classes"], said["label"]
        judged = verdict(classes[0]["probability"], said["known"], len(classes))
        answer = f"{label}, {judged.words}"
        if judged == "new":
            answer = f"{judged.words}; the closest class is {label}"
        console.print(Text(visible(str(said["input"])), style="bold"))
        console.print(Text(visible(f"  {answer}")), soft_wrap=True)
        percent = "{:.1%}" if judged.has_probability else "-"
        near = [(one["label"], percent.format(one["probability"])) for one in classes]
        console.print(table("nearest classes", "probability", rows=near, **layout))
        if said["samples"]:
            alike = [
                (one["id"], one["label"], f"{one['similarity']:.3f}") for one in said["samples"]
            ]
            console.print(table("nearest samples", "class", "similarity", rows=alike, **layout))
        console.print()
