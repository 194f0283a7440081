"""``klda models``: the foundation models that have a name."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from rich.text import Text

from klda.cli import options
from klda.cli.console import print_json, print_parts, table


def models(json: options.Json = False) -> None:
    """List the foundation models that have a name, and which of them are installed.

    A model is here if it can be used offline: its weights and the packages that run it are
    installed. The lines below the table say how to get the others. Any other model works, too, by
    its hub name or as a folder. Size is that of the weights, speed is in texts per second on one
    core, and accuracy is the mean of the paper's four data sets.
    """
    from klda.encoders import MODELS

    facts = [_facts(info) for info in MODELS.values()]
    if json:
        print_json(facts)
        return
    rows, ways, told = [], defaultdict(list), []
    for info, fact in zip(MODELS.values(), facts, strict=True):
        here = Text("yes", style="green") if fact["offline"] else Text("no", style="dim")
        speed, accuracy = fact["speed"], fact["accuracy"]
        rows.append(
            (
                info.name,
                info.modality,
                _languages(fact["languages"]) if info.modality == "text" else "-",
                f"{info.size:,} MB" if info.size else "-",
                "-" if speed is None else f"{speed:,.0f}",
                "-" if accuracy is None else f"{accuracy:.1%}",
                here,
            )
        )
        if info.sources and not fact["offline"]:
            ways[info.how_to_get].append(info.name)
        if info.is_here() and fact["missing"]:
            told.append(Text(f"{info.name} is here, but not {', '.join(fact['missing'])}."))
    columns = ("name", "takes", "languages", "size", "texts/s", "accuracy", "here")
    told += [Text(f"To get {', '.join(names)}: {how}") for how, names in ways.items()]
    print_parts([table(*columns, rows=rows), *told])


def _facts(info: Any) -> dict[str, Any]:
    return {
        "name": info.name,
        "modality": info.modality,
        "hub_id": info.hub_id,
        "dimension": info.dimension,
        "parameters": info.n_parameters,
        "size": info.size,
        "languages": list(info.languages),
        "speed": info.speed,
        "accuracy": info.accuracy,
        "runtime": info.runtime(),
        "offline": info.available_offline(),
        "missing": info.missing(),
    }


def _languages(codes: list[str]) -> str:
    from klda.inspection.languages import NAMES

    if not codes:
        return "any"
    return NAMES.get(codes[0], codes[0]) if len(codes) == 1 else f"{len(codes)}"
