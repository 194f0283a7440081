"""``klda bench peers-at-work``: klda and other packages at the jobs that users have."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import pandas as pd
import typer

from klda_bench.at_work.jobs import JOBS, measure
from klda_bench.at_work.programs import PROGRAMS
from klda_bench.display.show import markdown, progress, show, wrote
from klda_bench.measure.common import Data, names
from klda_bench.results import Results


def peers_at_work(
    jobs: Annotated[str, typer.Option(help="Comma-separated jobs.")] = ",".join(JOBS),
    programs: Annotated[str, typer.Option(help="Comma-separated programs.")] = ",".join(PROGRAMS),
    data: Data = None,
    output: Annotated[Path, typer.Option(help="Folder of rows and the page.")] = Path(
        "out/at-work"
    ),
) -> None:
    """Let klda and other packages learn texts: accuracy, seconds, memory, disk, what is kept.

    The packages are those of pip install -e "bench[peers]"; --programs leaves some out. A job that
    is in the output folder is not done again, unless the package has changed.
    """
    with progress() as notify:
        found = measure(names(jobs), names(programs), data, Results.of(output), notify)
    page = ["# klda and other packages at work", ""]
    for job in names(jobs):
        frame = pd.DataFrame([_line(row) for row in found if row["job"] == job])
        show(frame, JOBS[job].title)
        page += [f"## {JOBS[job].title}", "", markdown(frame), ""]
    file = output / "at-work.md"
    file.write_text("\n".join(page), encoding="utf-8")
    wrote([file])


def _line(row: dict) -> dict[str, str]:
    """Return what is shown of a program: its accuracy on the way and at the end, and its cost."""
    known, steps = PROGRAMS[row["program"]], row["steps"]
    shown = sorted({0, len(steps) // 2, len(steps) - 1})
    accuracies = {
        f"{steps[i]['classes']} classes (%)": f"{steps[i]['accuracy']:.1f}" for i in shown
    }
    last = steps[-1]
    return {
        "program": f"{known.title} {'' if known.package == 'klda' else row['version']}".strip(),
        **accuracies,
        "learn (CPU s)": f"{last['learn_seconds']:.1f}",
        "answer (CPU ms)": f"{last['answer_ms']:.1f}",
        "peak memory (MB)": f"{last['peak_bytes'] / 1e6:.0f}",
        "saved (MB)": f"{last['disk_bytes'] / 1e6:.1f}",
        "keeps of the data": known.keeps,
    }
