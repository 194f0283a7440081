"""``klda tune-unknown``: where a model refuses, fitted to known and to unknown inputs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from klda.checks import check_fraction
from klda.cli import options, reading
from klda.cli.console import print_parts, report, table
from klda.cli.opening import saved_change
from klda.cli.options import option


def tune_unknown(
    known: Annotated[Path, typer.Argument(help="File of inputs of the model's classes.")],
    unknown: Annotated[Path, typer.Argument(help="File of inputs that belong to none of them.")],
    model: options.Model,
    text_column: options.TextColumn = None,
    header: options.Header = None,
    encoding: options.Encoding = None,
    skip_bad: options.SkipBad = False,
    device: options.Device = "auto",
    batch_size: options.BatchSize = None,
    runtime: options.Runtime = None,
    precision: options.Precision = None,
    reject: Annotated[
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
    wait: options.Wait = 0.0,
    json: options.Json = False,
) -> None:
    """Fit what is unknown to examples, and keep it with the model.

    Give inputs of known classes and inputs that belong to no class, neither of them learned. A
    table shows what each threshold costs. **klda predict --reject** auto, Python, the service, a
    cluster and **klda export** then use the one that was chosen; without this a model refuses about
    5% of known inputs.

    **klda tune-unknown** known.csv out-of-scope.csv **--model** bot/

    **klda tune-unknown** known.csv out-of-scope.csv **--model** bot/ **--reject** 0.02
    """
    if reject is not None:
        check_fraction("--reject", reject)
    layout = options.layout(text_column, header, encoding)
    where = options.encoder_options(device, batch_size, runtime, precision)
    with saved_change(model, wait, where) as learner:
        both = []
        for path in (known, unknown):
            tables = reading.open_tables([path], layout, learner.modality, lines=True)
            found = reading.EncodedRows(learner, tables, "Reading", labels=False, skip_bad=skip_bad)
            both.append(found.features())
        refusal, tuned = learner.fit_refusal(*both, reject=reject, by_class=by_class)
        learner.set_refusal(refusal)
    if json:
        report(json, {"model": str(model)} | tuned.to_dict())
        return
    print_parts([table(*tuned.HEAD, rows=tuned.rows), tuned.counts])
