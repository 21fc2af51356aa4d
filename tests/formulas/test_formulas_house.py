"""House rules of the formulas: what they import, and what each docstring must say."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import thumbwheel.formulas

ROOT = Path(__file__).resolve().parents[2]
FOLDER = Path(thumbwheel.formulas.__file__).parent
FILES = sorted(FOLDER.glob("*.py"))
FORMULAS = [path for path in FILES if path.stem not in {"figures", "__init__"}]
WITH_TORCH = {"reduce", "bradley_terry", "preference", "kl", "policy", "credit"}


def test_the_numpy_formulas_start_without_torch() -> None:
    """X1: the base installation, which has neither torch nor scipy, can measure agreement and win rates."""
    names = [path.stem for path in FILES if path.stem not in WITH_TORCH | {"__init__"}]
    script = "import sys\nfor name in ('torch', 'scipy', 'sklearn'): sys.modules[name] = None\n" + "\n".join(
        f"import thumbwheel.formulas.{name}" for name in names
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("path", FORMULAS, ids=lambda path: path.stem)
def test_a_formula_states_a_known_value_and_its_symbols(path: Path) -> None:
    """Rule 3 of the house style: equation, table, known value, for every public function."""
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("_") and node.name != "widen":
            said = ast.get_docstring(node) or ""
            assert "nown value" in said or "->" in said, f"{node.name} states no known value"
            arguments = len(node.args.args) + len(node.args.kwonlyargs)
            assert "| symbol" in said or len(said.splitlines()) <= 3 or arguments == 0, f"{node.name} has no table"


def test_the_table_of_papers_names_what_exists() -> None:
    """docs/papers.md: every function and test in it exists, and every formula with a source is in it."""
    rows = re.findall(
        r"^\|.*\| `([\w.]+)` \| `([\w/.]+)::(\w+)` \|$", (ROOT / "docs/papers.md").read_text("utf-8"), re.M
    )
    assert len(rows) > 40
    for function, test_file, test in rows:
        module, name = function.split(".")
        assert re.search(rf"^def {name}\(", (FOLDER / f"{module}.py").read_text("utf-8"), re.MULTILINE), function
        assert f"def {test}(" in (ROOT / "tests" / test_file).read_text("utf-8"), f"{test_file} has no {test}"
    listed = {function for function, _, _ in rows}
    for path in FORMULAS:
        for node in ast.parse(path.read_text("utf-8")).body:
            if isinstance(node, ast.FunctionDef) and "Source:" in (ast.get_docstring(node) or ""):
                assert f"{path.stem}.{node.name}" in listed, f"{path.stem}.{node.name} is not in docs/papers.md"
