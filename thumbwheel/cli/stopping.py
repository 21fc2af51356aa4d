"""Ctrl-C in a long command: what is left on disk, and the command that goes on from there."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import typer

from thumbwheel.cli.app import err

STOPPED = 130  # 128 and the number of the signal, as shells have it


@contextmanager
def stoppable(folder: Path) -> Iterator[None]:
    """A run in `folder` that Ctrl-C ends with two lines and exit status 130, not with a traceback."""
    try:
        yield
    except KeyboardInterrupt:
        begun = (folder / "begun").exists() or any((folder / "checkpoints").glob("[!.]*"))
        arguments = [argument for argument in sys.argv[1:] if argument != "--resume"]
        err.print()
        err.print("Stopped. What was learned up to the last checkpoint is kept." if begun else "Stopped.")
        command = shlex.join(["thumbwheel", *arguments, *(["--resume"] if begun else [])])
        err.print(f"Go on with:  {command}", markup=False, soft_wrap=True)
        raise typer.Exit(STOPPED) from None
