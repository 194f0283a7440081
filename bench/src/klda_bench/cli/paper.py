"""The commands that rerun the paper's tables and figures."""

from __future__ import annotations

import ast
import inspect
import shlex
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from klda.cli.console import say
from klda.cli.options import option
from klda.errors import KldaError
from klda_bench.data.catalog import IMAGE_SETS, TEXT_SETS
from klda_bench.display.show import progress, results, show, wrote
from klda_bench.methods.registry import select
from klda_bench.options import Data, Device, Seeds, names
from klda_bench.paper import published, tables
from klda_bench.paper.accuracy_table import Table
from klda_bench.paper.report import write_report
from klda_bench.results import Results
from klda_bench.runs.grid import GridPlan

TEXTS = ",".join(TEXT_SETS)
IMAGES = ",".join(IMAGE_SETS)
OUT = Path("out/bench")
RECORDED = Path("results/bench")
PAPER = "ncm,lda,klda,klda-e,klda-default"

Backbones = Annotated[
    str | None, option("Foundation models (klda models lists them), comma-separated.")
]
Methods = Annotated[
    str | None, option("Methods, or module:name of your own; groups: all, peers, fine-tuned.")
]
Sets = Annotated[
    str | None, option("Data sets, or folders with train and test files, comma-separated.")
]
Output = Annotated[Path, option(f"Folder of results, tables and plots ({OUT}).")]
Layers = Annotated[str, option("Layers whose features are used, as in klda learn (last).")]
Tasks = Annotated[int | None, option("Number of tasks (the paper's).", min=1)]
Curve = Annotated[bool, option("Measure accuracy after each task, too.", "--curve")]
Setting = Annotated[
    list[str] | None, option("Setting of one method: METHOD.NAME=VALUE. May be repeated.")
]
Values = Annotated[str, option("Values of the parameter, comma-separated.", show_default=True)]


@dataclass(frozen=True)
class Grid:
    """The options of a command: what is run, and where the runs are kept."""

    seeds: Seeds = 3
    data: Data = None
    device: Device = "auto"
    backbone: Backbones = None
    methods: Methods = None
    datasets: Sets = None
    output: Output = OUT
    layers: Layers = "last"
    tasks: Tasks = None
    curve: Curve = False
    set: Setting = None

    def plan(
        self, methods: str = PAPER, backbone: str = "minilm", datasets: str = TEXTS
    ) -> GridPlan:
        """Return the runs to make; the arguments are the command's defaults."""
        return GridPlan(
            select(methods if self.methods is None else self.methods),
            names(datasets if self.datasets is None else self.datasets, "datasets"),
            names(backbone if self.backbone is None else self.backbone, "backbone"),
            seeds=self.seeds,
            data=self.data,
            device=self.device,
            layers=self.layers,
            tasks=self.tasks,
            curve=self.curve,
            options=method_options(self.set),
            command=_command_line(),
        )


def of_grid(make: Callable[..., None]) -> Callable[..., None]:
    """Return a command with the options of a grid, and with those that `make` has beside it."""
    _, *own = inspect.signature(make, eval_str=True).parameters.values()
    options = inspect.signature(Grid, eval_str=True).parameters.values()

    def command(**given: Any) -> None:
        beside = {option.name: given.pop(option.name) for option in own}
        make(Grid(**given), **beside)

    command.__name__, command.__doc__ = make.__name__, make.__doc__
    vars(command)["__signature__"] = inspect.Signature([*own, *options])
    return command


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
    path = Path(sys.argv[0])
    program = path.name
    if program == "__main__.py" and path.parent.name == "klda":
        program = "klda"  # python -m klda bench
    programs = {"__main__.py": "python -m klda_bench", "-c": "klda"}
    return shlex.join([*programs.get(program, program).split(), *sys.argv[1:]])


def _show(product: Table) -> None:
    show(product.shown, product.title)
    for note in product.notes:
        results().print(note, style="dim", markup=False)
    wrote(product.files)
    say(f"{product.count('done')} runs made, {product.count('found')} found in the results.")
    failed = product.runs.reason[product.runs.status == "failed"]
    if len(failed):
        listed = "\n".join(failed.str.partition("\n")[0].unique())
        raise KldaError(f"{len(failed)} of {len(product.runs)} runs failed:\n{listed}")


def _run(make: Callable[..., Table], plan: GridPlan, output: Path, **more: Any) -> None:
    """Make a table of a plan's runs, and show it."""
    with progress() as notify:
        product = make(plan, output, notify=notify, **more)
    _show(product)


def paper(
    seeds: Seeds = 3,
    data: Data = None,
    device: Device = "auto",
    cell: Annotated[str | None, option("Run METHOD/DATASET or METHOD/DATASET/MODEL again.")] = None,
    output: Annotated[Path, option("Folder of the recorded runs and the page.")] = RECORDED,
) -> None:
    """Write one page about the runs of a folder, and print its findings.

    By default the recorded runs of the paper. The commands table1, table2 and table3 make runs.
    With --cell, run one cell of the tables again from nothing and put it beside the recorded runs,
    with their settings: --cell klda-e/clinc/paraphrase-minilm-l3.
    """
    if cell is not None:
        runs = Results.of(output)
        with progress() as notify:
            _show(tables.run_again(cell, runs, notify, seeds=seeds, data=data, device=device))
        return
    page = write_report(output)
    summary = page.read_text(encoding="utf-8").partition("\n## ")[0]
    results().print(summary, markup=False)
    wrote([page])


def table1(grid: Grid) -> None:
    """Compare methods on the text sets: final accuracy, with accuracy-over-tasks curves.

    klda bench paper --output FOLDER shows all finished runs of an output folder.
    """
    _run(tables.table1, grid.plan(), grid.output)


def table2(grid: Grid) -> None:
    """Methods x text models x sets: joint fine-tuning, KLDA-E and the others."""
    backbones = ("minilm", *published.TEXT_MODELS, published.MAIN_MODEL)
    plan = grid.plan(backbone=",".join(backbones))
    _run(tables.models_table, plan, grid.output, title="Table 2: text models x data sets")


def table3(grid: Grid) -> None:
    """KLDA and Joint x image models x image sets."""
    backbones = ("efficientnet-lite0", *published.IMAGE_MODELS)
    plan = grid.plan(backbone=",".join(backbones), datasets=IMAGES)
    _run(tables.models_table, plan, grid.output, title="Table 3: image models x data sets")


def figure_gamma(grid: Grid, values: Values = "0.003,0.01,0.03,0.1,0.2,0.3,1,3") -> None:
    """Accuracy over gamma at D = 5000."""
    given = names(values, "values")
    _run(tables.sweep, grid.plan("klda"), grid.output, parameter="gamma", values=given)


def figure_components(grid: Grid, values: Values = "250,500,1000,2000,5000") -> None:
    """Accuracy over the number of random features D, at the model's gamma."""
    given = names(values, "values")
    _run(tables.sweep, grid.plan("klda"), grid.output, parameter="n_components", values=given)


COMMANDS = {
    "paper": paper,
    "table1": of_grid(table1),
    "table2": of_grid(table2),
    "table3": of_grid(table3),
    "figure-gamma": of_grid(figure_gamma),
    "figure-components": of_grid(figure_components),
}
