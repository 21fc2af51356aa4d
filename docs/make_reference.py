"""Write docs/reference/*.md from the code: a page of commands, one page a package, one section a module. Run by `make docs`."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "thumbwheel"
HIDDEN = {"migrations", "templates", "__pycache__", "cli"}
COMMANDS = "commands"
MADE = "Made from the code by `make docs`; do not edit."
WIDTH = 100
CODE = r"\w[\w., ]* = \w[\w.]*\(|with \w+\(.*\) as |>>> "  # a paragraph that begins like this is a sample

Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def pages() -> dict[str, list[Path]]:
    """Page name -> the modules on it, in reading order. The page of commands has none: it is made from the command line."""
    found: dict[str, list[Path]] = {COMMANDS: [], "records-and-settings": sorted(PACKAGE.glob("[!_]*.py"))}
    for folder in sorted(path for path in PACKAGE.iterdir() if path.is_dir() and path.name not in HIDDEN):
        modules = [path for path in sorted(folder.rglob("*.py")) if not HIDDEN & set(path.parts) and section(path)]
        if modules:
            found[folder.name] = modules
    return found


def page(name: str, modules: list[Path]) -> str:
    """One page of Markdown."""
    parts = [f"# {name.replace('-', ' ').capitalize()}", MADE]
    if name == COMMANDS:
        parts += commands()
    else:
        parts.append("\n".join(f"- [{dotted(path)}](#{anchor(dotted(path))})" for path in modules))
        for path in modules:
            parts += section(path)
    return "\n\n".join(part for part in parts if part) + "\n"


def dotted(path: Path) -> str:
    """A module's name."""
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def anchor(heading: str) -> str:
    """The link of a heading, as the usual viewers of Markdown make it."""
    return heading.lower().replace(".", "").replace(" ", "-")


# ---------------------------------------------------------------------- modules


