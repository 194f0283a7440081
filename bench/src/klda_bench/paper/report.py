"""One page of all finished runs: findings, a table of contents, tables, plots and commands.

Bold marks one thing: the best method of a column that learns task after task.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from klda.errors import KldaError
from klda_bench.data import catalog
from klda_bench.display.show import markdown
from klda_bench.methods.registry import registry
from klda_bench.paper import published
from klda_bench.paper.accuracy_table import (
    Table,
    accuracy_table,
    lay_out,
    shown_runs,
    usual_layers,
)
from klda_bench.paper.findings import ERRORS, findings
from klda_bench.paper.tables import curve_plots
from klda_bench.results import Results, Row

_COMPARED = ("joint", "ncm", "lda", "klda", "klda-e", "klda-default")
_WRITER = "smollm2"  # the stand-in that writes text
_PLOTS = {
    "curves": "Accuracy while learning",
    "curves-authors": "The authors' form beside ours",
    "curves-tuned": "Fine-tuned methods beside ours",
    "figure-gamma": "Accuracy over gamma",
    "figure-components": "Accuracy over the number of random features",
}


def write_report(folder: str | Path) -> Path:
    """Gather an output folder into ``report.md``."""
    place = Path(folder)
    records = list(Results.of(place).latest().values())
    if not records:
        raise KldaError(
            f"{place} holds no results (results.jsonl): run for instance "
            f"'klda bench table1 --output {place}' first."
        )
    runs = shown_runs(records)
    paper = _of_the_paper(runs)
    title = "KLDA benchmarks" if paper.empty else "The KLDA paper, run again"
    days = sorted(record["finished"][:10] for record in records)
    lead = (
        f"{len(records)} runs, {days[0]} to {days[-1]}. Final accuracy on all classes in per cent, "
        "mean ± standard deviation over seeds. A run learns the tasks of one data set one after "
        "another; no task ids are given. Bold marks the best method of a column that does so."
    )
    if len(paper):
        lead += (
            " The findings compare our default, in points; level is a difference of at most "
            f"{ERRORS:g} standard errors."
        )
    said = "\n".join(f"- {kind}. {text}" for kind, text in findings(paper))
    sections = [part for part in (*_sections(runs, place), _origin(records)) if part]
    parts = [f"# {title}", lead, said, _contents(sections), *sections]
    page = place / "report.md"
    page.write_text("\n\n".join(part for part in parts if part) + "\n", encoding="utf-8")
    return page


def _of_the_paper(runs: pd.DataFrame) -> pd.DataFrame:
    """Pick the runs on the paper's own data."""
    return runs[(runs.split == "paper") & runs.dataset.isin(catalog.DATASETS)]


def _sections(runs: pd.DataFrame, place: Path) -> Iterator[str]:
    paper = _of_the_paper(runs)
    texts = paper[paper.dataset.isin(catalog.TEXT_SETS)]
    images = paper[paper.dataset.isin(catalog.IMAGE_SETS)]
    if len(paper):
        yield _table1(texts, place)
        compared = texts[texts.method.isin(_COMPARED)]
        yield from _models("Table 2", compared, catalog.TEXT_SETS, published.TEXT_MODELS)
        yield from _models("Table 3", images, catalog.IMAGE_SETS, published.IMAGE_MODELS)
        yield from _same_layers(texts)
        yield from _stream(usual_layers(texts, texts.backbone))
    yield from _own(runs.drop(paper.index))
    for name, title in _PLOTS.items():
        if (place / f"{name}.png").exists():
            yield _section(title, f"![{title}]({name}.png)")


def _contents(sections: Sequence[str]) -> str:
    """List the sections, with links to their headings, which GitHub names after their titles."""
    titles = [title for part in sections for title in re.findall("^## (.*)$", part, re.MULTILINE)]
    names = [re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles]
    lines = [f"- [{title}](#{name})" for title, name in zip(titles, names, strict=True)]
    return _section("Contents", "\n".join(lines))


def _section(title: str, *parts: str) -> str:
    return "\n\n".join([f"## {title}", *parts])


def _shown(table: Table, text: Sequence[str] = ()) -> str:
    """Return a table with its notes, the best figures in bold."""
    return _section(table.title, *text, markdown(lay_out(table.cells, best="**{}**")), *table.notes)


def _folded(title: str, *parts: str) -> str:
    return "\n\n".join([f"<details><summary>{title}</summary>", *parts, "</details>"])


def _table1(runs: pd.DataFrame, place: Path) -> str:
    used, main = runs.backbone.unique(), published.MAIN_MODEL
    backbone = next((name for name in (main, "minilm", *used) if name in used), main)
    writers = runs[runs.backbone == _WRITER]
    own = pd.concat([usual_layers(runs, [backbone]), writers])
    title = f"Table 1: methods x data sets, {published.title(backbone)}"
    table = accuracy_table(title, own, [backbone], by_model=False, columns=catalog.TEXT_SETS)
    if len(own):
        curve_plots(own, place)
    if len(writers):
        title = published.title(_WRITER)
        table.notes.append(f"LAMOL, VAG and labels written need a model that writes: {title}.")
    return _shown(table) + "\n\n" + _reasons(table.cells)


