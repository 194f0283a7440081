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
    """Return the options that were given: flags that are set, and what is not None."""
    return {
        name: value for name, value in options.items() if value is not None and value is not False
    }


def _names(context: typer.Context, panels: Sequence[str]) -> list[str]:
    """Return the names of the options in some panels of a command's help."""
    params = context.command.params
    return [str(one.name) for one in params if getattr(one, "rich_help_panel", None) in panels]


def given_of(context: typer.Context, panel: str) -> dict[str, Any]:
    """Return the options of a panel that were given."""
    return given(**{name: context.params[name] for name in _names(context, [panel])})


def refuse(
    context: typer.Context, mode: str, names: Sequence[str], panels: Sequence[str] = ()
) -> None:
    """Refuse options that were given but have no meaning together with another, the `mode`.

    They are named, or are those of whole panels.
    """
    source = context.get_parameter_source
    found = [
        name
        for name in (*names, *_names(context, panels))
        if getattr(source(name), "name", "") == "COMMANDLINE"
    ]
    if found:
        words = ", ".join(f"--{name.replace('_', '-')}" for name in found)
        raise typer.BadParameter(f"{words}: not possible with {mode}. Leave it out.")


def one_folder(folder: Path | None, model: Path | None, command: str) -> Path:
    """Return the model folder, which is given with the option's name or without."""
    at = folder or model
    if at is None or (folder and model):
        raise typer.BadParameter(
            f"Give one model folder: klda {command} DIR, or klda {command} --model DIR."
        )
    return at


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
# For commands that take nothing else without an option's name.
Folder = Annotated[
    Path | None, typer.Argument(help="The model folder; or give --model.", metavar="FOLDER")
]
Output = Annotated[
    Path | None,
    option(
        "Write all of them here, with all columns of the file (csv, tsv, jsonl, parquet, xlsx).",
        "--output",
        "-o",
        metavar="FILE",
    ),
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
    str | None, option("Column of labels; found by name or content.", panel=FILE, metavar="NAME")
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
SkipBad = Annotated[
    bool,
    option(
        "Leave out rows that can't be used, and write them to a file.", "--skip-bad", panel=FILE
    ),
]
IgnoreCase = Annotated[
    bool,
    option(
        "Labels that differ only in case are one class: a known one, or else in lower case.",
        "--ignore-case",
        panel=FILE,
    ),
]

# How inputs are encoded: options of `klda.encoders.load`.
Device = Annotated[str, option("auto (default), cpu, cuda, cuda:1 ...", panel=ENCODING)]
BatchSize = Annotated[
    int | None,
    option("Inputs in one pass through the foundation model.", panel=ENCODING, min=1, metavar="N"),
]
Runtime = Annotated[
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


def encoder_options(
    device: str, batch_size: int | None, runtime: str | None, precision: str | None
) -> dict[str, Any]:
    """Return the options of `klda.encoders.load` that were given."""
    return given(device=device, batch_size=batch_size, runtime=runtime, precision=precision)


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
        "**features** keeps the features of every sample, so that classes and single samples "
        "can be forgotten exactly.",
        panel=NEW,
        metavar="WHAT",
    ),
]
NoNames = Annotated[bool, option("Never use class names as examples.", "--no-names", panel=NEW)]

# How the progress of a long learn is saved and continued.
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


def layout(
    text_column: list[str] | None,
    header: bool | None,
    encoding: str | None,
    label_column: str | None = None,
    ignore_case: bool = False,
) -> Layout:
    """Return what the options say of a file."""
    inputs = tuple(text_column or ())
    if label_column is not None and label_column in inputs:
        raise typer.BadParameter(
            f"--text-column and --label-column both name {label_column!r}: name two columns."
        )
    return Layout(inputs or None, label_column, header, encoding, ignore_case)
