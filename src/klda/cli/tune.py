"""``klda tune-unknown``: where a model refuses, fitted to known and to unknown inputs."""

from __future__ import annotations

from itertools import chain
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from klda.checks import check_fraction
from klda.cli import options, reading
from klda.cli.console import print_parts, report, table
from klda.cli.opening import changed
from klda.cli.options import option


def tune_unknown(
    context: typer.Context,
    known: Annotated[Path, typer.Argument(help="File of inputs of the model's classes.")],
    unknown: Annotated[Path, typer.Argument(help="File of inputs that belong to none of them.")],
    model: options.Model,
    most_refused: Annotated[
        float | None,
        option(
            "Fraction of known inputs that may be refused. By default the threshold with the "
            "fewest errors of both kinds.",
            metavar="FRACTION",
        ),
    ] = None,
    by_class: Annotated[
        bool, option("Also fit thresholds of single classes, where there is enough.", "--by-class")
    ] = False,
    text_column: options.TextColumn = None,
    header: options.Header = None,
    encoding: options.Encoding = None,
    skip_bad: options.SkipBad = False,
    device: options.Device = "auto",
    batch_size: options.BatchSize = None,
    engine: options.Engine = None,
    precision: options.Precision = None,
    wait: options.Wait = 0.0,
    json: options.Json = False,
) -> None:
    """Fit what is unknown to examples, and keep it with the model.

    Give inputs of known classes and inputs that belong to no class, neither of them learned. A
    table shows what each threshold costs. **klda predict --reject**, the service and Python then
    use the one that was chosen; without this a model refuses about 5% of known inputs.

    **klda tune-unknown** known.csv out-of-scope.csv **--model** bot/

    **klda tune-unknown** known.csv out-of-scope.csv **--model** bot/ **--most-refused** 0.02
    """
    if most_refused is not None:
        check_fraction("--most-refused", most_refused)
    layout = options.layout(text_column, None, header, encoding)
    with changed(model, wait, options.of(context, options.ENCODER)) as learner:

        def inputs(path: Path) -> Any:
            import numpy as np

            tables = reading.open_tables([path], layout, learner.modality, lines=True)
            batches = reading.batches(tables, "Reading", labels=False, skip_bad=skip_bad)
            found = [batch.inputs for batch in batches]
            is_array = isinstance(found[0], np.ndarray)
            return np.concatenate(found) if is_array else list(chain.from_iterable(found))

        tuned = learner.tune_unknown(
            inputs(known), inputs(unknown), most_refused=most_refused, by_class=by_class
        )
    if json:
        report(json, {"model": str(model)} | tuned.to_dict())
        return
    rows = [
        (
            f"{one.known_refused:.1%}",
            f"{one.unknown_accepted:.1%}",
            Text("chosen", style="bold") if one.chosen else "",
        )
        for one in tuned.choices
    ]
    columns = ("known refused", "unknown accepted", "")
    counts = f"From {tuned.known:,} known and {tuned.unknown:,} unknown inputs."
    own = f" {tuned.classes:,} classes have a threshold of their own." if tuned.classes else ""
    print_parts([table(*columns, rows=rows, numbers=columns[:2]), counts + own])
