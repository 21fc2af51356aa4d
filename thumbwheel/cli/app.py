"""What every command shares: the application, the two consoles, settings from a file and from overrides."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape

from thumbwheel import __version__
from thumbwheel.config import Settings, load
from thumbwheel.errors import NotFound, ThumbwheelError

if TYPE_CHECKING:
    from thumbwheel.stores.base import Store

# A pipe or a file has no width of its own; lines for grep are not folded at 80.
PIPED = 200
out = Console(highlight=False, width=None if sys.stdout.isatty() else PIPED)
err = Console(stderr=True, highlight=False, width=None if sys.stderr.isatty() else PIPED)

app = typer.Typer(
    name="thumbwheel",
    help="Turns human feedback into better policies, and keeps doing it.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)

DEFAULT_FILE = Path("thumbwheel.toml")

File = Annotated[
    Path | None,
    typer.Option("--settings", "-c", help="TOML file; thumbwheel.toml in this folder is read if it is there."),
]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", "-s", metavar="KEY=VALUE", help="Override a setting, such as update.beta=0.2; repeatable."),
]


def settings_from(file: Path | None, overrides: list[str] | None) -> Settings:
    """Settings of a command: the named file, else thumbwheel.toml if present, then the overrides."""
    if file is None and DEFAULT_FILE.is_file():
        file = DEFAULT_FILE
    return load(file, overrides=overrides or [])


@contextmanager
def opened(settings: Settings, *, create: bool = False) -> Iterator[Store]:
    """The store of the settings, closed at the end. Raises NotFound, with what makes one, where there is none."""
    from thumbwheel.stores.sql import open_store

    try:
        store = open_store(settings.store.url, create=create)
    except NotFound:
        raise NotFound(
            f"There is no store '{settings.store.url}' yet. `thumbwheel import FILE` and `thumbwheel serve` make one; "
            "name another with -s store.url=sqlite:///PATH."
        ) from None
    try:
        yield store
    finally:
        store.close()


def now() -> datetime:
    """The clock of the command line."""
    return datetime.now(UTC)


def complain(error: ThumbwheelError) -> None:
    """One error on stderr, with what was noted on its way up. Lines are not broken, so that they can be searched."""
    text = "\n".join([str(error), *getattr(error, "__notes__", ())])
    err.print(f"[bold red]{type(error).__name__}[/]: {escape(text)}", soft_wrap=True)


def say(text: str) -> None:
    """Text as it is on stdout: no markup, and lines are not broken."""
    out.print(text, markup=False, soft_wrap=True)


def hint(*lines: str) -> None:
    """What to run next."""
    out.print()
    out.print("[bold]Next[/]")
    for line in lines:
        out.print(f"  {line}", soft_wrap=True)  # a command that was broken cannot be copied


def _version(value: bool) -> None:
    if value:
        out.print(f"thumbwheel {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Turns human feedback into better policies, and keeps doing it."""
