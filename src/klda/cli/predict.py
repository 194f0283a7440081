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
from rich.text import Text

from klda.checks import REFUSED, check_fraction
from klda.cli import options, reading
from klda.cli.console import output, printable, results, table, visible
from klda.cli.options import option

if TYPE_CHECKING:
    from klda.data import Batch
    from klda.learner import Learner
    from klda.learner.verdict import Verdict

FEWEST = 3  # classes that an explanation shows: fewer explain nothing
Record = dict[str, Any]  # an input and its answer, as --format jsonl has them
Answering = Callable[[Any], Iterable[Record]]


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
        option(
            "Fraction of known inputs that --reject may refuse (0.05); turns --reject on.",
            metavar="FRACTION",
        ),
    ] = None,
    explain: Annotated[
        bool,
        option(
            "Explain each answer: nearest classes, margin, novelty, nearest samples.", "--explain"
        ),
    ] = False,
    format: Annotated[
        Format | None,
        option("By default table on a terminal, csv otherwise.", metavar="table|csv|jsonl"),
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
    options.check_workers(cluster, workers)
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
    if server is not None and encoding != options.Encoding():
        raise typer.BadParameter(
            "--server encodes the inputs itself: leave out --device, --batch-size, --engine and "
            "--precision."
        )
    if explain and format is Format.CSV:
        raise typer.BadParameter("--explain has no csv: leave out --format, or give jsonl.")
    asked = _opened(model, server, key, encoding.given(), judged or explain)
    batches = _batches(asked.modality, file, text or [], input_column)
    if explain:
        answer = explaining(asked, max(top_k, FEWEST), options.given(refused=refused))
        names, write = ["input"], _write_jsonl if format is Format.JSONL else _write_explanations
    else:
        # A model with fewer classes than asked for has fewer columns to fill.
        most = min(top_k, getattr(asked, "n_classes", None) or len(asked.classes))
        answer = ranking(asked, most, (refused or REFUSED) if judged else None)
        names = columns(asked.modality, most, judged)
        on_terminal = output_file is None and sys.stdout.isatty()
        write = WRITERS[format or (Format.TABLE if on_terminal else Format.CSV)]
    with output(output_file) as stream:
        write(stream, names, answered(names[0], batches, answer))


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


def answered(name: str, batches: Iterable[Batch], answer: Answering) -> Iterator[Record]:
    """Yield each input with its answer: texts and paths as they are, features by row number."""
    row = 0
    for batch in batches:
        for value, said in zip(batch.inputs, answer(batch.inputs), strict=True):
            row += 1
            yield {name: printable(str(value)) if isinstance(value, str | Path) else row} | said


def ranking(asked: Any, most: int, refused: float | None = None) -> Answering:
    """Return what answers with the likeliest classes, and with `refused` says what is known."""
    rejecting = {} if refused is None else {"reject": refused}

    def record(top: list[tuple[Any, float]]) -> Record:
        ranked: list[Record] = [
            {"label": label, "probability": None if math.isnan(p) else round(p, 6)}
            for label, p in top
        ]
        # A class may be called "unknown", too, but then it has a probability.
        known = {"known": ranked[0]["probability"] is not None} if rejecting else {}
        return ranked[0] | known | ({"top": ranked} if most > 1 else {})

    return lambda inputs: map(record, asked.predict_top(inputs, most, **rejecting))


def explaining(learner: Learner, most: int, refused: dict[str, float]) -> Answering:
    """Return what answers with explanations."""

    def answer(inputs: Any) -> Iterator[Record]:
        said = learner.explain_all(inputs, top=most, samples=most, **refused)
        return (explanation.to_dict() for explanation in said)

    return answer


def columns(modality: str, most: int, judged: bool) -> list[str]:
    """Return the columns of a table with so many classes per input."""
    names = ["row" if modality == "features" else modality, "label", "probability"]
    for i in range(2, most + 1):
        names += [f"label_{i}", f"probability_{i}"]
    return [*names, "known"] if judged else names


def _cells(record: Record, number: str, none: str) -> list[Any]:
    cells = [next(iter(record.values()))]
    for one in record.get("top", [record]):
        p = one["probability"]
        cells += [one["label"], none if p is None else format(p, number)]
    return cells


def write_csv(stream: TextIO, names: list[str], records: Iterable[Record]) -> None:
    """Write predictions as comma-separated values."""
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(names)
    for record in records:
        known = [str(record["known"]).lower()] if "known" in record else []
        writer.writerow([*_cells(record, ".6f", ""), *known])


def _write_jsonl(stream: TextIO, names: list[str], records: Iterable[Record]) -> None:
    for record in records:
        stream.write(json.dumps(record, ensure_ascii=False) + "\n")


def _write_table(stream: TextIO, names: list[str], records: Iterable[Record]) -> None:
    short = [name.replace("probability", "prob.").replace("_", " ") for name in names]
    heads = [name for name in short if name != "known"]
    rows = (_cells(record, ".1%", "-") for record in records)
    shown = table(*heads, rows=rows, numbers=heads[2::2])
    shown.columns[0].overflow, shown.columns[1].style = "fold", "bold"
    results(stream).print(shown)


WRITERS = {Format.TABLE: _write_table, Format.CSV: write_csv, Format.JSONL: _write_jsonl}


def _write_explanations(stream: TextIO, names: list[str], records: Iterable[Record]) -> None:
    from klda.learner.verdict import verdict

    console = results(stream)
    numbers = ("probability", "distance", "similarity")
    layout: dict[str, Any] = {"numbers": numbers, "padding": (0, 2), "pad_edge": True}
    for said in records:
        first = said["classes"][0]["probability"]
        judged = verdict(first, said["known"], len(said["classes"]))
        console.print(Text(visible(str(said["input"])), style="bold"))
        console.print(Text("  " + _verdict(said, judged)), soft_wrap=True)
        near = (
            (
                one["label"],
                f"{one['probability']:.1%}" if judged.has_probability else "-",
                f"{one['distance']:,.0f}",
            )
            for one in said["classes"]
        )
        console.print(table("nearest classes", *numbers[:2], rows=near, **layout))
        if said["samples"]:
            alike = ((s["id"], s["label"], f"{s['similarity']:.3f}") for s in said["samples"])
            console.print(table("nearest samples", "class", "similarity", rows=alike, **layout))
        console.print()


def _verdict(said: Record, judged: Verdict) -> str:
    is_new = judged == "new"
    closest = f"{judged.words}; the closest class is {said['label']}"
    parts = [closest] if is_new else [str(said["label"]), judged.words]
    if said["margin"] is not None:
        parts.append(f"margin {said['margin']:.2f}")
    if said["novelty"] is not None:
        limit = said["threshold"]
        beyond = "no threshold yet" if limit is None else f"unknown above {limit:,.0f}"
        parts.append(f"novelty {said['novelty']:,.0f} ({beyond})")
    return ", ".join(parts)
