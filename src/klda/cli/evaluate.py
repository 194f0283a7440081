"""``klda evaluate``."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table as RichTable
from rich.text import Text

from klda.cli import options, pictures, reading
from klda.cli.console import print_json, results, say

if TYPE_CHECKING:
    from klda.learner.evaluation import Evaluation


def evaluate(
    files: Annotated[list[Path], typer.Argument(help="Files with inputs and their true labels.")],
    model: options.Model,
    input_column: options.InputColumn = None,
    label_column: options.LabelColumn = None,
    confusion: Annotated[
        Path | None,
        typer.Option(help="Save a picture of the confusion here (.png, .svg, .pdf)."),
    ] = None,
    reliability: Annotated[
        Path | None,
        typer.Option(help="Save a picture of how far probabilities can be trusted here."),
    ] = None,
    all_classes: Annotated[
        bool, typer.Option("--all", help="List every class, not only the 20 worst.")
    ] = False,
    device: options.Device = "auto",
    batch_size: options.BatchSize = None,
    cache: options.Cache = None,
    json: options.Json = False,
) -> None:
    """Compare a model's answers with the true labels.

    Prints the accuracy, the expected calibration error (how far, on average, the probability of an
    answer is from the share of such answers that is right), a table by class with the worst first,
    and the pairs most often confused. With --json one object: accuracy as a fraction, samples,
    expected_calibration_error, reliability, classes, confused, seconds.

    **klda evaluate** test.csv **--model** bot/ **--confusion** confusion.png
    """
    from klda.learner import Learner

    for option, picture in (("--confusion", confusion), ("--reliability", reliability)):
        if picture is not None:
            pictures.check_name(option, picture)
    learner = Learner.load(model, **options.encoding(device, batch_size, cache))
    known = learner.classes
    tables = reading.open_tables(files, learner.modality, input_column, label_column, known)
    start = time.perf_counter()
    batches = reading.batches(tables, "Evaluating", labels=True)
    result = learner.evaluate((batch.inputs, batch.labels or []) for batch in batches)
    seconds = time.perf_counter() - start
    if confusion is not None:
        pictures.draw_confusion(result, confusion)
        say(f"The confusion is drawn in {confusion}.")
    if reliability is not None:
        pictures.draw_reliability(result, reliability)
        say(f"The reliability is drawn in {reliability}.")
    if json:
        print_json(result.to_dict() | {"model": str(model), "seconds": round(seconds, 3)})
    else:
        _print(result, seconds, all_classes)


def _print(result: Evaluation, seconds: float, all_classes: bool) -> None:
    console = results()
    correct = round(result.accuracy * result.samples)
    console.print(
        f"Accuracy [bold]{result.accuracy:.2%}[/] ({correct:,} of {result.samples:,} samples, "
        f"{seconds:.1f} s)"
    )
    if result.reliability is not None:
        error = result.reliability.error
        console.print(f"Probabilities are off by {error:.1%} (expected calibration error)")
    console.print()
    # Classes that occur only as wrong answers have no recall; they come last.
    ordered = sorted(result.classes, key=lambda c: (c.samples == 0, c.recall, str(c.label)))
    shown = ordered if all_classes else ordered[:20]
    table = RichTable(box=None, pad_edge=False)
    for name in ("class", "samples", "recall", "precision", "F1"):
        table.add_column(name, justify="left" if name == "class" else "right")
    for each in shown:
        figures = [_percent(value) for value in (each.recall, each.precision, each.f1)]
        table.add_row(Text(str(each.label)), f"{each.samples:,}", *figures)
    console.print(table)
    if len(shown) < len(ordered):
        console.print(f"... and {len(ordered) - len(shown)} more classes (--all lists them)")
    if pairs := result.confused(limit=10):
        console.print()
        confused = RichTable(box=None, pad_edge=False)
        for name in ("label", "taken for", "samples"):
            confused.add_column(name, justify="right" if name == "samples" else "left")
        for label, answer, count in pairs:
            confused.add_row(Text(str(label)), Text(str(answer)), str(count))
        console.print(confused)


def _percent(value: float) -> str:
    return "-" if value != value else f"{value:.1%}"
