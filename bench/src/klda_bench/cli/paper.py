"""The commands that rerun the paper's tables and figures."""

from __future__ import annotations

import ast
import shlex
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from klda.cli.console import say
from klda.encoders import MODELS
from klda.errors import KldaError
from klda_bench import data as datasets_
from klda_bench import published
from klda_bench.cli.options import Command, command
from klda_bench.display.show import progress, results, show, wrote
from klda_bench.measure.common import Data, names
from klda_bench.methods import select
from klda_bench.paper import tables
from klda_bench.paper.accuracy_table import Table
from klda_bench.paper.cell import run_again
from klda_bench.paper.report import write_report
from klda_bench.results import Results
from klda_bench.runs.grid import Plan
from klda_bench.runs.metrics import FINAL

TEXTS = ",".join(datasets_.TEXT_SETS)
IMAGES = ",".join(datasets_.IMAGE_SETS)
OUT = Path("out/bench")
RECORDED = Path("results/bench")


def _option(kind: Any, about: str, default: Any = None, **how: Any) -> tuple[Any, Any]:
    return Annotated[kind, typer.Option(help=about, **how)], default


_OPTIONS: dict[str, tuple[Any, Any]] = {
    "backbone": _option(
        str, "Foundation models (klda models lists them), comma-separated.", "minilm"
    ),
    "methods": _option(
        str,
        "Comma-separated methods, or module:name of your own; groups: all, peers, fine-tuned.",
    ),
    "method": _option(str, "klda or klda-e.", "klda"),
    "values": _option(str, "Comma-separated values of the parameter."),
    "datasets": _option(
        str, "Comma-separated data sets, or folders with train and test files.", TEXTS
    ),
    "seeds": _option(int, "Number of seeds: 0, 1, ...", 3, min=1),
    "data": (Data, None),
    "device": _option(str, "auto, cpu, cuda, ...", "auto"),
    "output": _option(Path, "Folder of results, tables and plots.", OUT),
    "gamma": _option(float | None, "Kernel parameter of the paper's mode (default: the model's)."),
    "layers": _option(str, "Layers whose features are used, as in klda learn.", "last"),
    "tasks": _option(int | None, "Number of tasks (default: the paper's)."),
    "classes": _option(int | None, "Use this many classes only (stated)."),
    "per_class": _option(int | None, "Use at most this many training rows per class (stated)."),
    "curve": _option(
        str,
        "Measure accuracy after each task: auto (cheap methods always, KLDA for the first seed, "
        "KLDA-E at the end only), all, or end.",
        "auto",
    ),
    "set": _option(
        list[str] | None,
        "Setting of one method: METHOD.NAME=VALUE, or METHOD@DATASET.NAME=VALUE for one data "
        "set. May be repeated.",
    ),
    "cache": _option(str | None, "Folder of cached features."),
    "metric": _option(
        str,
        "What the table shows: final_accuracy, average_incremental_accuracy, forgetting or "
        "backward_transfer (measured by runs with --curve all).",
        FINAL,
    ),
}
_ALWAYS = ("backbone", "datasets", "seeds", "data", "device", "output", "cache")


def method_options(pairs: list[str] | None) -> dict[str, dict[str, Any]]:
    """``["joint.epochs=30"]`` as ``{"joint": {"epochs": 30}}``."""
    options: dict[str, dict[str, Any]] = {}
    for pair in pairs or []:
        where, equals, text = pair.partition("=")
        method, dot, name = where.rpartition(".")
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
    programs = {"__main__.py": "python -m klda_bench", "-c": "klda"}
    return shlex.join([*programs.get(program, program).split(), *sys.argv[1:]])


def _plan(methods: str, datasets: str, backbone: str, **given: Any) -> Plan:
    given["options"] = method_options(given.pop("set", None))
    known = (select(methods), names(datasets), names(backbone))
    return Plan(*known, command=_command_line(), **given)


def _grid_command(
    name: str,
    about: str,
    make: Callable[..., Table],
    more: str = "",
    fixed: dict[str, Any] | None = None,
    **defaults: str,
) -> Command:
    """Make a command that runs a grid: its options are a plan's, and what `make` takes besides.

    `defaults` are its own defaults, `more` names other options, and `fixed` are set by no option.
    """

    def run(**given: Any) -> None:
        own = {key: given.pop(key) for key in ("metric", "values") if key in given}
        if "values" in own:
            own["values"] = names(own["values"])
        output = given.pop("output")
        chosen = given.pop("methods" if "methods" in given else "method")
        plan = _plan(chosen, **given, **(fixed or {}))
        with progress() as notify:
            product = make(plan, output, notify=notify, **own)
        _show(product)
        _say_what_failed(product)

    chosen = {*defaults, *more.split(), *_ALWAYS}
    options = {
        key: (kind, defaults.get(key, default))
        for key, (kind, default) in _OPTIONS.items()
        if key in chosen
    }
    return command(name, about, run, options)