def _reasons(cells: pd.DataFrame) -> str:
    """Put the means over the data sets beside the paper's, and why they differ."""
    known = registry()
    figures = cells[["mean", "paper"]].groupby(cells.row, sort=False).mean()
    rows = [
        {
            "mean over the sets": known[row.Index].title,
            "paper": "-" if np.isnan(row.paper) else f"{row.paper:.1f}",
            "ours": "-" if np.isnan(row.mean) else f"{row.mean:.1f}",
            "why they differ": known[row.Index].why,
        }
        for row in figures.itertuples()
        if row.Index in known and known[row.Index].why
    ]
    return _section("Table 1: paper, ours, why", markdown(pd.DataFrame(rows)))


def _models(
    title: str, runs: pd.DataFrame, sets: Sequence[str], theirs: Sequence[str]
) -> Iterator[str]:
    """Show the paper's models that are here, its others folded away, and then stand-ins."""
    chosen = runs[runs.backbone != _WRITER]
    used = chosen.backbone.unique()
    here, absent = ([b for b in theirs if (b in used) is wanted] for wanted in (True, False))
    listed = ", ".join(map(published.title, here)) or "the paper's figures"
    if here:
        own = usual_layers(chosen, here)
        part = _shown(accuracy_table(f"{title}: {listed}", own, here, columns=sets))
    else:
        part = _section(f"{title}: {listed}")
    if absent:
        listed = ", ".join(map(published.title, absent))
        listed = f"The paper's figures for models that are not here: {listed}"
        part += "\n\n" + _folded(listed, markdown(_published(absent, sets)))
    yield part
    others = [name for name in used if name not in (*theirs, published.MAIN_MODEL)]
    if others:
        own = usual_layers(chosen, others)
        yield _shown(accuracy_table(f"{title}: stand-ins", own, others, with_paper=False))


def _published(backbones: Sequence[str], sets: Sequence[str]) -> pd.DataFrame:
    figures = published.FIGURES
    return pd.DataFrame(
        [
            {"": f"{published.title(backbone)}: {spec.title}"}
            | {catalog.title(name): figures[backbone, method, name]["paper_text"] for name in sets}
            for backbone in backbones
            for method, spec in registry().items()
            if (backbone, method, sets[0]) in figures
        ]
    )


def _same_layers(runs: pd.DataFrame) -> Iterator[str]:
    """All methods on the layers that our default uses."""
    for (backbone, layers), own in runs.groupby(["backbone", "layers"], sort=False):
        if layers != "last" and own.method.nunique() > 1:
            title = f"All methods on the same layers of {published.title(backbone)}"
            table = accuracy_table(title, own, [backbone], by_model=False, with_paper=False)
            text = ["Every method gets the features that our default uses, not the last layer's."]
            yield _shown(table, text)


def _stream(runs: pd.DataFrame) -> Iterator[str]:
    """Accuracy after each task, where the authors' form was measured as well."""
    streamed = runs[[record["evaluate"] == "each" for record in runs.record]]
    known = registry()
    for (backbone, name), found in streamed.groupby(["backbone", "dataset"], sort=False):
        if "authors" not in set(found.method):
            continue
        rows = []
        for method in [method for method in known if method in set(found.method)]:
            records = found.record[found.method == method]
            means = np.mean([record["seen_accuracy"] for record in records], axis=0)
            seen = (f"{samples:,}" for samples in records.iloc[0]["samples_seen"])
            row = {"samples learned": known[method].title, "seeds": str(len(records))}
            rows.append(row | dict(zip(seen, (f"{mean:.1f}" for mean in means), strict=True)))
        title = f"While learning: {catalog.title(name)}, {published.title(backbone)}"
        text = "Accuracy on the classes seen so far, after each task."
        yield _section(title, text, markdown(pd.DataFrame(rows)))


def _own(runs: pd.DataFrame) -> Iterator[str]:
    """Other data: one table for each model, without the paper's figures."""
    for (backbone, split), own in runs.groupby(["backbone", "split"], sort=False):
        title = f"{'Your data' if split == 'own' else split}, {published.title(backbone)}"
        yield _shown(accuracy_table(title, own, [backbone], by_model=False, with_paper=False))


def _origin(records: Sequence[Row]) -> str:
    """Say by which commands, with which versions and on which machines the runs were made."""
    commands = "\n".join(dict.fromkeys(r["command"] for r in records if r["command"]))
    said = [
        sorted({", ".join(f"{k} {v}" for k, v in record[name].items() if v) for record in records})
        for name in ("versions", "machine")
    ]
    listed = "\n".join(f"- {text}" for part in said for text in part)
    folded = _folded("All of them", f"```\n{commands}\n```", listed)
    return _section("Commands, versions and machines", folded)
