"""One page of all finished runs: a summary, tables, plots and commands.

The page is Markdown, ``report.md``; ``report.html`` is the same with its pictures inside.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import pandas as pd
from markdown_it import MarkdownIt

from klda.errors import KldaError
from klda_bench import data, published
from klda_bench.display.show import markdown
from klda_bench.methods import registry
from klda_bench.paper import memory
from klda_bench.paper.accuracy_table import (
    Table,
    accuracy_table,
    groups,
    pairs_against,
    shown_runs,
    used_models,
    usual_layers,
)
from klda_bench.paper.summary import summarise
from klda_bench.paper.tables import draw_curves, methods_table, write_pairs
from klda_bench.results import Results, Row
from klda_bench.runs.grid import Cell

_COMPARED = ("joint", "ncm", "lda", "klda", "klda-e", "klda-default")
_WRITER = "smollm2"  # the stand-in that writes text
_SUMMARY = r"<details><summary>\1</summary>"
_PLOTS = {
    "curves": "Accuracy while learning",
    "curves-authors": "The authors' form beside ours",
    "curves-tuned": "Fine-tuned methods beside ours",
    "figure-gamma": "Accuracy over gamma",
    "figure-components": "Accuracy over the number of random features",
}


def write_report(folder: str | Path) -> list[Path]:
    """Gather an output folder into ``report.html``, which is complete, and ``report.md``."""
    place = Path(folder)
    records = list(Results.of(place).latest().values())
    if not records:
        raise KldaError(
            f"{place} holds no results (results.jsonl): run for instance "
            f"'klda bench table1 --output {place}' first."
        )
    cells = shown_runs(records)
    paper = _of_the_paper(cells)
    title = "The KLDA paper, run again" if paper else "KLDA benchmarks"
    days = sorted(record["finished"][:10] for record in records)
    lead = (
        f"{len(records)} runs, {days[0]} to {days[-1]}. Final accuracy on all classes in per cent, "
        "mean ± standard deviation over seeds. A run learns the tasks of one data set one after "
        "another; no task ids are given."
    )
    findings = "\n".join(f"- **{kind}.** {text}" for kind, text in summarise(paper))
    parts = [f"# {title}", lead, findings, *_sections(cells, place), _origin(records)]
    text = "\n\n".join(part for part in parts if part) + "\n"
    html, page = place / "report.html", place / "report.md"
    html.write_text(_html(title, text, place), encoding="utf-8")
    page.write_text(text, encoding="utf-8")
    return [html, page]


def _of_the_paper(cells: Sequence[Cell]) -> list[Cell]:
    """Pick the runs on the paper's own data and all of its classes."""
    return [
        cell
        for cell in cells
        if cell.settings
        and (cell.settings["split"], cell.dataset in data.DATASETS) == ("paper", True)
        and (not cell.settings["subset"] or cell.settings["subset"].startswith("subset"))
    ]


def _sections(cells: Sequence[Cell], place: Path) -> Iterator[str]:
    paper = _of_the_paper(cells)
    texts = [cell for cell in paper if cell.dataset in data.TEXT_SETS]
    images = [cell for cell in paper if cell.dataset in data.IMAGE_SETS]
    if paper:
        yield _table1(texts, place)
        yield from _models("Table 2", texts, data.TEXT_SETS, published.TEXT_MODELS)
        yield from _models("Table 3", images, data.IMAGE_SETS, published.IMAGE_MODELS)
        yield from _paired(paper)
        yield from _same_layers(texts)
    yield from _own([cell for cell in cells if cell not in paper])
    for name, title in _PLOTS.items():
        if (place / f"{name}.png").exists():
            yield _section(title, f"![{title}]({name}.png)")
    yield _costs(cells, with_paper=bool(paper))


def _section(title: str, *parts: str) -> str:
    return "\n\n".join([f"## {title}", *parts])


def _shown(title: str, table: Table, text: Sequence[str] = ()) -> str:
    """Return a table with its notes, the best figures in bold."""
    notes = [re.sub(r"^\*", r"\\*", note) for note in table.notes]  # no bullet of a list
    return _section(title, *text, markdown(table.grid(lambda best: f"**{best}**")), *notes)


def _folded(title: str, *parts: str) -> str:
    return "\n\n".join([f"<details><summary>{title}</summary>", *parts, "</details>"])


def _table1(cells: Sequence[Cell], place: Path) -> str:
    (main,) = published.MAIN_MODEL
    used = used_models(cells)
    backbone = next((name for name in (main, "minilm", *used) if name in used), main)
    writers = [cell for cell in cells if cell.backbone == _WRITER]
    own = [*usual_layers(cells, [backbone]), *writers]
    table = methods_table(own, backbone, columns=data.TEXT_SETS)
    if own:
        draw_curves(own, place)
        write_pairs(own, place)
    if writers:
        table.notes.append(f"LAMOL and VAG write text: here with {published.title(_WRITER)}.")
    return _shown(table.title, table)


def _models(
    title: str, cells: Sequence[Cell], sets: Sequence[str], theirs: Sequence[str]
) -> Iterator[str]:
    """Show the paper's models that are here, its others folded away, and then stand-ins."""
    chosen = [cell for cell in cells if cell.method in _COMPARED]
    used = [name for name in used_models(chosen) if name != _WRITER]
    absent = [name for name in theirs if name not in used]
    here = [name for name in theirs if name in used]
    listed = ", ".join(map(published.title, here)) or "the paper's figures"
    name = f"{title}: {listed}"
    own = usual_layers(chosen, here)
    table = accuracy_table("", title, own, here, columns=sets) if here else None
    part = _shown(name, table) if table else _section(name)
    if absent:
        listed = ", ".join(map(published.title, absent))
        listed = f"The paper's figures for models that are not here: {listed}"
        part += "\n\n" + _folded(listed, markdown(_published(absent, sets)))
    yield part
    others = [name for name in used if name not in (*theirs, *published.MAIN_MODEL)]
    if others:
        own = usual_layers(chosen, others)
        table = accuracy_table("", title, own, others, whole=False)
        yield _shown(f"{title}: stand-ins", table)


