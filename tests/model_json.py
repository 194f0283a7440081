"""Changes ``model.json`` as someone who means to: its checksum is made to agree again."""

from __future__ import annotations

import json

from klda.learner import folder as storage


def edit(folder, change):
    """Let a function change the document in place."""
    path = folder / storage.DOCUMENT
    document = json.loads(path.read_text(encoding="utf-8"))
    change(document)
    if "sha256" in document:
        document["sha256"] = storage.checksum(document)
    path.write_text(json.dumps(document), encoding="utf-8")
