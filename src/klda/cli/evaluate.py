"""``klda evaluate``."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from klda.cli import options, reading
from klda.cli.answers import check_output, write_rows, wrong_rows
from klda.cli.console import print_json, print_parts, say, table, visible
from klda.cli.options import option
from klda.errors import KldaError
from klda.labels import closest
from klda.messages import counted

if TYPE_CHECKING:
    from klda.inspection.evaluation import Evaluation
    from klda.labels import Label

SHOWN = 20  # classes in the table, without --all
NAMED = 5  # labels that the model does not know


def evaluate(
    files: Annotated[list[Path], typer.Argument(help="Files with inputs and their true labels.")],
    model: options.Model,
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
    confusion: Annotated[
        Path | None, option("Draw the confusion matrix here (.png, .svg, .pdf).", metavar="FILE")
    ] = None,
    reliability: Annotated[
        Path | None,
        option("Draw the reliability diagram of the probabilities here.", metavar="FILE"),
    ] = None,
    errors: Annotated[
        Path | None,
        option(
            "Write the rows that were answered wrong here, with all their columns and the answer "
            "(csv, tsv, jsonl, parquet, xlsx).",
            metavar="FILE",
        ),
    ] = None,
    all_classes: Annotated[
        bool, option(f"List every class, not only the {SHOWN} worst.", "--all")
    ] = False,
    json: options.Json = False,
) -> None:
    """Compare a model's answers with the true labels.

    Prints the accuracy, the expected calibration error (how far, on average, the probability of an
    answer is from the fraction of such answers that are right), a table of the classes with the
    worst first, and the pairs most often confused. Labels that are no classes of the model come
    first: their samples count as wrong. With --json one object: accuracy as a fraction, samples,
    expected_calibration_error, reliability, classes, never_learned, confused, seconds.

    **klda evaluate** test.csv **--model** bot/ **--confusion** confusion.png

    **klda evaluate** test.csv **--model** bot/ **--errors** wrong.csv
    """
    from klda.inspection import plots
    from klda.learner import Learner
    from klda.learner.resume import ResumableLearn, named

    layout = options.layout(text_column, header, encoding, label_column, ignore_case)
    where = options.encoder_options(device, batch_size, runtime, precision)
    for name, path in (("--confusion", confusion), ("--reliability", reliability)):
        if path is not None:
            plots.check_file(name, path)
    check_output(errors, "--errors")
    if errors is not None and reading.STANDARD_INPUT in files:
        raise KldaError("--errors reads the rows twice: give a file, not standard input.")
    learner = Learner.load(model, **where)
    known = learner.classes
    tables = reading.open_tables(files, layout, learner.modality, known)
    if learned := ResumableLearn(model, tables).repeated:
        say(
            f"{named(learned)}: learned by this model, so the accuracy is too good. Give rows that "
            f"were not learned, or see klda show {model} --quality."
        )
    start = time.perf_counter()
    with reading.progress_over(tables, "Evaluating", labels=True, skip_bad=skip_bad) as rows:
        batches = ((batch.inputs, batch.labels or []) for batch in rows)
        result = learner.evaluate(batches, progress=rows.done)
    if errors is not None:
        again = reading.batches(tables, "Writing", labels=True, keep=None, skip_bad=skip_bad)
        write_rows(errors, wrong_rows(again, learner))
    seconds = time.perf_counter() - start
    if confusion is not None:
        plots.draw_confusion(result, confusion)
        say(f"Drew the confusion matrix in {confusion}.")
    if reliability is not None:
        plots.draw_reliability(result, reliability)
        say(f"Drew the reliability diagram in {reliability}.")
    if json:
        strange = [one.label for one in result.never_learned(known)]
        more = {"never_learned": strange, "model": str(model), "seconds": round(seconds, 3)}
        print_json(result.to_dict() | more)
    else:
        print_parts(_parts(result, known, seconds, all_classes))


def _parts(
    result: Evaluation, known: Collection[Label], seconds: float, all_classes: bool
) -> Iterator[Any]:
    """Yield the accuracy, a table of the classes and one of the pairs most often confused."""
    correct = round(result.accuracy * result.samples)
    if result.never_learned(known):
        yield Text(visible(_never_learned(result, known, correct)), style="yellow")
    yield (
        f"Accuracy [bold]{result.accuracy:.2%}[/] ({correct:,} of "
        f"{counted(result.samples, 'sample')}, {seconds:.1f} s)\n"
        f"Probabilities are off by {result.reliability.error:.1%} (expected calibration error)"
    )
    for head, rows in result.tables():
        yield table(*head, rows=rows, most=None if all_classes else SHOWN, all_by="--all")


def _never_learned(result: Evaluation, known: Collection[Label], correct: int) -> str:
    """Say which labels the model does not know, and how accurate it is without them."""
    strange = result.never_learned(known)
    some = []
    for one in strange[:NAMED]:
        close = closest(one.label, known)
        meant = "" if close is None else f"; the model has {close!r}"
        some.append(f"{one.label!r} ({counted(one.samples, 'sample')}{meant})")
    if len(strange) > NAMED:
        some.append(f"and {len(strange) - NAMED:,} more")
    wrong = sum(one.samples for one in strange)
    rest = result.samples - wrong
    without = f" Without them the accuracy is {correct / rest:.2%}." if rest else ""
    are = "1 label is no class" if len(strange) == 1 else f"{len(strange):,} labels are no classes"
    return (
        f"{are} of this model: {', '.join(some)}. "
        f"{counted(wrong, 'sample')} of {result.samples:,} can't be answered right.{without}"
    )
