"""``klda models``."""

from __future__ import annotations

from collections import defaultdict

from rich.text import Text

from klda.cli import options
from klda.cli.console import print_json, print_parts, table


def models(json: options.Json = False) -> None:
    """List the foundation models that have a name, and which of them are installed.

    A model is here if it can be used offline: its weights and the packages that run it are
    installed. The lines below the table say what is missing and how to get it. Any other model
    works, too, by its hub name or as a folder.
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
                    "engine": info.engine(),
                    "offline": info.available_offline(),
                    "missing": info.missing(),
                    "note": info.note,
                }
                for info in MODELS.values()
            ]
        )
        return
    rows, ways, told = [], defaultdict(list), []
    for info in MODELS.values():
        here = Text("yes", style="green") if info.available_offline() else Text("no", style="dim")
        rows.append((info.name, info.modality, info.n_parameters, info.engine(), here, info.note))
        if info.sources:
            ways[info.how_to_get].append(info.name)
        if info.is_here() and info.missing():
            told.append(Text(f"{info.name} is here, but not {', '.join(info.missing())}."))
    columns = ("name", "takes", "size", "runs on", "here", "note")
    told += [Text(f"To get {', '.join(names)}: {how}") for how, names in ways.items()]
    print_parts([table(*columns, rows=rows, numbers=("size",)), *told])
