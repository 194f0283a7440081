"""Options that several commands share, so that they have one name and one meaning."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

CLUSTER = "On a cluster"

Model = Annotated[Path, typer.Option("--model", "-m", help="The model folder.", show_default=False)]
OptionalModel = Annotated[
    Path | None, typer.Option("--model", "-m", help="The model folder.", show_default=False)
]
InputColumn = Annotated[
    str | None,
    typer.Option(
        "--input-column",
        "--text-column",
        help="Column with the texts, image paths or features; guessed if its name is obvious.",
        show_default=False,
    ),
]
LabelColumn = Annotated[
    str | None, typer.Option(help="Column with the labels; guessed if its name is obvious.")
]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1 ...")]
BatchSize = Annotated[
    int | None,
    typer.Option(min=1, metavar="N", help="Inputs in one pass through the foundation model."),
]
Cache = Annotated[
    Path | None, typer.Option(help="Folder that keeps computed features for the next time.")
]
Engine = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="What runs a text model: onnx or torch (automatic).",
        show_default=False,
    ),
]
Precision = Annotated[
    str | None,
    typer.Option(
        metavar="FORMAT",
        help="float32 or bfloat16 (twice as fast on CPUs that compute in it; needs torch).",
        show_default=False,
    ),
]
Wait = Annotated[
    float,
    typer.Option(min=0, metavar="SECONDS", help="How long to wait for another writer to finish."),
]
Cluster = Annotated[
    str | None,
    typer.Option(
        metavar="ADDRESS",
        help="Work on a Ray cluster: host:port, auto, or local for processes on this machine.",
        rich_help_panel=CLUSTER,
        show_default=False,
    ),
]
Workers = Annotated[
    int | None,
    typer.Option(
        min=1,
        metavar="N",
        help="Workers on the cluster; by default one per GPU, or one per CPU without GPUs.",
        rich_help_panel=CLUSTER,
        show_default=False,
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


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
