"""The commands that rerun the paper's tables and figures."""

from __future__ import annotations

import ast
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from klda.errors import KldaError
from klda_bench import data as datasets_
from klda_bench import published
from klda_bench.cli.screen import errors, progress, results, say, show, wrote
from klda_bench.engine import MODELS
from klda_bench.methods import select
from klda_bench.paper import tables
from klda_bench.runs.grid import Notify, Plan
from klda_bench.runs.metrics import FINAL

TEXTS = ",".join(datasets_.TEXT_SETS)
IMAGES = ",".join(datasets_.IMAGE_SETS)

Backbone = Annotated[str, typer.Option(help="Foundation model (klda models lists them).")]
Backbones = Annotated[str, typer.Option(help="Comma-separated foundation models.")]
Methods = Annotated[
    str, typer.Option(help="Comma-separated methods; groups: all, peers, fine-tuned.")
]
Datasets = Annotated[
    str, typer.Option(help="Comma-separated data sets, or folders with train and test files.")
]
Seeds = Annotated[int, typer.Option(min=1, help="Number of seeds: 0, 1, ...")]
Data = Annotated[
    str | None, typer.Option(envvar="KLDA_DATA", help="Folder of data sets to look in first.")
]
Split = Annotated[str, typer.Option(help="Split of the text sets: paper or official.")]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda, ...")]
Output = Annotated[Path, typer.Option(help="Folder of results, tables and plots.")]
Gamma = Annotated[
    float | None, typer.Option(help="Kernel parameter of the paper's mode (default: the model's).")
]
Layers = Annotated[str, typer.Option(help="Layers whose features are used, as in klda learn.")]
Tasks = Annotated[int | None, typer.Option(help="Number of tasks (default: the paper's).")]
Classes = Annotated[int | None, typer.Option(help="Use this many classes only (stated).")]
PerClass = Annotated[
    int | None, typer.Option(help="Use at most this many training rows per class (stated).")
]
Curve = Annotated[
    str,
    typer.Option(
        help="Measure accuracy after each task: auto (cheap methods always, KLDA for the first "
        "seed, KLDA-E at the end only), all, or end."
    ),
]
Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        help="Setting of one method: METHOD.NAME=VALUE, or METHOD@DATASET.NAME=VALUE for one data "
        "set. May be repeated.",
    ),
]
Cache = Annotated[str | None, typer.Option(help="Folder of cached features.")]
Metric = Annotated[
    str,
    typer.Option(
        help="What the table shows: final_accuracy, average_incremental_accuracy, forgetting or "
        "backward_transfer (measured by runs with --curve all)."
    ),
]
OneMethod = Annotated[str, typer.Option(help="klda or klda-e.")]
Values = Annotated[str, typer.Option(help="Comma-separated values of the parameter.")]
OUT = Path("out/bench")


def check_split(split: str) -> Any:
    """Return the split of text sets, or raise an error that names the choices."""
    if split not in ("paper", "official"):
        raise KldaError(f"split={split!r} is not known: use paper, official.")
    return split


