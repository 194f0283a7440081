"""One HTML file with every table, plot, setting and command of an output folder."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path
from typing import Any

from klda.errors import KldaError
from klda_bench.experiments import RESULTS, store_in
from klda_bench.methods import registry
from klda_bench.metrics import FINAL, METRICS, Spread
from klda_bench.tables import spread_text

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 72rem; padding: 0 1rem;
       color: #1a1a1a; background: #fff }
h1 { font-size: 1.7rem } h2 { margin-top: 2.5rem; border-bottom: 1px solid #ccc }
figure { margin: 1rem 0 } img { max-width: 100%; height: auto; border: 1px solid #ddd }
.wide { overflow-x: auto } table { border-collapse: collapse; font-size: 0.86rem; margin: 1rem 0 }
th, td { border: 1px solid #ccc; padding: 0.25rem 0.55rem; text-align: right; white-space: nowrap }
th:first-child, td:first-child, td.text { text-align: left } thead th { background: #f2f2f2 }
code { background: #f4f4f4; padding: 0.1rem 0.3rem; font-size: 0.85rem }
pre { background: #f4f4f4; padding: 0.6rem; overflow-x: auto }
.note { color: #555; font-size: 0.86rem } .best { font-weight: 700 } .absent { color: #888 }
"""
_TABLES = ("table1", "table2", "table3", "figure-gamma", "figure-components")
_PLOTS = {
    "table1": ("table1.png", "curves.png", "curves-authors.png", "curves-tuned.png"),
}


def write_report(folder: str | Path) -> Path:
    """Gather an output folder into ``report.html``.

    Parameters
    ----------
    folder : path-like
        Output folder of the benchmark commands.

    Returns
    -------
    Path
        The report; it needs no other file.
    """
    place = Path(folder)
    records = list(store_in(place).latest().values())
    if not records:
        raise KldaError(
            f"{place} holds no results ({RESULTS}): run for instance "
            f"'klda bench table1 --output {place}' first."
        )
    parts = [_head(records)]
    for name in _TABLES:
        files = [place / f"{name}.json", *sorted(place.glob(f"{name}-*.json"))]
        for file in files:
            if file.exists():
                table = json.loads(file.read_text(encoding="utf-8"))
                parts += [_table_section(table, place), _metrics_section(table)]
    parts += [_pairs(place), _listing(place, "memory"), _listing(place, "runtime")]
    parts.append(_runs(records))
    body = "\n".join(part for part in parts if part)
    page = (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>KLDA benchmarks</title><style>{_STYLE}</style></head><body>\n{body}\n"
        "</body></html>\n"
    )
    target = place / "report.html"
    target.write_text(page, encoding="utf-8")
    return target


def _head(records: Sequence[dict[str, Any]]) -> str:
    versions = sorted({json.dumps(record["versions"], sort_keys=True) for record in records})
    machines = sorted({json.dumps(record["machine"], sort_keys=True) for record in records})
    commands = list(dict.fromkeys(record["command"] for record in records if record["command"]))
    listed = "\n".join(escape(command) for command in commands)
    days = sorted(record["finished"][:10] for record in records)
    return (
        "<h1>KLDA benchmarks</h1>"
        f"<p>{len(records)} runs, {days[0]} to {days[-1]}. A run learns the tasks of one data set "
        "one after another; accuracy is measured on all classes seen, without task ids. "
        "Figures are mean ± standard deviation over seeds, in per cent.</p>"
        f"<p>Commands that made the runs:</p><pre>{listed}</pre>"
        + "".join(f'<p class="note">Versions: {escape(text)}</p>' for text in versions)
        + "".join(f'<p class="note">Machine: {escape(text)}</p>' for text in machines)
    )


def _table_section(table: dict[str, Any], place: Path) -> str:
    columns = table["columns"]
    best = {column["name"]: _best(table, column["name"]) for column in columns}
    with_paper = {
        column["name"]: any(row["cells"][column["name"]]["paper"] for row in table["rows"])
        for column in columns
    }
    head = ["<th></th>"]
    for column in columns:
        head.append(f"<th>{escape(column['title'])}</th>")
        if with_paper[column["name"]]:
            head.append("<th>paper</th><th>difference</th>")
    rows = []
    for row in table["rows"]:
        cells = [f"<td>{escape(row['title'])}</td>"]
        for column in columns:
            name = column["name"]
            cells += _cells(row["cells"][name], best[name], with_paper[name])
        rows.append(f"<tr>{''.join(cells)}</tr>")
    plots = _PLOTS.get(table["name"], (f"{table['name']}.png",))
    notes = "".join(f'<p class="note">{escape(note)}</p>' for note in table["notes"])
    return (
        f"<h2>{escape(table['title'])}</h2><pre>{escape(table['command'])}</pre>"
        f'<div class="wide"><table><thead><tr>{"".join(head)}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div>{notes}"
        + "".join(_image(place / plot) for plot in plots)
    )


