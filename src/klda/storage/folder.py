"""Model folders: the only place that touches model files.

A folder holds ``model.json``, readable by people, and array files in the safetensors format. Array
files are named after their content and are never changed; ``model.json`` names the ones that make
up the model, so replacing it is the one step that turns the old model into the new one. A save
writes and syncs new array files beside the old, replaces ``model.json``, then removes what is no
longer named. After a kill at any moment the folder holds the old model or the new one.

A model folder may hold another one, ``.learning``: the progress of a learn that is not complete.

Two consequences: an array that did not change (the random features never do) is not written again,
and a loaded model, which is memory-mapped, stays intact while others save to the same folder.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import reprlib
import shutil
import stat
import sys
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock, Timeout

from klda.errors import KldaError, is_lack_of_memory
from klda.storage import array_files
from klda.storage.array_files import ModelFolderError, damaged
from klda.version import __version__

FORMAT = "klda-model"
FORMAT_VERSION = 3
DOCUMENT = "model.json"
LOCK = ".lock"
JOURNAL = "journal.db"  # a database, for changes that the model does not have yet
INBOX = "inbox.db"  # a database, for texts that wait to be sorted on the page
LEARNING = ".learning"  # a folder in a model folder, with the progress of a long learn
NOTHING = ""  # what a save replaces that must not replace any model

# Arrays smaller than this share one file: syncing a file costs more than writing 64 KiB.
_SHARED_BELOW = 64 * 1024
# No model needs a larger model.json, and one that damage made larger must not fill the memory.
LARGEST_DOCUMENT = 1 << 28
LONGEST_COMMAND = 200  # characters, in the message that names a process
_ARRAY_FILE = re.compile(r"[\w.-]+-[0-9a-f]{16}\.safetensors\Z")
_TEMPORARY = re.compile(r"\.new-[0-9a-f]{32}\Z")
_CHECKSUM = "sha256"


class ModelBusyError(ModelFolderError):
    """Another process is writing to the model folder."""


class ModelChangedError(ModelFolderError):
    """The model folder was saved by someone else since it was loaded."""


class ModelExistsError(ModelFolderError):
    """The model folder holds a model that would be lost."""


class UnconfirmedSaveError(ModelFolderError):
    """The model folder has the new model, of that `generation`; the disk did not confirm it."""

    def __init__(self, folder: Path, generation: str, error: OSError) -> None:
        super().__init__(
            f"The model was saved to {folder}, but the disk did not confirm it "
            f"({error.strerror or error}): after a power failure it may be the old one. Save it "
            "again."
        )
        self.generation = generation


@dataclass(frozen=True)
class StoredModel:
    """What a model folder holds."""

    document: dict[str, Any]  # the content of ``model.json``
    # Memory-mapped copy-on-write: nothing is read until it is used, and writing to an array
    # changes this process's copy only.
    arrays: dict[str, np.ndarray]

    @property
    def generation(self) -> str:
        """Identifies this save of the model among all others."""
        return str(self.document["generation"])


def exists(path: str | Path) -> bool:
    """Whether a folder holds a model, even one that can't be read."""
    return os.path.lexists(Path(path) / DOCUMENT)


def check_own(path: Path, *, is_folder: bool = False) -> None:
    """Refuse what stands where klda writes a file in place, or removes a folder.

    Writing through a link changes a file elsewhere. Only a regular file with one name passes, or
    with `is_folder` a real folder; so does a path where there is nothing.
    """
    try:
        status = path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return
    if is_folder:
        is_own, wanted = stat.S_ISDIR(status.st_mode), "a folder"
    else:
        is_own = stat.S_ISREG(status.st_mode) and status.st_nlink == 1
        wanted = "a regular file with one name"
    if not is_own:
        raise ModelFolderError(
            f"{path} is not {wanted}: what klda writes there could change a file elsewhere. Move "
            "it away, then try again."
        )


def database_files(path: Path) -> list[Path]:
    """Return the files that SQLite may keep for a database."""
    return [path.with_name(path.name + suffix) for suffix in ("", "-journal", "-wal", "-shm")]


# ---------------------------------------------------------------- lock


