"""``klda merge``: one model of several."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from klda.cli import options
from klda.cli.console import interrupts_ignored, knowledge, report
from klda.cli.opening import note_similar
from klda.cli.options import option
from klda.errors import KldaError


def merge(
    models: Annotated[list[Path], typer.Argument(help="Two or more model folders.")],
    output: Annotated[
        Path, option("Folder for the merged model.", "--output", "-o", metavar="FOLDER")
    ],
    allow_same: Annotated[
        bool, option("Merge even if models share samples, which then count twice.", "--allow-same")
    ] = False,
    wait: options.Wait = 0.0,
    json: options.Json = False,
) -> None:
    """Merge models that were trained separately, exactly.

    The result is the model that would have learned everything itself. The models must have the same
    foundation model and the same random features, which they have by default, unless --seed,
    --gamma or --components differed. Models that have learned the same file, or that are copies of
    each other, are refused: what they share would count twice.

    **klda merge** north/ south/ **--output** all/

    **klda merge** all/ west/ **--output** all/
    """
    from klda.learner import Learner
    from klda.storage import folder

    if len(models) < 2:
        raise typer.BadParameter("Give at least two model folders to merge.")
    if folder.exists(output) and output.resolve() not in {path.resolve() for path in models}:
        raise KldaError(
            f"{output} already holds a model, which would be lost. Name a new folder, or merge "
            "that model, too."
        )
    replaced = folder.exists(output) and output.resolve() != models[0].resolve()
    with folder.writer_lock(output, timeout=wait):
        merged = Learner.load(models[0])
        before = merged.classes
        for path in models[1:]:
            merged.merge(Learner.load(path), allow_same=allow_same)
        note_similar(merged.classes, before, output)
        with interrupts_ignored():
            merged.save(output, overwrite=replaced)
    classes, samples = len(merged.classes), merged.samples
    report(
        json,
        {"model": str(output), "classes": classes, "samples": samples},
        f"Merged {len(models)} models into {output}: {knowledge(classes, samples)}.",
    )
