"""``klda predict``: answers from a model folder, from a service, or from a cluster."""

from __future__ import annotations

import csv
import enum
import functools
import json
import math
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import typer
from rich.text import Text

from klda.checks import REFUSED, check_fraction
from klda.cli import options, reading
from klda.cli.console import output, printable, results, table, visible
from klda.cli.options import option

if TYPE_CHECKING:
    from klda.data import Batch
    from klda.learner import Learner

FEWEST = 3  # classes that an explanation shows: fewer explain nothing
ENCODING = ("device", "batch_size", "engine", "precision")
Record = dict[str, Any]  # an input and its answer, as --format jsonl has them


class Format(enum.StrEnum):
    """How predictions are written."""

    TABLE = "table"
    CSV = "csv"
    JSONL = "jsonl"


def predict(
    context: typer.Context,
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
        option(
            "Fraction of known inputs that --reject may refuse (0.05); turns --reject on.",
            metavar="FRACTION",
        ),
    ] = None,
    explain: Annotated[
        bool, option("Explain each answer: nearest classes, nearest samples.", "--explain")
    ] = False,
    format: Annotated[
        Format | None,
        option("By default table on a terminal, csv otherwise.", metavar="table|csv|jsonl"),
    ] = None,
    output_file: Annotated[
        Path | None, option("File to write or replace.", "--output", "-o")
    ] = None,
    input_column: options.InputColumn = None,
    device: options.Device = "auto",
    batch_size: options.BatchSize = None,
    engine: options.Engine = None,
    precision: options.Precision = None,
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
    options.check_workers(cluster, workers)
    if refused is not None:
        check_fraction("--refused", refused)
    encoding = options.encoding(device, batch_size, engine, precision)
    if cluster is not None:
        _refuse(context, "--cluster", "server", "text", "top_k", "reject", "explain", "format")
        where = options.given(address=cluster, workers=workers, reject=refused)
        _on_cluster(file, model, output_file, encoding | where, input_column)
        return
    judged = reject or refused is not None
    if server is not None:
        _refuse(context, "--server", "reject", "refused", "explain", *ENCODING)
        asked = _service(server, key)
    else:
        asked = _opened(model, encoding)
    batches = _batches(asked.modality, file, text, input_column)
    if explain and format is Format.CSV:
        raise typer.BadParameter("--explain has no csv: leave out --format, or give jsonl.")
    if explain:
        records = explained(asked, batches, max(top_k, FEWEST), options.given(reject=refused))
        write = write_jsonl if format is Format.JSONL else _write_explanations
    else:
        rejecting = {"reject": refused or REFUSED} if judged else {}
        records = answered(asked, batches, top_k, rejecting)
        on_terminal = output_file is None and sys.stdout.isatty()
        write = WRITERS[format or (Format.TABLE if on_terminal else Format.CSV)]
    with output(output_file) as stream:
        write(stream, records)


def _refuse(context: typer.Context, mode: str, *names: str) -> None:
    """Refuse options that were given but mean nothing where the answers come from."""
    source = context.get_parameter_source
    found = [name for name in names if getattr(source(name), "name", "") == "COMMANDLINE"]
    if found:
        words = ", ".join(f"--{name.replace('_', '-')}" for name in found)
        raise typer.BadParameter(f"{words}: not possible with {mode}. Leave it out.")


def _on_cluster(
    file: Path | None,
    model: Path | None,
    folder: Path | None,
    where: dict[str, Any],
    input_column: str | None,
) -> None:
    from klda import cluster

    if file is None or folder is None or model is None:
        raise typer.BadParameter("--cluster needs a file, and --output: a folder to make.")
    cluster.predict(file, model, folder, input_column=input_column, progress=True, **where)


def _service(url: str, key: str | None) -> Any:
    from klda.server.client import Client

    return Client(url, key=key)


def _opened(model: Any, encoding: dict[str, Any]) -> Any:
    from klda.learner import Learner

    return Learner.load(model, **encoding)


