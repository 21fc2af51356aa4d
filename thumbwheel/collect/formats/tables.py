"""Rows out of CSV and Parquet files."""

from __future__ import annotations

import csv
import io
import json
import zlib
from collections.abc import Iterator
from contextlib import suppress
from typing import IO, Any

import pyarrow as pa
import pyarrow.parquet as pq

from thumbwheel.collect.formats.raw import RawRow
from thumbwheel.errors import DataError, explain

_BATCH = 256


class _Lines:
    """Text lines one by one, counted, with those of the current row kept as its raw text."""

    def __init__(self, text: io.BufferedReader) -> None:
        self._lines = io.TextIOWrapper(text, encoding="utf-8", errors="surrogateescape", newline="")
        self.count = 0
        self.row: list[str] = []

    def __iter__(self) -> _Lines:
        return self

    def __next__(self) -> str:
        line = next(self._lines)
        self.count += 1
        self.row.append(line)
        return line

    def release(self) -> None:
        """Let go of the file without closing it; whoever stopped reading early may have closed it."""
        with suppress(ValueError):
            self._lines.detach()

    def taken(self) -> tuple[int, str]:
        """The first line and the text of the row just read."""
        start, raw = self.count - len(self.row) + 1, "".join(self.row).rstrip("\r\n")
        self.row.clear()
        return start, raw


def csv_rows(text: io.BufferedReader, name: str, max_row_bytes: int) -> Iterator[RawRow]:
    """Rows of a CSV file with a header; separated by comma, semicolon or tab, whichever the header has most of.

    Raises DataError for a header without a name, or with one twice.
    """
    csv.field_size_limit(max(csv.field_size_limit(), max_row_bytes))
    head = text.peek(65536).split(b"\n", 1)[0].decode("utf-8", "replace")
    lines = _Lines(text)
    try:
        reader = csv.reader(lines, delimiter=max((",", ";", "\t"), key=head.count), strict=True)
        header = _header(reader, name)
        lines.taken()
        yield from _csv_rows(reader, header, lines)
    finally:
        lines.release()


def _csv_rows(reader: Iterator[list[str]], header: list[str], lines: _Lines) -> Iterator[RawRow]:
    while True:
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            line, raw = lines.taken()
            yield RawRow(line, raw[:1000], None, f"The row is not CSV: {error}.")
            continue
        except (OSError, EOFError, zlib.error) as error:
            line, raw = lines.taken()
            yield RawRow(line, raw[:1000], None, f"The file breaks off here: {str(error).rstrip('.')}.", broken=True)
            return
        line, raw = lines.taken()
        if not cells:
            continue
        if any("\udc80" <= c <= "\udcff" for c in raw):
            shown = raw.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
            yield RawRow(line, shown, None, "The row is not UTF-8 text.")
        elif len(cells) != len(header):
            yield RawRow(line, raw, None, f"The row has {len(cells)} cells, the header {len(header)}.")
        else:
            yield RawRow(line, raw, dict(zip(header, cells, strict=True)))


def _header(reader: Iterator[list[str]], name: str) -> list[str]:
    try:
        header = [cell.strip() for cell in next(reader)]
    except StopIteration:
        raise DataError(f"The file '{name}' holds no header.") from None
    except (csv.Error, OSError, EOFError, zlib.error) as error:
        raise DataError(f"The header of '{name}' cannot be read: {error}.") from None
    twice = sorted({cell for cell in header if header.count(cell) > 1})
    if not all(header) or twice:
        raise DataError(
            explain(f"The header of '{name}' is not usable.", allowed="a name for each column, each once", got=header)
        )
    return header


def parquet_rows(file: IO[bytes]) -> Iterator[RawRow]:
    """Rows of a Parquet file, a few hundred at a time; keys that are null in a nested value are left out.

    Parquet gives every object of a column the keys of all; those a row never had would leak into prompts as null.
    Raises DataError where the file has no readable footer.
    """
    try:
        table = pq.ParquetFile(file, pre_buffer=False)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise DataError(f"The Parquet file cannot be read; it was perhaps cut short: {_short(error)}.") from None
    return _parquet_rows(table)


def _parquet_rows(table: Any) -> Iterator[RawRow]:
    """Row group by row group: one that is broken costs its own rows only."""
    start = 0
    for group in range(table.num_row_groups):
        number, end = start, start + table.metadata.row_group(group).num_rows
        try:
            for batch in table.iter_batches(batch_size=_BATCH, row_groups=[group], use_threads=False):
                for row in batch.to_pylist():
                    number += 1
                    value = {name: _without_nulls(cell) for name, cell in row.items()}
                    yield RawRow(number, json.dumps(value, ensure_ascii=False, default=str), value)
        except (pa.ArrowException, OSError, ValueError) as error:
            left = f"rows {number + 1} to {end}"
            yield RawRow(number + 1, "", None, f"The file is broken here ({left}): {_short(error)}.", broken=True)
        start = end


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [_without_nulls(item) for item in value]
    return value


def _short(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")[:200]
