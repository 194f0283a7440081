"""Options that several commands share, so that they have one name and one meaning."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

Model = Annotated[Path, typer.Option("--model", "-m", help="The model folder.", show_default=False)]
InputColumn = Annotated[
    str | None,
    typer.Option(
        "--input-column",
        "--text-column",
        help="Column with the texts (image paths, features); guessed when its name is obvious.",
        show_default=False,
    ),
]
LabelColumn = Annotated[
    str | None,
    typer.Option(help="Column with the labels; guessed when its name is obvious."),
]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1 ...")]
BatchSize = Annotated[
    int | None, typer.Option(min=1, help="Inputs in one pass through the foundation model.")
]
Cache = Annotated[
    Path | None, typer.Option(help="Folder that keeps computed features for the next time.")
]
Wait = Annotated[
    float, typer.Option(min=0, help="Seconds to wait while someone else writes to the model.")
]
Cluster = Annotated[
    str | None,
    typer.Option(
        metavar="ADDRESS",
        help="Work on a Ray cluster: host:port or auto; local is processes on this machine.",
        rich_help_panel="On a cluster",
        show_default=False,
    ),
]
Workers = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Workers on the cluster; by default one a GPU, or one a CPU without GPUs.",
        rich_help_panel="On a cluster",
        show_default=False,
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


def encoding(device: str, batch_size: int | None, cache: Path | None) -> dict[str, Any]:
    """Collect the options of :func:`klda.encoders.load` that were given.

    Parameters
    ----------
    device : str
        Where the foundation model and the classifier run.
    batch_size : int or None
        Inputs in one pass.
    cache : Path or None
        Folder of the feature cache.

    Returns
    -------
    dict
        Without those that were not given.
    """
    given = {"device": device, "batch_size": batch_size, "cache": cache}
    return {name: value for name, value in given.items() if value is not None}
