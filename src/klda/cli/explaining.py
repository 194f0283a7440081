"""How ``klda predict --explain`` says why."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, TextIO

from rich.table import Table as RichTable
from rich.text import Text

from klda.cli import reading
from klda.cli.console import results

if TYPE_CHECKING:
    from klda.data import Batch
    from klda.learner import Learner
    from klda.learner.explanation import Explanation

FEWEST = 3  # classes to show: fewer explain nothing


def explanations(
    learner: Learner, batches: Iterator[Batch], top_k: int, refused: float
) -> Iterator[tuple[Any, Explanation]]:
    """Explain the answers for inputs.

    Parameters
    ----------
    learner : Learner
        Who answers.
    batches : iterator of Batch
        Inputs.
    top_k : int
        Classes to name, and samples; three at least.
    refused : float
        Share of known inputs that may be taken for unknown.

    Yields
    ------
    tuple
        The input as it is shown, and why.
    """
    most = max(top_k, FEWEST)
    yield from reading.answered(
        batches, lambda inputs: learner.explain_all(inputs, top=most, samples=most, refused=refused)
    )


def write(stream: TextIO, said: Iterator[tuple[Any, Explanation]], *, as_json: bool) -> None:
    """Write explanations, as text or as one JSON object a line.

    Parameters
    ----------
    stream : text file
        Where to.
    said : iterator
        Inputs and why.
    as_json : bool
        Whether a program will read it.
    """
    for value, explanation in said:
        if as_json:
            entry = {"input": value} | explanation.to_dict()
            stream.write(json.dumps(entry, ensure_ascii=False) + "\n")
        else:
            _write_text(stream, value, explanation)


def _write_text(stream: TextIO, value: Any, explanation: Explanation) -> None:
    console = results()
    console.file = stream
    console.print(Text(str(value), style="bold"))
    console.print(Text("  " + _verdict(explanation)), soft_wrap=True)
    table = RichTable(box=None, padding=(0, 2), pad_edge=True)
    for name in ("nearest classes", "probability", "distance"):
        table.add_column(name, justify="left" if name == "nearest classes" else "right")
    for near in explanation.classes:
        table.add_row(Text(str(near.label)), f"{near.probability:.1%}", f"{near.distance:,.0f}")
    console.print(table)
    if explanation.samples:
        samples = RichTable(box=None, padding=(0, 2), pad_edge=True)
        for name in ("nearest samples", "class", "similarity"):
            samples.add_column(name, justify="right" if name == "similarity" else "left")
        for sample in explanation.samples:
            samples.add_row(
                Text(str(sample.id)), Text(str(sample.label)), f"{sample.similarity:.3f}"
            )
        console.print(samples)
    console.print()


def _verdict(explanation: Explanation) -> str:
    parts = []
    if explanation.known is False:
        parts.append(f"unknown; the nearest class is {explanation.label}")
    else:
        parts.append(f"{explanation.label}")
    if explanation.margin == explanation.margin:
        parts.append(f"margin {explanation.margin:.2f}")
    if explanation.novelty is not None:
        limit = explanation.threshold
        beyond = "no threshold yet" if limit is None else f"unknown beyond {limit:,.0f}"
        parts.append(f"novelty {explanation.novelty:,.0f} ({beyond})")
    return ", ".join(parts)