def section(path: Path) -> list[str]:
    """The module's docstring, then its public classes and functions; nothing for a module without any."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    public = [node for node in tree.body if isinstance(node, Definition) and not node.name.startswith("_")]
    if not public and (path.name == "__init__.py" or not ast.get_docstring(tree)):
        return []
    parts = [f"## {dotted(path)}", prose(tree)]
    for node in public:
        parts += [f"### {node.name}", f"```python\n{signature(node)}\n```", prose(node)]
        if isinstance(node, ast.ClassDef):
            parts += members(node)
    return parts


def prose(node: ast.Module | Definition) -> str:
    """A docstring as Markdown: samples of code and columns of words are set as they stand."""
    return "\n\n".join(map(_as_it_stands, (ast.get_docstring(node) or "").split("\n\n")))


def _as_it_stands(paragraph: str) -> str:
    """The formatter takes the indentation of what stands at the end of a docstring; this gives it back."""
    lines = paragraph.splitlines()
    columns = len(lines) > 1 and all(re.search(r"\S {2,}\S", line) for line in lines)
    if paragraph.startswith(("    ", "|", "- ")) or not (columns or re.match(CODE, paragraph)):
        return paragraph
    return "\n".join(f"    {line}" for line in lines)


def members(node: ast.ClassDef) -> Iterator[str]:
    """Public methods that say something."""
    for item in node.body:
        if isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef) and not item.name.startswith("_"):
            doc = prose(item)
            if doc:
                first, _, rest = doc.partition("\n\n")
                shown = " ".join(signature(item, alone=False).split()).replace("( ", "(").replace(", )", ")")
                yield f"- **`{shown}`** {' '.join(first.split())}"
                if rest:
                    yield "\n".join(f"  {line}" if line else "" for line in rest.splitlines())


def signature(node: Definition, *, alone: bool = True) -> str:
    """A definition without its body. A class shows its fields; a property reads as one."""
    if isinstance(node, ast.ClassDef):
        bases = ", ".join(ast.unparse(base) for base in node.bases)
        return "\n".join([f"class {node.name}({bases}):" if bases else f"class {node.name}:", *fields(node)]).rstrip(
            ":"
        )
    returns = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    marks = {ast.unparse(mark).rpartition(".")[2] for mark in node.decorator_list}
    if marks & {"property", "cached_property"}:
        return f"{node.name}{returns.replace(' ->', ':')}"
    start = ("async def " if isinstance(node, ast.AsyncFunctionDef) else "def ") if alone else ""
    arguments = [text for text in _arguments(node.args) if alone or text not in ("self", "cls")]
    line = f"{start}{node.name}({', '.join(arguments)}){returns}"
    if len(line) <= WIDTH:
        return line
    return f"{start}{node.name}(\n" + "".join(f"    {argument},\n" for argument in arguments) + f"){returns}"


def _arguments(args: ast.arguments) -> list[str]:
    """Each argument with its type and default, in order."""
    plain = [*args.posonlyargs, *args.args]
    defaults: list[ast.expr | None] = [None] * (len(plain) - len(args.defaults)) + list(args.defaults)
    shown = [_argument(one, default) for one, default in zip(plain, defaults, strict=True)]
    if args.posonlyargs:
        shown.insert(len(args.posonlyargs), "/")
    if args.vararg:
        shown.append(f"*{_argument(args.vararg, None)}")
    elif args.kwonlyargs:
        shown.append("*")
    shown += [_argument(one, default) for one, default in zip(args.kwonlyargs, args.kw_defaults, strict=True)]
    return shown + ([f"**{_argument(args.kwarg, None)}"] if args.kwarg else [])


def _argument(one: ast.arg, default: ast.expr | None) -> str:
    kind = f": {ast.unparse(one.annotation)}" if one.annotation else ""
    if default is None:
        return f"{one.arg}{kind}"
    return f"{one.arg}{kind} = {ast.unparse(default)}" if kind else f"{one.arg}={ast.unparse(default)}"


def fields(node: ast.ClassDef) -> Iterator[str]:
    """The annotated fields of a class; of a setting also its meaning."""
    for item in node.body:
        if (
            not isinstance(item, ast.AnnAssign)
            or not isinstance(item.target, ast.Name)
            or item.target.id.startswith("_")
        ):
            continue
        value, meaning = item.value, ""
        if isinstance(value, ast.Call) and ast.unparse(value.func) in ("Field", "field"):
            given = {word.arg: word.value for word in value.keywords}
            text = given.get("description")
            meaning = f"  # {text.value}" if isinstance(text, ast.Constant) else ""
            value = value.args[0] if value.args else given.get("default")
            if value is None and "default_factory" in given:
                value = ast.Call(given["default_factory"], [], [])
        default = f" = {ast.unparse(value)}" if value is not None else ""
        if len(default) > 60:
            default = " = …"
        yield f"    {item.target.id}: {ast.unparse(item.annotation)}{default}{meaning}"


# ---------------------------------------------------------------------- commands


def commands() -> Iterator[str]:
    """A section a command: what it does, what it takes."""
    import typer

    from thumbwheel.cli import app

    known: dict[str, Any] = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    for name, command in known.items():
        shown = [parameter for parameter in command.params if parameter.name != "help"]
        arguments = [one for one in shown if one.param_type_name == "argument"]
        usage = " ".join(["thumbwheel", name, *(one.name.upper() for one in arguments), "[OPTIONS]"])
        yield f"## {name}"
        yield f"```bash\n{usage}\n```"
        yield (command.help or "").strip()
        rows = [f"| {_called(one)} | {_default(one)} | {_plain(one.help or '')} |" for one in shown]
        if rows:
            yield "\n".join(["| option | default | |", "| --- | --- | --- |", *rows])


def _called(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        return f"`{parameter.name.upper()}`"
    return ", ".join(f"`{name}`" for name in parameter.opts)


def _default(parameter: Any) -> str:
    value = parameter.default
    return (
        "" if value is None or value is False or value == "" or callable(value) or parameter.required else f"`{value}`"
    )


def _plain(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def main(folder: Path = ROOT / "docs" / "reference") -> None:
    """Write every page, remove those that are no longer made, and an index."""
    folder.mkdir(parents=True, exist_ok=True)
    made = pages()
    for old in folder.glob("*.md"):
        old.unlink()
    for name, modules in made.items():
        (folder / f"{name}.md").write_text(page(name, modules), encoding="utf-8")
    index = "\n".join(f"- [{name.replace('-', ' ')}]({name}.md)" for name in made)
    (folder / "README.md").write_text(f"# Reference\n\n{MADE}\n\n{index}\n", encoding="utf-8")


if __name__ == "__main__":
    main(*[Path(argument) for argument in sys.argv[1:]])
