"""Commands that move data: import, export, erase, orphans."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from thumbwheel.cli.app import File, Overrides, app, hint, now, out, settings_from


@app.command(name="import")
def import_(
    file: Annotated[Path, typer.Argument(help="JSONL, JSONL.gz, JSON, CSV or Parquet.")],
    settings_file: File = None,
    overrides: Overrides = None,
    format: Annotated[str | None, typer.Option(help="Name of the format; worked out from the rows by default.")] = None,
    rejects: Annotated[Path | None, typer.Option(help="Where bad rows go, with line and reason.")] = None,
) -> None:
    """Bring a file of preferences, labels, ratings, demonstrations or chats into the store. Good rows are kept."""
    from thumbwheel.collect.formats import import_file
    from thumbwheel.collect.redact import redactor
    from thumbwheel.rounds.watch import Shown
    from thumbwheel.stores.sql import open_store

    settings = settings_from(settings_file, overrides)
    reject_path = rejects or file.with_name(file.name + ".rejects.jsonl")
    store = open_store(settings.store.url)
    try:
        with Shown(out).open() as watch:
            result = import_file(
                file,
                store,
                format=format,
                reject_path=reject_path,
                now=now(),
                redact=redactor(settings.redact),
                progress=watch.bar("import", "rows"),
            )
    finally:
        store.close()
    out.print(f"Read as [bold]{result.format}[/]: {result.because}")
    out.print(
        f"{result.read} rows read = {result.imported} imported + {result.duplicate} duplicate + {result.rejected} rejected"
    )
    for reason, n in result.reasons.most_common(5):
        out.print(f"  {n:>6}  {reason}")
    if result.rejected:
        out.print(f"The rejected rows are in {reject_path}, with line and reason.")
    hint(f"thumbwheel round -s store.url={settings.store.url}" if overrides else "thumbwheel round")


@app.command()
def export(
    view: Annotated[
        str, typer.Argument(help="preferences, labelled, demonstrations, process_labelled or transitions.")
    ],
    file: Annotated[Path, typer.Argument(help="The ending decides: .jsonl, .jsonl.gz, .json, .csv, .parquet.")],
    settings_file: File = None,
    overrides: Overrides = None,
    format: Annotated[str | None, typer.Option(help="Name of the format; the view's own by default.")] = None,
) -> None:
    """Write a view of the feedback to a file that other tools read."""
    from thumbwheel.collect.formats import write
    from thumbwheel.signals.views import views
    from thumbwheel.stores.sql import open_store

    settings = settings_from(settings_file, overrides)
    store = open_store(settings.store.url, create=False)
    try:
        found = views.get(view)(store.episodes(with_feedback_only=True), settings.feedback)
    finally:
        store.close()
    n = write(found.rows, file, format=format)
    out.print(f"{n} {view} written to {file}; {found.account.line()}")


@app.command()
def erase(
    who: Annotated[str, typer.Argument(help="The person's pseudonym.")],
    settings_file: File = None,
    overrides: Overrides = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
) -> None:
    """Remove all that a person said, everywhere, and list what must be retrained."""
    from thumbwheel.stores.sql import open_store

    settings = settings_from(settings_file, overrides)
    if not yes:
        typer.confirm(f"Remove all feedback of '{who}' from {settings.store.url}? This cannot be undone", abort=True)
    store = open_store(settings.store.url, create=False)
    try:
        erased = store.erase_person(who, now=now())
    finally:
        store.close()
    out.print(f"{erased.feedback} feedbacks of '{who}' are gone; {len(erased.snapshots)} snapshots were rewritten.")
    if erased.models:
        table = Table("these learned from it and must be retrained", box=None, pad_edge=False)
        for model in erased.models:
            table.add_row(model)
        out.print(table)


@app.command()
def orphans(settings_file: File = None, overrides: Overrides = None) -> None:
    """Feedback that still waits for the step or task it is about."""
    from thumbwheel.stores.sql import open_store

    settings = settings_from(settings_file, overrides)
    store = open_store(settings.store.url, create=False)
    try:
        waiting = store.orphans(now=now(), older_than_h=settings.store.orphan_after_h)
    finally:
        store.close()
    table = Table("feedback", "kind", "about", "received", box=None, pad_edge=False)
    for one in waiting:
        about = one.target.step_id or one.target.episode_id or one.target.task_id or ""
        table.add_row(one.id, one.kind, about, f"{one.received_at:%Y-%m-%d %H:%M}" if one.received_at else "")
    out.print(table if waiting else f"Nothing has waited for more than {settings.store.orphan_after_h:g} hours.")
