"""``klda predict``."""

from __future__ import annotations

import csv
import enum
import json
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import typer
from rich.console import Console
from rich.text import Text

from klda.cli import options, reading
from klda.cli.console import output, printable, results, table
from klda.cli.options import option
from klda.errors import REFUSED, check_fraction

if TYPE_CHECKING:
    from klda.data import Batch
    from klda.learner import Learner
    from klda.learner.explanation import Explanation

FEWEST = 3  # classes that an explanation shows: fewer explain nothing
# What was asked, and the classes with their probabilities; "unknown" has none (NaN).
Predicted = tuple[Any, list[tuple[Any, float]]]


class Format(enum.StrEnum):
    """How predictions are written."""

    TABLE = "table"
    CSV = "csv"
    JSONL = "jsonl"


def predict(
    *,
    model: options.OptionalModel = None,
    file: Annotated[
        Path | None,
        typer.Argument(
            help="File or image folder; - or nothing reads standard input, one text per line."
        ),
    ] = None,
    text: Annotated[
        list[str] | None, option("Text to classify; may be repeated.", "--text", "-t")
    ] = None,
    top_k: Annotated[int, typer.Option(min=1, metavar="N", help="Classes to show per input.")] = 1,
    reject: Annotated[
        bool, option("Answer **unknown** for inputs unlike anything learned.", "--reject")
    ] = False,
    refused: Annotated[
        float | None,
        option("Fraction of known inputs that --reject may refuse (0.05).", metavar="FRACTION"),
    ] = None,
    explain: Annotated[
        bool,
        option(
            "Explain each answer: nearest classes, margin, novelty, nearest samples.", "--explain"
        ),
    ] = False,
    format: Annotated[
        Format | None, option("By default table on a terminal, csv otherwise.")
    ] = None,
    output_file: Annotated[
        Path | None, option("File to write or replace.", "--output", "-o")
    ] = None,
    input_column: options.InputColumn = None,
    encoding: options.Encoding,
    server: Annotated[
        str | None,
        option("Ask a running **klda serve** instead of opening a model folder.", metavar="URL"),
    ] = None,
    key: Annotated[str | None, option("API key of the server.", envvar="KLDA_KEY")] = None,
    cluster: options.Cluster = None,
    workers: options.Workers = None,
) -> None:
    """Classify texts, images or features.

    **klda predict** new.csv **--model** bot/ **--output** answers.csv

    **klda predict --model** bot/ **--text** "where is my card?" **--top-k** 3

    cat questions.txt | **klda predict --model** bot/ **--format** jsonl

    **klda predict** new.csv **--model** bot/ **--reject**

    **klda predict --model** bot/ **--text** "where is my card?" **--explain**

    **klda predict --server** http://127.0.0.1:8000 **--text** "where is my card?"

    **klda predict** new.parquet **--model** bot/ **--cluster** local **--output** answers/

    On a cluster --output is a folder of parquet files, with a column that says whether each input
    is known.

    With --reject an input unlike anything learned gets the label unknown (-1 if the classes are
    integers) and no probability; csv and jsonl have a field **known**. --explain writes text, or
    with --format jsonl one JSON object per input.
    """
    if (model is None) == (server is None):
        raise typer.BadParameter("Give a model folder (--model) or a service (--server).")
    if text and file is not None:
        raise typer.BadParameter("Give a file or --text, not both.")
    if refused is not None:
        check_fraction("--refused", refused)
    judged = reject or refused is not None
    if cluster is not None:
        if explain or reject or top_k > 1 or format is not None:
            raise typer.BadParameter(
                "--cluster writes the likeliest class, its probability and whether the input is "
                "known: leave out --explain, --reject, --top-k and --format."
            )
        where = options.given(
            address=cluster, workers=workers, input_column=input_column, refused=refused
        )
        _predict_on_cluster(file, model, output_file, encoding.given() | where)
        return
    if server is not None and (judged or explain):
        raise typer.BadParameter("--server: leave out --reject, --refused and --explain.")
    asked = _opened(model, server, key, encoding.given(), judged or explain)
    batches = _batches(asked.modality, file, text or [], input_column)
    if explain:
        if format is Format.CSV:
            raise typer.BadParameter("--explain has no csv: leave out --format, or give jsonl.")
        said = _explained(asked, batches, top_k, options.given(refused=refused))
        with output(output_file) as stream:
            _write_explanations(stream, said, format is Format.JSONL)
        return
    rejecting = {}
    if judged:
        rejecting = {"reject": REFUSED if refused is None else refused}
    # A model with fewer classes than asked for has fewer columns to fill.
    columns = min(top_k, getattr(asked, "n_classes", None) or len(asked.classes))
    predicted = answered(
        batches,
        lambda inputs: [top[:columns] for top in asked.predict_top(inputs, top_k, **rejecting)],
    )
    chosen = format or (Format.TABLE if output_file is None and sys.stdout.isatty() else Format.CSV)
    with output(output_file) as stream:
        WRITERS[chosen](stream, predicted, asked.modality, columns, judged)


def _opened(
    model: Path | None, server: str | None, key: str | None, encoding: dict[str, Any], judges: bool
) -> Any:
    """Return what answers: a service, or a model, with as little to import as the answers need."""
    if model is None:
        from klda.server.client import Client

        return Client(str(server), key=key)
    from klda.learner.predictor import Predictor

    quick = None if judges else Predictor.load(model, **encoding)
    if quick is not None:
        return quick
    from klda.learner import Learner

    return Learner.load(model, **encoding)


def _predict_on_cluster(
    file: Path | None, model: Path | None, folder: Path | None, given: dict[str, Any]
) -> None:
    from klda import cluster

    if model is None:
        raise typer.BadParameter("--cluster needs a model folder: give --model, not --server.")
    if file is None or folder is None:
        raise typer.BadParameter("--cluster needs a file, and --output: a folder to make.")
    cluster.predict(file, model, folder, progress=True, **given)


