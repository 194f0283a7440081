"""Options that several commands share, so that they have one name and one meaning."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
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
        "Column with the texts, image paths or features (also --text-column); guessed if its name "
        "is obvious.",
        "--input-column",
        "--text-column",
    ),
]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1 ...")]
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


def check_workers(cluster: str | None, workers: int | None) -> None:
    """Raise if --workers is given without --cluster, where it has no meaning."""
    if workers is not None and cluster is None:
        raise typer.BadParameter("--workers needs --cluster: give both, or neither.")


class Group:
    """Options that go together: a dataclass, which a command takes as one parameter."""

    def given(self) -> dict[str, Any]:
        """Return the options that were given: those that are not None."""
        return given(**vars(self))


def given(**options: Any) -> dict[str, Any]:
    """Return the options that were given: those that are not None."""
    return {name: value for name, value in options.items() if value is not None}


@dataclass(frozen=True)
class Columns(Group):
    """Which columns hold the inputs and the labels."""

    input_column: InputColumn = None
    label_column: Annotated[
        str | None, option("Column with the labels; guessed if its name is obvious.")
    ] = None


@dataclass(frozen=True)
class Encoding(Group):
    """How inputs are encoded: options of :func:`klda.encoders.load`."""

    device: Device = "auto"
    batch_size: Annotated[
        int | None, option("Inputs in one pass through the foundation model.", min=1, metavar="N")
    ] = None
    engine: Engine = None
    precision: Precision = None


def ungrouped(command: Callable[..., None]) -> Callable[..., None]:
    """Return a command for Typer, with single options in the place of each group."""
    parameters: list[inspect.Parameter] = []
    groups = {}
    for parameter in inspect.signature(command, eval_str=True).parameters.values():
        group = parameter.annotation
        if isinstance(group, type) and issubclass(group, Group):
            groups[parameter.name] = group, inspect.signature(group, eval_str=True).parameters
            parameters += groups[parameter.name][1].values()
        else:
            parameters.append(parameter)

    @functools.wraps(command)
    def run(**options: Any) -> None:
        for name, (group, members) in groups.items():
            options[name] = group(**{member: options.pop(member) for member in members})
        command(**options)

    only_by_name = [one.replace(kind=one.KEYWORD_ONLY) for one in parameters]
    run.__signature__ = inspect.Signature(only_by_name)  # type: ignore[attr-defined]
    run.__annotations__ = {one.name: one.annotation for one in parameters}
    return run
