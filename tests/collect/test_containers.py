"""Broken files of many kinds: a clear error or a reject with the right line each, and what stands before is kept (F6)."""

from __future__ import annotations

import codecs
import gzip
import io
import json
from collections.abc import Generator
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from made_files import jsonl, load, rows_of

from thumbwheel.collect.formats.raw import RawRow
from thumbwheel.collect.formats.tables import csv_rows
from thumbwheel.errors import DataError, NotFound, ThumbwheelError

ROW = {"prompt": "2+2=", "chosen": "4", "rejected": "5"}


def rows(count: int) -> list[dict[str, str]]:
    return [{"prompt": f"{n}+2=", "chosen": f"{n + 2}", "rejected": "?"} for n in range(count)]


def written(path: Path, data: bytes | str) -> Path:
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    return path


def parquet(path: Path, columns: dict[str, list[Any]], **more: Any) -> Path:
    pq.write_table(pa.table(columns), path, **more)
    return path


def columns(count: int) -> dict[str, list[Any]]:
    return {name: [row[name] for row in rows(count)] for name in ROW}


# ---------------------------------------------------------------- files that are no use at all


def no_file(folder: Path) -> Path:
    return folder / "missing.jsonl"


def a_folder(folder: Path) -> Path:
    jsonl(folder / "inside.jsonl", ROW)
    return folder


def empty(folder: Path) -> Path:
    return written(folder / "f.jsonl", b"")


def blank(folder: Path) -> Path:
    return written(folder / "f.jsonl", " \n\n")


def empty_gzip(folder: Path) -> Path:
    return written(folder / "f.jsonl.gz", gzip.compress(b""))


def utf16(folder: Path) -> Path:
    return written(folder / "f.jsonl", codecs.BOM_UTF16_LE + json.dumps(ROW).encode("utf-16-le"))


def utf16_without_mark(folder: Path) -> Path:
    return written(folder / "f.jsonl", json.dumps(ROW).encode("utf-16-le"))


def a_zip(folder: Path) -> Path:
    return written(folder / "f.jsonl", b"PK\x03\x04" + bytes(100))


def cut_gzip_header(folder: Path) -> Path:
    return written(folder / "f.jsonl.gz", gzip.compress(b"x" * 100)[:12])


def cut_parquet(folder: Path) -> Path:
    path = parquet(folder / "f.parquet", columns(100))
    return written(path, path.read_bytes()[:-20])


def text_named_parquet(folder: Path) -> Path:
    return jsonl(folder / "f.parquet", ROW)


def header_only(folder: Path) -> Path:
    return written(folder / "f.csv", "prompt,chosen,rejected\n")


def header_twice(folder: Path) -> Path:
    return written(folder / "f.csv", "prompt,chosen,chosen\n1,2,3\n")


def a_device(folder: Path) -> Path:
    return Path("/dev/null")


def a_pointer(folder: Path) -> Path:
    return written(folder / "f.parquet", "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n")


def all_broken(folder: Path) -> Path:
    return jsonl(folder / "f.jsonl", "{oops", "{again")


def lists_only(folder: Path) -> Path:
    return written(folder / "f.json", "[[1, 2], [3]]")


USELESS = [
    (no_file, "There is no file"),
    (a_folder, r"is a directory; give one file. In it are inside.jsonl"),
    (empty, "is empty"),
    (blank, "holds no text"),
    (empty_gzip, "holds no text"),
    (utf16, "UTF-16"),
    (utf16_without_mark, "UTF-16"),
    (a_zip, "a ZIP archive"),
    (cut_gzip_header, "gzip data ends early"),
    (cut_parquet, "cut short"),
    (text_named_parquet, "not a Parquet file"),
    (header_only, "holds no row"),
    (header_twice, "each once"),
    (a_pointer, "a Git LFS pointer"),
    (a_device, "is no regular file"),
    (all_broken, "No row of .* can be read. Line 1: The row is not JSON"),
    (lists_only, "No row of .* can be read. Line 1: The row is no JSON object but a list"),
]


