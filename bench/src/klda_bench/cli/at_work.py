"""``klda bench peers-at-work``: klda beside other packages at the job that users have."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import pandas as pd

from klda.cli.options import option
from klda_bench.at_work.jobs import JOBS, asked
from klda_bench.at_work.programs import PROGRAMS
from klda_bench.display.show import progress, show, write_page
from klda_bench.options import Data, names
from klda_bench.results import Results, Row

OUT = Path("out/at-work")


def peers_at_work(
    jobs: Annotated[str, option("Jobs, comma-separated.", show_default=True)] = ",".join(JOBS),
    programs: Annotated[str, option("Programs, comma-separated.", show_default=True)] = ",".join(
        PROGRAMS
    ),
    data: Data = None,
    output: Annotated[Path, option(f"Folder of rows and page ({OUT}).")] = OUT,
) -> None:
    """Let klda and other packages learn texts: accuracy, seconds, memory, disk, what is kept.

    The packages are those of pip install -e "bench[peers]"; --programs leaves some out. A job that
    is in the output folder is not done again, unless the package has changed; the page shows all
    that are there.
    """
    chosen = names(programs, "programs", PROGRAMS)
    runs = [asked(job, name, data) for job in names(jobs, "jobs", JOBS) for name in chosen]
    results = Results.of(output)
    with progress() as notify:
        for run in runs:
            results.once(run, notify)
    found = {(row["job"], row["program"]): row for row in results.latest().values()}
    parts = []
    for job, known_job in JOBS.items():
        own = [found[job, name] for name in PROGRAMS if (job, name) in found]
        if own:
            parts.append((known_job.title, pd.DataFrame([_line(row) for row in own])))
            show(parts[-1][1], known_job.title)
    write_page(output / "at-work.md", "klda and other packages at work", parts)


def _line(row: Row) -> dict[str, str]:
    """Return what is shown of a program: its accuracy on the way and at the end, and its cost."""
    known, steps = PROGRAMS[row["program"]], row["steps"]
    shown, last = sorted({0, len(steps) // 2, len(steps) - 1}), steps[-1]
    return {
        "program": f"{known.title} {'' if known.package == 'klda' else row['version']}".strip(),
        **{f"{steps[i]['classes']} classes (%)": f"{steps[i]['accuracy']:.1f}" for i in shown},
        "learn (CPU s)": f"{last['learn_seconds']:.1f}",
        "answer (CPU ms)": f"{last['answer_ms']:.1f}",
        "peak memory (MB)": f"{last['peak_bytes'] / 1e6:.0f}",
        "saved (MB)": f"{last['disk_bytes'] / 1e6:.1f}",
        "keeps of the data": known.keeps,
    }
