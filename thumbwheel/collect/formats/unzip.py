"""Gzip read so that a broken file gives every byte before the break, and only then the error."""

from __future__ import annotations

import io
import zlib
from typing import IO, Any

_CHUNK = 1 << 16
_GZIP = 31  # zlib's window size plus 16: with the header and trailer of gzip


class Unzipped(io.RawIOBase):
    """The bytes of a gzip file (of one member or several), as a raw stream.

    Raises, from the read after the last good byte: EOFError where the file is cut short, zlib.error where it is corrupt.
    """

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._member = zlib.decompressobj(_GZIP)
        self._input = b""
        self._ready = b""
        self._over = False
        self._error: Exception | None = None

    def readable(self) -> bool:
        """True: the stream is for reading."""
        return True

    def readinto(self, into: Any) -> int:
        """Fill `into` as far as data is at hand; 0 at the end."""
        while not self._ready and not self._over:
            self._input = self._input or self._file.read(_CHUNK)
            if self._input:
                self._inflate()
            else:
                self._end()
        if not self._ready and self._error is not None:
            raise self._error
        taken = self._ready[: len(into)]
        into[: len(taken)] = taken
        self._ready = self._ready[len(taken) :]
        return len(taken)

    def _inflate(self) -> None:
        """Turn input into data; where it is corrupt, up to the very byte."""
        if self._member.eof:
            self._input = self._input.lstrip(b"\x00")  # padding between and after members
            if not self._input:
                return
            self._member = zlib.decompressobj(_GZIP)
        before = self._member.copy()
        try:
            self._ready = self._member.decompress(self._input)
            self._input = self._member.unused_data
        except zlib.error as error:
            self._over, self._error = True, error
            self._ready = _up_to_the_error(before, self._input)

    def _end(self) -> None:
        self._over = True
        if not self._member.eof:
            self._ready = self._member.flush()
            self._error = EOFError("the gzip data ends early")


def _up_to_the_error(member: Any, data: bytes) -> bytes:
    found = bytearray()
    try:
        for at in range(len(data)):
            found += member.decompress(data[at : at + 1])
    except zlib.error:
        pass
    return bytes(found)
