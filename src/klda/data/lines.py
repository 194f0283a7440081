"""Files as bytes and as lines of text: gzipped or not, from disk or a pipe, in any encoding."""

from __future__ import annotations

import codecs
import gzip
import io
import logging
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from klda.data.damage import TableError, damage_named

# Characters of a line, and of a row, which may have several lines: no text needs more, and a
# compressed file of a few kilobytes may hold a line that fills the memory.
LONGEST_ROW = 1 << 24
HEAD_BYTES = 1 << 16  # that show what a file is
WINDOWS = "Windows-1252"
MARK = "\ufeff"  # of the byte order, before the first line of a file
log = logging.getLogger("klda.data")
_ESCAPED = re.compile("[\udc80-\udcff]")  # bytes that are not UTF-8
_OTHER_SCRIPT = re.compile(rb"[\x80-\xff]{4}")  # western languages have fewer in a row


class ByteFile:
    """The bytes of a file, unpacked if it is gzipped, and how much of it has been read.

    `name` is what errors call it. What comes from a pipe can be read once.
    """

    def __init__(self, source: Path | BinaryIO, name: str) -> None:
        self.name = name
        raw: Any = source.open("rb", HEAD_BYTES) if isinstance(source, Path) else source
        if not hasattr(raw, "peek"):
            raw = io.BufferedReader(raw, HEAD_BYTES)
        self._raw = raw
        self._size = raw.seek(0, os.SEEK_END) if raw.seekable() else 0
        if self._size:
            raw.seek(0)
        self.file = raw
        if raw.peek(2)[:2] == b"\x1f\x8b":
            self.file = io.BufferedReader(gzip.GzipFile(fileobj=raw), HEAD_BYTES)

    def __enter__(self) -> ByteFile:
        return self

    def __exit__(self, *exception: object) -> None:
        self.file.close()
        self._raw.close()

    @property
    def head(self) -> bytes:
        """The first bytes; they are read again later."""
        return bytes(self.file.peek(HEAD_BYTES)[:HEAD_BYTES])

    @property
    def fraction(self) -> float:
        """How much of the file has been read, between 0 and 1; 1 for a pipe, which has no size."""
        if self._raw.closed or not self._size:
            return 1.0
        return min(1.0, self._raw.tell() / self._size)

    def seekable(self) -> BinaryIO:
        """Return a file of the same bytes that can be read in any order."""
        is_plain = self.file is self._raw and self._size
        return self._raw if is_plain else io.BytesIO(self.file.read())


class TextFile:
    """The lines of a file, with their numbers, from 1.

    Without an `encoding`, a byte order mark shows UTF-16, and so do zero bytes. Other files are
    UTF-8, or Windows-1252 if the first line with other than ASCII characters is not UTF-8.
    """

    def __init__(self, file: ByteFile, encoding: str | None = None) -> None:
        self.name, self._file = file.name, file
        self.encoding = self._found(file.head) if encoding is None else encoding
        errors = "surrogateescape" if encoding is None and self.encoding == "utf-8-sig" else None
        try:
            self._text = io.TextIOWrapper(file.file, self.encoding, errors, newline="")
        except LookupError as error:
            raise TableError(
                f"encoding={encoding!r} is not known; give one such as utf-8, utf-16 or "
                "windows-1252."
            ) from error
        self._guesses, self._has_utf8 = errors is not None, False

    @property
    def fraction(self) -> float:
        """How much of the file has been read, between 0 and 1."""
        return self._file.fraction

    @property
    def head(self) -> str:
        """The first characters; they are read again later."""
        return self._file.head.decode(self.encoding, errors="ignore")

    def _found(self, head: bytes) -> str:
        if head.startswith((codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE)):
            return "utf-32"
        if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
            return "utf-16"
        even, odd = head[::2].count(0), head[1::2].count(0)
        if max(even, odd) > max(len(head) / 16, 4 * min(even, odd)):
            return "utf-16-be" if even > odd else "utf-16-le"
        if even + odd <= len(head) / 8:
            return "utf-8-sig"
        raise TableError(
            f"{self.name} is not a text file. Give a table: CSV, TSV, JSONL, JSON, parquet or xlsx."
        )

    def __iter__(self) -> Iterator[tuple[int, str]]:
        number = 0
        with damage_named(lambda: f"{self.name}, after line {number}"):
            while line := self._read(self._text.readline, LONGEST_ROW, number + 1):
                number += 1
                if len(line) >= LONGEST_ROW:
                    raise TableError(f"{self.name}, line {number}: {too_long('line')}")
                yield number, line.removeprefix(MARK)  # also where files were joined

    def read(self, characters: int) -> str:
        """Return the next characters; none at the end."""
        return self._read(self._text.read, characters)

    def _read(self, read: Callable[[int], str], characters: int, line: int = 0) -> str:
        try:
            text = read(characters)
        except UnicodeError as error:
            raise TableError(
                f"{self._where(line)}: not {self.encoding} ({error}). Name another encoding, or "
                "save the file as UTF-8.",
                "encoding",
            ) from error
        return self._decoded(text, line) if self._guesses and not text.isascii() else text

    def _where(self, line: int) -> str:
        return f"{self.name}, line {line}" if line else self.name

    def _decoded(self, text: str, line: int) -> str:
        """Return text that has other than ASCII characters, or bytes that are not UTF-8."""
        is_utf8 = _ESCAPED.search(text) is None
        if is_utf8 and self.encoding != WINDOWS:
            self._has_utf8 = True
            return text
        if is_utf8 or self._has_utf8:
            raise TableError(
                f"{self._where(line)}: {'UTF-8' if is_utf8 else 'not UTF-8'}, unlike what "
                "comes before. Save the file in one encoding, or name its encoding."
            )
        raw = text.encode(errors="surrogateescape")
        try:
            decoded = raw.decode("cp1252")
        except UnicodeDecodeError:
            decoded = ""
        if not decoded or _OTHER_SCRIPT.search(raw):
            raise TableError(
                f"{self._where(line)}: neither UTF-8 nor {WINDOWS}. Name its encoding (such as "
                "windows-1251, shift_jis or gb18030), or save it as UTF-8.",
                "encoding",
            )
        if self.encoding != WINDOWS:
            log.info("%s: not UTF-8; read as %s.", self._where(line), WINDOWS)
        self.encoding = WINDOWS
        return decoded


def too_long(what: str) -> str:
    """Say that a line or a row is too long."""
    return (
        f"the {what} has more than {LONGEST_ROW:,} characters. Shorten its text, or close the "
        "quote that opens it."
    )
