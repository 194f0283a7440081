"""``klda bench``: rerun the paper with any foundation model, method and data set."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

import typer
from rich.console import Console
from rich.table import Table as RichTable

from klda.cli.console import complain, messages, results, say
from klda.errors import KldaError

if TYPE_CHECKING:
    from klda_bench.experiments import Product
    from klda_bench.suite import Cell, Plan
    from klda_bench.tables import Table

app = typer.Typer(
    help="Rerun the paper: data sets, tables and figures, with our figures beside the paper's.",
    no_args_is_help=True,
)

TEXTS = "clinc,banking,dbpedia,hwu"
IMAGES = "cifar10,cifar100,tiny-imagenet,cars"

Backbone = Annotated[str, typer.Option(help="Foundation model (klda models lists them).")]
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
    int | None, typer.Option(help="Use at most this many training rows a class (stated).")
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
OUT = Path("out/bench")


@contextmanager
def _errors() -> Iterator[None]:
    """Show an error of ours as one line, and leave with status 1."""
    try:
        yield
    except KldaError as error:
        complain(str(error))
        raise typer.Exit(1) from error


def _names(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _options(pairs: list[str] | None) -> dict[str, dict[str, Any]]:
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


def _plan(methods: str, names: str, backbones: list[str], **rest: Any) -> Plan:
    from klda_bench.methods import select
    from klda_bench.suite import Plan, command_line

    _check_choice("split", rest["split"], ("paper", "official"))
    _check_choice("curve", rest["curve"], ("auto", "all", "end"))
    options = _options(rest.pop("set_", None))
    return Plan(
        select(methods), _names(names), backbones, options=options, command=command_line(), **rest
    )


def _check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise KldaError(f"{name}={value!r} is not known: use {', '.join(choices)}.")


def _run(work: Callable[[Callable[[str], None]], Product]) -> None:
    """Do the work with a line that says what runs; the tables alone go to standard output."""
    with messages.status("starting") as status:
        product = work(lambda message: status.update(message))
    console = _console()
    for table in product.tables:
        console.print(_rich(table))
        for note in table.notes:
            console.print(note, style="dim", markup=False)
    say(f"{product.n_run} runs made, {product.n_found} found in the results.")
    _wrote(product.files)
    _fail_if(product.failures, len(product.cells))


def _fail_if(failures: list[Cell], of: int) -> None:
    """Say what failed, after all else was done, and leave with status 1."""
    if not failures:
        return
    listed = "\n".join(dict.fromkeys(cell.reason.splitlines()[0] for cell in failures))
    raise KldaError(f"{len(failures)} of {of} runs failed:\n{listed}")


def _wrote(files: Iterable[Path]) -> None:
    for file in files:
        say(f"wrote {file}")


def _rich(table: Table) -> RichTable:
    shown = RichTable(title=table.title, title_justify="left")
    shown.add_column("")
    with_paper = {
        column: any(table.entries[row, column].paper is not None for row in table.row_names)
        for column in table.column_names
    }
    for column, title in zip(table.column_names, table.columns, strict=True):
        shown.add_column(title, justify="right", no_wrap=True)
        if with_paper[column]:
            shown.add_column("paper", justify="right", style="dim")
            shown.add_column("diff.", justify="right", style="dim")
    for name, heading in zip(table.row_names, table.rows, strict=True):
        cells = [heading]
        for column in table.column_names:
            entry = table.entries[name, column]
            cells.append(entry.own_text)
            if with_paper[column]:
                cells += [entry.paper_text, entry.difference_text]
        shown.add_row(*cells)
    return shown


def _console() -> Console:
    console = results()
    # Piped output has no width; a table folded to a default one would be hard to read.
    return console if console.is_terminal else Console(width=200, highlight=False)


@app.command("datasets")
def list_datasets(data: Data = None, split: Split = "paper") -> None:
    """List the data sets: rows, classes, tasks, and where they were found."""
    console = _console()
    with _errors():
        from klda_bench.datasets import listing

        _check_choice("split", split, ("paper", "official"))
        shown = RichTable()
        for heading in ("name", "inputs", "train", "test", "classes", "tasks", "here", "where"):
            right = heading in ("train", "test", "classes", "tasks")
            shown.add_column(heading, justify="right" if right else "left", overflow="fold")
        for line in listing(data=data, split=cast(Literal["paper", "official"], split)):
            shown.add_row(
                line.name,
                line.modality,
                *(
                    "-" if count is None else f"{count:,}"
                    for count in (line.train_rows, line.test_rows, line.classes)
                ),
                str(line.tasks),
                "yes" if line.here else "no",
                line.found + (f" ({line.note})" if line.note else ""),
            )
        console.print(shown)


@app.command("methods")
def list_methods() -> None:
    """List the methods that a table can have as rows."""
    console = _console()
    with _errors():
        from klda_bench.methods import registry

        shown = RichTable()
        for heading in ("name", "title", "group", "learns from", "about"):
            shown.add_column(heading)
        for spec in registry().values():
            shown.add_row(spec.name, spec.title, spec.group, spec.needs, spec.about)
        console.print(shown)


@app.command()
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
    metric: Metric = "final_accuracy",
) -> None:
    """Compare methods on the text sets: final accuracy, with accuracy-over-tasks curves.

    Finished runs of other methods in the output folder are shown beside those asked for.
    """
    with _errors():
        from klda_bench import experiments

        plan = _plan(
            methods,
            datasets,
            [backbone],
            seeds=seeds,
            data=data,
            split=split,
            device=device,
            gamma=gamma,
            layers=layers,
            tasks=tasks,
            classes=classes,
            per_class=per_class,
            curve=curve,
            set_=set_,
            cache=cache,
        )
        _run(lambda notify: experiments.table1(plan, output, notify, metric=metric))


@app.command()
def table2(
    backbone: Annotated[
        str, typer.Option(help="Comma-separated text models; default: the paper's and minilm.")
    ] = "minilm,paraphrase-minilm-l3,bert-base,bart-base,roberta-large,t5-3b,mistral-7b",
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
    with _errors():
        from klda_bench import experiments, paper

        plan = _plan(
            methods,
            datasets,
            _names(backbone),
            seeds=seeds,
            data=data,
            split=split,
            device=device,
            gamma=gamma,
            layers=layers,
            curve="end",
            set_=set_,
            cache=cache,
        )
        title = "Table 2: text models x data sets"
        _run(
            lambda notify: experiments.models_table(
                "table2", title, plan, output, paper.MAIN_TEXT_MODEL, notify
            ),
        )


@app.command()
def table3(
    backbone: Annotated[
        str, typer.Option(help="Comma-separated image models; default: the paper's and ours.")
    ] = "efficientnet-lite0,dinov2-small,dinov2-base",
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
    with _errors():
        from klda_bench import experiments, paper

        plan = _plan(
            methods,
            datasets,
            _names(backbone),
            seeds=seeds,
            data=data,
            split="paper",
            device=device,
            gamma=gamma,
            layers=layers,
            curve="auto",
            set_=set_,
            cache=cache,
        )
        title = "Table 3: image models x data sets"
        _run(
            lambda notify: experiments.models_table(
                "table3", title, plan, output, paper.MAIN_IMAGE_MODEL, notify
            ),
        )


def _sweep(parameter: str, values: str, backbone: str, datasets: str, **rest: Any) -> None:
    with _errors():
        from klda_bench import experiments

        output = rest.pop("output")
        method = rest.pop("method")
        plan = _plan(method, datasets, [backbone], split="paper", curve="end", **rest)
        numbers = [_number(parameter, text) for text in _names(values)]
        _run(
            lambda notify: experiments.sweep(plan, output, parameter, numbers, notify),
        )


def _number(parameter: str, text: str) -> float:
    try:
        return int(text) if parameter == "n_components" else float(text)
    except ValueError as error:
        raise KldaError(f"values={text!r} is not a number for {parameter}.") from error


@app.command("figure-gamma")
def figure_gamma(
    backbone: Backbone = "minilm",
    method: Annotated[str, typer.Option(help="klda or klda-e.")] = "klda",
    values: Annotated[str, typer.Option(help="Values of gamma.")] = (
        "0.003,0.01,0.03,0.1,0.2,0.3,1,3"
    ),
    datasets: Datasets = TEXTS,
    seeds: Seeds = 3,
    data: Data = None,
    device: Device = "auto",
    output: Output = OUT,
    layers: Layers = "last",
    cache: Cache = None,
) -> None:
    """Accuracy over gamma at D = 5000."""
    _sweep(
        "gamma",
        values,
        backbone,
        datasets,
        method=method,
        seeds=seeds,
        data=data,
        device=device,
        output=output,
        layers=layers,
        cache=cache,
    )


@app.command("figure-components")
def figure_components(
    backbone: Backbone = "minilm",
    method: Annotated[str, typer.Option(help="klda or klda-e.")] = "klda",
    values: Annotated[str, typer.Option(help="Values of D.")] = "250,500,1000,2000,5000",
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
    _sweep(
        "n_components",
        values,
        backbone,
        datasets,
        method=method,
        seeds=seeds,
        data=data,
        device=device,
        output=output,
        gamma=gamma,
        layers=layers,
        cache=cache,
    )


@app.command()
def memory(
    backbone: Backbone = "minilm",
    dataset: Annotated[str, typer.Option(help="Data set whose number of classes counts.")] = (
        "clinc"
    ),
    data: Data = None,
    output: Output = OUT,
) -> None:
    """Parameters and bytes of every method, as the paper counts and as held (from results)."""
    console = _console()
    with _errors():
        from klda.features import MODELS
        from klda_bench import datasets, experiments

        if backbone not in MODELS:
            raise KldaError(f"backbone={backbone!r} is not one of {', '.join(MODELS)}.")
        classes = len(datasets.load(dataset, data=data).classes)
        dimension = MODELS[backbone].dimension
        counts, files = experiments.memory_counts(output, dataset, dimension, classes, backbone)
        shown = RichTable(title=f"Memory: d = {dimension}, M = {classes} ({dataset})")
        for heading in ("method", "formula", "parameters", "MB (float32)", "MB held, measured"):
            shown.add_column(
                heading, justify="left" if heading in ("method", "formula") else "right"
            )
        for line in counts:
            held = "-" if line.held_bytes is None else f"{line.held_bytes / 1e6:.1f}"
            shown.add_row(
                line.title, line.formula, f"{line.parameters:,}", f"{line.bytes / 1e6:.1f}", held
            )
        console.print(shown)
        _wrote(files)


@app.command()
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
    console = _console()
    with _errors():
        from klda_bench import experiments
        from klda_bench.suite import walk

        plan = _plan(
            methods,
            datasets,
            [backbone],
            seeds=seeds,
            data=data,
            split="paper",
            device=device,
            curve="end",
            set_=None,
            cache=cache,
            here_only=True,
        )
        with messages.status("starting") as status:
            cells = walk(plan, experiments.store_in(output), status.update)
        lines = experiments.runtime_lines(cells)
        if not lines:
            raise KldaError("No run was possible: " + "; ".join({c.reason for c in cells}))
        shown = RichTable(title=f"Run time on {backbone} features")
        for heading in lines[0]:
            shown.add_column(heading.replace("_", " "))
        for line in lines:
            shown.add_row(*(str(value) for value in line.values()))
        console.print(shown)
        _wrote(experiments.write_runtime(lines, output))
        _fail_if([cell for cell in cells if cell.status == "failed"], len(cells))


@app.command()
def report(
    folder: Annotated[Path, typer.Argument(help="Output folder of the other commands.")],
) -> None:
    """Write one self-contained HTML page with all tables, plots, settings and commands."""
    with _errors():
        from klda_bench.report import write_report

        _wrote([write_report(folder)])


_OWN_OPTIONS = {"allow_extra_args": True, "ignore_unknown_options": True}


@app.command(context_settings=_OWN_OPTIONS, add_help_option=False)
def speed(context: typer.Context) -> None:
    """Measure the engine beside the authors' form, scikit-learn and the bare BLAS (--help)."""
    from klda_bench.speed import main

    with _errors():
        main(context.args)


@app.command(context_settings=_OWN_OPTIONS, add_help_option=False)
def cluster(context: typer.Context) -> None:
    """Measure learning on Ray: one process, one worker, several, and with one lost (--help)."""
    from klda_bench.cluster import main

    with _errors():
        main(context.args)


@app.command(context_settings=_OWN_OPTIONS, add_help_option=False)
def scale(context: typer.Context) -> None:
    """Measure how cost grows with rows and classes, out of core and on a GPU (--help)."""
    from klda_bench.scale import main

    with _errors():
        main(context.args)


@app.command(context_settings=_OWN_OPTIONS, add_help_option=False)
def beyond(context: typer.Context) -> None:
    """Measure what the default settings do beyond the paper: few-shot, unknown, calibration."""
    from klda_bench.beyond import main

    with _errors():
        main(context.args)


@app.command(context_settings=_OWN_OPTIONS, add_help_option=False)
def agreement(context: typer.Context) -> None:
    """Compare the engine's answers with those of a plain re-implementation (--help)."""
    from klda_bench.agreement import main

    with _errors():
        main(context.args)