@contextmanager
def writer_lock(path: str | Path, *, timeout: float = 0.0) -> Iterator[None]:
    """Hold the right to write to a model folder; others get a `ModelBusyError` after the timeout.

    May be entered again by the thread that holds it. Readers never need it. A folder that did not
    exist is created, and removed again if nothing was saved to it. The file of the lock says which
    process holds it, for the message that others get.
    """
    folder = Path(path)
    if folder.is_file():
        raise ModelFolderError(f"{folder} is a file; a model is saved as a folder.")
    created = not folder.exists()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _check_no_strangers(folder)
        check_own(folder / LOCK)
        lock = FileLock(folder / LOCK, is_singleton=True)
        lock.acquire(timeout=timeout)
    except Timeout as error:
        holder = ""  # as " (process 4711: klda serve --model bot)"
        with suppress(OSError):
            said = (folder / LOCK).read_text(encoding="utf-8", errors="replace").strip()
            holder = f" (process {said})" if said else ""
        what_to_do = "Wait until it has finished, or stop it, then try again."
        if " serve " in holder:
            what_to_do = (
                "It is a service: teach it with klda learn --server URL, over HTTP or on its page, "
                "or stop it first."
            )
        raise ModelBusyError(
            f"Another process is writing to the model folder {folder}{holder}. {what_to_do}"
        ) from error
    except OSError as error:
        raise _write_error(folder, error) from error
    first = lock.lock_counter == 1
    try:
        if first:
            _note_holder(folder, f"{os.getpid()}: {' '.join(sys.argv)[:LONGEST_COMMAND]}\n")
        yield
    finally:
        if first:
            _note_holder(folder, "")
        lock.release()
        with suppress(OSError):  # another writer may have come
            if created and {entry.name for entry in folder.iterdir()} <= {LOCK}:
                (folder / LOCK).unlink(missing_ok=True)
                folder.rmdir()


def _note_holder(folder: Path, text: str) -> None:
    with suppress(OSError):  # a file that is locked can't be written on Windows
        (folder / LOCK).write_text(text, encoding="utf-8", errors="replace")


# ---------------------------------------------------------------- save


def save(
    path: str | Path,
    arrays: Mapping[str, np.ndarray],
    document: Mapping[str, Any],
    *,
    replaces: str | None = None,
    timeout: float = 10.0,
) -> StoredModel:
    """Save a model, atomically: after a failure or a kill the folder holds the old one.

    `document` is the content of ``model.json`` without what this module adds to it. `replaces` is
    the generation that this model grew out of, or `NOTHING` for a new one: if the folder holds
    another one by now, nothing is saved. None overwrites whatever is there. `timeout` are seconds
    to wait for another writer.
    """
    folder = Path(path)
    with writer_lock(folder, timeout=timeout):
        check_replaceable(folder, replaces)
        with _writing(folder):
            files = _write_arrays(folder, arrays)
            content = _commit(folder, {**document, "files": files})
        return StoredModel(content, dict(arrays))


def save_extras(path: str | Path, extras: Mapping[str, Any]) -> None:
    """Replace what others keep beside the model in a folder; the model stays as it is."""
    folder = Path(path)
    with writer_lock(folder), _writing(folder):
        _commit(folder, {**_read_document(folder), "extras": extras})


@contextmanager
def _writing(folder: Path) -> Iterator[None]:
    """Turn errors in writing to a folder into errors that name it, and tidy up."""
    try:
        yield
    except ModelFolderError:
        raise
    except (OSError, ValueError, TypeError, RecursionError) as error:  # no room, or no JSON
        raise _write_error(folder, error) from error
    finally:
        _remove_unnamed(folder)


def remove(path: str | Path) -> None:
    """Remove a model folder, which no one else writes to; a link to one is refused.

    The document goes first: after a kill at any moment the folder holds the model or none.
    """
    folder = Path(path)
    check_own(folder, is_folder=True)
    try:
        (folder / DOCUMENT).unlink(missing_ok=True)
        if folder.is_dir():
            _sync_folder(folder)
    except OSError as error:
        raise _write_error(folder, error) from error
    shutil.rmtree(folder, ignore_errors=True)