@pytest.mark.parametrize(("make", "message"), USELESS, ids=lambda value: getattr(value, "__name__", None))
def test_a_file_of_no_use_is_one_clear_error(make: Any, message: str, tmp_path: Path) -> None:
    """F6, issue: ten kinds of broken import file, a clear error each."""
    with pytest.raises((DataError, NotFound), match=message):
        rows_of(make(tmp_path))


# ---------------------------------------------------------------- files that break off: what stands before is kept


def test_a_gzip_file_cut_short_keeps_the_rows_before_the_cut(tmp_path: Path) -> None:
    whole = gzip.compress("".join(json.dumps(row) + "\n" for row in rows(20_000)).encode())
    memory, result = load(written(tmp_path / "f.jsonl.gz", whole[: len(whole) // 2]), reject_path=tmp_path / "r.jsonl")
    assert 5_000 < result.imported < 15_000
    assert (result.rejected, len(memory.feedback)) == (1, result.imported)
    assert result.broken is not None
    assert "breaks off" in result.broken
    reject = json.loads((tmp_path / "r.jsonl").read_text())
    assert reject["line"] == result.imported + 1


def test_a_gzip_file_with_a_wrong_checksum_keeps_its_rows_and_says_so(tmp_path: Path) -> None:
    data = bytearray(gzip.compress("".join(json.dumps(row) + "\n" for row in rows(50)).encode()))
    data[-8] ^= 0xFF
    _, result = load(written(tmp_path / "f.jsonl.gz", bytes(data)))
    assert (result.imported, result.rejected) == (50, 1)
    assert "incorrect data check" in (result.broken or "")


@pytest.mark.parametrize("name", ["f.jsonl.gz", "f.json.gz", "f.csv.gz"])
@pytest.mark.parametrize("damage", ["cut", "corrupt"])
def test_every_row_before_the_damage_is_kept(name: str, damage: str, tmp_path: Path) -> None:
    """Stored, not deflated, so that the damage is known to fall in row 61 of 100."""
    lines = [f"{n:04}" for n in range(100)]
    text = {
        "f.jsonl.gz": "".join(json.dumps({"prompt": n, "chosen": "b", "rejected": "c"}) + "\n" for n in lines),
        "f.json.gz": "[" + ",\n".join(json.dumps({"prompt": n, "chosen": "b", "rejected": "c"}) for n in lines) + "]",
        "f.csv.gz": "prompt,chosen,rejected\n" + "".join(f"{n},b,c\n" for n in lines),
    }[name]
    one, other = text[: text.index("0061")], text[text.index("0061") :]
    first, second = gzip.compress(one.encode(), 0), bytearray(gzip.compress(other.encode(), 0))
    if damage == "corrupt":
        second[10] = 0xFF
    _, result = load(written(tmp_path / name, first + bytes(second if damage == "corrupt" else second[:11])))
    assert (result.imported, result.rejected) == (61, 1)
    assert result.broken is not None


def test_gzip_members_one_after_the_other_are_one_file(tmp_path: Path) -> None:
    parts = [gzip.compress((json.dumps(row) + "\n").encode()) for row in rows(3)]
    good, rejects = rows_of(written(tmp_path / "f.jsonl.gz", b"".join(parts) + bytes(512)))
    assert (len(good), rejects) == (3, [])


def test_json_lines_cut_short_reject_the_last_line(tmp_path: Path) -> None:
    text = "".join(json.dumps(row) + "\n" for row in rows(3))
    good, rejects = rows_of(written(tmp_path / "f.jsonl", text[:-20]))
    assert (len(good), [(r.line, r.broken) for r in rejects]) == (2, [(3, False)])


@pytest.mark.parametrize("cut", [1, 3, 20])
def test_a_json_array_cut_short_keeps_the_rows_before(cut: int, tmp_path: Path) -> None:
    text = json.dumps(rows(3), indent=1)
    good, (reject,) = rows_of(written(tmp_path / "f.json", text[:-cut]))
    assert len(good) == (3 if cut == 1 else 2)
    assert reject.broken


def test_broken_json_inside_an_array_names_its_line(tmp_path: Path) -> None:
    text = "[\n" + json.dumps(ROW) + ",\n" + '{"prompt": "x",\n "chosen": oops}' + ",\n" + json.dumps(ROW) + "\n]"
    good, (reject,) = rows_of(written(tmp_path / "f.json", text))
    assert (len(good), reject.line, reject.broken) == (1, 3, True)
    assert "line 4" in reject.detail


def test_a_parquet_file_with_a_broken_row_group_keeps_the_rows_before(tmp_path: Path) -> None:
    path = parquet(tmp_path / "f.parquet", columns(2000), row_group_size=500, use_dictionary=False, compression="zstd")
    data = bytearray(path.read_bytes())
    start = pq.ParquetFile(path).metadata.row_group(2).column(0).data_page_offset
    data[start : start + 200] = bytes(200)
    _, result = load(written(path, bytes(data)))
    assert (result.imported, result.rejected) == (1500, 1)
    assert "rows 1001 to 1500" in (result.broken or "")


# ---------------------------------------------------------------- single bad rows, with the line they stand on


def test_a_line_that_is_not_utf8_is_rejected_alone(tmp_path: Path) -> None:
    bad = json.dumps(ROW).replace("4", "\u00e9").encode("latin-1")
    data = (
        json.dumps(ROW).encode()
        + b"\n"
        + bad
        + b"\n"
        + json.dumps({**ROW, "chosen": "\u00e9"}, ensure_ascii=False).encode()
    )
    good, (reject,) = rows_of(written(tmp_path / "f.jsonl", data))
    assert (len(good), reject.line, reject.reason) == (2, 2, "The row is not UTF-8 text")
    assert "\\xe9" in reject.raw


def test_a_line_that_is_not_utf8_in_an_array_or_csv_is_rejected_alone(tmp_path: Path) -> None:
    array = b'[{"prompt": "a", "chosen": "\xe9", "rejected": "c"},\n{"prompt": "a", "chosen": "b", "rejected": "c"}]'
    good, (reject,) = rows_of(written(tmp_path / "f.json", array))
    assert (len(good), reject.line, "UTF-8" in reject.reason) == (1, 1, True)
    table = b"prompt,chosen,rejected\na,\xe9,c\na,b,c\n"
    good, (reject,) = rows_of(written(tmp_path / "f.csv", table))
    assert (len(good), reject.line, "UTF-8" in reject.reason) == (1, 2, True)


@pytest.mark.parametrize("name", ["f.jsonl", "f.json", "f.csv"])
def test_a_byte_order_mark_is_no_part_of_the_first_column(name: str, tmp_path: Path) -> None:
    text = {"f.jsonl": json.dumps(ROW), "f.json": json.dumps([ROW]), "f.csv": "prompt,chosen,rejected\n2+2=,4,5\n"}[
        name
    ]
    good, rejects = rows_of(written(tmp_path / name, codecs.BOM_UTF8 + text.encode()))
    assert (len(good), rejects) == (1, [])


def test_a_huge_line_is_skipped_and_the_next_one_read(tmp_path: Path) -> None:
    path = jsonl(tmp_path / "f.jsonl", ROW, {**ROW, "chosen": "x" * 50_000}, {**ROW, "chosen": "IV"})
    good, (reject,) = rows_of(path, max_row_bytes=10_000)
    assert (len(good), reject.line, reject.reason, len(reject.raw)) == (2, 2, "The row is too long", 1000)


def test_a_deeply_nested_row_is_rejected(tmp_path: Path) -> None:
    good, (reject,) = rows_of(jsonl(tmp_path / "f.jsonl", ROW, '{"prompt": ' + "[" * 100_000 + "]" * 100_000 + "}"))
    assert (len(good), reject.line, reject.reason) == (1, 2, "The row is nested too deep")


def test_a_number_of_too_many_digits_is_rejected(tmp_path: Path) -> None:
    good, (reject,) = rows_of(jsonl(tmp_path / "f.jsonl", ROW, '{"prompt": ' + "9" * 10_000 + "}"))
    assert (len(good), reject.line) == (1, 2)


def test_nan_in_an_array_is_rejected_and_the_next_row_read(tmp_path: Path) -> None:
    text = '[{"prompt": "a", "chosen": NaN, "rejected": "c"},\n {"prompt": "a", "chosen": "b", "rejected": "c"}]'
    good, (reject,) = rows_of(written(tmp_path / "f.json", text))
    assert (len(good), reject.line, reject.broken) == (1, 1, False)
    assert "NaN" in reject.detail


def test_csv_rows_of_the_wrong_width_and_an_open_quote(tmp_path: Path) -> None:
    """Lines are those of the file: a cell with a line break moves what follows."""
    text = 'prompt,chosen,rejected\n"a\nb",c,d\ne,f\ng,h,i,j\nk,l,m\n"open,n,o\n'
    good, rejects = rows_of(written(tmp_path / "f.csv", text))
    assert [made.steps[0].tags["line"] for made in good] == ["2", "6"]
    assert [(reject.line, reject.reason) for reject in rejects] == [
        (4, "The row has 2 cells, the header 3"),
        (5, "The row has 4 cells, the header 3"),
        (7, "The row is not CSV"),
    ]
    assert rejects[0].raw == "e,f"


@pytest.mark.parametrize("separator", [",", ";", "\t"])
def test_csv_by_comma_semicolon_or_tab(separator: str, tmp_path: Path) -> None:
    text = separator.join(ROW) + "\r\n" + separator.join(ROW.values()) + "\r\n"
    good, rejects = rows_of(written(tmp_path / "f.csv", text))
    assert (len(good), rejects) == (1, [])


def test_labels_and_lists_come_as_text_in_csv(tmp_path: Path) -> None:
    text = 'prompt,completion,label\n"[{""role"": ""user"", ""content"": ""2+2=""}]",4,True\n2+2=,5,0\n'
    good, rejects = rows_of(written(tmp_path / "f.csv", text))
    assert [made.feedback[0].value for made in good] == [{"up": True}, {"up": False}]
    assert {made.steps[0].state[0].content for made in good} == {"2+2="}
    assert rejects == []


def test_null_keys_of_parquet_do_not_leak_into_json(tmp_path: Path) -> None:
    """Pitfall: two tools with different schemas through Parquet."""
    tools = [
        [{"name": "sum", "parameters": {"a": {"type": "number"}}}],
        [{"name": "find", "parameters": {"query": {"type": "string"}}}],
    ]
    talk = [[{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}]] * 2
    good, rejects = rows_of(parquet(tmp_path / "f.parquet", {"messages": talk, "tools": tools}))
    assert rejects == []
    assert [made.steps[0].state[0].tools for made in good] == [json.dumps(value) for value in tools]


def test_rows_of_parquet_are_numbered_and_keep_dates(tmp_path: Path) -> None:
    when = datetime(2023, 5, 18, 19, 57, 27)
    table = {
        "prompt": ["a", None, "c"],
        "chosen": ["d", "e", "f"],
        "rejected": ["g", "h", "i"],
        "created_at": [when] * 3,
    }
    good, (reject,) = rows_of(parquet(tmp_path / "f.parquet", table))
    assert [made.steps[0].tags["line"] for made in good] == ["1", "3"]
    assert good[0].feedback[0].at == when.replace(tzinfo=UTC)
    assert reject.line == 2


@pytest.mark.parametrize(
    ("name", "text", "container"),
    [
        ("f.jsonl", json.dumps(ROW), "jsonl"),
        ("f.json", json.dumps(ROW) + "\n" + json.dumps({**ROW, "chosen": "IV"}), "jsonl"),
        ("f.json", json.dumps([ROW]), "json"),
        ("f.json", json.dumps(ROW, indent=2) + "\n" + json.dumps({**ROW, "chosen": "IV"}, indent=2), "json"),
        ("f.jsonl", json.dumps([ROW]), "json"),
        ("f", json.dumps(ROW), "jsonl"),
        ("f.txt", "prompt,chosen,rejected\n1,2,3\n", "csv"),
    ],
)
def test_the_container_is_seen_from_name_and_content(name: str, text: str, container: str, tmp_path: Path) -> None:
    _, result = load(written(tmp_path / name, text))
    assert (result.container, result.rejected) == (container, 0)
    zipped = written(tmp_path / f"z-{name}.gz", gzip.compress(text.encode()))
    assert load(zipped)[1].container == container


def test_an_unknown_container_is_an_error_that_lists_them(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="jsonl, json, csv, parquet"):
        rows_of(jsonl(tmp_path / "f.jsonl", ROW), container="xml")


def test_pieces_of_a_large_array_come_back_whole(tmp_path: Path) -> None:
    """Longer than any piece read at once, with escapes and wide characters at every place a cut may fall."""
    many = [
        {"prompt": f'{n} \u00e9\U0001f680 \\ "quoted" \n', "chosen": "x" * (n % 977), "rejected": "?"}
        for n in range(3000)
    ]
    good, rejects = rows_of(written(tmp_path / "f.json", json.dumps(many, indent=1, ensure_ascii=False)))
    assert rejects == []
    assert [made.steps[0].state[0].content for made in good] == [row["prompt"] for row in many]
    assert [made.steps[0].tags["line"] for made in good[:3]] == ["2", "7", "12"]


def test_a_file_name_that_is_not_utf8_does_no_harm(tmp_path: Path) -> None:
    good, rejects = rows_of(jsonl(tmp_path / "f\udce9.jsonl", ROW))
    assert (len(good), rejects) == (1, [])


def test_parquet_of_large_strings_categories_decimals_and_zoned_times(tmp_path: Path) -> None:
    when = datetime(2023, 5, 18, 21, 57, 27, tzinfo=timezone(timedelta(hours=2)))
    table = pa.table(
        {
            "prompt": pa.array(["2+2="], pa.large_string()),
            "response": pa.array(["4"]).dictionary_encode(),
            "rating": pa.array([Decimal("4.0")], pa.decimal128(3, 1)),
            "timestamp": pa.array([when], pa.timestamp("us", "Europe/Berlin")),
        }
    )
    pq.write_table(table, tmp_path / "f.parquet")
    (made,), rejects = rows_of(tmp_path / "f.parquet")
    assert rejects == []
    assert (made.feedback[0].kind, made.feedback[0].value) == ("stars", {"stars": 4})
    assert made.feedback[0].at == when


@pytest.mark.parametrize(
    "garbage",
    [b"\x00\x01\x02" * 100, b"\x93NUMPY" + bytes(range(9)) * 30, b"\xff" * 100, b"{" * 50, b"\x1f\x8b" + b"\xff" * 50],
)
def test_garbage_is_a_named_error(garbage: bytes, tmp_path: Path) -> None:
    for name in ("f.jsonl", "f.json", "f.csv", "f"):
        with pytest.raises(ThumbwheelError):
            rows_of(written(tmp_path / name, garbage))


def test_a_reader_that_stops_early_and_closes_the_file_is_no_error(tmp_path: Path) -> None:
    """What a generator cannot raise it prints as "Exception ignored", in the middle of the message that matters."""
    path = tmp_path / "a.csv"
    path.write_text("prompt,chosen\na,b\nc,d\n", encoding="utf-8")
    with path.open("rb") as file:
        rows = cast(Generator[RawRow, None, None], csv_rows(io.BufferedReader(file), "a.csv", 1000))
        assert next(rows).value == {"prompt": "a", "chosen": "b"}
    rows.close()
