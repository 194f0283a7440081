"""Model folders of version 0.2.0, in the form of this version."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from klda.engine import sizes
from klda.engine.arrays import add_prefix, strip_prefix
from klda.engine.calibration import OCTAVES, USUAL_TEMPERATURE, Evidence
from klda.engine.model import ALL
from klda.engine.rows import Rows
from klda.engine.rule import unit_of
from klda.errors import KldaError
from klda.storage.folder import StoredModel

NEW_NAMES = {"anchors": "chosen", "shares": "fractions"}  # of arrays of 0.2.0

Content = tuple[dict[str, Any], dict[str, np.ndarray]]


def current(content: StoredModel) -> Content:
    """Return a folder's document and arrays; those of former versions take this form."""
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
    chosen = dict(meta["parameters"])
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
        kept = add_prefix("predict/", strip_prefix("predict/0/", arrays))
        distance = {"unblend": np.empty((0, 0)), **strip_prefix("predict/familiarity/", kept)}
        kept |= {f"predict/novelty/{NEW_NAMES.get(k, k)}": v for k, v in distance.items()}
        known, counts = meta["classes"], np.maximum(meta["counts"], 1)
        evidence = Evidence.unpack(_evidence_of_version_2(meta, member, arrays), known)
        if len(evidence):
            unit = unit_of(arrays["predict/0/familiarity/lengths"])
            found = evidence.calibration(known, counts, unit)
            kept |= add_prefix("predict/calibration/", found.pack(known))
    else:
        learned, engine["model"] = _model_of_version_2(document, meta, member, arrays)
        engine["model"] |= shape | own_map
        spectrum = strip_prefix("predict/0/", arrays)
        names = [name for name in ("frequencies", "phases") if name in spectrum]
        learned |= {f"map/{name}": spectrum[name] for name in names}
        kept = add_prefix("learn/", learned)
    named = ("compact", "foundation_model", "samples", "classes", "history", "names", "extras")
    same = {name: document[name] for name in named if name in document}
    same["history"] = [{"number": i, **entry} for i, entry in enumerate(same["history"], 1)]
    keep = "features" if "ledger" in document else None
    return same | {"parameters": chosen, "keep": keep, "engine": engine}, kept


def _model_of_version_2(
    document: Mapping[str, Any],
    meta: Mapping[str, Any],
    member: Mapping[str, Any],
    arrays: Mapping[str, np.ndarray],
) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    size = int(meta["parameters"].get("n_components", meta["n_features"]))
    model: dict[str, Any] = {"most_rows": sizes.most_rows(size)}
    found: dict[str, np.ndarray] = {}
    kept: dict[str, Rows] = {}
    pending = meta.get("waiting", {}).get("pending")
    if "ledger" in document:
        model["most_rows"] = ALL
        kept["rows"] = Rows.unpack(strip_prefix("ledger/", arrays), document["ledger"])
    elif meta.get("held") or not sum(meta["counts"]):
        kept["rows"] = Rows.of(arrays["learn/held"], meta["held"])
    elif pending:
        kept["pending"] = Rows.of(arrays["learn/pending"], pending)
    if meta.get("hints"):
        kept["name_rows"] = Rows.of(arrays["learn/hints"], meta["hints"])
    if "rows" not in kept:
        found |= add_prefix("evidence/", _evidence_of_version_2(meta, member, arrays))
    elif len(kept["rows"]) > sizes.EXACT_KERNEL_ROWS:  # some are left out again
        some = kept["rows"].smallest(sizes.MOST_PENDING)
        kept["pending"] = Rows.of(some.values, some.labels.tolist())
    for name, rows in kept.items():
        packed, model[name] = rows.pack()
        found |= add_prefix(f"{name}/", packed)
    if not meta.get("held"):
        found |= add_prefix("statistics/", strip_prefix("learn/0/", arrays))
        model["statistics"] = {name: member[name] for name in ("n_scattered", "turnover")}
    return found, model


def _evidence_of_version_2(
    meta: Mapping[str, Any], member: Mapping[str, Any], arrays: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """Return what leaving samples out has told, in the units of this version."""
    old, lengths = strip_prefix("predict/calibration/", arrays), "predict/0/familiarity/lengths"
    if "losses" not in old or lengths not in arrays:  # not calibrated
        return {}
    counts, unit = np.array(meta["counts"]), unit_of(arrays[lengths])
    offset = member["spread"] * len(counts) / max(counts.sum(), 1)
    heat = member["inflation"]
    if len(arrays["predict/0/familiarity/unblend"]):
        faded = min((40 / max(counts.mean(), 1e-9)) ** 2, 20)  # how its rule had regression in it
        heat = (1 + 1 / (1 + faded)) * float(np.median(arrays[lengths])) / 60
    usual = USUAL_TEMPERATURE * unit / np.sqrt(len(counts))
    wanted, tried = OCTAVES + np.log2(usual / heat), np.arange(-6, 12, 0.5)
    losses = np.array([np.interp(wanted, tried, one) for one in old["losses"]])
    losses = losses.reshape(-1, len(OCTAVES))
    coldest = old["losses"][:, 0]  # where the answer gets all of the probability
    behind = np.where(coldest < np.log(2), 0.0, coldest * 2.0 ** tried[0] * heat / usual)
    doubts = np.maximum(losses - behind[:, None] / 2.0**OCTAVES, 0.0)
    return {
        "sizes": 2 ** (old["filed"] / 2),  # two buckets per octave of the model's size
        "labels": old["labels"],
        "novelty": (old["novelty"] * member["inflation"] + offset) / unit,
        "behind": behind,
        "doubts": doubts.astype(np.float32),
    }
