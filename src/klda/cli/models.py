"""``klda models``."""

from __future__ import annotations

from rich.text import Text

from klda.cli import options
from klda.cli.console import print_json, results, table


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
    numbers = ("features", "size")
    listed = table("name", "takes", "features", "size", "runs on", "here", "note", numbers=numbers)
    ways: dict[str, list[str]] = {}
    for info in MODELS.values():
        here = Text("yes", style="green") if info.available_offline() else Text("no", style="dim")
        what = [info.name, info.modality, str(info.dimension), info.n_parameters, info.engine]
        listed.add_row(*what, here, Text(info.note))
        ways.setdefault(info.how_to_get, []).append(info.name)
    console = results()
    console.print(listed)
    for how, names in ways.items():
        console.print()
        console.print(Text(f"To get {', '.join(names)}: {how}"))
