"""What names a run: all settings that determine its numbers, and nothing else.

A default that is a word ("auto") means something that a version may change, so the settings of a
run hold that meaning too. Lines that were written before they did are read as if they had.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from klda.classifiers.discriminants import AUTO_RIDGES
from klda.kernel import GAMMA_SCALE
from klda.shrinkage import LEAST_OF_AVERAGE, PRIOR_WEIGHT

NOT_OPTIONS = ("backbone", "seed", "random_state", "device", "checkpoint_dir", "progress")
"""Parameters of a method that are no setting of its own, or change no number."""

_MEANINGS: dict[str, Any] = {
    "gamma": GAMMA_SCALE,
    "ridge": list(AUTO_RIDGES),
    "priors": [PRIOR_WEIGHT, LEAST_OF_AVERAGE],
}
# Lines without meanings that are younger than this were made with these. Older ones were made
# with others, some of which no line tells.
_SINCE = "2026-11-16T08:54:10"
_THEN: dict[str, Any] = {"gamma": 0.075, "ridge": [0.1, 0.01], "priors": [2.0, 0.1]}
# Options that came later, with the value that stands for what a method did without them.
_CAME_LATER: dict[str, dict[str, Any]] = {"l2p": {"diversify": False}}


def key_of(settings: Mapping[str, Any]) -> str:
    """Name of a cell: the same settings give the same key, whatever their order.

    Parameters
    ----------
    settings : mapping
        JSON-able settings that determine the numbers.

    Returns
    -------
    str
        20 hexadecimal digits.
    """
    text = json.dumps(settings, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:20]


def meaning_of_auto(options: Mapping[str, Any]) -> dict[str, Any]:
    """Numbers behind each option that is ``"auto"``: the same word with others is another run.

    Parameters
    ----------
    options : mapping
        Settings of a method on frozen features.

    Returns
    -------
    dict
        One entry for each of gamma, ridge and priors that is ``"auto"``.
    """
    return {name: value for name, value in _MEANINGS.items() if options.get(name) == "auto"}


def upgrade(record: dict[str, Any]) -> dict[str, Any]:
    """Read a result line of an earlier version as this one would have written it.

    Parameters
    ----------
    record : dict
        A line of any version; it is not changed.

    Returns
    -------
    dict
        The line with complete settings and the key that they give.
    """
    settings = record.get("settings")
    if not isinstance(settings, dict) or "auto" in settings or "options" not in settings:
        return record
    tuned = record.get("method_settings")
    options = dict(settings["options"])
    if tuned is not None:
        own = {name: value for name, value in tuned.items() if name not in NOT_OPTIONS}
        options = _CAME_LATER.get(settings["method"], {}) | own | options
        auto = {}
    else:
        known = record.get("finished", "") >= _SINCE
        auto = {
            name: value if known else "unknown"
            for name, value in _THEN.items()
            if options.get(name) == "auto"
        }
    settings = settings | {"options": options, "auto": auto}
    return record | {"settings": settings, "key": key_of(settings)}