def _published(backbones: Sequence[str], sets: Sequence[str]) -> pd.DataFrame:
    figures = published.FIGURES
    return pd.DataFrame(
        [
            {"": f"{published.title(backbone)}: {spec.title}"}
            | {data.title(name): figures[backbone, method, name].text() for name in sets}
            for backbone in backbones
            for method, spec in registry().items()
            if (backbone, method, sets[0]) in figures
        ]
    )


def _paired(cells: Sequence[Cell]) -> Iterator[str]:
    """Differences to joint fine-tuning of the same model on the same test rows."""
    own, known = usual_layers(cells, used_models(cells)), registry()
    rows: dict[str, Row] = {}
    for pair in pairs_against(own, "joint", ("klda-e", "klda-default")):
        row = f"{published.title(pair['backbone'])}: {known[pair['method']].title}"
        text = f"{pair['difference']:+.2f} ± {pair['standard_error']:.2f}"
        rows.setdefault(row, {"": row})[data.title(pair["dataset"])] = text
    if rows:
        text = "Points more than joint fine-tuning of the same model, measured here, ± the "
        text += "standard error over the test rows."
        frame = pd.DataFrame(list(rows.values())).fillna("-")
        yield _section("Beside our own joint fine-tuning", text, markdown(frame))


def _same_layers(cells: Sequence[Cell]) -> Iterator[str]:
    """All methods on the layers that our default uses."""
    for (backbone, layers), own in groups(cells, "backbone", "layers"):
        if layers != "last" and len({cell.method for cell in own}) > 1:
            table = methods_table(own, backbone, whole=False)
            title = f"All methods on the same layers of {published.title(backbone)}"
            text = ["Every method gets the features that our default uses, not the last layer's."]
            yield _shown(title, table, text)


def _own(cells: Sequence[Cell]) -> Iterator[str]:
    """Other data: one table for each model, without the paper's figures."""
    for (backbone, split), own in groups(cells, "backbone", "split"):
        table = methods_table(own, backbone, whole=False)
        name = {"own": "Your data", "paper": "A part of the paper's data"}.get(split, split)
        yield _shown(f"{name}, {published.title(backbone)}", table)


def _costs(cells: Sequence[Cell], *, with_paper: bool) -> str:
    """Seconds and bytes of the runs; what the paper says of both."""
    known = registry(cell.method for cell in cells)
    rows = [
        {
            "": known[cell.method].title,
            "learn": round(cell.record["seconds"]["learn"], 2),
            "held": round(held / 1e6, 1) if (held := cell.record.get("held_bytes")) else None,
        }
        for cell in cells
        if cell.record
    ]
    runs = pd.DataFrame(rows).groupby("", sort=False)
    frame = runs.agg(fastest=("learn", "min"), slowest=("learn", "max"), held=("held", "max"))
    columns = ["", "learn, fastest run (s)", "slowest run (s)", "held, largest (MB)"]
    frame = frame.reset_index().set_axis(columns, axis="columns")
    folded: dict[str, pd.DataFrame] = {}
    if with_paper:
        counts = memory.count(768, 150)[["title", "formula", "parameters"]]
        folded["The paper's run times"] = published.RUNTIME
        folded["The paper's count of numbers kept"] = published.MEMORY
        folded["Counts that all methods share"] = counts
    return _section(
        "Cost of learning",
        "Over all runs and machines of this page.",
        markdown(frame),
        *(_folded(title, markdown(one)) for title, one in folded.items()),
    )


def _origin(records: Sequence[Row]) -> str:
    """Say by which commands, with which versions and on which machines the runs were made."""
    commands = "\n".join(dict.fromkeys(r["command"] for r in records if r["command"]))
    said = [
        sorted({", ".join(f"{k} {v}" for k, v in record[name].items() if v) for record in records})
        for name in ("versions", "machine")
    ]
    listed = "\n".join(f"- {text}" for part in said for text in part)
    return _folded("Commands, versions and machines", f"```\n{commands}\n```", listed)


def _html(title: str, text: str, place: Path) -> str:
    """Turn the page into HTML that needs no other file."""

    def picture(found: Any) -> str:
        content = base64.b64encode((place / found[1]).read_bytes()).decode()
        return f'src="data:image/png;base64,{content}"'

    # Names of data sets and methods may hold anything, so only our own tags become HTML.
    body = MarkdownIt("commonmark", {"html": False}).enable("table").render(text)
    body = re.sub("<p>&lt;details&gt;&lt;summary&gt;(.*?)&lt;/summary&gt;</p>", _SUMMARY, body)
    body = body.replace("<p>&lt;/details&gt;</p>", "</details>")
    body = re.sub(r'src="([\w-]+\.png)"', picture, body)
    body = re.sub("(<table>.*?</table>)", r'<div class="wide">\1</div>', body, flags=re.DOTALL)
    shell = (files(__package__) / "report.html").read_text(encoding="utf-8")
    return shell.replace("{title}", title).replace("{body}", body)
