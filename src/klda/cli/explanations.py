"""What ``klda predict --explain`` writes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, TextIO

from rich.console import Console
from rich.text import Text

from klda.cli import reading
from klda.cli.console import results, table

if TYPE_CHECKING:
    from klda.data import Batch
    from klda.learner import Learner
    from klda.learner.explanation import Explanation

FEWEST = 3  # classes to show: fewer explain nothing


def explained(
    learner: Learner, batches: Iterator[Batch], top_k: int, **refused: float
) -> Iterator[tuple[Any, Explanation]]:
    """Yield each input with the explanation of its answer: at least three classes and samples."""
    most = max(top_k, FEWEST)
    return reading.answered(
        batches, lambda inputs: learner.explain_all(inputs, top=most, samples=most, **refused)
    )


def write(stream: TextIO, said: Iterator[tuple[Any, Explanation]], *, as_json: bool) -> None:
    """Write explanations as text, or as JSON, one object per line."""
    console = results(stream)
    for value, explanation in said:
        if as_json:
            entry = {"input": value} | explanation.to_dict()
            stream.write(json.dumps(entry, ensure_ascii=False) + "\n")
        else:
            _write_text(console, value, explanation)


def _write_text(console: Console, value: Any, explanation: Explanation) -> None:
    console.print(Text(str(value), style="bold"))
    console.print(Text("  " + _verdict(explanation)), soft_wrap=True)
    layout: dict[str, Any] = {"padding": (0, 2), "pad_edge": True}
    numbers = ("probability", "distance", "similarity")
    near = [(c.label, f"{c.probability:.1%}", f"{c.distance:,.0f}") for c in explanation.classes]
    columns = ("nearest classes", "probability", "distance")
    console.print(table(*columns, rows=near, numbers=numbers, **layout))
    if explanation.samples:
        alike = [(s.id, s.label, f"{s.similarity:.3f}") for s in explanation.samples]
        columns = ("nearest samples", "class", "similarity")
        console.print(table(*columns, rows=alike, numbers=numbers, **layout))
    console.print()


def _verdict(explanation: Explanation) -> str:
    unknown = "unknown; the nearest class is " if explanation.known is False else ""
    parts = [f"{unknown}{explanation.label}"]
    if explanation.margin == explanation.margin:
        parts.append(f"margin {explanation.margin:.2f}")
    if explanation.novelty is not None:
        limit = explanation.threshold
        beyond = "no threshold yet" if limit is None else f"unknown above {limit:,.0f}"
        parts.append(f"novelty {explanation.novelty:,.0f} ({beyond})")
    return ", ".join(parts)
