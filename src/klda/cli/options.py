"""The options that commands share: each has one name and one meaning."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer


def option(help: str, *names: str, **more: Any) -> Any:
    """Return an option whose help says what its default is, if that is not obvious."""
    return typer.Option(*names, help=help, **{"show_default": False, **more})


def _new(help: str, *names: str, **more: Any) -> Any:
    return option(help, *names, rich_help_panel="For a new model", **more)


def _long(help: str, *names: str, **more: Any) -> Any:
    return option(help, *names, rich_help_panel="For a long learn", **more)


def _cluster(help: str, metavar: str, **more: Any) -> Any:
    return option(help, metavar=metavar, rich_help_panel="On a cluster", **more)


def given(**options: Any) -> dict[str, Any]:
    """Return the options that were given: those that are not None."""
    return {name: value for name, value in options.items() if value is not None}


Model = Annotated[Path, option("The model folder.", "--model", "-m")]
OptionalModel = Annotated[Path | None, option("The model folder.", "--model", "-m")]
Json = Annotated[bool, option("Print one JSON object.", "--json")]
Wait = Annotated[
    float,
    typer.Option(min=0, metavar="SECONDS", help="How long to wait for another writer to finish."),
]

InputColumn = Annotated[
    str | None,
    option(
        "Column with the texts, image paths or features (also --text-column); guessed if its name "
        "is obvious."
    ),
]
LabelColumn = Annotated[
    str | None, option("Column with the labels; guessed if its name is obvious.")
]

# How inputs are encoded: options of `klda.encoders.load`.
Device = Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1 ...")]
BatchSize = Annotated[
    int | None, option("Inputs in one pass through the foundation model.", min=1, metavar="N")
]
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


def encoding(
    device: str, batch_size: int | None, engine: str | None, precision: str | None
) -> dict[str, Any]:
    """Return the options for encoding that were given."""
    return given(device=device, batch_size=batch_size, engine=engine, precision=precision)


# What a model that does not exist yet is to be.
Foundation = Annotated[
    str | None,
    _new(
        "Foundation model: a name that **klda models** lists, a hub name or a folder. By default "
        "minilm for texts, or ngrams if it is not installed; features need none."
    ),
]
Layers = Annotated[
    str | None, _new("Layers of the foundation model: auto, last, or numbers such as 4,5,6.")
]
Classifier = Annotated[str | None, _new("klda (default) or lda.")]
Components = Annotated[int | None, _new("Random features (5000).", min=1, metavar="D")]
Gamma = Annotated[float | None, _new("Bandwidth of the kernel (automatic).")]
Ridge = Annotated[float | None, _new("Ridge relative to the variance (automatic).")]
Seed = Annotated[
    int | None, _new("Seed of the random features (0).", min=0, max=2**32 - 1, metavar="N")
]
Keep = Annotated[
    str | None,
    _new(
        "**features** keeps the features of every sample, so that classes and single samples can "
        "be forgotten exactly."
    ),
]
NoNames = Annotated[bool, _new("Never use class names as examples.", "--no-names")]

CheckpointEvery = Annotated[
    float,
    _long(
        "How often to save the progress; 0 is never.", min=0, metavar="SECONDS", show_default=True
    ),
]
Resume = Annotated[bool, _long("Continue an interrupted learn of the same files.", "--resume")]
Restart = Annotated[bool, _long("Discard the progress of an interrupted learn.", "--restart")]

Cluster = Annotated[
    str | None,
    _cluster(
        "Work on a Ray cluster: host:port, auto, or local for processes on this machine.", "ADDRESS"
    ),
]
Workers = Annotated[
    int | None,
    _cluster("Workers on the cluster; by default one per GPU, or one per CPU.", "N", min=1),
]


def check_workers(cluster: str | None, workers: int | None) -> None:
    """Raise if --workers is given without --cluster, where it has no meaning."""
    if workers is not None and cluster is None:
        raise typer.BadParameter("--workers needs --cluster: give both, or neither.")
