"""``klda check``: which labels are probably wrong."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from klda.cli import options
from klda.cli.answers import Record, check_output
from klda.cli.console import say
from klda.cli.opening import open_model_and_tables
from klda.cli.options import option
from klda.cli.reading import EncodedRows
from klda.messages import counted

if TYPE_CHECKING:
    from klda.inspection.suspects import Suspect

MOST = 20  # rows in a table on a terminal


def check(
    files: Annotated[list[Path], typer.Argument(help="Files with inputs and their labels.")],
    text_column: options.TextColumn = None,
    header: options.Header = None,
    encoding: options.Encoding = None,
    skip_bad: options.SkipBad = False,
    label_column: options.LabelColumn = None,
    ignore_case: options.IgnoreCase = False,
    device: options.Device = "auto",
    batch_size: options.BatchSize = None,
    runtime: options.Runtime = None,
    precision: options.Precision = None,
    model: options.OptionalModel = None,
    output: options.Output = None,
    all_rows: Annotated[bool, option(f"Print all of them, not only {MOST}.", "--all")] = False,
    foundation: options.Foundation = None,
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
    check_output(output)
    layout = options.layout(text_column, header, encoding, label_column, ignore_case)
    where = options.encoder_options(device, batch_size, runtime, precision)
    learner, tables = open_model_and_tables(files, model, foundation, layout, where)
    found = EncodedRows(learner, tables, "Checking", labels=True, skip_bad=skip_bad)
    suspects = learner.suspects_rows(found.features(), found.labels)
    facts: dict[int, Record] = {
        one.row: {
            "suggested": one.suggested,
            "confidence": None if one.confidence is None else round(one.confidence, 4),
            "problem": _problem(one, found.places),
        }
        for one in suspects
    }
    if not json:
        _tell(suspects, len(found.labels))
    found.write(facts, output, "suspects" if json else None, None if all_rows else MOST)


def _problem(one: Suspect, places: Sequence[Record]) -> str:
    """Say what is wrong with a row."""
    if one.like is None:
        return "unlikely label"
    place = places[one.like]
    other = f"row {place['row']}" + (f" of {place['file']}" if "file" in place else "")
    if one.problem == "duplicate":
        return f"duplicate of {other}"
    return f"unlikely label; like {other}" if one.problem == "label" else f"like {other}"


def _tell(suspects: Sequence[Suspect], rows: int) -> None:
    """Say how many rows have which problem."""
    from klda.inspection.suspects import count_problems

    counts = count_problems(suspects)
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
