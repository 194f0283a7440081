"""``klda models``."""

from __future__ import annotations

from collections import defaultdict

from rich.text import Text

from klda.cli import options
from klda.cli.console import print_json, print_parts, table


def models(json: options.Json = False) -> None:
    """List the foundation models that have a name, and which of them are installed.

    Any other model works, too, by its hub name or as a folder.
    """
    from klda.encoders import MODELS

    if json:
        print_json(
            [
                {
                    "name": info.name,
                    "modality": info.modality,
                    "hub_id": info.hub_id,
                    "dimension": info.dimension,
                    "parameters": info.n_parameters,
                    "engine": info.engine,
                    "offline": info.available_offline(),
                    "note": info.note,
                }
                for info in MODELS.values()
            ]
        )
        return
    rows, ways = [], defaultdict(list)
    for info in MODELS.values():
        here = Text("yes", style="green") if info.available_offline() else Text("no", style="dim")
        what = (info.name, info.modality, info.dimension, info.n_parameters, info.engine)
        rows.append((*what, here, info.note))
        ways[info.how_to_get].append(info.name)
    columns = ("name", "takes", "features", "size", "runs on", "here", "note")
    listed = table(*columns, rows=rows, numbers=("features", "size"))
    told = [Text(f"To get {', '.join(names)}: {how}") for how, names in ways.items()]
    print_parts([listed, *told])