def _check_no_strangers(folder: Path) -> None:
    """Refuse a folder that is used for something else, before anything is written to it."""
    if exists(folder):
        return
    strangers = sorted(entry.name for entry in folder.iterdir() if not _is_ours(entry.name))
    if strangers:
        raise ModelFolderError(
            f"{folder} is not empty and holds no model (it has {strangers[0]!r}). Use a new or "
            "empty folder."
        )


def check_replaceable(path: str | Path, replaces: str | None) -> None:
    """Raise if a folder holds a model that a save must not replace; see `save`."""
    if replaces is None or not exists(path):
        return
    if replaces == NOTHING:
        raise ModelExistsError(
            f"{path} holds a model already, which this one did not come from: it would be lost. "
            "Load that model and add to it, save to another folder, or replace it with "
            "overwrite=True."
        )
    if _read_document(Path(path))["generation"] != replaces:
        raise ModelChangedError(
            f"The model in {path} was saved by someone else after it was loaded here. Load it "
            "again and repeat the change, or save to another folder."
        )


def _is_ours(name: str) -> bool:
    return name in (LOCK, DOCUMENT, LEARNING) or bool(
        name.startswith((JOURNAL, INBOX)) or _ARRAY_FILE.match(name) or _TEMPORARY.match(name)
    )


def _write_arrays(folder: Path, arrays: Mapping[str, np.ndarray]) -> list[dict[str, Any]]:
    parts: dict[str, dict[str, np.ndarray]] = {}
    for name, array in arrays.items():
        array = np.asarray(array, order="C")
        part = name if array.nbytes >= _SHARED_BELOW else "small"
        parts.setdefault(part, {})[name] = array
    # Wide types first, so that every array of a file starts at a multiple of its item size.
    for part, content in parts.items():
        order = sorted(content, key=lambda name: (-content[name].itemsize, name))
        parts[part] = {name: content[name] for name in order}
    return [array_files.write(folder, part, content) for part, content in parts.items()]


