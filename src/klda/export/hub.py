"""Model folders on the Hugging Face Hub, with a card that says what is in them."""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from klda.encoders.sources import default_cache_folder, made_once
from klda.errors import KldaError, require
from klda.storage import folder as storage

NAME = re.compile(r"[\w.-]+/[\w.-]+")
MOST_CLASSES = 200  # listed in a card
TIMEOUT = 10.0  # seconds; the client itself would try again for minutes
FILES = ["model.json", "*.safetensors", "README.md"]


def push(
    save: Callable[[Path], None],
    name: str,
    *,
    private: bool,
    token: str | None,
    message: str | None,
) -> str:
    """Upload what a function saves to a folder; see :meth:`klda.Learner.push_to_hub`."""
    check_name(name)
    client = require("huggingface_hub", "hub")
    with tempfile.TemporaryDirectory() as beside, _hub_errors(name, "uploaded"):
        place = Path(beside, "model")
        save(place)
        document = storage.load(place).document
        (place / "README.md").write_text(model_card(document, name), encoding="utf-8")
        api = client.HfApi(token=token)
        api.create_repo(name, private=private, exist_ok=True)
        # Arrays of an earlier upload that the new model.json does not name would stay forever.
        done = api.upload_folder(
            repo_id=name,
            folder_path=place,
            allow_patterns=FILES,
            delete_patterns="*.safetensors",
            commit_message=message or f"{len(document['classes'])} classes",
        )
    return str(done.commit_url)


def download(name: str, *, revision: str | None, token: str | None) -> Path:
    """Return the folder of a model on the hub, downloaded if it has changed."""
    check_name(name)
    client = require("huggingface_hub", "hub")
    with _hub_errors(name, "downloaded"):
        api = client.HfApi(token=token)
        commit = api.model_info(name, revision=revision, timeout=TIMEOUT).sha
        # A folder of its own, because the client's cache consists of links, and a model folder
        # with links is refused.
        place = default_cache_folder() / "hub" / name.replace("/", "--") / str(commit)
        return made_once(
            place,
            lambda folder: client.snapshot_download(
                name, revision=commit, local_dir=folder, allow_patterns=FILES, token=token
            ),
        )


def check_name(name: str) -> None:
    """Raise unless a name can be one on the hub."""
    if not NAME.fullmatch(name):
        raise KldaError(
            f"{name!r} is neither a model folder nor a name on the hub: give a folder, or a name "
            "such as 'user/model'."
        )


@contextmanager
def _hub_errors(name: str, verb: str) -> Iterator[None]:
    """Say what failed, and what to do, whichever error the client raises."""
    try:
        yield
    except KldaError:
        raise
    except Exception as error:  # the client raises its own, httpx's and OS errors
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise KldaError(
            f"The model {name!r} could not be {verb}: {type(error).__name__}: {reason} Check the "
            "connection, the name and, for a private model, the token (`hf auth login`, or "
            "token=...). Without a connection, copy the model folder and use Learner.load."
        ) from error


def model_card(document: Mapping[str, Any], name: str) -> str:
    """Return the README of a model: what it is, what it knows, and what it stores.

    `document` is what ``model.json`` says.
    """
    foundation = document["foundation_model"]
    counts = sorted(document["classes"].items(), key=lambda each: (-each[1], each[0]))
    named = [(str(label).replace("|", "\\|"), count) for label, count in counts[:MOST_CLASSES]]
    shown = [f"| {label} | {count:,} |" for label, count in named]
    if len(counts) > MOST_CLASSES:
        shown.append(f"| ... {len(counts) - MOST_CLASSES:,} more | |")
    kind = "image-classification" if foundation["modality"] == "image" else "text-classification"
    question = '"where is my card?"' if foundation["modality"] == "text" else "..."
    head = {"library_name": "klda", "pipeline_tag": kind, "tags": ["klda", "continual-learning"]}
    base = foundation.get("source")
    if isinstance(base, str) and NAME.fullmatch(base):
        head["base_model"] = base
    return "\n".join(
        [
            "---",
            *(f"{key}: {json.dumps(value)}" for key, value in head.items()),
            "---",
            f"# {name.rpartition('/')[2]}",
            "",
            f"A classifier of {len(counts):,} classes from {document['samples']:,} examples, made "
            "with klda. It learns new classes and more examples at any time, without forgetting.",
            "",
            "```python",
            "from klda import Learner",
            "",
            f'bot = Learner.from_pretrained("{name}")',
            f"bot.predict([{question}])",
            "```",
            "",
            f"Features: {foundation['name']} ({foundation['modality']}), frozen.",
            "",
            "## What is stored",
            "",
            _stored(document),
            "",
            "## Classes",
            "",
            "| class | examples |",
            "|---|---:|",
            *shown,
            "",
        ]
    )


def _stored(document: Mapping[str, Any]) -> str:
    """Say in plain words what of the examples can be found in the files."""
    if document["keep"] is not None:
        held = "One row of numbers (features) per example, so that examples can be forgotten."
    elif "rows" in document["engine"]["keeps"]:
        held = "One row of numbers (features) per example, because there are few."
    else:
        held = "Statistics: an average per class and one covariance. No row of a single example."
    return (
        f"{held} No text and no image. The names of the classes, and the history of changes with "
        "the names of the files that were learned."
    )
