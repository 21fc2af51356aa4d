"""The house rules that a machine can see: sizes, names, docstrings, docs that match the code."""

from __future__ import annotations

import ast
import re
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "thumbwheel"
SOURCES = sorted(PACKAGE.rglob("*.py"))
NO_NAMES = {"utils", "util", "common", "helpers", "helper", "manager", "misc"}


def tracked() -> list[Path]:
    """Files git knows or would add; the whole tree where there is no git."""
    try:
        out = subprocess.run(
            ["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True, check=True
        ).stdout
    except (OSError, subprocess.CalledProcessError):
        return [path for path in ROOT.rglob("*") if path.is_file() and ".venv" not in path.parts]
    return [ROOT / line for line in out.splitlines() if (ROOT / line).is_file()]


def public_definitions(tree: ast.Module) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef]:
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and not node.name.startswith("_"):
            yield node


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_file_is_one_idea(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 400, "over 400 lines is usually two ideas"
    assert not NO_NAMES & set(re.split(r"[_.]", path.stem)), "a file is named by its noun"
    tree = ast.parse(text)
    if text.strip():
        assert ast.get_docstring(tree), "a module says what it is"
    for node in public_definitions(tree):
        assert ast.get_docstring(node), f"{node.name} has no docstring"


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_function_fits_on_a_screen(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert (node.end_lineno or 0) - node.lineno < 90, f"{node.name} is too long to read"


def test_users_input_is_never_asserted() -> None:
    for path in SOURCES:
        if "testing" in path.parts:
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            assert not isinstance(node, ast.Assert), (
                f"{path.relative_to(ROOT)}:{node.lineno} asserts; raise a named error"
            )


def test_the_project_speaks_of_itself_alone() -> None:
    """No path of one machine, and no package registry's host, in any file."""
    spoken = re.compile(r"(?<![\w.])/(?:work|home|root)/\w|pypi\.o" + r"rg|registry\.npm" + r"js|deb\.deb" + "ian")
    for path in tracked():
        if path.suffix in {".png", ".parquet", ".gz", ".arrow"} or path.name == "LICENSE":
            continue
        for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), start=1):
            assert not spoken.search(line), f"{path.relative_to(ROOT)}:{number}: {line.strip()[:100]}"


def test_pins_cover_every_dependency() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    pins = {
        line.split("==")[0].lower().replace("_", "-")
        for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
        if "==" in line
    }
    wanted = list(project["dependencies"])
    for extra in ("train", "dev", "bench"):
        wanted += project["optional-dependencies"][extra]
    for requirement in wanted:
        name = re.split(r"[\[<>=!~; ]", requirement)[0].lower().replace("_", "-")
        assert name in pins, f"{name} has no pin in constraints.txt"


def test_no_two_test_files_have_one_name() -> None:
    """They are collected as modules by their name alone: the second of two is an error, wherever both are run."""
    names = [path.name for path in (ROOT / "tests").rglob("*.py") if path.name not in ("conftest.py", "__init__.py")]
    assert sorted(names) == sorted(set(names))


def test_decisions_are_numbered_once() -> None:
    numbers = [path.name[:4] for path in (ROOT / "docs" / "decisions").glob("*.md")]
    assert all(number.isdigit() for number in numbers)
    assert len(numbers) == len(set(numbers))


def test_every_named_benchmark_exists() -> None:
    text = "\n".join(
        path.read_text(encoding="utf-8") for path in [ROOT / "Makefile", *ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]
    )
    for name in set(re.findall(r"make bench-([a-z-]+)", text)) - {"name"}:
        assert (ROOT / "benchmarks" / f"{name.replace('-', '_')}.py").is_file(), f"make bench-{name} has no file"


def test_links_in_the_docs_lead_somewhere() -> None:
    for page in [ROOT / "README.md", ROOT / "CHANGELOG.md", *ROOT.glob("docs/**/*.md")]:
        for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
            if not re.match(r"[a-z]+:", target):
                assert (page.parent / target).exists(), f"{page.relative_to(ROOT)} links to {target}"
