"""``klda export``: a model for programs that don't run Python."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from klda.checks import REFUSED, check_fraction
from klda.cli import options
from klda.cli.console import report
from klda.cli.options import option
from klda.messages import counted


def export(
    onnx: Annotated[
        Path, option("Write the model here, as ONNX files.", "--onnx", metavar="FOLDER")
    ],
    folder: options.Folder = None,
    model: options.OptionalModel = None,
    reject: Annotated[
        float | None,
        option(
            "Fraction of known inputs that may be called unknown (as **klda tune-unknown** has "
            f"set, or {REFUSED}).",
            metavar="FRACTION",
        ),
    ] = None,
    json: options.Json = False,
) -> None:
    """Write a model as ONNX, for ONNX Runtime in JavaScript, C#, Java, C++, ...

    The folder gets **model.onnx** (tokens in; label, probabilities, scores and known out), its
    **tokenizer.json**, **head.onnx** (features in, the same out) and **klda.json**, which describes
    them. A foundation model that is not like BERT stays outside: then there is only the head. What
    is learned later is not in these files: export again.

    **klda export** bot/ **--onnx** bot-onnx/
    """
    from klda.learner import Learner

    if reject is not None:
        check_fraction("--reject", reject)
    at = options.one_folder(folder, model, "export")
    written = Learner.load(at).export_onnx(onnx, reject=reject)
    files = ", ".join(written["files"])
    lines = [f"Wrote {counted(len(written['classes']), 'class')} to {onnx}: {files}."]
    if "model.onnx" not in written["files"]:
        lines.append(
            f"The foundation model {written['foundation']} can't be part of an ONNX file: "
            "head.onnx takes its features."
        )
    if not written["knows_unknown"]:
        lines.append("Too little was learned to tell unknown inputs: there is no output 'known'.")
    report(json, {"model": str(at), **written}, " ".join(lines))
