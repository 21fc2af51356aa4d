"""The page on importing says what is true: every sample is of the format whose heading it stands under."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from made_files import jsonl, load

from thumbwheel.collect.formats import formats

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "howto" / "import.md").read_text(encoding="utf-8")
SECTIONS = re.findall(r"^### (\S+)\n(.*?)(?=^##)", PAGE, flags=re.MULTILINE | re.DOTALL)
SAMPLES = [(name, sample) for name, text in SECTIONS for sample in re.findall(r"```json\n(.*?)\n```", text, re.DOTALL)]


def test_every_format_has_its_section_and_its_line_in_the_table() -> None:
    assert {name for name, _ in SECTIONS} == set(formats)
    assert set(re.findall(r"^\| \[`(\S+)`\]", PAGE, flags=re.MULTILINE)) == set(formats)


@pytest.mark.parametrize(("name", "sample"), SAMPLES, ids=[f"{name}-{n}" for n, (name, _) in enumerate(SAMPLES)])
def test_a_sample_is_recognised_and_imported_whole(name: str, sample: str, tmp_path: Path) -> None:
    memory, result = load(jsonl(tmp_path / "f.jsonl", sample))
    assert (result.format, result.imported, result.rejected) == (name, 1, 0)
    assert result.unused == {}
    assert len(memory.feedback) >= 1
    json.loads(sample)


def test_the_python_example_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    jsonl(tmp_path / "pairs.jsonl", {"prompt": "2+2=", "chosen": "4", "rejected": "5"}, "oops")
    (code,) = re.findall(r"```python\n(.*?)\n```", PAGE, re.DOTALL)
    names: dict[str, object] = {}
    exec(compile(code, "import.md", "exec"), names)
    names["store"].close()  # type: ignore[attr-defined]
    assert len(names["rows"]) == 1  # type: ignore[arg-type]
    assert (tmp_path / "rejects.jsonl").exists()
