"""Learning from files larger than memory, for hours if need be: a kill loses minutes at most.

Every few minutes a checkpoint is saved to the folder ``.learning`` inside the model folder: the
model so far, and how many rows of which files it holds. The model itself changes once, at the end.
A resumed learn continues with the next row, in the same batches: no row is lost, none counts twice,
and the model is bit for bit that of an uninterrupted learn.
"""

from __future__ import annotations

import hashlib
import json
import time
import uuid
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from klda.data import Batch, Position, Table, identity
from klda.errors import KldaError
from klda.learner.learner import Learner
from klda.learner.state import State
from klda.progress import Show
from klda.storage import folder as folders
from klda.version import __version__

EVERY = 180.0  # seconds between checkpoints
CHECKPOINT_TIME = 0.05  # fraction of the time that checkpoints may take
NAMED_FILES = 3  # in messages and in the history


class CheckpointError(KldaError):
    """An unfinished learn stands in the way, or can't be resumed; the message says what to do."""


class CheckpointWarning(UserWarning):
    """A checkpoint could not be saved; learning goes on without."""


@dataclass(frozen=True)
class Progress:
    """What a learn does and how far it has come, saved with the model so far."""

    run: str  # names the learn
    base: str | None  # generation of the model that it adds to
    files: list[dict[str, Any]]  # all its files: the path, and what shows whether one has changed
    columns: list[Any]  # names of the columns of inputs and labels, if they were given
    file: int = 0  # it has learned this many files,
    rows: int = 0  # and this many rows of the next
    samples: int = 0  # rows learned in all

    def __str__(self) -> str:
        name = Path(self.paths[self.file]).name
        return f"{self.samples:,} rows, up to row {self.rows:,} of {name}"

    @property
    def paths(self) -> list[str]:
        """Where its files are."""
        return [file["path"] for file in self.files]

    @property
    def contents(self) -> list[str]:
        """Names what is in each file, wherever it is, and the columns; "" for a pipe."""
        named = [json.dumps([file.get("content"), self.columns]).encode() for file in self.files]
        digests = [hashlib.sha256(name).hexdigest()[:16] for name in named]
        pairs = zip(self.files, digests, strict=True)
        return [digest if "content" in file else "" for file, digest in pairs]

    @classmethod
    def load(cls, at: Path, *, verify: bool = False) -> tuple[Progress, folders.StoredModel]:
        """Read a checkpoint; also return the model in it."""
        stored = folders.load(at, verify=verify)
        with folders.folder_damage_named(at):
            progress = cls(**stored.document["learning"])
            str(progress)
        return progress, stored


