"""One HTML file with every table, plot, setting and command of an output folder."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from pathlib import Path

import pandas as pd
from jinja2 import Environment, PackageLoader
from markupsafe import Markup

from klda.errors import KldaError
from klda_bench.methods import registry
from klda_bench.report.show import as_text
from klda_bench.report.table import Table
from klda_bench.results import Results, Row
from klda_bench.runs.metrics import FINAL, METRICS, Spread

_TABLES = ("table1", "table2", "table3", "figure-gamma", "figure-components")
_PLOTS = {"table1": ("table1", "curves", "curves-authors", "curves-tuned")}
_BEST = "\ue000"  # marks the best figure of a column until the text is HTML
_SETTINGS = ("dataset", "subset", "method", "backbone", "layers", "seed", "tasks")
_COLUMNS = {
    **{f"settings.{name}": name for name in _SETTINGS},
    "options": "options",
    **{f"metrics.{name}": shown for name, shown in METRICS.items()},
    "seconds.learn": "learn s",
    "seconds.predict_last": "predict s",
    "peak_memory_bytes": "peak bytes",
    "command": "command",
}


def write_report(folder: str | Path) -> Path:
    """Gather an output folder into ``report.html``, which needs no other file."""
    place = Path(folder)
    records = list(Results.of(place).latest().values())
    if not records:
        raise KldaError(
            f"{place} holds no results (results.jsonl): run for instance "
            f"'klda bench table1 --output {place}' first."
        )
    files = [
        file
        for name in _TABLES
        for file in (place / f"{name}.json", *sorted(place.glob(f"{name}-*.json")))
        if file.exists()
    ]
    pairs = _frame(place / "pairs.json")
    page = Environment(loader=PackageLoader(__package__, ""), autoescape=True)
    target = place / "report.html"
    text = page.get_template("page.html").render(
        records=records,
        days=sorted(record["finished"][:10] for record in records),
        commands=dict.fromkeys(record["command"] for record in records if record["command"]),
        notes=[
            f"{name.capitalize()}: {text}"
            for name in ("versions", "machine")
            for text in sorted({json.dumps(record[name], sort_keys=True) for record in records})
        ],
        tables=[Table.read(file) for file in files],
        plots=_PLOTS,
        pairs=pairs if pairs.empty else _differences(pairs),
        base="" if pairs.empty else registry()[pairs.base[0]].title,
        listings={name: _frame(place / f"{name}.json") for name in ("memory", "runtime")},
        runs=_runs(records),
        html=_html,
        best=lambda text: _BEST + text,
        image=lambda name: _image(place / f"{name}.png"),
        while_learning=_while_learning,
    )
    target.write_text(text, encoding="utf-8")
    return target


def _html(frame: pd.DataFrame) -> Markup:
    table = as_text(frame).to_html(index=False, border=0, justify="inherit")
    marked = table.replace(f"<td>{_BEST}", '<td style="font-weight: 700">')
    return Markup(f'<div class="wide">{marked}</div>')


def _image(file: Path) -> str:
    return base64.b64encode(file.read_bytes()).decode() if file.exists() else ""


def _frame(file: Path) -> pd.DataFrame:
    found = json.loads(file.read_text(encoding="utf-8")) if file.exists() else []
    return pd.DataFrame(found, dtype=object)


def _differences(pairs: pd.DataFrame) -> pd.DataFrame:
    shown = [f"{a:+.2f} ± {b:.2f}" for a, b in pairs[["difference", "standard_error"]].values]
    return pairs[["dataset", "method"]].assign(difference=shown)


def _while_learning(table: Table) -> pd.DataFrame:
    """Mean and spread of what is measured while learning, for the table of final accuracies."""
    names = [name for name in METRICS if name != FINAL]
    rows = []
    for cell in table.cells if table.name == "table1" else ():
        spreads = {
            METRICS[name]: Spread(cell[name], cell[f"{name}_std"], cell[f"{name}_n"]).text()
            for name in names
            if cell.get(name) is not None
        }
        if spreads:
            rows.append({"method": cell["row_title"], "data set": cell["column_title"]} | spreads)
    return pd.DataFrame(rows, dtype=object)


def _runs(records: Sequence[Row]) -> pd.DataFrame:
    frame = pd.json_normalize(list(records)).astype(object)
    frame["options"] = [
        ", ".join(f"{name}={value}" for name, value in record["settings"]["options"].items())
        for record in records
    ]
    return frame[list(_COLUMNS)].rename(columns=_COLUMNS)
