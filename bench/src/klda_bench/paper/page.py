"""One page of all finished runs, as HTML and as Markdown: a summary, tables, plots, commands."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pandas as pd
from jinja2 import Environment, PackageLoader
from markupsafe import Markup, escape

from klda.errors import KldaError
from klda_bench import data, published
from klda_bench.methods import registry
from klda_bench.paper import memory, tables
from klda_bench.paper.summary import summarise
from klda_bench.report.show import as_text, markdown
from klda_bench.report.stored import groups, shown_runs
from klda_bench.report.table import pairs_against
from klda_bench.results import Results, Row
from klda_bench.runs.grid import Cell
from klda_bench.runs.metrics import FINAL

_BEST = "\ue000"  # marks the best figure of a column until the text is HTML or Markdown
_COMPARED = ("joint", "ncm", "lda", "klda", "klda-e", "klda-default")
_WRITER = "smollm2"  # the stand-in that writes text
_PLOTS = {
    "curves": "Accuracy while learning",
    "curves-authors": "The authors' form beside ours",
    "curves-tuned": "Fine-tuned methods beside ours",
    "figure-gamma": "Accuracy over gamma",
    "figure-components": "Accuracy over the number of random features",
}


@dataclass
class Section:
    """A part of the page: text, a table and what is folded away below it."""

    title: str
    text: list[str] = field(default_factory=list)
    frame: pd.DataFrame | None = None
    notes: list[str] = field(default_factory=list)
    folded: dict[str, pd.DataFrame] = field(default_factory=dict)
    image: Path | None = None


def write_report(folder: str | Path) -> list[Path]:
    """Gather an output folder into ``report.html`` and ``report.md``, which need no other file."""
    place = Path(folder)
    records = list(Results.of(place).latest().values())
    if not records:
        raise KldaError(
            f"{place} holds no results (results.jsonl): run for instance "
            f"'klda bench table1 --output {place}' first."
        )
    cells = shown_runs(records)
    sections = list(_sections(cells, place))
    days = sorted(record["finished"][:10] for record in records)
    found = {
        "title": "The KLDA paper, run again" if _of_the_paper(cells) else "KLDA benchmarks",
        "lead": f"{len(records)} runs, {days[0]} to {days[-1]}. Final accuracy on all classes in "
        "per cent, mean ± standard deviation over seeds. A run learns the tasks of one data set "
        "one after another; no task ids are given.",
        "summary": summarise(_of_the_paper(cells)),
        "sections": sections,
        "commands": list(dict.fromkeys(r["command"] for r in records if r["command"])),
        "versions": _said(records, "versions"),
        "machines": _said(records, "machine"),
    }
    page = Environment(loader=PackageLoader(__package__, ""), autoescape=True, trim_blocks=True)
    page.globals |= {"html": _html, "markdown": _markdown, "picture": _picture}
    files = []
    for name, safe in (("report.html", True), ("report.md", False)):
        page.autoescape = safe
        files.append(place / name)
        text = page.get_template(f"page{files[-1].suffix}").render(found)
        files[-1].write_text(text.strip() + "\n", encoding="utf-8")
    return files


def _of_the_paper(cells: Sequence[Cell]) -> list[Cell]:
    """Pick the runs on the paper's own data and all of its classes."""
    return [
        cell
        for cell in cells
        if cell.settings
        and (cell.settings["split"], cell.dataset in data.DATASETS) == ("paper", True)
        and (not cell.settings["subset"] or cell.settings["subset"].startswith("subset"))
    ]


def _sections(cells: Sequence[Cell], place: Path) -> Iterator[Section]:
    paper = _of_the_paper(cells)
    texts = [cell for cell in paper if cell.dataset in data.TEXT_SETS]
    images = [cell for cell in paper if cell.dataset in data.IMAGE_SETS]
    if paper:
        yield _table1(texts)
        yield from _models("Table 2", texts, data.TEXT_SETS, published.TEXT_MODELS)
        yield from _models("Table 3", images, data.IMAGE_SETS, published.IMAGE_MODELS)
        yield from _paired(paper)
        yield from _same_layers(texts)
    yield from _own([cell for cell in cells if cell not in paper])
    for name, title in _PLOTS.items():
        if (place / f"{name}.png").exists():
            yield Section(title, image=place / f"{name}.png")
    yield _costs(cells, with_paper=bool(paper))


def _usual_layers(cells: Sequence[Cell], backbone: str) -> list[Cell]:
    """Pick each method on its own choice of layers, else on the last layer."""
    known, found = registry(), []
    for (method,), runs in groups((c for c in cells if c.backbone == backbone), "method"):
        by_layers = dict(groups(runs, "layers"))
        found += by_layers.get((known[method].layers,)) or by_layers.get(("last",), [])
    return found


def _table1(cells: Sequence[Cell]) -> Section:
    (main,) = published.MAIN_MODEL
    used = list(dict.fromkeys(cell.backbone for cell in cells))
    backbone = next((name for name in (main, "minilm", *used) if name in used), main)
    writers = [cell for cell in cells if cell.backbone == _WRITER]
    own = [*_usual_layers(cells, backbone), *writers]
    table = tables.methods_table(own, backbone, FINAL, tables.n_seeds(own), columns=data.TEXT_SETS)
    if writers:
        table.notes.append(f"LAMOL and VAG write text: here with {published.title(_WRITER)}.")
    return Section(table.title, frame=table.grid(_best), notes=table.notes)


