"""The reference names what is there: its pages and their modules. Its text is made anew by `make docs`."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest
import typer

from thumbwheel.cli import app

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "docs" / "reference"


@pytest.fixture(scope="module")
def generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_reference", ROOT / "docs" / "make_reference.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def headings(text: str, level: int) -> list[str]:
    outside = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    return re.findall(rf"^{'#' * level} (\S.*)$", outside, flags=re.MULTILINE)


def test_the_reference_is_up_to_date(generator: ModuleType) -> None:
    """Run `make docs` where this fails: a page, a module or a command came or went."""
    wanted = generator.pages()
    assert {path.stem for path in FOLDER.glob("*.md")} == {"README", *wanted}
    for name, modules in wanted.items():
        found = headings((FOLDER / f"{name}.md").read_text(encoding="utf-8"), 2)
        commands = list(typer.main.get_command(app).commands)  # type: ignore[attr-defined]
        assert found == ([generator.dotted(path) for path in modules] if modules else commands), name


def test_every_public_name_of_a_module_is_on_its_page(generator: ModuleType, tmp_path: Path) -> None:
    """A module as it may be, and the section that comes out of it."""
    text = generator.page("records-and-settings", generator.pages()["records-and-settings"])
    assert {"Settings", "Feedback", "Step", "Preference", "Client", "Registry"} <= set(headings(text, 3))
    assert "beta: Positive = 0.1  # strength of the pull to the reference" in text
    assert "\n\n\n" not in re.sub(r"^```.*?^```\n*", "", text, flags=re.MULTILINE | re.DOTALL)


def test_a_signature_is_read_as_it_was_written(generator: ModuleType) -> None:
    import ast

    source = "def f(a: int, /, b: str = 'x', *rest: float, flag: bool = False, **more: int) -> None: ..."
    (node,) = ast.parse(source).body
    assert generator.signature(node) == source.removesuffix(": ...")
    (node,) = ast.parse("class A(B):\n    x: int = Field(3, ge=0, description='how many')\n    _y: int = 4\n").body
    assert generator.signature(node) == "class A(B):\n    x: int = 3  # how many"
    (node,) = ast.parse("class A:\n    pass\n").body
    assert generator.signature(node) == "class A"
