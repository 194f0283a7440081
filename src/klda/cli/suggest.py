"""``klda suggest``: what to label next."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from klda.cli import options
from klda.cli.answers import Record, check_output, shortened
from klda.cli.console import say
from klda.cli.opening import open_model_and_tables
from klda.cli.options import option
from klda.cli.reading import EncodedRows

NUMBER = 20  # inputs that are suggested
GROUP, GROUPS = 5, 3  # inputs that make a group worth a name; groups that are named


def suggest(
    files: Annotated[list[Path], typer.Argument(help="Files with inputs that have no labels.")],
    text_column: options.TextColumn = None,
    header: options.Header = None,
    encoding: options.Encoding = None,
    skip_bad: options.SkipBad = False,
    device: options.Device = "auto",
    batch_size: options.BatchSize = None,
    runtime: options.Runtime = None,
    precision: options.Precision = None,
    model: options.OptionalModel = None,
    number: Annotated[
        int, option("How many inputs to suggest (20).", "--number", "-n", min=1, metavar="N")
    ] = NUMBER,
    output: options.Output = None,
    foundation: options.Foundation = None,
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
    check_output(output)
    layout = options.layout(text_column, header, encoding)
    where = options.encoder_options(device, batch_size, runtime, precision)
    learner, tables = open_model_and_tables(files, model, foundation, layout, where)
    found = EncodedRows(learner, tables, "Reading", labels=False, skip_bad=skip_bad)
    suggestions = learner.suggest_rows(found.features(), number)
    facts: dict[int, Record] = {
        one.row: {
            "guess": one.label,
            "probability": None if one.probability is None else round(one.probability, 4),
            "known": one.known,
            "alike": len(one.alike),
        }
        for one in suggestions
    }
    like = {one.row: {"like": [found.places[row] for row in one.alike]} for one in suggestions}
    found.write(facts, output, "suggestions" if json else None, more=like)
    groups = [one for one in suggestions if not one.known and len(one.alike) + 1 >= GROUP]
    for one in groups[: 0 if json else GROUPS]:
        what = "texts" if learner.modality == "text" else "inputs"
        unlike = "" if one.known is None else " and like nothing that is known"
        example = shortened(found.inputs[one.row])
        say(f"{len(one.alike) + 1:,} {what} look alike{unlike}. Name them: {example}")
