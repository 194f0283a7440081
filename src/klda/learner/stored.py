"""What a model folder's document says, in the form of this version."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import numpy as np

from klda import __version__
from klda.engine.arrays import add_prefix, strip_prefix
from klda.engine.model import ALL
from klda.engine.parameters import Parameters
from klda.engine.rows import Rows
from klda.errors import KldaError
from klda.learner.folder import StoredModel

Content = tuple[dict[str, Any], dict[str, np.ndarray]]


def parameters(values: Mapping[str, Any]) -> Parameters:
    """Return stored parameters."""
    unknown = sorted(values.keys() - {each.name for each in fields(Parameters)})
    if unknown:
        raise KldaError(
            f"The model was made by a newer version of klda: it has a parameter {unknown[0]!r}, "
            f"which klda {__version__} does not know. Upgrade klda."
        )
    return Parameters(**values)


def current(content: StoredModel) -> Content:
    """Return a folder's document and arrays; those of version 0.2.0 are turned into this form."""
    document = content.document
    if "engine" in document:
        return document, content.arrays
    return _of_version_2(document, content.arrays)


def _of_version_2(document: dict[str, Any], arrays: dict[str, np.ndarray]) -> Content:
    meta, (member, *others) = document["classifier"], document["classifier"]["members"]
    if meta["kind"] not in ("KLDA", "LDA") or others:
        raise KldaError(
            f"The model has a {meta['kind']}, saved by klda 0.2.0: a Learner of this version holds "
            "a KLDA or an LDA. Learn it again, or use klda 0.2.0."
        )
    chosen = {name: value for name, value in meta["parameters"].items() if name != "blocks"}
    if meta["kind"] == "LDA":
        chosen |= {"n_components": None, "rule": "lda"}
    shape = {name: meta[name] for name in ("n_features", "classes", "counts")}
    own_map = {name: member[name] for name in ("gamma", "draw") if name in member}
    engine: dict[str, Any] = {"compact": meta["compact"], "keeps": meta.get("keeps", {})}
    if meta["compact"]:
        if "predict/0/support" in arrays:
            raise KldaError(
                "The model was saved compact by klda 0.2.0 while it had few samples: save it again "
                "from the full model."
            )
        engine["solution"] = shape | own_map | {"rho": member["rho"]}
        kept = {name: array for name, array in arrays.items() if name.startswith("predict/0/")}
    else:
        learned, engine["model"] = _model_of_version_2(document, meta, member, arrays)
        engine["model"] |= shape | own_map
        spectrum = strip_prefix("predict/0/", arrays)
        names = [name for name in ("frequencies", "phases") if name in spectrum]
        learned |= {f"map/{name}": spectrum[name] for name in names}
        kept = add_prefix("learn/", learned)
    named = ("compact", "foundation_model", "samples", "classes", "history", "names", "extras")
    same = {name: document[name] for name in named if name in document}
    keep = "features" if "ledger" in document else None
    return same | {"parameters": chosen, "keep": keep, "engine": engine}, kept


def _model_of_version_2(
    document: Mapping[str, Any],
    meta: Mapping[str, Any],
    member: Mapping[str, Any],
    arrays: Mapping[str, np.ndarray],
) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    size = int(meta["parameters"].get("n_components", meta["n_features"]))
    model: dict[str, Any] = {"most_rows": size // 2}
    found: dict[str, np.ndarray] = {}
    rows = {
        "rows": ("learn/held", meta.get("held")),
        "hints": ("learn/hints", meta.get("hints")),
        "waiting": ("learn/pending", meta.get("waiting", {}).get("pending")),
    }
    for name, (array, labels) in rows.items():
        if labels is not None and (labels or sum(meta["counts"]) == 0):
            packed, model[name] = Rows.of(arrays[array], labels).pack()
            found |= add_prefix(f"{name}/", packed)
    if "ledger" in document:
        found |= add_prefix("rows/", strip_prefix("ledger/", arrays))
        model |= {"rows": document["ledger"], "most_rows": ALL}
    if not meta.get("held"):
        found |= add_prefix("statistics/", strip_prefix("learn/0/", arrays))
        model["statistics"] = {name: member[name] for name in ("n_scattered", "turnover")}
    return found, model
