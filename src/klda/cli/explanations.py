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
    classes = table("nearest classes", "probability", "distance", numbers=numbers, **layout)
    for near in explanation.classes:
        classes.add_row(Text(str(near.label)), f"{near.probability:.1%}", f"{near.distance:,.0f}")
    console.print(classes)
    if explanation.samples:
        samples = table("nearest samples", "class", "similarity", numbers=numbers, **layout)
        for like in explanation.samples:
            samples.add_row(Text(str(like.id)), Text(str(like.label)), f"{like.similarity:.3f}")
        console.print(samples)
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