def _batches(
    modality: str, file: Path | None, texts: Sequence[str], input_column: str | None
) -> Iterator[Batch]:
    from klda.data import Batch, read_lines

    if texts or file is None or str(file) == "-":
        if modality != "text":
            raise typer.BadParameter(f"This model takes {modality} inputs: give a file.")
        if texts:
            return iter([Batch(list(texts), None)])
        return read_lines(sys.stdin.buffer, "standard input")
    tables = reading.open_tables([file], modality, options.Columns(input_column))
    return reading.batches(tables, "Predicting", labels=False)


def answered(
    batches: Iterator[Batch], ask: Callable[[Any], Iterable[Any]]
) -> Iterator[tuple[Any, Any]]:
    """Yield each input with its answer: texts and paths as they are, features by row number."""
    row = 0
    for batch in batches:
        for value, answer in zip(batch.inputs, ask(batch.inputs), strict=True):
            row += 1
            yield printable(str(value)) if isinstance(value, str | Path) else row, answer


def _input_name(modality: str) -> str:
    return {"text": "text", "image": "image"}.get(modality, "row")


def _is_known(top: list[tuple[Any, float]]) -> bool:
    """Whether an input was not refused; a class may be called "unknown", too."""
    return not math.isnan(top[0][1])


def _write_csv(
    stream: TextIO, answers: Iterator[Predicted], modality: str, columns: int, judged: bool
) -> None:
    writer = csv.writer(stream, lineterminator="\n")
    names = [_input_name(modality), "label", "probability"]
    for i in range(2, columns + 1):
        names += [f"label_{i}", f"probability_{i}"]
    writer.writerow([*names, "known"] if judged else names)
    for value, top in answers:
        cells = [cell for label, p in top for cell in (label, "" if math.isnan(p) else f"{p:.6f}")]
        known = [str(_is_known(top)).lower()] if judged else []
        writer.writerow([value, *cells, *known])


def _write_jsonl(
    stream: TextIO, answers: Iterator[Predicted], modality: str, columns: int, judged: bool
) -> None:
    for value, top in answers:
        label, probability = top[0]
        entry = {_input_name(modality): value, "label": label, "probability": _rounded(probability)}
        if judged:
            entry["known"] = _is_known(top)
        if columns > 1:
            entry["top"] = [{"label": name, "probability": _rounded(p)} for name, p in top]
        stream.write(json.dumps(entry, ensure_ascii=False) + "\n")


def _rounded(probability: float) -> float | None:
    return None if math.isnan(probability) else round(probability, 6)


def _write_table(
    stream: TextIO, answers: Iterator[Predicted], modality: str, columns: int, judged: bool
) -> None:
    shown = table()
    shown.add_column(_input_name(modality), overflow="fold")
    for i in range(1, columns + 1):
        shown.add_column("label" if i == 1 else f"label {i}", style="bold" if i == 1 else "")
        shown.add_column("prob.", justify="right")
    for value, top in answers:
        pairs = [(Text(str(label)), "-" if math.isnan(p) else f"{p:.1%}") for label, p in top]
        shown.add_row(Text(str(value)), *[cell for pair in pairs for cell in pair])
    results(stream).print(shown)


WRITERS = {Format.TABLE: _write_table, Format.CSV: _write_csv, Format.JSONL: _write_jsonl}


def _explained(
    learner: Learner, batches: Iterator[Batch], top_k: int, refused: dict[str, float]
) -> Iterator[tuple[Any, Explanation]]:
    """Yield each input with the explanation of its answer: at least three classes and samples."""
    most = max(top_k, FEWEST)
    return answered(
        batches, lambda inputs: learner.explain_all(inputs, top=most, samples=most, **refused)
    )


def _write_explanations(
    stream: TextIO, said: Iterator[tuple[Any, Explanation]], as_json: bool
) -> None:
    """Write explanations as text, or as JSON, one object per line."""
    console = results(stream)
    for value, explanation in said:
        if as_json:
            entry = {"input": value} | explanation.to_dict()
            stream.write(json.dumps(entry, ensure_ascii=False) + "\n")
        else:
            _write_explanation(console, value, explanation)


def _write_explanation(console: Console, value: Any, explanation: Explanation) -> None:
    console.print(Text(str(value), style="bold"))
    console.print(Text("  " + _verdict(explanation)), soft_wrap=True)
    layout: dict[str, Any] = {"padding": (0, 2), "pad_edge": True}
    numbers = ("probability", "distance", "similarity")
    near = [(c.label, f"{c.probability:.1%}", f"{c.distance:,.0f}") for c in explanation.classes]
    columns = ("nearest classes", "probability", "distance")
    console.print(table(*columns, rows=near, numbers=numbers, **layout))
    if explanation.samples:
        alike = [(s.id, s.label, f"{s.similarity:.3f}") for s in explanation.samples]
        columns = ("nearest samples", "class", "similarity")
        console.print(table(*columns, rows=alike, numbers=numbers, **layout))
    console.print()


def _verdict(explanation: Explanation) -> str:
    unknown = "unknown; the nearest class is " if explanation.known is False else ""
    parts = [f"{unknown}{explanation.label}"]
    if explanation.margin == explanation.margin:
        parts.append(f"margin {explanation.margin:.2f}")
    if explanation.novelty is not None:
        limit = explanation.threshold
        beyond = "no threshold yet" if limit is None else f"unknown above {limit:,.0f}"
        parts.append(f"novelty {explanation.novelty:,.0f} ({beyond})")
    return ", ".join(parts)
