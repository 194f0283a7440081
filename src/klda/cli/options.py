"""Options that several commands share, so that they have one name and one meaning."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer


def option(help: str, *names: str, **more: Any) -> Any:
    """Return an option whose help says what its default is, if that is not obvious."""
    return typer.Option(*names, help=help, **{"show_default": False, **more})


def cluster_option(help: str, **more: Any) -> Any:
    """Return an option for work on a cluster."""
    return option(help, rich_help_panel="On a cluster", **more)


Model = Annotated[Path, option("The model folder.", "--model", "-m")]
OptionalModel = Annotated[Path | None, option("The model folder.", "--model", "-m")]
InputColumn = Annotated[
    str | None,
    option(
        "Column with the texts, image paths or features; guessed if its name is obvious.",
        "--input-column",
        "--text-column",
    ),
]
LabelColumn = Annotated[
    str | None, option("Column with the labels; guessed if its name is obvious.")
]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1 ...")]
BatchSize = Annotated[
    int | None, option("Inputs in one pass through the foundation model.", min=1, metavar="N")
]
Cache = Annotated[Path | None, option("Folder that keeps computed features for the next time.")]
Engine = Annotated[
    str | None, option("What runs a text model: onnx or torch (automatic).", metavar="NAME")
]
Precision = Annotated[
    str | None,
    option(
        "float32 or bfloat16 (twice as fast on CPUs that compute in it; needs torch).",
        metavar="FORMAT",
    ),
]
Wait = Annotated[
    float,
    typer.Option(min=0, metavar="SECONDS", help="How long to wait for another writer to finish."),
]
Cluster = Annotated[
    str | None,
    cluster_option(
        "Work on a Ray cluster: host:port, auto, or local for processes on this machine.",
        metavar="ADDRESS",
    ),
]
Workers = Annotated[
    int | None,
    cluster_option(
        "Workers on the cluster; by default one per GPU, or one per CPU without GPUs.",
        min=1,
        metavar="N",
    ),
]
Json = Annotated[bool, option("Print one JSON object.", "--json")]


def given(**options: Any) -> dict[str, Any]:
    """Return the options that were given: those that are not None."""
    return {name: value for name, value in options.items() if value is not None}


def encoding(
    device: str,
    batch_size: int | None,
    cache: Path | None,
    engine: str | None,
    precision: str | None,
) -> dict[str, Any]:
    """Return the options of :func:`klda.encoders.load` that were given."""
    return given(
        device=device, batch_size=batch_size, cache=cache, engine=engine, precision=precision
    )
