"""The docs keep up with the code: every command parses, every setting exists, every import resolves."""

from __future__ import annotations

import ast
import re
import shlex
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer

from thumbwheel.cli import app
from thumbwheel.config import Section, Settings, from_tree, load

ROOT = Path(__file__).resolve().parents[2]
PAGES = [
    path
    for path in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
    if "reference" not in path.relative_to(ROOT).parts
]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
SHELL = {"console", "bash", "sh"}
COMMANDS = typer.main.get_command(app)


def blocks(page: Path, *languages: str) -> list[str]:
    return [code for language, code in FENCE.findall(page.read_text(encoding="utf-8")) if language in languages]


def commands(page: Path) -> Iterator[tuple[str, bool]]:
    """Every line that runs thumbwheel, and whether it is one to type: in shell and indented blocks it is, in a sentence not."""
    text = page.read_text(encoding="utf-8")
    for code in blocks(page, *SHELL):
        yield from _of_lines(code.replace("\\\n", " "))
    prose = FENCE.sub("", text)
    yield from _of_lines("\n".join(line[4:] for line in prose.splitlines() if line.startswith("    ")))
    for code in re.findall(r"`(thumbwheel [^`]+)`", prose):
        if not re.search(r"[\[\]…]|[A-Z]{3,}", code):  # a pattern with placeholders, not a command
            yield code, False


def _of_lines(code: str) -> Iterator[tuple[str, bool]]:
    for line in code.splitlines():
        for part in line.removeprefix("$ ").split("&&"):
            if part.strip().startswith("thumbwheel "):
                yield part.strip(), True


TYPED = [(page, command, whole) for page in PAGES for command, whole in commands(page)]


def test_there_are_commands_to_check() -> None:
    assert len(TYPED) > 40
    assert len({page for page, _, _ in TYPED}) > 8


@pytest.mark.parametrize(
    ("page", "command", "whole"), TYPED, ids=[f"{page.stem}-{n}" for n, (page, _, _) in enumerate(TYPED)]
)
def test_a_command_of_the_docs_parses(page: Path, command: str, *, whole: bool) -> None:
    """Pitfall: every documented command on a clean install. Command, options, number of arguments and settings are right."""
    name, *arguments = shlex.split(command, comments=True)[1:]
    if name == "--help":
        return
    known = COMMANDS.commands  # type: ignore[attr-defined]
    assert name in known, f"{page.name}: there is no command '{name}'"
    try:
        context = known[name].make_context(name, list(arguments))
    except Exception as error:  # a usage error, of typer's own copy of click
        if type(error).__name__ == "MissingParameter" and not whole:
            return
        raise
    load(overrides=context.params.get("overrides") or [])


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.stem)
def test_settings_of_the_docs_exist(page: Path) -> None:
    """TOML blocks load, and `section.key` in running text is a setting."""
    for code in blocks(page, "toml"):
        from_tree(tomllib.loads(code))
    for section, key in re.findall(r"`(\w+)\.(\w+)(?:=[^`]*|\s=[^`]*)?`", page.read_text(encoding="utf-8")):
        field = Settings.model_fields.get(section)
        kind = field.annotation if field else None
        if key == "py":  # a file of the package
            continue
        if isinstance(kind, type) and issubclass(kind, Section) and not (ROOT / "docs" / f"{section}.{key}").exists():
            assert key in kind.model_fields or f"{section}.{key}" in FILES, f"{page.name}: no setting {section}.{key}"


FILES = {"update.json", "reward.json", "evals.reward"}


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.stem)
def test_python_of_the_docs_compiles_and_its_imports_resolve(page: Path) -> None:
    for code in blocks(page, "python"):
        for node in ast.walk(ast.parse(code)):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("thumbwheel"):
                found = _names_of(node.module or "")
                for alias in node.names:
                    assert alias.name in found, f"{page.name}: {node.module} has no '{alias.name}'"


def _names_of(module: str) -> set[str]:
    """What stands at the top level of a module, without importing it (and torch with it)."""
    base = ROOT / Path(*module.split("."))
    path = base.with_suffix(".py") if base.with_suffix(".py").exists() else base / "__init__.py"
    names = {child.stem for child in base.glob("*")} if base.is_dir() else set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                names.add(name)
            case ast.Import(names=found) | ast.ImportFrom(names=found):
                names.update(alias.asname or alias.name for alias in found)
            case ast.Assign(targets=targets):
                names.update(target.id for target in targets if isinstance(target, ast.Name))
            case ast.AnnAssign(target=ast.Name(id=name)):
                names.add(name)
    return names


@pytest.mark.parametrize("page", ["settings.md"])
def test_python_that_needs_nothing_runs(page: str) -> None:
    """Others run where their subject is tested: see tests/collect, tests/web, tests/walks."""
    for code in blocks(ROOT / "docs" / "howto" / page, "python"):
        exec(compile(code, page, "exec"), {})


def test_every_page_is_in_the_index() -> None:
    index = (ROOT / "docs" / "README.md").read_text(encoding="utf-8")
    linked = set(re.findall(r"\]\(([^)#]+)\)", index))
    for page in PAGES:
        place = page.relative_to(ROOT)
        if place.parts[0] == "docs" and place.parts[1] not in ("decisions", "README.md"):
            assert str(page.relative_to(ROOT / "docs")) in linked, f"docs/README.md does not name {place}"
