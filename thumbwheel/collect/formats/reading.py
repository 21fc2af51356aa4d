"""Read a file of feedback: which format it is, and a stream of rows made into records, or rejected with a reason."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from itertools import chain, islice
from pathlib import Path
from types import TracebackType

from pydantic import ValidationError

from thumbwheel.collect.formats.base import Draft, FileFormat, Made, Source, formats, make
from thumbwheel.collect.formats.containers import Container, open_rows
from thumbwheel.collect.formats.raw import RawRow
from thumbwheel.collect.formats.row import Row
from thumbwheel.errors import DataError, RecordError, RegistryError, explain
from thumbwheel.records import Message, Origin, Role
from thumbwheel.validation import record_error

# The most particular first: the first of these that recognises most of the first rows wins.
ORDER = (
    "openai-preference",
    "stepwise",
    "votes",
    "hh",
    "preference-chat",
    "preference",
    "labelled",
    "ratings",
    "sharegpt",
    "chat",
    "alpaca",
)
LOOK_AT = 50


@dataclass(frozen=True)
class Reject:
    """A row that could not be used: where it stands, why (`reason` is for counting, `detail` for reading), its text.

    `broken`: the file could not be read from here on, to its end or to that of the row group.
    """

    line: int
    reason: str
    detail: str
    raw: str
    broken: bool = False


@dataclass(frozen=True)
class Good:
    """A row that became records."""

    line: int
    made: Made


class Reading:
    """An open file: iterate for `Good` and `Reject`, in order. `why` says how the format was found.

    Use it in a `with` block. `unused` counts, by column, the rows whose value in it no record took up.
    """

    def __init__(
        self, container: Container, rows: Iterator[RawRow], format: FileFormat, source: Source, why: str
    ) -> None:
        self.format = format
        self.why = why
        self.container = container.name
        self.unused: Counter[str] = Counter()
        self._open = container
        self._rows = rows
        self._source = source

    @property
    def share_read(self) -> float:
        """How much of the file was read, in [0, 1]."""
        return self._open.share_read

    def __iter__(self) -> Iterator[Good | Reject]:
        for raw in self._rows:
            yield self._one(raw)

    def _one(self, raw: RawRow) -> Good | Reject:
        if raw.value is None:
            problem = raw.problem or "The row cannot be read."
            return Reject(raw.line, _kind(problem), problem, raw.raw, raw.broken)
        row = Row(raw.value, tabular=self._open.tabular)
        try:
            made = make(parsed(self.format, row), self._source, raw.line)
        except RecordError as error:
            return Reject(raw.line, error.what.rstrip("."), str(error), raw.raw)
        self.unused.update(name for name, value in raw.value.items() if value is not None and name not in row.used)
        return Good(raw.line, made)

    def __enter__(self) -> Reading:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open.close()


def read(
    path: str | Path,
    *,
    format: str | None = None,
    container: str | None = None,
    now: datetime,
    origin: Origin = "person",
    role: Role = "end_user",
    max_row_bytes: int = 64 << 20,
) -> Reading:
    """Open a file and find out what it is. `origin` and `role` are whose feedback it is taken to be.

    `format` names one of `formats` (or "module:attr"); without it the first rows decide. `now` (UTC-aware) dates the rows
    that have no date of their own. Raises NotFound, DataError (see `open_rows`; also where no format fits), RegistryError;
    RecordError where `now` has no zone.
    """
    path = Path(path)
    if now.tzinfo is None:
        raise RecordError("'now' must carry a time zone. Give datetime.now(UTC).", field="now")
    named = formats.get(format) if format is not None else None
    if named is not None and not isinstance(named, FileFormat):
        raise RegistryError(f"'{format}' is no FileFormat but {type(named).__name__}.")
    opened = open_rows(path, container=container, max_row_bytes=max_row_bytes)
    try:
        head = list(islice(opened.rows, LOOK_AT))
        if not head:
            raise DataError(f"The file '{path}' holds no row.")
        found, why = (named, "named by the caller") if named else detect(head, opened, path)
        name = path.name.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
        source = Source(name, found.name, now, origin, role)
        return Reading(opened, chain(head, opened.rows), found, source, why)
    except BaseException:
        opened.close()
        raise


def detect(head: list[RawRow], container: Container, path: Path) -> tuple[FileFormat, str]:
    """The format that most of these rows are of, and why. Raises DataError that lists the formats and the columns seen."""
    rows = [Row(raw.value, tabular=container.tabular) for raw in head if raw.value is not None]
    names = [*ORDER, *(name for name in formats if name not in ORDER)]
    best: tuple[int, FileFormat, str] | None = None
    for name in names:
        reasons = [reason for reason in map(formats.get(name).recognise, rows) if reason]
        if reasons and (best is None or len(reasons) > best[0]):
            best = (len(reasons), formats.get(name), reasons[0])
    if best is not None:
        return best[1], best[2]
    if not rows:
        first = head[0]
        raise DataError(f"No row of '{path}' can be read. Line {first.line}: {first.problem}")
    columns = sorted({name for row in rows for name, value in row.data.items() if value is not None})
    known = "\n".join(f"  {name}: {formats.get(name).columns}" for name in names)
    raise DataError(
        explain(
            f"The format of '{path}' is none that is known.",
            got="the columns " + (", ".join(columns) or "(none)"),
            next=f"Rename columns to those of a format, or name one with 'format'. Formats:\n{known}",
        )
    )


def parsed(format: FileFormat, row: Row) -> Draft:
    """The row's content. Raises RecordError, whatever was wrong with it."""
    try:
        return format.parse(row)
    except ValidationError as error:
        raise record_error(error, Message, noun="message") from None


def _kind(problem: str) -> str:
    """A problem without its numbers, for counting."""
    return problem.split(":")[0].split("(")[0].strip().rstrip(".")
