"""The options that commands share: each has one name and one meaning."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from klda.data import Layout

# Panels of the help.
FILE, NEW, LONG = "Reading the file", "For a new model", "For a long learn"
ENCODING, ELSEWHERE = "Encoding the inputs", "On a service or a cluster"


def option(help: str, *names: str, panel: str | None = None, **more: Any) -> Any:
    """Return an option whose help says what its default is, if that is not obvious."""
    shown = {"show_default": False, "rich_help_panel": panel}
    return typer.Option(*names, help=help, **(shown | more))


def given(**options: Any) -> dict[str, Any]:
    """Return the options that were given: those that are not None."""
    return {name: value for name, value in options.items() if value is not None}


def of(context: typer.Context, names: Sequence[str]) -> dict[str, Any]:
    """Return those of some options of a command that were given, or have a default."""
    found = {name: context.params[name] for name in names}
    return given(**{name: value for name, value in found.items() if value is not False})


def refuse(context: typer.Context, mode: str, names: Sequence[str]) -> None:
    """Refuse options that were given but have no meaning together with another, the `mode`."""
    source = context.get_parameter_source
    found = [name for name in names if getattr(source(name), "name", "") == "COMMANDLINE"]
    if found:
        words = ", ".join(f"--{name.replace('_', '-')}" for name in found)
        raise typer.BadParameter(f"{words}: not possible with {mode}. Leave it out.")


def check_cluster(context: typer.Context, *others: str) -> None:
    """Refuse --workers without --cluster, and with it other options that have no meaning there."""
    if context.params["cluster"] is not None:
        refuse(context, "--cluster", others)
    elif context.params["workers"] is not None:
        raise typer.BadParameter("--workers needs --cluster: give both, or neither.")


Model = Annotated[Path, option("The model folder.", "--model", "-m", metavar="FOLDER")]
OptionalModel = Annotated[
    Path | None, option("The model folder.", "--model", "-m", metavar="FOLDER")
]
Json = Annotated[bool, option("Print one JSON object.", "--json")]
Wait = Annotated[
    float, option("How long to wait for another writer to finish (0).", min=0, metavar="SECONDS")
]

# How a file is to be read.
TextColumn = Annotated[
    list[str] | None,
    option(
        "Column of texts (image paths, features); found by name or content. Repeat it to join "
        "several.",
        "--text-column",
        panel=FILE,
        metavar="NAME",
    ),
]
LabelColumn = Annotated[
    str | None,
    option("Column of labels; found by name or content.", panel=FILE, metavar="NAME"),
]
Header = Annotated[
    bool | None,
    option(
        "Whether the first row names the columns (detected).", "--header/--no-header", panel=FILE
    ),
]
Encoding = Annotated[
    str | None,
    option("Such as utf-8, utf-16 or windows-1252 (detected).", panel=FILE, metavar="NAME"),
]
IgnoreCase = Annotated[
    bool,
    option(
        "Labels that differ only in case are one class: a known one, or else in lower case.",
        "--ignore-case",
        panel=FILE,
    ),
]
SkipBad = Annotated[
    bool,
    option(
        "Leave out rows that can't be used, and write them to a file.", "--skip-bad", panel=FILE
    ),
]


def layout(
    text_column: list[str] | None,
    label_column: str | None = None,
    header: bool | None = None,
    encoding: str | None = None,
    ignore_case: bool = False,
) -> Layout:
    """Return what the options say of a file."""
    if label_column is not None and label_column in (text_column or ()):
        raise typer.BadParameter(
            f"--text-column and --label-column both name {label_column!r}: name two columns."
        )
    inputs = tuple(text_column or ()) or None
    return Layout(inputs, label_column, header, encoding, ignore_case)


# How inputs are encoded: options of `klda.encoders.load`.
ENCODER = ("device", "batch_size", "engine", "precision")
Device = Annotated[str, option("auto (default), cpu, cuda, cuda:1 ...", panel=ENCODING)]
BatchSize = Annotated[
    int | None,
    option("Inputs in one pass through the foundation model.", panel=ENCODING, min=1, metavar="N"),
]
Engine = Annotated[
    str | None,
    option("What runs a text model: onnx or torch (automatic).", panel=ENCODING, metavar="NAME"),
]
Precision = Annotated[
    str | None,
    option(
        "float32 or bfloat16 (twice as fast on CPUs that compute in it; needs torch).",
        panel=ENCODING,
        metavar="FORMAT",
    ),
]

# What a model that does not exist yet is to be.
Foundation = Annotated[
    str | None,
    option(
        "Foundation model: a name that **klda models** lists, a hub name or a folder. By default "
        "minilm for texts, or ngrams if it is not installed; features need none.",
        panel=NEW,
        metavar="NAME",
    ),
]
Layers = Annotated[
    str | None,
    option("Layers of the foundation model: auto, last, or numbers such as 4,5,6.", panel=NEW),
]
Classifier = Annotated[str | None, option("klda (default) or lda.", panel=NEW, metavar="NAME")]
Components = Annotated[int | None, option("Random features (5000).", panel=NEW, min=1, metavar="D")]
Gamma = Annotated[float | None, option("Bandwidth of the kernel (automatic).", panel=NEW)]
Ridge = Annotated[float | None, option("Ridge relative to the variance (automatic).", panel=NEW)]
Seed = Annotated[
    int | None,
    option("Seed of the random features (0).", panel=NEW, min=0, max=2**32 - 1, metavar="N"),
]
Keep = Annotated[
    str | None,
    option(
        "**features** keeps the features of every sample, so that classes and single samples can "
        "be forgotten exactly.",
        panel=NEW,
        metavar="WHAT",
    ),
]
NoNames = Annotated[bool, option("Never use class names as examples.", "--no-names", panel=NEW)]

CheckpointEvery = Annotated[
    float,
    option("How often to save the progress (180); 0: never.", panel=LONG, min=0, metavar="SECONDS"),
]
Resume = Annotated[
    bool, option("Continue an interrupted learn of the same files.", "--resume", panel=LONG)
]
Restart = Annotated[
    bool, option("Discard the progress of an interrupted learn.", "--restart", panel=LONG)
]

Server = Annotated[
    str | None,
    option("A running **klda serve** instead of a model folder.", panel=ELSEWHERE, metavar="URL"),
]
Key = Annotated[
    str | None, option("API key of the server.", panel=ELSEWHERE, envvar="KLDA_KEY", metavar="KEY")
]
Cluster = Annotated[
    str | None,
    option(
        "A Ray cluster: host:port, auto, or local for processes on this machine.",
        panel=ELSEWHERE,
        metavar="ADDRESS",
    ),
]
Workers = Annotated[
    int | None,
    option(
        "Workers on the cluster; by default one per GPU, or one per CPU.",
        panel=ELSEWHERE,
        min=1,
        metavar="N",
    ),
]
