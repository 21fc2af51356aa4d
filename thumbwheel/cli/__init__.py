"""The command line. Heavy libraries are imported by the commands that need them, so that `--help` is instant."""

from __future__ import annotations

import sys

from thumbwheel.cli import data, learning, looking, serving, training
from thumbwheel.cli.app import app, complain
from thumbwheel.errors import ThumbwheelError

__all__ = ["app", "data", "learning", "looking", "main", "serving", "training"]


def main() -> None:
    """Run the command line; a named error is one message on stderr and exit status 1, never a traceback."""
    try:
        app()
    except ThumbwheelError as error:
        complain(error)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)
