"""``klda predict``: answers from a model folder, from a service, or from a cluster."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from klda.checks import check_fraction, is_blank
from klda.cli import options, reading
from klda.cli.answers import (
    check_output,
    iter_answers,
    rows_of,
    write_answers,
    write_explanations,
    write_rows,
)
from klda.cli.console import open_output
from klda.cli.opening import no_model
from klda.cli.options import option
from klda.data.writing import FILE_WRITERS, TEXT_WRITERS

if TYPE_CHECKING:
    from klda.data import Batch, Layout

FEWEST = 3  # classes that an explanation shows: fewer explain nothing
NOT_ON_CLUSTER = ("server", "text", "top_k", "reject", "explain", "format", "header", "encoding")


def predict(
    context: typer.Context,
    text_column: options.TextColumn = None,
    header: options.Header = None,
    encoding: options.Encoding = None,
    skip_bad: options.SkipBad = False,
    device: options.Device = "auto",
    batch_size: options.BatchSize = None,
    runtime: options.Runtime = None,
    precision: options.Precision = None,
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
        str | None,
        option(
            "Answer **unknown** for inputs unlike anything learned: auto, or the fraction of known "
            "inputs that may be refused, such as 0.05.",
            metavar="FRACTION",
        ),
    ] = None,
    explain: Annotated[
        bool, option("Explain each answer: nearest classes, nearest samples.", "--explain")
    ] = False,
    format: Annotated[
        str | None,
        option(
            "table, csv, tsv, jsonl, parquet or xlsx. By default what --output ends in; a table on "
            "a terminal, csv elsewhere.",
            metavar="FORMAT",
        ),
    ] = None,
    output_file: Annotated[
        Path | None, option("File to write or replace.", "--output", "-o", metavar="FILE")
    ] = None,
    server: options.Server = None,
    key: options.Key = None,
    cluster: options.Cluster = None,
    workers: options.Workers = None,
) -> None:
    """Classify texts, images or features.

    Every column of a file comes out again, followed by the answer: label, probability, known. For
    other inputs **known** is said with --reject and --explain.

    **klda predict** new.csv **--model** bot/ **--output** answers.xlsx

    **klda predict --model** bot/ **--text** "where is my card?" **--top-k** 3

    cat questions.txt | **klda predict --model** bot/ **--format** jsonl

    **klda predict** new.csv **--model** bot/ **--reject** auto

    **klda predict --model** bot/ **--text** "where is my card?" **--explain**

    **klda predict --server** http://127.0.0.1:8000 **--text** "where is my card?"

    **klda predict** new.parquet **--model** bot/ **--cluster** local **--output** answers/

    **known** is false for inputs unlike anything learned. With --reject they get the label unknown
    (-1 if the classes are integers) and no probability; auto refuses what **klda tune-unknown** has
    set, or else about 5% of the known inputs. --explain writes text, or with --format jsonl one
    JSON object per input. On a cluster --output is a folder of parquet files.
    """
    if text and file is not None:
        raise typer.BadParameter("Give a file or --text, not both.")
    if text and any(map(is_blank, text)):
        raise typer.BadParameter("--text is empty: give a text.")
    options.check_cluster(context, *NOT_ON_CLUSTER)
    layout = options.layout(text_column, header, encoding)
    where = options.encoder_options(device, batch_size, runtime, precision)
    if cluster is not None:
        where |= options.given(address=cluster, workers=workers)
        _predict_on_cluster(file, layout, model, output_file, where)
        return
    fraction, kind = _fraction(reject), _kind(format, output_file, explain)
    if server is not None:
        options.refuse(context, "--server", ("model", "explain"), (options.ENCODING,))
        if fraction:
            raise typer.BadParameter("--reject: a service decides this itself; give auto.")
    elif model is None:
        raise no_model([] if file is None else [file])
    bot = _opened(model, server, key, where)
    batches = _inputs(file, text, layout, bot.modality, skip_bad)
    if explain:
        most = max(top_k, FEWEST)
        why = partial(bot.explain_all, top=most, samples=most, **fraction)
        with open_output(output_file) as stream:
            write_explanations(stream, batches, why, as_json=kind == ".jsonl")
        return
    answer: Any = partial(bot.answer, top=top_k, **fraction)
    if file is None and reject is None:
        # A single answer is there sooner without a look at whether its input is known.
        answer = partial(bot.predict_top, k=top_k)
    answers = iter_answers(batches, answer, rejecting=reject is not None)
    if kind == ".table":
        with open_output(output_file) as stream:
            write_answers(stream, answers)
    else:
        write_rows(output_file, rows_of(answers, nested=kind == ".jsonl"), kind)


def _predict_on_cluster(
    file: Path | None,
    layout: Layout,
    model: Path | None,
    folder: Path | None,
    where: dict[str, Any],
) -> None:
    """Answer on a cluster, into a folder of parquet files."""
    from klda import cluster

    if file is None or folder is None or model is None:
        raise typer.BadParameter("--cluster needs a file, and --output: a folder to make.")
    columns: Any = {"input_column": layout.input, "columns": None}
    cluster.predict(file, model, folder, progress=True, **columns, **where)


def _opened(model: Path | None, server: str | None, key: str | None, where: dict[str, Any]) -> Any:
    """Return a Learner, or the Client of a service, which answers in the same way."""
    if server is not None:
        from klda.server.client import Client

        return Client(server, key=key)
    from klda.learner import Learner

    return Learner.load(str(model), **where)


def _inputs(
    file: Path | None, texts: list[str] | None, layout: Layout, modality: Any, skip_bad: bool
) -> Iterator[Batch]:
    """Read what is to be answered: a file, standard input, or texts that were given."""
    if texts:
        from klda.data import Batch

        if modality != "text":
            raise typer.BadParameter(f"This model takes {modality} inputs: give a file.")
        return iter([Batch(texts, None, cells={"text": texts})])
    tables = reading.open_tables([file or reading.STANDARD_INPUT], layout, modality, lines=True)
    return reading.batches(tables, "Predicting", labels=False, keep=None, skip_bad=skip_bad)


def _kind(format: str | None, output_file: Path | None, explain: bool) -> str:
    """Return how to write, as a suffix: what was asked for, or what the output's name says."""
    kind = check_output(output_file) if format is None else f".{format}"
    if format is not None and kind not in (known := (".table", *TEXT_WRITERS, *FILE_WRITERS)):
        some = ", ".join(repr(name[1:]) for name in known)
        raise typer.BadParameter(f"--format {format!r} is not one of {some}.")
    if explain:
        if kind not in ("", ".txt", ".jsonl"):
            raise typer.BadParameter(f"--explain has no {kind[1:]}: write text, or jsonl.")
    elif kind in ("", ".txt"):
        kind = ".table" if output_file is None and sys.stdout.isatty() else ".csv"
    elif kind in FILE_WRITERS and output_file is None:
        raise typer.BadParameter(f"--format {format} needs --output: name a file.")
    return kind


def _fraction(reject: str | None) -> dict[str, float]:
    """Return which fraction of known inputs may be refused, if a number was given."""
    if reject in (None, "auto"):
        return {}
    try:
        fraction = float(reject)
    except ValueError:
        raise typer.BadParameter(
            f"--reject {reject}: give auto, or a fraction such as 0.05."
        ) from None
    check_fraction("--reject", fraction)
    return {"reject": fraction}
