"""The file formats of the field, in and out; one file a format.

with read("pairs.jsonl", now=now) as reading: ...                       a stream of rows made into records
import_file("pairs.jsonl", add_steps, add_feedback, now=now)            into a store
write(preferences(episodes, settings).rows, "pairs.parquet")            out again
"""

from thumbwheel.collect.formats import (
    alpaca,
    hh,
    openai,
    preference,
    ratings,
    sharegpt,
    stepwise,
    unpaired,
    votes,
)
from thumbwheel.collect.formats.base import FileFormat, formats
from thumbwheel.collect.formats.importing import ImportResult, import_file
from thumbwheel.collect.formats.reading import Good, Reading, Reject, read
from thumbwheel.collect.formats.writing import ExportResult, write

__all__ = [
    "ExportResult",
    "FileFormat",
    "Good",
    "ImportResult",
    "Reading",
    "Reject",
    "alpaca",
    "formats",
    "hh",
    "import_file",
    "openai",
    "preference",
    "ratings",
    "read",
    "sharegpt",
    "stepwise",
    "unpaired",
    "votes",
    "write",
]