def _batches(
    modality: str, file: Path | None, texts: list[str] | None, input_column: str | None
) -> Iterator[Batch]:
    from klda.data import Batch, read_lines

    if texts or file is None or str(file) == "-":
        if modality != "text":
            raise typer.BadParameter(f"This model takes {modality} inputs: give a file.")
        if texts:
            return iter([Batch(texts, None)])
        return read_lines(sys.stdin.buffer, "standard input")
    tables = reading.open_tables([file], modality, input_column)
    return reading.batches(tables, "Predicting", labels=False)


def _named(batches: Iterable[Batch], answer: Callable[[Any], Iterable[Any]]) -> Iterator[Any]:
    """Yield each input with its answer: texts and paths as they are, features by row number."""
    row = 0
    for batch in batches:
        for value, said in zip(batch.inputs, answer(batch.inputs), strict=True):
            row += 1
            yield printable(str(value)) if isinstance(value, str | Path) else row, said


def answered(
    asked: Any, batches: Iterable[Batch], top_k: int, rejecting: dict[str, float]
) -> Iterator[Record]:
    """Yield the likeliest classes of each input; if some may be rejected, whether it is known."""
    # A model with fewer classes than asked for has fewer columns to fill.
    most = min(top_k, len(asked.classes))
    name = "row" if asked.modality == "features" else asked.modality
    answers = _named(batches, lambda inputs: asked.predict_top(inputs, most, **rejecting))
    for value, top in answers:
        ranked: list[Record] = [
            {"label": label, "probability": None if math.isnan(p) else round(p, 6)}
            for label, p in top
        ]
        # A class may be called "unknown", too, but then it has a probability.
        known = {"known": ranked[0]["probability"] is not None} if rejecting else {}
        yield {name: value} | ranked[0] | known | ({"top": ranked} if most > 1 else {})


def explained(
    learner: Learner, batches: Iterable[Batch], most: int, refused: dict[str, float]
) -> Iterator[Record]:
    """Yield why each input gets its answer."""
    explain_all = functools.partial(learner.explain_all, top=most, samples=most, **refused)
    for value, explanation in _named(batches, explain_all):
        yield {"input": value} | explanation.to_dict()


def _cells(record: Record, number: str, none: str) -> Record:
    """Return a record as the cells of a row, by the names of their columns."""
    cells = dict([next(iter(record.items()))])
    for i, one in enumerate(record.get("top", [record]), 1):
        p, nth = one["probability"], f"_{i}" if i > 1 else ""
        cells |= {f"label{nth}": one["label"]}
        cells |= {f"probability{nth}": none if p is None else format(p, number)}
    return cells | ({"known": str(record["known"]).lower()} if "known" in record else {})


def write_csv(stream: TextIO, records: Iterable[Record]) -> None:
    """Write predictions as comma-separated values."""
    writer = csv.writer(stream, lineterminator="\n")
    for i, record in enumerate(records):
        cells = _cells(record, ".6f", "")
        writer.writerows([cells, cells.values()] if i == 0 else [cells.values()])


def write_jsonl(stream: TextIO, records: Iterable[Record]) -> None:
    """Write one JSON object per line."""
    for record in records:
        stream.write(json.dumps(record, ensure_ascii=False) + "\n")


def _write_table(stream: TextIO, records: Iterable[Record]) -> None:
    rows = [_cells(record, ".1%", "-") for record in records]
    names = [name for name in (rows[0] if rows else ()) if name != "known"]
    heads = [name.replace("probability", "prob.").replace("_", " ") for name in names]
    shown = table(*heads, rows=[[row[name] for name in names] for row in rows], numbers=heads[2::2])
    if rows:
        shown.columns[0].overflow, shown.columns[1].style = "fold", "bold"
    results(stream).print(shown)


WRITERS = {Format.TABLE: _write_table, Format.CSV: write_csv, Format.JSONL: write_jsonl}


def _write_explanations(stream: TextIO, records: Iterable[Record]) -> None:
    from klda.learner.verdict import verdict

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
