"""Write views to files: the same formats and containers that can be imported. What a format cannot carry is refused."""

from __future__ import annotations

import csv
import gzip
import io
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from thumbwheel.collect.formats.base import Column, Draft, Export, FileFormat, formats
from thumbwheel.collect.formats.reading import parsed
from thumbwheel.collect.formats.row import Row
from thumbwheel.errors import DataError, RecordError, StoreError, explain
from thumbwheel.grouped import Grouped
from thumbwheel.records import Demonstration, Labelled, Message, Preference, ProcessLabelled, Record

DEFAULTS: Mapping[type[Record], str] = {
    Preference: "preference-chat",
    Labelled: "labelled",
    Demonstration: "chat",
    ProcessLabelled: "stepwise",
    Grouped: "records",
}
_ROWS_PER_GROUP = 1000


@dataclass
class ExportResult:
    """What was written: `read = written + refused`. `refused` counts rows the format cannot carry, by reason."""

    path: Path
    format: str
    container: str
    read: int = 0
    written: int = 0
    refused: Counter[str] = field(default_factory=Counter)

    def line(self) -> str:
        """One line for people."""
        said = f"{self.path}: {self.format} in {self.container}, rows in {self.read}, written {self.written}"
        reasons = ", ".join(f"{reason} {n}" for reason, n in self.refused.most_common())
        return said + (f", refused {self.refused.total()} ({reasons})" if reasons else "")


def write(
    rows: Iterable[Record], path: str | Path, *, format: str | None = None, container: str | None = None
) -> ExportResult:
    """Write the rows of one view. The container comes from the name (.jsonl, .json, .csv, .parquet; .gz but for Parquet).

    `format` is one that can carry the view: for preferences hh, preference, preference-chat (the default),
    openai-preference or votes; for labelled answers labelled; for demonstrations chat (the default), alpaca or sharegpt;
    for process labels stepwise; for any view "records" (the default for groups), the record itself. A row that would not be
    read back as what it is is refused and counted. The file appears whole or not at all. Raises DataError for a view, format
    or container that do not go together, and where there is no row; StoreError where the file cannot be written.
    """
    path = Path(path)
    container = container or _container_of(path)
    if container == "parquet" and path.suffix == ".gz":
        raise DataError("A Parquet file is compressed already; leave out '.gz'.")
    iterator = iter(rows)
    first = next(iterator, None)
    if first is None:
        raise DataError("There is no row to write.")
    chosen, export = _export_for(type(first), format)
    result = ExportResult(path, chosen, container)
    with _whole(path) as part:
        readable = None if chosen == "records" else formats.get(chosen)
        _WRITERS[container](_rows(chain([first], iterator), export, readable, result), export.columns, part)
        if not result.written:
            raise DataError(f"No row could be written. {result.line()}")
    return result


def _container_of(path: Path) -> str:
    name = path.with_suffix("").name if path.suffix == ".gz" else path.name
    ending = Path(name).suffix.lower().removeprefix(".")
    container = {"ndjson": "jsonl"}.get(ending, ending)
    if container not in _WRITERS:
        raise DataError(
            explain(f"The ending of '{path}' names no container.", allowed=".jsonl, .json, .csv (each .gz), .parquet")
        )
    return container


def _export_for(kind: type[Record], format: str | None) -> tuple[str, Export]:
    name = format or DEFAULTS.get(kind, "")
    if name == "records":
        return name, Export({"record": "json"}, lambda record: {"record": record.model_dump(mode="json")})
    able = [name for name in formats if kind in formats.get(name).exports]
    if name not in able and ":" not in name:
        raise DataError(
            explain(
                f"The format '{name}' cannot carry rows of the kind {kind.__name__}."
                if name
                else f"Rows of the kind {kind.__name__} have no format of their own.",
                allowed=", ".join([*able, "records"]),
            )
        )
    export = formats.get(name).exports.get(kind)
    if export is None:
        raise DataError(f"The format '{name}' cannot carry rows of the kind {kind.__name__}.")
    return name, export


def _rows(
    records: Iterable[Record], export: Export, format: FileFormat | None, result: ExportResult
) -> Iterator[dict[str, Any]]:
    """Each record as a row; one that would be read back as something else is refused."""
    for record in records:
        result.read += 1
        try:
            row = export.row(record)
            if format is not None and _content(parsed(format, Row(row))) != _expected(record):
                raise RecordError(f"The format '{format.name}' would not give the row back as it is.")
        except RecordError as error:
            result.refused[error.what.rstrip(".")] += 1
            continue
        result.written += 1
        yield row


def _content(draft: Draft) -> Any:
    """What a view would make of a draft: prompt, answers and verdicts."""
    verdicts = [(item.kind, item.chosen, item.on, tuple(sorted(item.value.items()))) for item in draft.feedback]
    return [(step.state, step.action) for step in draft.steps], verdicts