def _show(product: Table) -> None:
    show(product.shown, product.title)
    for note in product.notes:
        results().print(note, style="dim", markup=False)
    wrote(product.files)


def _say_what_failed(product: Table) -> None:
    say(f"{product.count('done')} runs made, {product.count('found')} found in the results.")
    failed = product.runs.reason[product.runs.status == "failed"]
    if len(failed):
        listed = "\n".join(failed.str.partition("\n")[0].unique())
        raise KldaError(f"{len(failed)} of {len(product.runs)} runs failed:\n{listed}")


def _memory(backbone: str, dataset: str, data: str | None, output: Path) -> None:
    if backbone not in MODELS:
        raise KldaError(f"backbone={backbone!r} is not one of {', '.join(MODELS)}.")
    classes = len(datasets_.load(dataset, data=data).classes)
    dimension = MODELS[backbone].dimension
    _show(tables.memory_counts(output, dataset, dimension, classes, backbone))


_PAPER = "ncm,lda,klda,klda-e,klda-default"


def _paper(
    cell: str | None, output: Path, seeds: int, device: str, data: str | None, cache: str | None
) -> None:
    if cell is not None:
        plan = _plan("lda", TEXTS, "minilm", seeds=seeds, device=device, data=data, cache=cache)
        with progress() as notify:
            product = run_again(cell, Results.of(output), plan, notify)
        _show(product)
        _say_what_failed(product)
        return
    files = write_report(output)
    summary = files[1].read_text(encoding="utf-8").partition("\n## ")[0]
    results().print(summary, markup=False)
    wrote(files)


COMMANDS = (
    command(
        "paper",
        """Write one page about the paper from the recorded runs, and print its findings.

        With --cell, run one cell of the tables again from nothing and put it beside the recorded
        runs, with their settings: --cell klda-e/clinc/paraphrase-minilm-l3. The commands table1,
        table2 and table3 run what is missing.
        """,
        _paper,
        {
            "cell": _option(str | None, "Run METHOD/DATASET or METHOD/DATASET/MODEL again."),
            **{name: _OPTIONS[name] for name in ("seeds", "data", "device", "output", "cache")},
            "output": _option(Path, "Folder of the recorded runs and the page.", RECORDED),
        },
    ),
    _grid_command(
        "table1",
        """Compare methods on the text sets: final accuracy, with accuracy-over-tasks curves.

        klda bench report shows all finished runs of an output folder.
        """,
        tables.table1,
        "gamma layers tasks classes per_class curve set metric",
        methods=_PAPER,
    ),
    _grid_command(
        "table2",
        "Methods x text models x sets: joint fine-tuning, KLDA-E and the others.",
        partial(tables.models_table, "table2", "Table 2: text models x data sets"),
        "gamma layers set",
        {"curve": "end"},
        backbone=",".join(("minilm", *published.TEXT_MODELS, *published.MAIN_MODEL)),
        methods=_PAPER,
    ),
    _grid_command(
        "table3",
        "KLDA and Joint x image models x image sets.",
        partial(tables.models_table, "table3", "Table 3: image models x data sets"),
        "gamma layers set",
        {"curve": "end"},
        backbone=",".join(("efficientnet-lite0", *published.IMAGE_MODELS)),
        methods=_PAPER,
        datasets=IMAGES,
    ),
    _grid_command(
        "figure-gamma",
        "Accuracy over gamma at D = 5000.",
        partial(tables.sweep, parameter="gamma"),
        "method layers",
        {"curve": "end"},
        values="0.003,0.01,0.03,0.1,0.2,0.3,1,3",
    ),
    _grid_command(
        "figure-components",
        "Accuracy over the number of random features D, at the model's gamma.",
        partial(tables.sweep, parameter="n_components"),
        "method gamma layers",
        {"curve": "end"},
        values="250,500,1000,2000,5000",
    ),
    _grid_command(
        "runtime",
        "Seconds to learn all tasks and to label the test set, and peak memory.",
        tables.runtime,
        fixed={"curve": "end"},
        methods=f"{_PAPER},peers",
    ),
    command(
        "memory",
        "Parameters and bytes of every method, as the paper counts and as held (from results).",
        _memory,
        {
            "dataset": _option(str, "Data set whose number of classes counts.", "clinc"),
            **{name: _OPTIONS[name] for name in ("backbone", "data", "output")},
        },
    ),
)
