"""The journal: changes on disk before they are acknowledged, until the model folder has them.

Files ``journal-<first change>.klda`` in the model folder hold one frame after another. A frame is
one write and one sync, however many changes it carries::

    4 bytes magic | 8 bytes length | 4 bytes CRC-32 of the payload | payload
    payload: 4 bytes length of the JSON | JSON headers of the changes | their rows, float32

A kill can leave only the last frame incomplete, and that one was never acknowledged: it is cut off
when the journal is read. A broken frame with whole ones after it is damage, and is reported.
"""

from __future__ import annotations

import json
import os
import re
import struct
import threading
import time
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

import numpy as np

from klda.errors import KldaError
from klda.server.changes import Change

MAGIC = b"KLJ\x01"
_HEAD = struct.Struct("<4sQI")
_NAME = re.compile(r"journal-(\d{20})\.klda\Z")
_LARGEST = 1 << 40
_PROBE = ".journal-probe"


class JournalError(KldaError):
    """A journal that can't be read or written."""


class Journal:
    """Changes that are on disk but perhaps not in the model folder yet.

    Parameters
    ----------
    folder : Path
        The model folder. Only one process may use its journal: the one that holds its lock.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.last = 0  # number of the last change written, ever
        self.trouble = ""  # why the last write failed, until one goes well
        self._file: BinaryIO | None = None
        self._broken = False
        self._lock = threading.Lock()
        self._finished: dict[Path, int] = {}  # files no longer written to, and their last change

    def replay(self, after: int | None) -> list[list[Change]]:
        """Read the changes that the model folder does not have; once, before anything is written.

        Parameters
        ----------
        after : int or None
            Number of the last change that it has. None if it does not say, because another program
            saved it: files of changes that were folded are gone, so it has none of these.

        Returns
        -------
        list of list of Change
            The changes, frame by frame; cancelled ones are left out.

        Raises
        ------
        JournalError
            If a file is damaged, or changes are missing in between.
        """
        frames: list[list[Change]] = []
        for path in self._files():
            read = _read(path)
            self._finished[path] = max((c.sequence for frame in read for c in frame), default=0)
            frames += read
        cancelled = {c.target for frame in frames for c in frame if c.kind == "cancel"}
        if after is None:
            after = frames[0][0].sequence - 1 if frames else 0
        self.last = after
        missed = []
        for frame in frames:
            news = [change for change in frame if change.sequence > after]
            if not news:
                continue
            if news[0].sequence > self.last + 1:
                raise JournalError(
                    f"The journal in {self.folder} goes on at change {news[0].sequence}, but the "
                    f"changes after {self.last} are missing. Restore the folder from a copy, with "
                    "its journal files."
                )
            self.last = news[-1].sequence
            missed.append([c for c in news if c.sequence not in cancelled and c.kind != "cancel"])
        return missed

    def append(self, changes: Sequence[Change]) -> None:
        """Write changes; they are on disk when this returns.

        Parameters
        ----------
        changes : sequence of Change
            Numbered, in order.

        Raises
        ------
        JournalError
            If it failed: none of them counts.
        """
        if self._broken:
            raise JournalError("The journal can't be written: restart the service.")
        self._append(changes)
        self.trouble = ""

    def probe(self) -> None:
        """See whether the trouble is over: a disk may have room again."""
        if not self.trouble or self._broken:
            return
        path = self.folder / _PROBE
        try:
            _write_new(path, bytes(4096))
            path.unlink()
            self.trouble = ""
        except OSError as error:
            self._failed(error)

    def keep_aside(self, change: Change) -> Path:
        """Write a change that can't be applied to a file of its own, and cancel it.

        Parameters
        ----------
        change : Change
            Out of the journal.

        Returns
        -------
        Path
            A file with one frame.
        """
        path = self.folder / f"refused-{change.sequence:020d}.klda"
        try:
            _write_new(path, pack([change]))
            _sync_folder(self.folder)
        except OSError as error:
            raise self._failed(error) from error
        cancel = Change("cancel", target=change.sequence)
        self.append([cancel.numbered(self.last + 1, time.time())])
        return path

    def _append(self, changes: Sequence[Change]) -> None:
        frame = pack(changes)
        try:
            file = self._file or self._open(changes[0].sequence)
            start = file.tell()
        except OSError as error:
            raise self._failed(error) from error
        try:
            _write(file, frame)
        except OSError as error:
            self._cut(file, start)
            raise self._failed(error) from error
        self.last = changes[-1].sequence

    def rotate(self) -> None:
        """Let the next change start a new file, so that the ones before can be removed."""
        if self._file is not None:
            with self._lock:
                self._finished[Path(self._file.name)] = self.last
            self._file.close()
            self._file = None

    def remove(self, upto: int) -> None:
        """Remove the files that hold no change after one; may be called from another thread.

        Parameters
        ----------
        upto : int
            The last change that the model folder has.
        """
        with self._lock:
            done = [path for path, last in self._finished.items() if last <= upto]
            for path in done:
                path.unlink(missing_ok=True)
                del self._finished[path]
        if done:
            _sync_folder(self.folder)

    def close(self) -> None:
        """Close the file."""
        self.rotate()

    def _files(self) -> list[Path]:
        if not self.folder.is_dir():
            return []
        return sorted(path for path in self.folder.iterdir() if _NAME.match(path.name))

    def _open(self, first: int) -> BinaryIO:
        path = self.folder / f"journal-{first:020d}.klda"
        with self._lock:
            self._finished.pop(path, None)  # left empty by a kill
            self._file = path.open("ab", buffering=0)
        self._file.seek(0, os.SEEK_END)
        _sync_folder(self.folder)
        return self._file

    def _cut(self, file: BinaryIO, start: int) -> None:
        try:
            file.truncate(start)
            file.seek(start)
            os.fsync(file.fileno())
        except OSError:
            self._broken = True

    def _failed(self, error: OSError) -> JournalError:
        reason = error.strerror or type(error).__name__
        self.trouble = f"the journal can't be written: {reason}"
        return JournalError(f"Writing the journal failed: {reason}. Nothing was changed.")


def pack(changes: Sequence[Change]) -> bytes:
    """Return the frame of some changes.

    Parameters
    ----------
    changes : sequence of Change
        Numbered, in order.

    Returns
    -------
    bytes
        A whole frame.
    """
    text = json.dumps([change.header() for change in changes], separators=(",", ":")).encode()
    rows = [np.ascontiguousarray(c.rows, "<f4").tobytes() for c in changes if c.rows is not None]
    payload = b"".join([struct.pack("<I", len(text)), text, *rows])
    return _HEAD.pack(MAGIC, len(payload), zlib.crc32(payload)) + payload


def _unpack(payload: bytes) -> list[Change]:
    (length,) = struct.unpack_from("<I", payload)
    headers = json.loads(payload[4 : 4 + length])
    changes, at = [], 4 + length
    for header in headers:
        rows = None
        if "shape" in header:
            n, d = header["shape"]
            rows = np.frombuffer(payload, "<f4", n * d, at).reshape(n, d)
            at += rows.nbytes
        changes.append(Change.of(header, rows))
    return changes


def _read(path: Path) -> list[list[Change]]:
    """Read a file's frames and cut off an incomplete last one."""
    content = path.read_bytes()
    frames, at = [], 0
    while at < len(content):
        payload = _payload(content, at)
        if payload is None:
            _check_torn(path, content, at)
            with path.open("r+b") as file:
                file.truncate(at)
                os.fsync(file.fileno())
            break
        frames.append(_unpack(payload))
        at += _HEAD.size + len(payload)
    return frames