class ResumableLearn:
    """One learn of some files into a model folder, whose writer lock the caller holds.

    There are `every` seconds between checkpoints; 0 makes none. They are made less often if they
    would take more than a `fraction` of the time.
    """

    def __init__(
        self,
        folder: str | Path,
        tables: Sequence[Table],
        *,
        every: float = EVERY,
        fraction: float = CHECKPOINT_TIME,
    ) -> None:
        if not every >= 0:
            raise KldaError(f"every={every!r} can't be used; give seconds, or 0 for none.")
        self.folder, self.tables, self._fraction = Path(folder), list(tables), fraction
        self.complete = False  # whether there is nothing left to learn
        self._at = self.folder / folders.LEARNING
        self._stored: folders.StoredModel | None = None  # the model of the checkpoint
        model = folders.load(self.folder) if folders.exists(self.folder) else None
        entries = model.document["history"] if model else []
        history = [entry for entry in entries if "undone_by" not in entry]
        self._runs = {entry.get("run") for entry in history}
        files = [{"path": str(table.path.resolve()), **identity(table.path)} for table in tables]
        inputs, label = tables[0].layout.inputs, tables[0].layout.label
        columns = [list(inputs) if len(inputs) > 1 else next(iter(inputs), None), label]
        base = model.generation if model else None
        self._progress = Progress(uuid.uuid4().hex, base, files, columns)
        contents, learned = self._progress.contents, [entry.get("contents") for entry in history]
        # What came through a pipe can't be read again.
        self.every = every if all(contents) else 0.0
        # Whether the model has learned the same files in one go before.
        self.learned_before = all(contents) and contents in learned
        # Files whose content was learned before, or comes twice.
        seen = {content for one in learned for content in one or ()}
        self.repeated = [
            table.path
            for i, table in enumerate(tables)
            if contents[i] and contents[i] in {*seen, *contents[:i]}
        ]
        self._due = 0.0

    @property
    def place(self) -> Position:
        """Where to begin to read."""
        return Position(self._progress.file, self._progress.rows)

    @property
    def samples(self) -> int:
        """Rows that were learned, before and after a pause."""
        return self._progress.samples

    def open(self, *, resume: bool = False, restart: bool = False) -> None:
        """Look for a checkpoint, and decide where to begin: `resume` goes on, `restart` drops it.

        Raises `CheckpointError` if there is one and neither is asked for, or it can't be resumed.
        """
        folders.check_own(self._at, is_folder=True)
        if restart or not folders.exists(self._at):
            folders.remove(self._at)
            self.complete = resume and self.learned_before
            return
        try:  # verified: hours of learning may follow
            progress, stored = Progress.load(self._at, verify=True)
        except folders.ModelFolderError as error:
            raise CheckpointError(
                f"The checkpoint of an unfinished learn in {self._at} can't be read: {error} Drop "
                "it with --restart; the model is not affected."
            ) from error
        finished = progress.run in self._runs  # killed after its save, before it could tidy up
        if finished and progress.paths != self._progress.paths:
            folders.remove(self._at)
        elif not resume:
            state = "all of it was learned" if finished else progress
            raise CheckpointError(
                f"{self.folder} holds an unfinished learn of {named(progress.paths)}: {state}. "
                "Give the same files and --resume to complete it, or --restart to drop it and "
                "learn from the start."
            )
        elif finished:
            self.complete = True
        else:
            self._check(self._changes(progress, stored.document["klda_version"]))
            self._stored = stored
            self._progress = replace(progress, files=self._progress.files)

    def _check(self, reasons: Iterable[str]) -> None:
        for reason in reasons:
            raise CheckpointError(
                f"The unfinished learn in {self.folder} can't be resumed: {reason}. To start over, "
                "use --restart."
            )

    def _changes(self, progress: Progress, version: str) -> Iterator[str]:
        """Yield what is not as it was at the checkpoint."""
        ours = self._progress
        if progress.paths != ours.paths:
            yield f"it learns {named(progress.paths)}, not {named(ours.paths)}"
        then = {"klda": version, "columns": progress.columns}
        yield from _differences(then, {"klda": __version__, "columns": ours.columns})
        begun = zip(progress.files[: progress.file + 1], ours.files, strict=False)
        yield from (f"{now['path']} was changed since" for old, now in begun if old != now)
        if progress.base != ours.base:
            yield "the model was changed since"

    def learn(self, learner: Learner, batches: Iterable[Batch], *, progress: Show = False) -> None:
        """Learn what is left, from `place` on; the learner changes when all of it is learned.

        The learner is a new one, or the one in the folder. `progress` as for encoders.
        """
        if self._progress.base is not None and learner.origin != self.folder.resolve():
            raise folders.ModelExistsError(
                f"{self.folder} holds a model already, which learner did not come from: it would "
                f"be lost. Add to it with learner=Learner.load({str(self.folder)!r}), or name "
                "another folder."
            )
        # As the caller named them: what a link leads to may have a name that tells nothing.
        source = named(table.path for table in self.tables)
        contents = [content for content in self._progress.contents if content]
        noted: dict[str, Any] = {"run": self._progress.run, "contents": contents}
        with learner.changing("learn", source, **noted) as draft:
            if self._stored is not None:
                with folders.folder_damage_named(self._at):
                    state, _ = State.unpack(self._stored, learner.parameters.device)
                self._check(_differences(_options(state), _options(draft)))
                draft.engine, draft.names = state.engine, state.names
            before = learner.samples
            ends: dict[int, Position] = {}  # of the batches read, by the rows read so far

            def read() -> Iterator[tuple[Any, list[Any]]]:
                rows = self.samples
                for batch in batches:
                    rows += len(batch)
                    ends[rows] = batch.end
                    yield batch.inputs, batch.labels or []

            def note() -> None:
                """Take note of how many rows the draft holds by now, which is behind those read."""
                rows = sum(draft.engine.counts.values()) - before
                self._progress = replace(self._progress, samples=rows, **ends[rows]._asdict())
                if self.every and time.monotonic() >= self._due:
                    self._save_checkpoint(draft, learner.foundation)

            self._due = time.monotonic() + self.every
            draft.learn(learner.inputs.encoded_batches(read(), progress=progress), note)

    def _save_checkpoint(self, draft: State, foundation: dict[str, Any]) -> None:
        start = time.monotonic()
        try:
            arrays, document = draft.pack(foundation, solved=False)
            folders.save(self._at, arrays, document | {"learning": asdict(self._progress)})
        except folders.ModelFolderError as error:
            warnings.warn(f"{error} Learning goes on.", CheckpointWarning, stacklevel=2)
        end = time.monotonic()
        self._due = end + max(self.every, (end - start) / self._fraction)

    def save(self, learner: Learner) -> None:
        """Save the model and remove the checkpoint; after a kill in between, `open` notices."""
        learner.save(self.folder)
        self.tidy()

    def tidy(self) -> None:
        """Remove the checkpoint of a learn that is complete."""
        folders.remove(self._at)


def unfinished(folder: str | Path) -> str | None:
    """Say how far an unfinished learn in a model folder has come; None if there is none.

    As ``"12,288 rows, up to row 4,096 of part-2.csv"``.
    """
    at = Path(folder) / folders.LEARNING
    return str(Progress.load(at)[0]) if folders.exists(at) else None


def named(paths: Iterable[str | Path]) -> str:
    """Return the names of files, or of the first few."""
    names = [Path(path).name for path in paths]
    more = len(names) - NAMED_FILES
    return ", ".join(names[:NAMED_FILES]) + (f" and {more:,} more" if more > 0 else "")


def _differences(then: dict[str, Any], now: dict[str, Any]) -> Iterator[str]:
    for name in then | now:
        old, new = then.get(name), now.get(name)
        if old != new:
            yield f"it was begun with {name}={old!r}, not {new!r}: give the same"


def _options(state: State) -> dict[str, Any]:
    """Return what a model was made with, but for the device, which may be another one."""
    parameters = state.engine.parameters.stored()
    del parameters["device"]
    return {"keep": "features" if state.engine.keep_all else None} | parameters
