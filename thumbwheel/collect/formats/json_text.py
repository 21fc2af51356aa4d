"""JSON rows out of text: one line, or a stream of values (an array, or objects one after the other)."""

from __future__ import annotations

import codecs
import io
import json
import zlib
from collections.abc import Iterator
from typing import Any

from thumbwheel.collect.formats.raw import RawRow

_CHUNK = 1 << 18
_SLACK = 12  # a value cut in the middle of an escape or a literal errs this close to the end


class _NotJson(ValueError):
    """NaN or infinity, which Python's reader would let pass."""


def _constant(name: str) -> Any:
    raise _NotJson(f"{name} is not JSON")


_decoder = json.JSONDecoder(parse_constant=_constant)


def decode(line: int, raw: bytes) -> RawRow:
    """One line of JSON as a row."""
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        shown = raw.decode("utf-8", "backslashreplace")
        return RawRow(line, shown, None, f"The row is not UTF-8 text (byte {error.start + 1} of the line).")
    try:
        return _row(line, text, _decoder.decode(text))
    except RecursionError:
        return RawRow(line, text, None, "The row is nested too deep.")
    except json.JSONDecodeError as error:
        return RawRow(line, text, None, f"The row is not JSON: {error.msg} at character {error.pos + 1}.")
    except ValueError as error:
        return RawRow(line, text, None, f"The row is not JSON: {error}.")


def _row(line: int, text: str, value: Any) -> RawRow:
    if not isinstance(value, dict):
        return RawRow(line, text, None, f"The row is no JSON object but {_kind(value)}.")
    return RawRow(line, text, value)


def _kind(value: Any) -> str:
    names = {list: "a list", str: "text", bool: "true or false", type(None): "null"}
    return names.get(type(value), "a number")


def json_values(text: io.BufferedReader, max_row_bytes: int) -> Iterator[RawRow]:
    """The objects of a JSON array, or objects that stand one after the other, read piece by piece.

    A value that is no object, or holds NaN, is a row with a problem; broken JSON ends the file, since nothing tells where
    the next row would begin.
    """
    stream = _Stream(text)
    try:
        array = stream.skip(" \t\r\n") == "["
        if array:
            stream.advance(1)
        while True:
            found = stream.skip(" \t\r\n,")
            if found == "":
                if array:
                    yield stream.broken("The JSON array is cut short")
                return
            if array and found == "]":
                return
            row = stream.value(max_row_bytes)
            yield row
            if row.broken:
                return
    except (OSError, EOFError, zlib.error) as error:
        yield stream.broken(f"The file breaks off here: {str(error).rstrip('.') or type(error).__name__}")


class _Stream:
    """Text read in pieces, with the line it stands on."""

    def __init__(self, file: io.BufferedReader) -> None:
        self._file = file
        self._bytes = codecs.getincrementaldecoder("utf-8")("surrogateescape")
        self._text = ""
        self._at = 0
        self._line = 1
        self._end = False

    def _more(self, size: int) -> None:
        data = self._file.read1(size) if size <= _CHUNK else self._file.read(size)
        self._end = not data
        self._text = self._text[self._at :] + self._bytes.decode(data, self._end)
        self._at = 0

    def skip(self, characters: str) -> str:
        """Pass over these characters; the next one, or "" at the end."""
        while True:
            while self._at < len(self._text) and self._text[self._at] in characters:
                self._line += self._text[self._at] == "\n"
                self._at += 1
            if self._at < len(self._text):
                return self._text[self._at]
            if self._end:
                return ""
            self._more(_CHUNK)

    def advance(self, count: int) -> None:
        """Pass over some text."""
        self._line += self._text.count("\n", self._at, self._at + count)
        self._at += count

    def value(self, max_row_bytes: int) -> RawRow:
        """The value that begins here."""
        while True:
            try:
                value, end = _decoder.raw_decode(self._text, self._at)
            except json.JSONDecodeError as error:
                cut = error.msg.startswith("Unterminated") or error.pos >= len(self._text) - _SLACK
                if not cut or self._end:
                    where = self._line + self._text.count("\n", self._at, error.pos)
                    return self.broken(f"The row is not JSON: {error.msg} on line {where}")
                if len(self._text) - self._at > max_row_bytes:
                    return self.broken("The row is too long, or the JSON is broken")
                self._more(max(_CHUNK, len(self._text) - self._at))
            except _NotJson as error:
                return self._without_constants(str(error))
            except (RecursionError, ValueError) as error:
                said = "nested too deep" if isinstance(error, RecursionError) else f"not JSON: {error}"
                return self.broken(f"The row is {said}")
            else:
                if end == len(self._text) and not self._end and not isinstance(value, dict | list | str):
                    self._more(_CHUNK)  # a number may go on
                    continue
                return self._taken(value, end)

    def _taken(self, value: Any, end: int) -> RawRow:
        line, raw = self._line, self._text[self._at : end]
        self.advance(end - self._at)
        if any("\udc80" <= c <= "\udcff" for c in raw):
            shown = raw.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
            return RawRow(line, shown, None, "The row is not UTF-8 text.")
        return _row(line, raw, value)

    def _without_constants(self, problem: str) -> RawRow:
        """A row with NaN or infinity: read past it, and say so."""
        lenient = json.JSONDecoder()
        while True:
            try:
                value, end = lenient.raw_decode(self._text, self._at)
            except json.JSONDecodeError as error:
                if self._end:
                    return self.broken(f"The row is not JSON: {error.msg}")
                self._more(max(_CHUNK, len(self._text) - self._at))
                continue
            row = self._taken(value, end)
            return RawRow(row.line, row.raw, None, f"The row is not JSON: {problem}.")

    def broken(self, problem: str) -> RawRow:
        """The row that ends the file early."""
        return RawRow(self._line, self._text[self._at : self._at + 1000], None, f"{problem}.", broken=True)