def _models(
    title: str, cells: Sequence[Cell], sets: Sequence[str], theirs: Sequence[str]
) -> Iterator[Section]:
    """Show the paper's models that are here, its others folded away, and then stand-ins."""
    chosen = [cell for cell in cells if cell.method in _COMPARED]
    used = [name for name in dict.fromkeys(cell.backbone for cell in chosen) if name != _WRITER]
    absent = [name for name in theirs if name not in used]
    here = [name for name in theirs if name in used]
    names = ", ".join(map(published.title, here)) or "the paper's figures"
    section = Section(f"{title}: {names}")
    if here:
        own = [cell for backbone in here for cell in _usual_layers(chosen, backbone)]
        table = tables.backbones_table("", title, own, here, tables.n_seeds(own), columns=sets)
        section.frame, section.notes = table.grid(_best), table.notes
    if absent:
        listed = ", ".join(map(published.title, absent))
        name = f"The paper's figures for models that are not here: {listed}"
        section.folded[name] = _published(absent, sets)
    yield section
    others = [name for name in used if name not in (*theirs, *published.MAIN_MODEL)]
    if others:
        own = [cell for backbone in others for cell in _usual_layers(chosen, backbone)]
        table = tables.backbones_table(
            "", title, own, others, tables.n_seeds(own), with_paper=False
        )
        yield Section(f"{title}: stand-ins", frame=table.grid(_best), notes=table.notes)


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


def _paired(cells: Sequence[Cell]) -> Iterator[Section]:
    """Differences to joint fine-tuning of the same model on the same test rows."""
    own = [c for b in dict.fromkeys(c.backbone for c in cells) for c in _usual_layers(cells, b)]
    found = pairs_against(own, "joint", ("klda-e", "klda-default"))
    if found:
        known = registry()
        rows: dict[str, Row] = {}
        for pair in found:
            row = f"{published.title(pair['backbone'])}: {known[pair['method']].title}"
            text = f"{pair['difference']:+.2f} ± {pair['standard_error']:.2f}"
            rows.setdefault(row, {"": row})[data.title(pair["dataset"])] = text
        text = "Points more than joint fine-tuning of the same model, measured here, ± the "
        text += "standard error over the test rows."
        frame = pd.DataFrame(list(rows.values())).fillna("-")
        yield Section("Beside our own joint fine-tuning", [text], frame)


def _same_layers(cells: Sequence[Cell]) -> Iterator[Section]:
    """All methods on the layers that our default uses."""
    for (backbone, layers), own in groups(cells, "backbone", "layers"):
        if layers != "last" and len({cell.method for cell in own}) > 1:
            table = tables.methods_table(
                own, backbone, FINAL, tables.n_seeds(own), with_paper=False
            )
            title = f"All methods on the same layers of {published.title(backbone)}"
            text = ["Every method gets the features that our default uses, not the last layer's."]
            yield Section(title, text, table.grid(_best), table.notes)


def _own(cells: Sequence[Cell]) -> Iterator[Section]:
    """Other data: one table for each model, without the paper's figures."""
    for (backbone, split), own in groups(cells, "backbone", "split"):
        table = tables.methods_table(own, backbone, FINAL, tables.n_seeds(own), with_paper=False)
        name = {"own": "Your data", "paper": "A part of the paper's data"}.get(split, split)
        yield Section(f"{name}, {published.title(backbone)}", [], table.grid(_best), table.notes)


def _costs(cells: Sequence[Cell], *, with_paper: bool) -> Section:
    """Seconds and bytes of the runs; what the paper says of both."""
    known = registry()
    rows = []
    for (method,), own in groups(cells, "method"):
        runs = [cell.record for cell in own if cell.record]
        learn = pd.Series([run["seconds"]["learn"] for run in runs])
        held = [run["held_bytes"] for run in runs if run.get("held_bytes")]
        rows.append(
            {
                "": known[method].title,
                "learn, fastest run (s)": round(float(learn.min()), 2),
                "slowest run (s)": round(float(learn.max()), 2),
                "held, largest (MB)": round(max(held) / 1e6, 1) if held else None,
            }
        )
    text = ["Over all runs and machines of this page."]
    section = Section("Cost of learning", text, pd.DataFrame(rows))
    if with_paper:
        section.folded["The paper's run times"] = published.RUNTIME
        section.folded["The paper's count of numbers kept"] = published.MEMORY
        counts = memory.count(768, 150)[["title", "formula", "parameters"]]
        section.folded["Counts that all methods share"] = counts
    return section


def _said(records: Sequence[Row], name: str) -> list[str]:
    return sorted(
        {", ".join(f"{k} {v}" for k, v in record[name].items() if v) for record in records}
    )


def _best(text: str) -> str:
    return _BEST + text


def _html(frame: pd.DataFrame) -> Markup:
    """Write a table; figures of the paper are dim, the best ones bold."""
    shown = as_text(frame)
    dim = [str(name).endswith(("paper", "diff.")) for name in shown.columns]

    def row(values: Sequence[str], tag: str) -> str:
        cells = []
        for value, faint in zip(values, dim, strict=True):
            best = ' class="best"' if value.startswith(_BEST) else ' class="dim"' if faint else ""
            cells.append(f"<{tag}{best}>{escape(value.removeprefix(_BEST))}</{tag}>")
        return f"<tr>{''.join(cells)}</tr>"

    body = "\n".join(row(list(values), "td") for values in shown.itertuples(index=False))
    head = row([str(name) for name in shown.columns], "th")
    table = f"<table><thead>{head}</thead><tbody>{body}</tbody></table>"
    return Markup(f'<div class="wide">{table}</div>')


def _markdown(frame: pd.DataFrame) -> str:
    bold = frame.map(lambda v: f"**{v[1:]}**" if str(v).startswith(_BEST) else v)
    return markdown(bold)


def _picture(file: Path) -> str:
    return base64.b64encode(file.read_bytes()).decode()
