"""Write docs/reference/*.md from the docstrings: one page a package, one section a module. Run by `make docs`."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "thumbwheel"
HIDDEN = {"migrations", "templates", "__pycache__"}

Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def pages() -> dict[str, list[Path]]:
    """Page name -> the modules on it, in reading order."""
    found: dict[str, list[Path]] = {"records-and-settings": sorted(PACKAGE.glob("*.py"))}
    for folder in sorted(path for path in PACKAGE.iterdir() if path.is_dir() and path.name not in HIDDEN):
        modules = [path for path in sorted(folder.rglob("*.py")) if not HIDDEN & set(path.parts)]
        if modules:
            found[folder.name] = modules
    return found


def page(name: str, modules: list[Path]) -> str:
    """One page of Markdown."""
    parts = [f"# {name.replace('-', ' ')}", "Made from the docstrings by `make docs`; do not edit."]
    for path in modules:
        parts += section(path)
    return "\n\n".join(parts) + "\n"


def section(path: Path) -> Iterator[str]:
    """The module's docstring, then its public classes and functions."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    dotted = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    public = [node for node in tree.body if isinstance(node, Definition) and not node.name.startswith("_")]
    doc = ast.get_docstring(tree)
    if not public and path.name == "__init__.py":
        return
    yield f"## {dotted}"
    if doc:
        yield doc
    for node in public:
        yield f"### {node.name}"
        yield f"```python\n{signature(node)}\n```"
        yield ast.get_docstring(node) or ""
        if isinstance(node, ast.ClassDef):
            yield from members(node)


def members(node: ast.ClassDef) -> Iterator[str]:
    """Public methods that say something."""
    for item in node.body:
        if isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef) and not item.name.startswith("_"):
            doc = ast.get_docstring(item)
            if doc:
                yield f"**`{signature(item)}`** {doc}"


def signature(node: Definition) -> str:
    """The first line of a definition, without its body."""
    if isinstance(node, ast.ClassDef):
        bases = ", ".join(ast.unparse(base) for base in node.bases)
        return f"class {node.name}({bases})" if bases else f"class {node.name}"
    returns = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    start = "async def" if isinstance(node, ast.AsyncFunctionDef) else "def"
    return f"{start} {node.name}({ast.unparse(node.args)}){returns}"


def main(folder: Path = ROOT / "docs" / "reference") -> None:
    """Write every page, remove those that are no longer made, and an index."""
    folder.mkdir(parents=True, exist_ok=True)
    made = pages()
    for old in folder.glob("*.md"):
        old.unlink()
    for name, modules in made.items():
        (folder / f"{name}.md").write_text(page(name, modules), encoding="utf-8")
    index = "\n".join(f"- [{name.replace('-', ' ')}]({name}.md)" for name in made)
    (folder / "README.md").write_text(f"# Reference\n\nMade from the docstrings by `make docs`.\n\n{index}\n", encoding="utf-8")


if __name__ == "__main__":
    main(*[Path(argument) for argument in sys.argv[1:]])
