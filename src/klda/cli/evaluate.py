"""``klda evaluate``."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from klda.cli import options, plots, reading
from klda.cli.console import counted, print_json, print_parts, say, table
from klda.cli.options import option

if TYPE_CHECKING:
    from klda.learner.evaluation import Evaluation

SHOWN = 20  # classes in the table, without --all


def evaluate(
    files: Annotated[list[Path], typer.Argument(help="Files with inputs and their true labels.")],
    model: options.Model,
    *,
    columns: options.Columns,
    confusion: Annotated[
        Path | None, option("Draw the confusion matrix here (.png, .svg, .pdf).")
    ] = None,
    reliability: Annotated[
        Path | None, option("Draw the reliability diagram of the probabilities here.")
    ] = None,
    all_classes: Annotated[
        bool, option(f"List every class, not only the {SHOWN} worst.", "--all")
    ] = False,
    encoding: options.Encoding,
    json: options.Json = False,
) -> None:
    """Compare a model's answers with the true labels.

    Prints the accuracy, the expected calibration error (how far, on average, the probability of an
    answer is from the fraction of such answers that are right), a table of the classes with the
    worst first, and the pairs most often confused. With --json one object: accuracy as a fraction,
    samples, expected_calibration_error, reliability, classes, confused, seconds.

    **klda evaluate** test.csv **--model** bot/ **--confusion** confusion.png
    """
    from klda.learner import Learner

    for name, path in (("--confusion", confusion), ("--reliability", reliability)):
        if path is not None:
            plots.check_file(name, path)
    learner = Learner.load(model, **encoding.given())
    tables = reading.open_tables(files, learner.modality, columns, learner.classes)
    start = time.perf_counter()
    batches = reading.batches(tables, "Evaluating", labels=True)
    result = learner.evaluate((batch.inputs, batch.labels or []) for batch in batches)
    seconds = time.perf_counter() - start
    if confusion is not None:
        plots.draw_confusion(result, confusion)
        say(f"Drew the confusion matrix in {confusion}.")
    if reliability is not None:
        plots.draw_reliability(result, reliability)
        say(f"Drew the reliability diagram in {reliability}.")
    if json:
        print_json(result.to_dict() | {"model": str(model), "seconds": round(seconds, 3)})
    else:
        print_parts(_parts(result, seconds, all_classes))


def _parts(result: Evaluation, seconds: float, all_classes: bool) -> Iterator[Any]:
    """Yield the accuracy, a table of the classes and one of the pairs most often confused."""
    correct = round(result.accuracy * result.samples)
    yield (
        f"Accuracy [bold]{result.accuracy:.2%}[/] ({correct:,} of "
        f"{counted(result.samples, 'sample')}, {seconds:.1f} s)\n"
        f"Probabilities are off by {result.reliability.error:.1%} (expected calibration error)"
    )
    # Classes that occur only as wrong answers have no recall; they come last.
    ordered = sorted(result.classes, key=lambda c: (c.samples == 0, c.recall, str(c.label)))
    numbers = ("samples", "recall", "precision", "F1")
    rows = [
        (c.label, f"{c.samples:,}", *map(_percent, (c.recall, c.precision, c.f1))) for c in ordered
    ]
    limit: dict[str, Any] = {} if all_classes else {"most": SHOWN, "all_by": "--all"}
    yield table("class", *numbers, rows=rows, numbers=numbers, **limit)
    if pairs := result.confused(limit=10):
        yield table("label", "taken for", "samples", rows=pairs, numbers=numbers)


def _percent(value: float) -> str:
    return "-" if value != value else f"{value:.1%}"