def _expected(record: Record) -> Any:
    match record:
        case Preference():
            pair = [(record.prompt, record.chosen), (record.prompt, record.rejected)]
            return pair, [("choice", None, None, (("tie", True),)) if record.tie else ("choice", 0, None, ())]
        case Labelled():
            thumb = ("thumb", None, 0, (("up", record.value > 0),))
            outcome = ("outcome", None, 0, (("reward", record.value),))
            return [(record.prompt, record.response)], [thumb if abs(record.value) == 1 else outcome]
        case Demonstration():
            return [(record.prompt, record.response)], [("demonstration", None, 0, ())]
        case ProcessLabelled():
            answers = [Message(role="assistant", content=text) for text in record.steps]
            steps = [((*record.prompt, *answers[:n]), answer) for n, answer in enumerate(answers)]
            marks = [("step_mark", None, n, (("mark", m),)) for n, m in enumerate(record.labels) if m is not None]
            return steps, marks
    return None


@contextmanager
def _whole(path: Path) -> Iterator[Path]:
    """A file beside `path` that takes its place at the end, or is gone after an error. Raises StoreError."""
    part = path.with_name(f".{path.name}.part")
    try:
        yield part
        part.replace(path)
    except OSError as error:
        raise StoreError(f"The file '{path}' cannot be written: {error.strerror or error}.") from None
    finally:
        with suppress(OSError):
            part.unlink()


@contextmanager
def _text(part: Path) -> Iterator[io.TextIOWrapper]:
    zipped = part.name.endswith(".gz.part")
    with part.open("wb") as file:
        raw: Any = gzip.GzipFile(filename="", fileobj=file, mode="wb", mtime=0) if zipped else file
        with io.TextIOWrapper(raw, encoding="utf-8", newline="") as text:
            yield text


def _jsonl(rows: Iterator[dict[str, Any]], columns: Mapping[str, Column], part: Path) -> None:
    with _text(part) as text:
        for row in rows:
            text.write(json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n")


def _json(rows: Iterator[dict[str, Any]], columns: Mapping[str, Column], part: Path) -> None:
    with _text(part) as text:
        text.write("[")
        for number, row in enumerate(rows):
            text.write((",\n" if number else "\n") + json.dumps(row, ensure_ascii=False, allow_nan=False))
        text.write("\n]\n")


def _csv(rows: Iterator[dict[str, Any]], columns: Mapping[str, Column], part: Path) -> None:
    with _text(part) as text:
        writer = csv.writer(text, lineterminator="\n", quoting=csv.QUOTE_ALL)
        writer.writerow(columns)
        for row in rows:
            writer.writerow(_cell(row.get(name)) for name in columns)


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, allow_nan=False)


def _parquet(rows: Iterator[dict[str, Any]], columns: Mapping[str, Column], part: Path) -> None:
    """Columns that no row fills are left out; messages have only the keys that some row uses."""
    kept = list(rows)
    filled = {name: column for name, column in columns.items() if any(row.get(name) is not None for row in kept)}
    fields = [pa.field(name, _arrow_type(column, (row.get(name) for row in kept))) for name, column in filled.items()]
    schema = pa.schema(fields)
    with pq.ParquetWriter(part, schema) as writer:
        for start in range(0, len(kept), _ROWS_PER_GROUP):
            group = kept[start : start + _ROWS_PER_GROUP]
            cells = [[_arrow_cell(row.get(name), column) for row in group] for name, column in filled.items()]
            arrays = [pa.array(cell, type=f.type) for cell, f in zip(cells, fields, strict=True)]
            writer.write_table(pa.Table.from_arrays(arrays, schema=schema))


def _arrow_type(column: Column, cells: Iterable[Any]) -> Any:
    match column:
        case "bool":
            return pa.bool_()
        case "number":
            return pa.float64()
        case "labels":
            return pa.list_(pa.int8())
        case "texts":
            return pa.list_(pa.string())
        case "messages":
            called = pa.struct({"name": pa.string(), "arguments": pa.string()})
            call = pa.struct({"id": pa.string(), "type": pa.string(), "function": called})
            types = {"tool_calls": pa.list_(call)}
            keys = dict.fromkeys(key for cell in cells for message in cell or () for key in message)
            return pa.list_(pa.struct({key: types.get(key, pa.string()) for key in keys}))
    return pa.string()


def _arrow_cell(value: Any, column: Column) -> Any:
    if column == "labels" and value is not None:
        return [label if label is None or not isinstance(label, bool) else 1 if label else -1 for label in value]
    return _cell(value) if column == "json" and value is not None else value


_Writer = Callable[[Iterator[dict[str, Any]], Mapping[str, Column], Path], None]
_WRITERS: Mapping[str, _Writer] = {"jsonl": _jsonl, "json": _json, "csv": _csv, "parquet": _parquet}
