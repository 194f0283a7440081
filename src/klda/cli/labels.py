"""``klda check`` and ``klda suggest``: which labels to look at, and what to label next."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from klda.cli import options, reading
from klda.cli.answers import Record, shown_input, words, write_results
from klda.cli.console import counted, print_json, say, table
from klda.cli.opening import make_learner, open_existing
from klda.cli.options import option

if TYPE_CHECKING:
    from klda.data import Table
    from klda.inspection.suspects import Suspect
    from klda.labels import Label
    from klda.learner import Learner

MOST = 20  # rows in a table on a terminal
GROUP, GROUPS = 5, 3  # inputs that make a group worth a name; groups that are named
Output = Annotated[
    Path | None,
    option(
        "Write all of them here, with all columns of the file (csv, tsv, jsonl, parquet, xlsx).",
        "--output",
        "-o",
        metavar="FILE",
    ),
]


@dataclass
class _Gathered:
    """Rows of some tables, encoded."""

    rows: list[Any] = field(default_factory=list)
    labels: list[Label] = field(default_factory=list)
    places: list[Record] = field(default_factory=list)  # their files, if several, and numbers
    inputs: list[Any] = field(default_factory=list)
    cells: list[Record] = field(default_factory=list)

    @classmethod
    def of(
        cls, learner: Learner, tables: Sequence[Table], doing: str, *, labels: bool, skip_bad: bool
    ) -> _Gathered:
        found, several = cls(), len(tables) > 1
        options: Any = {"labels": labels, "keep": None, "skip_bad": skip_bad}
        for batch in reading.batches(tables, doing, **options):
            found.rows.append(learner.encode(batch.inputs))
            found.labels += batch.labels or ()
            file = {"file": str(tables[batch.end.file].path)} if several else {}
            found.places += [file | {"row": number} for number in batch.numbers]
            found.inputs += [
                shown_input(value, number)
                for value, number in zip(batch.inputs, batch.numbers, strict=True)
            ]
            cells = batch.cells or {}
            found.cells += [
                {name: column[i] for name, column in cells.items()} for i in range(len(batch))
            ]
        return found

    def record(self, row: int, **more: Any) -> Record:
        """Return a row of the output: where it was found, its cells, and more."""
        return self.places[row] | self.cells[row] | more


def check(
    context: typer.Context,
    files: Annotated[list[Path], typer.Argument(help="Files with inputs and their labels.")],
    model: options.OptionalModel = None,
    output: Output = None,
    all_rows: Annotated[bool, option(f"Print all of them, not only {MOST}.", "--all")] = False,
    text_column: options.TextColumn = None,
    label_column: options.LabelColumn = None,
    header: options.Header = None,
    encoding: options.Encoding = None,
    ignore_case: options.IgnoreCase = False,
    skip_bad: options.SkipBad = False,
    foundation: options.Foundation = None,
    device: options.Device = "auto",
    batch_size: options.BatchSize = None,
    engine: options.Engine = None,
    precision: options.Precision = None,
    json: options.Json = False,
) -> None:
    """Find labels that are probably wrong, and rows that are there twice.

    Every row is answered as if it had not been learned, by all the other rows and, with --model, by
    what that model has learned; the model is not changed. Shown are rows whose label is very
    unlikely, with the label they should probably have; then near-duplicates with different labels;
    then duplicates. Nothing is right or wrong for sure: look at them.

    **klda check** tickets.csv

    **klda check** new.csv **--model** bot/ **--output** suspects.xlsx
    """
    learner, tables = _opened(
        context,
        files,
        model,
        options.layout(text_column, label_column, header, encoding, ignore_case),
    )
    found = _Gathered.of(learner, tables, "Checking", labels=True, skip_bad=skip_bad)
    suspects = learner.suspects_rows(_stacked(found.rows), found.labels)
    records = [
        found.record(
            one.row,
            suggested=one.suggested,
            confidence=None if one.confidence is None else round(one.confidence, 4),
            problem=_problem(one, found.places),
        )
        for one in suspects
    ]
    if json:
        if output is not None:
            write_results(output, records, "")
        print_json({"rows": len(found.labels), "suspects": records})
        return
    _tell(suspects, len(found.labels))
    columns = ("row", "input", "label", "suggested", "confidence", "problem")
    lines = [
        (
            found.places[one.row]["row"],
            found.inputs[one.row],
            one.label,
            "-" if one.suggested is None else one.suggested,
            "-" if one.confidence is None else f"{one.confidence:.0%}",
            _problem(one, found.places),
        )
        for one in suspects
    ]
    shown = table(
        *columns,
        rows=lines,
        numbers=("row", "confidence"),
        most=None if all_rows else MOST,
        all_by="--all",
    )
    write_results(output, records, shown)


def suggest(
    context: typer.Context,
    files: Annotated[list[Path], typer.Argument(help="Files with inputs that have no labels.")],
    model: options.OptionalModel = None,
    number: Annotated[
        int, option("How many inputs to suggest (20).", "--number", "-n", min=1, metavar="N")
    ] = MOST,
    output: Output = None,
    text_column: options.TextColumn = None,
    header: options.Header = None,
    encoding: options.Encoding = None,
    skip_bad: options.SkipBad = False,
    foundation: options.Foundation = None,
    device: options.Device = "auto",
    batch_size: options.BatchSize = None,
    engine: options.Engine = None,
    precision: options.Precision = None,
    json: options.Json = False,
) -> None:
    """Say which inputs to label next, so that the fewest labels teach the most.

    They are inputs that the model is uncertain about, unlike what it knows and unlike each other;
    the most telling come first. **alike** counts the inputs of the file that probably belong to
    the same class. Without --model nothing is known: they are typical inputs of all kinds. Label
    them, teach them with **klda learn**, and ask again.

    **klda suggest** unlabeled.csv **--model** bot/ **-n** 20

    **klda suggest** unlabeled.csv **--output** to-label.xlsx
    """
    layout = options.layout(text_column, None, header, encoding)
    learner, tables = _opened(context, files, model, layout)
    found = _Gathered.of(learner, tables, "Reading", labels=False, skip_bad=skip_bad)
    suggestions = learner.suggest_rows(_stacked(found.rows), number)
    records = [
        found.record(
            one.row,
            guess=one.label,
            probability=None if one.probability is None else round(one.probability, 4),
            known=one.known,
            alike=len(one.alike),
        )
        for one in suggestions
    ]
    if json:
        lists = [[found.places[row] for row in one.alike] for one in suggestions]
        listed = [one | {"like": like} for one, like in zip(records, lists, strict=True)]
        if output is not None:
            write_results(output, records, "")
        print_json({"rows": len(found.inputs), "suggestions": listed})
        return
    columns = ("row", "input", "guess", "prob.", "known", "alike")
    lines = [
        (
            found.places[one.row]["row"],
            found.inputs[one.row],
            *map(words, (one.label, one.probability, one.known, len(one.alike))),
        )
        for one in suggestions
    ]
    shown = table(*columns, rows=lines, numbers=("row", "prob.", "alike"))
    write_results(output, records, shown)
    groups = [one for one in suggestions if not one.known and len(one.alike) + 1 >= GROUP]
    for one in groups[:GROUPS]:
        what = "texts" if learner.modality == "text" else "inputs"
        unlike = "" if one.known is None else " and like nothing that is known"
        like = found.inputs[one.row]
        say(f"{len(one.alike) + 1:,} {what} look alike{unlike}. Name them: {like}")


def _opened(
    context: typer.Context, files: Sequence[Path], model: Path | None, layout: Any
) -> tuple[Learner, list[Table]]:
    """Open the model, or make one that knows nothing yet; and the files."""
    from klda.encoders import modality_of

    encoder, foundation = options.of(context, options.ENCODER), context.params.get("foundation")
    if model is not None:
        learner = open_existing(model, foundation, encoder)
        return learner, reading.open_tables(files, layout, learner.modality, learner.classes)
    tables = reading.open_tables(files, layout, modality_of(foundation) if foundation else None)
    wanted = options.given(foundation=foundation)
    return make_learner(wanted, tables[0].modality, encoder, announce=False), tables


def _stacked(rows: Sequence[Any]) -> Any:
    import numpy as np

    return np.concatenate(rows)


def _problem(one: Suspect, places: Sequence[Record]) -> str:
    """Say what is wrong with a row."""
    if one.like is None:
        return "unlikely label"
    place = places[one.like]
    other = f"row {place['row']}" + (f" of {place['file']}" if "file" in place else "")
    if one.problem == "duplicate":
        return f"duplicate of {other}"
    return f"unlikely label; like {other}" if one.problem == "label" else f"like {other}"


def _tell(suspects: Iterable[Suspect], rows: int) -> None:
    """Say how many rows have which problem."""
    from klda.inspection.suspects import count_problems

    counts = count_problems(list(suspects))
    said = [
        f"{counted(counts[problem], 'row')} {words}"
        for problem, words in (
            ("label", "with an unlikely label"),
            ("conflict", "like another row that has another label"),
            ("duplicate", "there twice"),
        )
        if counts[problem]
    ]
    say(f"{rows:,} rows checked: {', '.join(said) or 'nothing looks wrong'}.")
