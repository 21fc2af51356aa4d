"""The page with the curves of a run, which every training command ends with."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from pydantic import BaseModel

from thumbwheel.cli.app import now
from thumbwheel.config import Section, Settings
from thumbwheel.evals import training_page
from thumbwheel.evals.pages import Next
from thumbwheel.train.journal import metric_rows


def chat_with(model: Path) -> str:
    """The command that talks with a saved model."""
    return f"thumbwheel chat -s model.path={model} -s store.url=sqlite:///try.db"


def put_curves(
    folder: Path,
    title: str,
    settings: Settings,
    *sections: str,
    says: str = "",
    notes: Sequence[str] = (),
    actions: Sequence[str] = (),
    model: Path | None = None,
) -> Path | None:
    """Write `folder`/curves.html of the run in `folder`; None where it logged nothing.

    `sections` are those of the settings that the run depends on; `model` is what it saved, where one can talk with it.
    """
    rows = metric_rows(folder)
    if not rows:
        return None
    return training_page.write(
        training_page.Training(
            title,
            rows,
            about=f"{folder} · {now():%Y-%m-%d %H:%M} UTC",
            says=says,
            notes=notes,
            actions=actions,
            settings=changed(settings, *sections),
            next=[] if model is None else [Next("Talk with it:", chat_with(model))],
        ),
        folder,
    )


def changed(settings: Settings, *sections: str) -> list[tuple[str, str]]:
    """(key, value) of every setting in these sections that is not its default, as one would type it."""
    return [row for name in sections for row in _changed(getattr(settings, name), f"{name}.")]


def _changed(section: BaseModel, prefix: str) -> list[tuple[str, str]]:
    default = type(section)()
    rows: list[tuple[str, str]] = []
    for name in type(section).model_fields:
        value = getattr(section, name)
        if isinstance(value, Section):
            rows += _changed(value, f"{prefix}{name}.")
        elif value != getattr(default, name):
            rows.append((f"{prefix}{name}", _text(value)))
    return rows


def _text(value: object) -> str:
    if isinstance(value, tuple) and value and isinstance(value[0], BaseModel):
        return json.dumps([one.model_dump(mode="json", exclude_defaults=True) for one in value], ensure_ascii=False)
    return str(value)
