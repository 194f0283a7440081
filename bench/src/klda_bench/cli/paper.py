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
    "values": _option(str, "Comma-separated values of the parameter."),
    "datasets": _option(
        str, "Comma-separated data sets, or folders with train and test files.", TEXTS
    ),
    "seeds": _option(int, "Number of seeds: 0, 1, ...", 3, min=1),
    "data": (Data, None),
    "device": _option(str, "auto, cpu, cuda, ...", "auto"),
    "output": _option(Path, "Folder of results, tables and plots.", OUT),
    "layers": _option(str, "Layers whose features are used, as in klda learn.", "last"),
    "tasks": _option(int | None, "Number of tasks (default: the paper's)."),
    "curve": (
        Annotated[bool, typer.Option("--curve", help="Measure accuracy after each task, too.")],
        False,
    ),
    "set": _option(list[str] | None, "Setting of one method: METHOD.NAME=VALUE. May be repeated."),
    "cache": _option(str | None, "Folder of cached features."),
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
    **defaults: str,
) -> Command:
    """Make a command that runs a grid: its options are a plan's, and what `make` takes besides.

    `defaults` are its own defaults, and `more` names other options.
    """

    def run(**given: Any) -> None:
        own = {"values": names(given.pop("values"))} if "values" in given else {}
        output = given.pop("output")
        plan = _plan(**given)
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
    page = write_report(output)
    summary = page.read_text(encoding="utf-8").partition("\n## ")[0]
    results().print(summary, markup=False)
    wrote([page])


COMMANDS = (
    command(
        "paper",
        """Write one page about the runs of a folder, and print its findings.

        By default the recorded runs of the paper. The commands table1, table2 and table3 make
        runs. With --cell, run one cell of the tables again from nothing and put it beside the
        recorded runs, with their settings: --cell klda-e/clinc/paraphrase-minilm-l3.
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

        klda bench paper --output FOLDER shows all finished runs of an output folder.
        """,
        tables.table1,
        "layers tasks curve set",
        methods=_PAPER,
    ),
    _grid_command(
        "table2",
        "Methods x text models x sets: joint fine-tuning, KLDA-E and the others.",
        partial(tables.models_table, "Table 2: text models x data sets"),
        "layers set",
        backbone=",".join(("minilm", *published.TEXT_MODELS, *published.MAIN_MODEL)),
        methods=_PAPER,
    ),
    _grid_command(
        "table3",
        "KLDA and Joint x image models x image sets.",
        partial(tables.models_table, "Table 3: image models x data sets"),
        "layers set",
        backbone=",".join(("efficientnet-lite0", *published.IMAGE_MODELS)),
        methods=_PAPER,
        datasets=IMAGES,
    ),
    _grid_command(
        "figure-gamma",
        "Accuracy over gamma at D = 5000.",
        partial(tables.sweep, parameter="gamma"),
        "layers",
        methods="klda",
        values="0.003,0.01,0.03,0.1,0.2,0.3,1,3",
    ),
    _grid_command(
        "figure-components",
        "Accuracy over the number of random features D, at the model's gamma.",
        partial(tables.sweep, parameter="n_components"),
        "layers",
        methods="klda",
        values="250,500,1000,2000,5000",
    ),
)