def _best(table: dict[str, Any], column: str) -> float:
    means = [
        row["cells"][column]["ours"]["mean"]
        for row in table["rows"]
        if row["cells"][column]["ours"] is not None
    ]
    best = min if table.get("metric") == "forgetting" else max
    return best(means, default=float("nan"))


def _metrics_section(table: dict[str, Any]) -> str:
    """Mean and spread of what is measured while learning, for the table of final accuracies."""
    if table["name"] != "table1":
        return ""
    names = [name for name in METRICS if name != FINAL]
    rows = []
    for row in table["rows"]:
        for column in table["columns"]:
            found = row["cells"][column["name"]].get("metrics", {})
            spreads = [found.get(name) for name in names]
            if any(spreads):
                shown = [
                    None if spread is None else spread_text(_spread(spread)) for spread in spreads
                ]
                rows.append([row["title"], column["title"], *shown])
    if not rows:
        return ""
    head = ["method", "data set", *(METRICS[name] for name in names)]
    return (
        "<h3>While learning</h3><p>Mean ± standard deviation over the seeds whose accuracy was "
        "measured after each task.</p>" + _plain_table(head, rows)
    )


def _cells(cell: dict[str, Any], best: float, with_paper: bool) -> list[str]:
    ours = cell["ours"]
    if ours is None:
        cells = [f'<td class="absent">{escape(cell["missing"])}</td>']
    else:
        kind = ' class="best"' if ours["mean"] == best else ""
        star = "*" if cell["note"] else ""
        shown = cell.get("shown") or spread_text(_spread(ours)) + star
        cells = [f"<td{kind}>{escape(shown)}</td>"]
    if with_paper:
        published = "-" if cell["paper"] is None else f"{cell['paper']:g}"
        difference = "-" if cell["difference"] is None else f"{cell['difference']:+.1f}"
        cells += [f"<td>{published}</td>", f"<td>{difference}</td>"]
    return cells


def _spread(plain: dict[str, Any]) -> Spread:
    return Spread(plain["mean"], plain["std"] or 0.0, plain["n"])


def _image(file: Path) -> str:
    if not file.exists():
        return ""
    data = base64.b64encode(file.read_bytes()).decode()
    name = escape(file.stem)
    return f'<figure><img alt="{name}" src="data:image/png;base64,{data}"></figure>'


def _plain_table(head: Iterable[str], rows: Iterable[Iterable[Any]]) -> str:
    top = "".join(f"<th>{escape(str(name))}</th>" for name in head)
    body = "".join("<tr>" + "".join(_plain_cell(value) for value in row) + "</tr>" for row in rows)
    return (
        f'<div class="wide"><table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>'
    )


def _plain_cell(value: Any) -> str:
    kind = ' class="text"' if isinstance(value, str) else ""
    return f"<td{kind}>{escape(_show(value))}</td>"


def _show(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.2f}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def _pairs(place: Path) -> str:
    file = place / "pairs.json"
    pairs = json.loads(file.read_text(encoding="utf-8")) if file.exists() else []
    if not pairs:
        return ""
    base = registry()[pairs[0]["base"]].title
    rows = (
        [p["dataset"], p["method"], f"{p['difference']:+.2f} ± {p['standard_error']:.2f}"]
        for p in pairs
    )
    return (
        f"<h2>Paired comparison with {escape(base)}</h2><p>Difference of final accuracy on the "
        "same test rows, in points ± standard error over test rows.</p>"
        + _plain_table(["data set", "method", "difference"], rows)
    )


def _listing(place: Path, name: str) -> str:
    file = place / f"{name}.json"
    if not file.exists():
        return ""
    lines = json.loads(file.read_text(encoding="utf-8"))
    if not lines:
        return ""
    head = [column.replace("_", " ") for column in lines[0]]
    table = _plain_table(head, (line.values() for line in lines))
    return f"<h2>{name.capitalize()}</h2>{table}{_image(place / f'{name}.png')}"


def _runs(records: Sequence[dict[str, Any]]) -> str:
    head = [
        *("data set", "method", "model", "layers", "seed", "tasks", "options"),
        *("final", "average incremental", "forgetting", "backward transfer"),
        *("learn s", "predict s", "peak MB", "command"),
    ]
    rows = []
    for record in records:
        settings, metrics, seconds = record["settings"], record["metrics"], record["seconds"]
        options = ", ".join(f"{key}={value}" for key, value in settings["options"].items())
        subset = f" [{settings['subset']}]" if settings["subset"] else ""
        rows.append(
            [
                settings["dataset"] + subset,
                settings["method"],
                settings["backbone"],
                settings["layers"],
                settings["seed"],
                settings["tasks"],
                options,
                *(
                    metrics[name]
                    for name in (
                        "final_accuracy",
                        "average_incremental_accuracy",
                        "forgetting",
                        "backward_transfer",
                    )
                ),
                seconds["learn"],
                seconds["predict_last"],
                round(record["peak_memory_bytes"] / 1e6),
                record["command"],
            ]
        )
    return (
        f"<h2>All runs</h2><details><summary>{len(rows)} runs with their settings</summary>"
        f"{_plain_table(head, rows)}</details>"
    )
