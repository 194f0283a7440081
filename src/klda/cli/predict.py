"""``klda predict``: answers from a model folder, from a service, or from a cluster."""

from __future__ import annotations

import enum
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from klda.checks import check_fraction
from klda.cli import options, reading
from klda.cli.answers import answered, explained, rows_of, write_answers, write_explanations
from klda.cli.console import opened, replaced
from klda.cli.options import option
from klda.data.writing import FILE_WRITERS, TEXT_WRITERS, write_jsonl

if TYPE_CHECKING:
    from klda.data import Batch, Layout
    from klda.learner import Learner
    from klda.server.client import Client

FEWEST = 3  # classes that an explanation shows: fewer explain nothing
NOT_ON_CLUSTER = ("server", "text", "top_k", "reject", "explain", "format", "header", "encoding")
NOT_ON_SERVER = ("model", "refused", "explain", *options.ENCODER)


class Format(enum.StrEnum):
    """How predictions are written."""

    TABLE = "table"
    CSV = "csv"
    TSV = "tsv"
    JSONL = "jsonl"
    PARQUET = "parquet"
    XLSX = "xlsx"


WRITERS = {*TEXT_WRITERS, *FILE_WRITERS}


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
        list[str] | None,
        option("Text to classify; may be repeated.", "--text", "-t", metavar="TEXT"),
    ] = None,
    top_k: Annotated[int, option("Classes to show per input (1).", min=1, metavar="N")] = 1,
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
        option(
            "table, csv, tsv, jsonl, parquet or xlsx. By default what --output ends in; a table on "
            "a terminal, csv elsewhere.",
            metavar="FORMAT",
        ),
    ] = None,
    output_file: Annotated[
        Path | None, option("File to write or replace.", "--output", "-o", metavar="FILE")
    ] = None,
    text_column: options.TextColumn = None,
    header: options.Header = None,
    encoding: options.Encoding = None,
    skip_bad: options.SkipBad = False,
    device: options.Device = "auto",
    batch_size: options.BatchSize = None,
    engine: options.Engine = None,
    precision: options.Precision = None,
    server: options.Server = None,
    key: options.Key = None,
    cluster: options.Cluster = None,
    workers: options.Workers = None,
) -> None:
    """Classify texts, images or features.

    Every column of the file comes out again, followed by the answer: label, probability, known.

    **klda predict** new.csv **--model** bot/ **--output** answers.xlsx

    **klda predict --model** bot/ **--text** "where is my card?" **--top-k** 3

    cat questions.txt | **klda predict --model** bot/ **--format** jsonl

    **klda predict** new.csv **--model** bot/ **--reject**

    **klda predict --model** bot/ **--text** "where is my card?" **--explain**

    **klda predict --server** http://127.0.0.1:8000 **--text** "where is my card?"

    **klda predict** new.parquet **--model** bot/ **--cluster** local **--output** answers/

    **known** is false for inputs unlike anything learned. With --reject they get the label unknown
    (-1 if the classes are integers) and no probability. --explain writes text, or with --format
    jsonl one JSON object per input. On a cluster --output is a folder of parquet files.
    """
    if text and file is not None:
        raise typer.BadParameter("Give a file or --text, not both.")
    if refused is not None:
        check_fraction("--refused", refused)
    layout, encoder = options.layout(text_column, None, header, encoding), options.ENCODER
    options.check_cluster(context, *NOT_ON_CLUSTER)
    if cluster is not None:
        where = options.given(address=cluster, workers=workers, reject=refused)
        _on_cluster(file, model, output_file, options.of(context, encoder) | where, layout)
        return
    asked: Any = _learner(context) if server is None else _service(context)
    batches = _batches(asked.modality, file, text, layout, skip_bad)
    judged, kind = options.given(reject=refused), _kind(format, output_file, explain)
    if explain:
        records = explained(asked, batches, max(top_k, FEWEST), judged)
        with opened(output_file) as stream:
            (write_jsonl if kind == ".jsonl" else write_explanations)(stream, records)
        return
    most = min(top_k, len(asked.classes))  # it may have fewer classes than asked for
    rejecting = reject or refused is not None
    if rejecting or file is not None:
        answer = partial(asked.answer, top=most, **judged)
    else:  # a single answer is there sooner without a look at whether its input is known
        answer = partial(asked.predict_top, k=most)
    answers = answered(batches, answer, rejecting)
    rows = rows_of(answers, nested=kind == ".jsonl")
    if kind in FILE_WRITERS and output_file is not None:
        with replaced(output_file) as unfinished:
            FILE_WRITERS[kind](unfinished, rows)
        return
    with opened(output_file) as stream:
        if kind == ".table":
            write_answers(stream, answers)
        else:
            TEXT_WRITERS[kind](stream, rows)


def _kind(format: Format | None, output_file: Path | None, explain: bool) -> str:
    """Return how to write, as a suffix: what was asked for, or what the output's name says."""
    named = "" if output_file is None else output_file.suffix.lower()
    kind = f".{format}" if format else named if named in WRITERS else ""
    if explain:
        if kind not in ("", ".jsonl"):
            raise typer.BadParameter(f"--explain has no {kind[1:]}: write text, or jsonl.")
    elif not kind:
        kind = ".table" if output_file is None and sys.stdout.isatty() else ".csv"
    elif kind in FILE_WRITERS and output_file is None:
        raise typer.BadParameter(f"--format {format} needs --output: name a file.")
    return kind


def _learner(context: typer.Context) -> Learner:
    from klda.learner import Learner

    if context.params["model"] is None:
        raise typer.BadParameter("Give a model folder (--model) or a service (--server).")
    return Learner.load(context.params["model"], **options.of(context, options.ENCODER))


def _service(context: typer.Context) -> Client:
    from klda.server.client import Client

    options.refuse(context, "--server", NOT_ON_SERVER)
    return Client(context.params["server"], key=context.params["key"])


def _on_cluster(
    file: Path | None,
    model: Path | None,
    folder: Path | None,
    where: dict[str, Any],
    layout: Layout,
) -> None:
    from klda import cluster

    if file is None or folder is None or model is None:
        raise typer.BadParameter("--cluster needs a file, and --output: a folder to make.")
    where |= {"input_column": layout.input, "columns": None}
    cluster.predict(file, model, folder, progress=True, **where)


def _batches(
    modality: Any, file: Path | None, texts: list[str] | None, layout: Layout, skip_bad: bool
) -> Iterator[Batch]:
    from klda.data import Batch

    if texts:
        if modality != "text":
            raise typer.BadParameter(f"This model takes {modality} inputs: give a file.")
        return iter([Batch(texts, None, cells={"text": texts})])
    tables = reading.open_tables([file or reading.STANDARD_INPUT], layout, modality, lines=True)
    return reading.batches(tables, "Predicting", labels=False, keep=None, skip_bad=skip_bad)