def _commit(folder: Path, document: Mapping[str, Any]) -> dict[str, Any]:
    """Replace the document of a folder, the step that changes its model; return what it has now."""
    this_save = {
        "generation": uuid.uuid4().hex,
        "saved": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    content = {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "klda_version": __version__,
        **this_save,
        **document,
        **this_save,  # in its place near the top, whatever the document said
    }
    content[_CHECKSUM] = checksum(content)
    text = json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    # Half a surrogate pair, as in a file's name that is not UTF-8, becomes JSON's escape for it.
    written = text.encode(errors="backslashreplace")
    if len(written) > LARGEST_DOCUMENT:
        raise ModelFolderError(
            f"Saving to {folder} failed: {DOCUMENT} would have {len(written):,} bytes, more than "
            f"{LARGEST_DOCUMENT:,}. Use fewer classes, or shorter labels."
        )
    array_files.check_values(written)
    _sync_folder(folder)  # the array files must be there before a document names them
    array_files.replace_file(folder / DOCUMENT, [written])
    try:
        _sync_folder(folder)
        _sync_folder(folder.parent)
    except OSError as error:
        raise UnconfirmedSaveError(folder, str(content["generation"]), error) from error
    return content


def _sync_folder(folder: Path) -> None:
    if os.name == "nt":  # a folder can't be opened for syncing there
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _remove_unnamed(folder: Path) -> None:
    """Remove what saves that were finished, failed or killed have left behind."""
    with suppress(OSError, ModelFolderError):
        named = {file["name"] for file in _read_document(folder)["files"]} if exists(folder) else ()
        for entry in folder.iterdir():
            leftover = _ARRAY_FILE.match(entry.name) and entry.name not in named
            if leftover or _TEMPORARY.match(entry.name):
                with suppress(OSError):  # in use (Windows): the next save removes it
                    entry.unlink()


def _write_error(folder: Path, error: Exception) -> ModelFolderError:
    reason = getattr(error, "strerror", None) or str(error).rstrip(".")
    if getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        reason = f"the disk is full or a size limit was reached ({reason})"
    return ModelFolderError(f"Saving to {folder} failed: {reason}. The folder is as it was before.")


# ---------------------------------------------------------------- load


def checksum(document: Mapping[str, Any]) -> str:
    """Return the SHA-256 of the values in ``model.json``, without the checksum itself."""
    signed = {key: value for key, value in document.items() if key != _CHECKSUM}
    text = json.dumps(signed, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def load(path: str | Path, *, verify: bool = False) -> StoredModel:
    """Open a model folder; arrays are memory-mapped and read when used.

    The model stays whole even if the folder is saved to later. Every load compares file sizes and
    the checksums of ``model.json``, of all array headers, and of array files up to 1 MiB; with
    `verify`, those of larger array files too.
    """
    folder = Path(path)
    while True:
        document = _read_document(folder)
        with folder_damage_named(folder):
            try:
                return StoredModel(document, _open_arrays(folder, document, verify))
            except FileNotFoundError as error:
                # Between reading model.json and opening the files, a save may have replaced them.
                if _read_document(folder)["generation"] == document["generation"]:
                    raise ModelFolderError(
                        f"The model in {folder} is incomplete: {Path(error.filename).name} is "
                        "missing. Restore the folder from a copy."
                    ) from error


def _read_document(folder: Path) -> dict[str, Any]:
    file = folder / DOCUMENT
    with folder_damage_named(folder):
        try:
            status = file.stat()
        except (FileNotFoundError, NotADirectoryError) as error:
            says = f"{folder} holds no model: there is no {DOCUMENT} in it."
            if file.is_symlink():
                says = f"{file} is a link to a file that is missing."
            elif not folder.exists():
                says = f"There is no model folder {folder}. Make one with: klda learn FILE --model"
                says += f" {folder}"
            raise ModelFolderError(says) from error
        if not stat.S_ISREG(status.st_mode):  # reading a pipe would wait forever
            raise damaged(file, "it is not a file")
        if status.st_size > LARGEST_DOCUMENT:
            raise damaged(file, f"it has {status.st_size:,} bytes")
        content = array_files.parse_json(file.read_bytes())
        _check_document(file, content)
        return dict(content)


@contextmanager
def folder_damage_named(path: Path) -> Iterator[None]:
    """Turn errors in reading a folder into errors that name it and the fix."""
    try:
        yield
    except KldaError:
        raise
    except Exception as error:  # values that can't be right may raise anything
        if is_lack_of_memory(error):
            raise MemoryError(f"there is too little for {path}") from error
        if isinstance(error, OSError):
            reason = error.strerror or error
            raise ModelFolderError(f"Reading {error.filename or path} failed: {reason}.") from error
        raise damaged(path / DOCUMENT, f"{type(error).__name__}: {error}") from error


def _check_document(file: Path, content: Any) -> None:
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise ModelFolderError(f"{file} does not describe a klda model.")
    version = content.get("format_version")
    if isinstance(version, int) and version > FORMAT_VERSION:
        raise ModelFolderError(
            f"{file} has format version {version!r}, written by klda "
            f"{str(content.get('klda_version'))[:40]}; this is klda {__version__}, which reads "
            f"versions up to {FORMAT_VERSION}. Upgrade klda."
        )
    if version == 1:
        raise ModelFolderError(
            f"{file} was saved by klda 0.1, which klda {__version__} can't read: load and save it "
            "with klda 0.2.0 first."
        )
    for name, kind in {"files": list, "generation": str, "format_version": int}.items():
        if type(content.get(name)) is not kind:
            raise damaged(file, f"{name} is {reprlib.repr(content.get(name))}")
    found = checksum(content)
    if content.get(_CHECKSUM) != found:
        expected = reprlib.repr(content.get(_CHECKSUM))
        raise damaged(file, f"the SHA-256 of its values is {found}, expected {expected}")


def _open_arrays(folder: Path, document: dict[str, Any], verify: bool) -> dict[str, np.ndarray]:
    arrays: dict[str, np.ndarray] = {}
    for entry in document["files"]:
        name = str(entry["name"])
        if not _ARRAY_FILE.match(name):  # also keeps a forged model.json from naming other paths
            raise damaged(folder / DOCUMENT, f"it names an array file {reprlib.repr(name)}")
        found = array_files.open_file(folder / name, entry, verify=verify)
        if sorted(found) != sorted(entry["arrays"]) or found.keys() & arrays.keys():
            raise damaged(folder / name, f"it holds other arrays than {DOCUMENT} says")
        arrays |= found
    return arrays