def _payload(content: bytes, at: int) -> bytes | None:
    if len(content) - at < _HEAD.size:
        return None
    magic, length, checksum = _HEAD.unpack_from(content, at)
    payload = content[at + _HEAD.size : at + _HEAD.size + length]
    whole = magic == MAGIC and length < _LARGEST and len(payload) == length
    return payload if whole and zlib.crc32(payload) == checksum else None


def _check_torn(path: Path, content: bytes, at: int) -> None:
    following = content.find(MAGIC, at + 1)
    while following >= 0:
        if _payload(content, following) is not None:
            raise JournalError(
                f"{path} is damaged at byte {at}, and changes follow after that. Restore it from "
                "a copy, or move it away to go on without the changes in it."
            )
        following = content.find(MAGIC, following + 1)


def _write_new(path: Path, content: bytes) -> None:
    with path.open("wb", buffering=0) as file:
        _write(file, content)


def _write(file: BinaryIO, content: bytes) -> None:
    """Write all of it and sync; a system may take a part at a time, on a disk that is filling."""
    rest = memoryview(content)
    while rest:
        rest = rest[file.write(rest) :]
    os.fsync(file.fileno())


def _sync_folder(folder: Path) -> None:
    if os.name == "nt":  # a folder can't be opened for syncing there
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
