"""Rows out of files: JSON lines, a JSON array, CSV, Parquet; gzipped or not; streamed, with the line each row stands on.

A row that cannot be read is a `RawRow` with a problem. Where the file itself breaks off, the last one says so (`broken`)
and nothing follows; the rows before it were given.
"""

from __future__ import annotations

import io
import json
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, NoReturn

from thumbwheel.collect.formats.json_text import decode, json_values
from thumbwheel.collect.formats.raw import RawRow
from thumbwheel.collect.formats.tables import csv_rows, parquet_rows
from thumbwheel.collect.formats.unzip import Unzipped
from thumbwheel.errors import DataError, NotFound, explain

CONTAINERS = ("jsonl", "json", "csv", "parquet")
_MAGIC = {
    b"PK\x03\x04": "a ZIP archive (or a spreadsheet)",
    b"\xfd7zXZ": "an xz file",
    b"BZh": "a bzip2 file",
    b"\x28\xb5\x2f\xfd": "a zstd file",
    b"ARROW1": "an Arrow file",
    b"SQLite format 3": "an SQLite database",
    b"%PDF": "a PDF",
    b"version https://": "a Git LFS pointer, not the file itself: fetch it with 'git lfs pull'",
}
_WIDE = (b"\xff\xfe", b"\xfe\xff", b"\x00\x00\xfe\xff")
_PEEK = 65536


@dataclass
class Container:
    """An open file of rows. `tabular`: nested values may come as text. `share_read` is how far the file was read."""

    name: str
    tabular: bool
    rows: Iterator[RawRow]
    _file: IO[bytes]
    _size: int
    _text: io.BufferedReader | None = None

    @property
    def share_read(self) -> float:
        """How much of the file's bytes was read, in [0, 1]."""
        return 1.0 if self._file.closed or not self._size else min(1.0, self._file.tell() / self._size)

    def close(self) -> None:
        """Close the file."""
        if self._text is not None:
            self._text.close()
        self._file.close()


def open_rows(path: Path, *, container: str | None = None, max_row_bytes: int = 64 << 20) -> Container:
    """Open a file of rows; what it is, is seen from its first bytes, then from its name.

    Raises NotFound for a missing file; DataError for a directory, an empty file, another kind of file, or UTF-16.
    """
    if container is not None and container not in CONTAINERS:
        raise DataError(explain(f"There is no container '{container}'.", allowed=", ".join(CONTAINERS)))
    file = _open(path)
    try:
        if not path.is_file():
            raise DataError(f"'{path}' is no regular file. Save what it gives to a file first.")
        size = path.stat().st_size
        if size == 0:
            raise DataError(f"The file '{path}' is empty.")
        head = file.read(16)
        file.seek(0)
        if head.startswith(b"PAR1"):
            return Container("parquet", True, parquet_rows(file), file, size)
        if head.startswith(b"version https://"):
            _refuse(path, _MAGIC[b"version https://"])
        if container == "parquet" or path.suffix.lower() == ".parquet":
            raise DataError(f"The file '{path}' is not a Parquet file: it does not begin as one. Write it again.")
        text = _text(file, path, gzipped=head.startswith(b"\x1f\x8b"))
        name = container or _guess(path, text)
        if name == "csv":
            return Container(name, True, csv_rows(text, path.name, max_row_bytes), file, size, text)
        rows = _lines(text, max_row_bytes) if name == "jsonl" else json_values(text, max_row_bytes)
        return Container(name, False, rows, file, size, text)
    except BaseException:
        file.close()
        raise


def _open(path: Path) -> IO[bytes]:
    try:
        return path.open("rb")
    except FileNotFoundError:
        raise NotFound(f"There is no file '{path}'.") from None
    except IsADirectoryError:
        inside = sorted(item.name for item in path.iterdir() if item.is_file())[:5]
        hint = f" In it are {', '.join(inside)}." if inside else ""
        raise DataError(f"'{path}' is a directory; give one file.{hint}") from None
    except OSError as error:
        raise DataError(f"The file '{path}' cannot be opened: {error.strerror}.") from None


def _text(file: IO[bytes], path: Path, *, gzipped: bool) -> io.BufferedReader:
    """The file's bytes, unzipped, without a UTF-8 byte order mark. Raises DataError where they are no UTF-8 text."""
    raw: Any = Unzipped(file) if gzipped else file
    text = io.BufferedReader(raw, _PEEK)
    try:
        head = text.peek(_PEEK)[:_PEEK]
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"The file '{path}' is a broken gzip file: {error}.") from None
    if not head.strip():
        raise DataError(f"The file '{path}' holds no text.")
    for magic, what in _MAGIC.items():
        if head.startswith(magic):
            _refuse(path, what)
    if head.startswith(_WIDE) or (b"\x00" in head[:1024] and head[:1024].count(b"\x00") * 3 > len(head[:1024])):
        raise DataError(f"The file '{path}' is UTF-16 or UTF-32 text. Save it as UTF-8.")
    if b"\x00" in head[:1024] and sum(byte < 9 for byte in head[:1024]) > 16:
        _refuse(path, "a binary file")
    if head.startswith(b"\xef\xbb\xbf"):
        text.read(3)
    return text


def _refuse(path: Path, what: str) -> NoReturn:
    raise DataError(
        f"The file '{path}' is {what}. Rows come as JSON lines, a JSON array, CSV or Parquet; text may be gzipped."
    )


def _guess(path: Path, text: io.BufferedReader) -> str:
    """The container, by the file's ending and the first character."""
    suffixes = [suffix.lower() for suffix in path.suffixes]
    head = text.peek(_PEEK)[:_PEEK].lstrip()
    if suffixes[-1:] == [".gz"]:
        suffixes.pop()
    ending = suffixes[-1] if suffixes else ""
    if ending in (".csv", ".tsv"):
        return "csv"
    if head.startswith(b"["):
        return "json"
    if ending in (".jsonl", ".ndjson"):
        return "jsonl"
    if head.startswith(b"{"):
        return "json" if ending == ".json" and not _first_line_is_whole(head) else "jsonl"
    return "jsonl" if ending == ".json" else "csv"


def _first_line_is_whole(head: bytes) -> bool:
    """True where the first line is an object by itself (or too long to tell)."""
    line, newline, _ = head.partition(b"\n")
    try:
        json.loads(line)
    except (ValueError, RecursionError):
        return not newline
    return True


def _lines(text: io.BufferedReader, max_row_bytes: int) -> Iterator[RawRow]:
    """JSON lines. A blank line is no row; a line that is too long is skipped, with a problem."""
    line = 0
    while True:
        try:
            raw = text.readline(max_row_bytes + 1)
            long = len(raw) > max_row_bytes
            rest = raw
            while long and rest and not rest.endswith(b"\n"):
                rest = text.readline(max_row_bytes)
        except (OSError, EOFError, zlib.error) as error:
            yield RawRow(line + 1, "", None, f"The file breaks off here: {_reason(error)}.", broken=True)
            return
        if not raw:
            return
        line += 1
        if long:
            yield RawRow(line, raw[:1000].decode("utf-8", "replace"), None, "The row is too long.")
        elif raw.strip():
            yield decode(line, raw.rstrip(b"\r\n"))


def _reason(error: Exception) -> str:
    return str(error).rstrip(".") or type(error).__name__
