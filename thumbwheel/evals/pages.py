"""Pages for a person: one file each, from a template and the one style sheet. They load nothing and run no script."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from thumbwheel.errors import StoreError
from thumbwheel.stores import files as disk


@dataclass(frozen=True)
class Next:
    """What a person may do next, with the command that does it, where there is one."""

    text: str
    command: str = ""


def render(template: str, **values: Any) -> str:
    """The page of a template in `templates/`. Every text is escaped; a name the template lacks is an error."""
    environment = Environment(
        loader=PackageLoader("thumbwheel.evals"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    css = Markup(environment.get_template("report.css").render())
    return environment.get_template(template).render(css=css, **values)


def put(path: Path, text: str) -> Path:
    """Write a text whole or not at all. A lone surrogate, which no file can hold, becomes a question mark.

    Raises StoreError where the folder cannot be written.
    """
    try:
        disk.put_file(path, text.encode("utf-8", "replace"))
    except OSError as error:
        raise StoreError(f"'{path.name}' cannot be written to '{path.parent}': {disk.why(error)}.") from error
    return path
