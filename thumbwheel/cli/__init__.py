"""The command line. Heavy libraries are imported by the commands that need them, so that `--help` is instant."""

from __future__ import annotations

import sys

from thumbwheel.cli import data, learning, looking, sampling, serving, sweeping, training
from thumbwheel.cli.app import app, complain
from thumbwheel.errors import ModelError, ThumbwheelError

TRAIN_EXTRA = {"torch", "transformers", "accelerate", "peft", "safetensors", "gguf", "sklearn"}

__all__ = ["app", "data", "learning", "looking", "main", "sampling", "serving", "sweeping", "training"]


def main() -> None:
    """Run the command line; a named error is one message on stderr and exit status 1, never a traceback."""
    sys.path.append("")  # "module:attr" finds a file in the current folder; last, so that it shadows nothing
    try:
        app()
    except ThumbwheelError as error:
        complain(error)
        sys.exit(1)
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing not in TRAIN_EXTRA:
            raise
        complain(ModelError(f"This needs '{missing}', which is not installed. Run: pip install 'thumbwheel[train]'"))
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)
