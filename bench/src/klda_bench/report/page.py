"""One HTML file with every table, plot, setting and command of an output folder."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from html import escape
from pathlib import Path

import pandas as pd

from klda.errors import KldaError
from klda_bench.methods import registry
from klda_bench.report.show import as_text
from klda_bench.report.table import Table
from klda_bench.results import Results, Row
from klda_bench.runs.metrics import FINAL, METRICS, Spread

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 72rem; padding: 0 1rem;
       color: #1a1a1a; background: #fff }
h1 { font-size: 1.7rem } h2 { margin-top: 2.5rem; border-bottom: 1px solid #ccc }
figure { margin: 1rem 0 } img { max-width: 100%; height: auto; border: 1px solid #ddd }
.wide { overflow-x: auto } table { border-collapse: collapse; font-size: 0.86rem; margin: 1rem 0 }
th, td { border: 1px solid #ccc; padding: 0.25rem 0.55rem; text-align: right; white-space: nowrap }
th:first-child, td:first-child { text-align: left } thead th { background: #f2f2f2 }
pre { background: #f4f4f4; padding: 0.6rem; overflow-x: auto }
.note { color: #555; font-size: 0.86rem }
"""
_TABLES = ("table1", "table2", "table3", "figure-gamma", "figure-components")
_PLOTS = {"table1": ("table1", "curves", "curves-authors", "curves-tuned")}
_BEST = "\ue000"  # marks the best figure of a column until the text is HTML


def write_report(folder: str | Path) -> Path:
    """Gather an output folder into ``report.html``, which needs no other file."""
    place = Path(folder)
    records = list(Results.of(place).latest().values())
    if not records:
        raise KldaError(
            f"{place} holds no results (results.jsonl): run for instance "
            f"'klda bench table1 --output {place}' first."
        )
    parts = [_head(records)]
    for name in _TABLES:
        for file in [place / f"{name}.json", *sorted(place.glob(f"{name}-*.json"))]:
            if file.exists():
                table = Table.read(file)
                parts += [_table_section(table, place), _metrics_section(table)]
    parts += [_pairs(place), _listing(place, "memory"), _listing(place, "runtime"), _runs(records)]
    body = "\n".join(filter(None, parts))
    page = (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>KLDA benchmarks</title><style>{_STYLE}</style></head><body>\n{body}\n"
        "</body></html>\n"
    )
    target = place / "report.html"
    target.write_text(page, encoding="utf-8")
    return target


def _head(records: Sequence[Row]) -> str:
    commands = dict.fromkeys(record["command"] for record in records if record["command"])
    days = sorted(record["finished"][:10] for record in records)
    notes = [
        f'<p class="note">{name.capitalize()}: {escape(text)}</p>'
        for name in ("versions", "machine")
        for text in sorted({json.dumps(record[name], sort_keys=True) for record in records})
    ]
    return (
        "<h1>KLDA benchmarks</h1>"
        f"<p>{len(records)} runs, {days[0]} to {days[-1]}. A run learns the tasks of one data set "
        "one after another; accuracy is measured on all classes seen, without task ids. "
        "Figures are mean ± standard deviation over seeds, in per cent.</p>"
        f"<p>Commands that made the runs:</p><pre>{escape(chr(10).join(commands))}</pre>"
        + "".join(notes)
    )


def _html(frame: pd.DataFrame) -> str:
    table = as_text(frame).to_html(index=False, border=0, justify="inherit")
    marked = table.replace(f"<td>{_BEST}", '<td style="font-weight: 700">')
    return f'<div class="wide">{marked}</div>'


def _table_section(table: Table, place: Path) -> str:
    notes = "".join(f'<p class="note">{escape(note)}</p>' for note in table.notes)
    plots = _PLOTS.get(table.name, (table.name,))
    return (
        f"<h2>{escape(table.title)}</h2><pre>{escape(table.command)}</pre>"
        + _html(table.grid(best=lambda text: _BEST + text))
        + notes
        + "".join(_image(place / f"{plot}.png") for plot in plots)
    )


def _metrics_section(table: Table) -> str:
    """Mean and spread of what is measured while learning, for the table of final accuracies."""
    names = [name for name in METRICS if name != FINAL]
    rows = []
    for cell in table.cells:
        if table.name == "table1" and any(cell.get(name) is not None for name in names):
            row = {"method": cell["row_title"], "data set": cell["column_title"]}
            for name in names:
                measured = cell.get(name) is not None
                spread = Spread(
                    cell.get(name, 0.0), cell.get(f"{name}_std"), cell.get(f"{name}_n", 0)
                )
                row[METRICS[name]] = spread.text() if measured else None
            rows.append(row)
    if not rows:
        return ""
    return (
        "<h3>While learning</h3><p>Mean ± standard deviation over the seeds whose accuracy was "
        f"measured after each task.</p>{_html(pd.DataFrame(rows))}"
    )


def _image(file: Path) -> str:
    if not file.exists():
        return ""
    content = base64.b64encode(file.read_bytes()).decode()
    return f'<figure><img alt="{escape(file.stem)}" src="data:image/png;base64,{content}"></figure>'


def _frame(file: Path) -> pd.DataFrame:
    found = json.loads(file.read_text(encoding="utf-8")) if file.exists() else []
    return pd.DataFrame(found, dtype=object)


def _pairs(place: Path) -> str:
    pairs = _frame(place / "pairs.json")
    if pairs.empty:
        return ""
    shown = pairs[["dataset", "method"]].assign(
        difference=[
            f"{difference:+.2f} ± {error:.2f}"
            for difference, error in zip(pairs.difference, pairs.standard_error, strict=True)
        ]
    )
    return (
        f"<h2>Paired comparison with {escape(registry()[pairs.base[0]].title)}</h2>"
        "<p>Difference of final accuracy on the same test rows, in points ± standard "
        "error over test rows.</p>" + _html(shown)
    )


def _listing(place: Path, name: str) -> str:
    frame = _frame(place / f"{name}.json")
    if frame.empty:
        return ""
    return f"<h2>{name.capitalize()}</h2>{_html(frame)}{_image(place / f'{name}.png')}"


_COLUMNS = {
    **{f"settings.{name}": name for name in ("dataset", "subset", "method", "backbone", "layers")},
    **{f"settings.{name}": name for name in ("seed", "tasks")},
    "options": "options",
    **{f"metrics.{name}": shown for name, shown in METRICS.items()},
    "seconds.learn": "learn s",
    "seconds.predict_last": "predict s",
    "peak_memory_bytes": "peak bytes",
    "command": "command",
}


def _runs(records: Sequence[Row]) -> str:
    frame = pd.json_normalize(list(records)).astype(object)
    frame["options"] = [
        ", ".join(f"{name}={value}" for name, value in record["settings"]["options"].items())
        for record in records
    ]
    return (
        f"<h2>All runs</h2><details><summary>{len(frame)} runs with their settings</summary>"
        f"{_html(frame[list(_COLUMNS)].rename(columns=_COLUMNS))}</details>"
    )