def _names(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def method_options(pairs: list[str] | None) -> dict[str, dict[str, Any]]:
    """``["joint.epochs=30"]`` as ``{"joint": {"epochs": 30}}``."""
    options: dict[str, dict[str, Any]] = {}
    for pair in pairs or []:
        where, equals, text = pair.partition("=")
        method, dot, name = where.partition(".")
        if not (equals and dot and method and name):
            raise KldaError(f"set={pair!r} is not of the form METHOD.NAME=VALUE.")
        try:
            value = ast.literal_eval(text)
        except (ValueError, SyntaxError):
            value = text
        options.setdefault(method, {})[name] = value
    return options


def _command_line() -> str:
    """Return the command that is running, as a user would type it."""
    program = Path(sys.argv[0]).name
    names = {"__main__.py": "python -m klda_bench", "-c": "klda"}
    return shlex.join([*names.get(program, program).split(), *sys.argv[1:]])


def _run(make: Callable[[Plan, Path, Notify], tables.Product], given: dict[str, Any]) -> None:
    """Make the plan of a command from its options, do the work, and show what came of it."""
    with errors():
        output, methods = given.pop("output"), given.pop("methods")
        plan = Plan(
            select(methods),
            _names(given.pop("datasets")),
            _names(given.pop("backbone")),
            options=method_options(given.pop("set_", None)),
            command=_command_line(),
            **given,
        )
        with progress() as notify:
            product = make(plan, output, notify)
        _show(product)
        say(f"{product.count('done')} runs made, {product.count('found')} found in the results.")
        failed = [cell.reason.splitlines()[0] for cell in product.cells if cell.status == "failed"]
        if failed:
            listed = "\n".join(dict.fromkeys(failed))
            raise KldaError(f"{len(failed)} of {len(product.cells)} runs failed:\n{listed}")


def _show(product: tables.Product) -> None:
    show(product.shown, product.title)
    for note in product.notes:
        results().print(note, style="dim", markup=False)
    wrote(product.files)


def table1(
    backbone: Backbone = "minilm",
    methods: Methods = "ncm,lda,klda,klda-e,klda-default",
    datasets: Datasets = TEXTS,
    seeds: Seeds = 3,
    data: Data = None,
    split: Split = "paper",
    device: Device = "auto",
    output: Output = OUT,
    gamma: Gamma = None,
    layers: Layers = "last",
    tasks: Tasks = None,
    classes: Classes = None,
    per_class: PerClass = None,
    curve: Curve = "auto",
    set_: Set = None,
    cache: Cache = None,
    metric: Metric = FINAL,
) -> None:
    """Compare methods on the text sets: final accuracy, with accuracy-over-tasks curves.

    Finished runs of other methods in the output folder are shown beside those asked for.
    """
    given = dict(locals())
    del given["metric"]
    _run(lambda plan, out, notify: tables.table1(plan, out, notify, metric=metric), given)


def table2(
    backbone: Backbones = ",".join(("minilm", *published.TEXT_MODELS)),
    methods: Methods = "joint,klda-e",
    datasets: Datasets = TEXTS,
    seeds: Seeds = 3,
    data: Data = None,
    split: Split = "paper",
    device: Device = "auto",
    output: Output = OUT,
    gamma: Gamma = None,
    layers: Layers = "last",
    set_: Set = None,
    cache: Cache = None,
) -> None:
    """KLDA-E and Joint x text models x sets."""
    given = locals() | {"curve": "end"}
    what = ("table2", "Table 2: text models x data sets")
    model = published.MAIN_TEXT_MODEL
    _run(lambda plan, out, notify: tables.models_table(*what, plan, out, model, notify), given)


def table3(
    backbone: Backbones = ",".join(("efficientnet-lite0", *published.IMAGE_MODELS)),
    methods: Methods = "joint,ncm,lda,klda,klda-e,klda-default",
    datasets: Datasets = IMAGES,
    seeds: Seeds = 3,
    data: Data = None,
    device: Device = "auto",
    output: Output = OUT,
    gamma: Gamma = None,
    layers: Layers = "last",
    set_: Set = None,
    cache: Cache = None,
) -> None:
    """KLDA and Joint x image models x image sets."""
    given = dict(locals())
    what = ("table3", "Table 3: image models x data sets")
    model = published.MAIN_IMAGE_MODEL
    _run(lambda plan, out, notify: tables.models_table(*what, plan, out, model, notify), given)


def _sweep(parameter: str, kind: type, given: dict[str, Any]) -> None:
    with errors():
        try:
            values = [kind(text) for text in _names(given.pop("values"))]
        except ValueError as error:
            raise KldaError(f"values: {error} (of {parameter}).") from error
    given |= {"methods": given.pop("method"), "curve": "end"}
    _run(lambda plan, out, notify: tables.sweep(plan, out, parameter, values, notify), given)


def figure_gamma(
    backbone: Backbone = "minilm",
    method: OneMethod = "klda",
    values: Values = "0.003,0.01,0.03,0.1,0.2,0.3,1,3",
    datasets: Datasets = TEXTS,
    seeds: Seeds = 3,
    data: Data = None,
    device: Device = "auto",
    output: Output = OUT,
    layers: Layers = "last",
    cache: Cache = None,
) -> None:
    """Accuracy over gamma at D = 5000."""
    _sweep("gamma", float, dict(locals()))


def figure_components(
    backbone: Backbone = "minilm",
    method: OneMethod = "klda",
    values: Values = "250,500,1000,2000,5000",
    datasets: Datasets = TEXTS,
    seeds: Seeds = 3,
    data: Data = None,
    device: Device = "auto",
    output: Output = OUT,
    gamma: Gamma = None,
    layers: Layers = "last",
    cache: Cache = None,
) -> None:
    """Accuracy over the number of random features D, at the model's gamma."""
    _sweep("n_components", int, dict(locals()))


def runtime(
    backbone: Backbone = "minilm",
    methods: Methods = "ncm,lda,klda,klda-e,klda-default,peers",
    datasets: Datasets = TEXTS,
    seeds: Seeds = 3,
    data: Data = None,
    device: Device = "auto",
    output: Output = OUT,
    cache: Cache = None,
) -> None:
    """Seconds to learn all tasks and to label the test set, and peak memory."""
    _run(tables.runtime, locals() | {"curve": "end", "here_only": True})


def memory(
    backbone: Backbone = "minilm",
    dataset: Annotated[str, typer.Option(help="Data set whose number of classes counts.")] = (
        "clinc"
    ),
    data: Data = None,
    output: Output = OUT,
) -> None:
    """Parameters and bytes of every method, as the paper counts and as held (from results)."""
    with errors():
        if backbone not in MODELS:
            raise KldaError(f"backbone={backbone!r} is not one of {', '.join(MODELS)}.")
        classes = len(datasets_.load(dataset, data=data).classes)
        dimension = MODELS[backbone].dimension
        _show(tables.memory_counts(output, dataset, dimension, classes, backbone))
