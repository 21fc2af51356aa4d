"""Commands that move data: import, export, erase, orphans."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from thumbwheel.cli.app import File, Overrides, app, hint, now, opened, out, say, settings_from
from thumbwheel.records import Origin, Role

# Written out, so that `--help` need not load what reads the files; a test holds it to the registry.
FORMATS = (
    "alpaca, chat, hh, labelled, openai-preference, preference, preference-chat, ratings, sharegpt, stepwise, votes, "
    "or 'module:attr'"
)


@app.command(name="import")
def import_(
    file: Annotated[Path, typer.Argument(help="JSONL, JSONL.gz, JSON, CSV or Parquet.")],
    settings_file: File = None,
    overrides: Overrides = None,
    format: Annotated[str | None, typer.Option(help=f"Worked out from the rows by default. One of: {FORMATS}.")] = None,
    container: Annotated[
        str | None, typer.Option(help="jsonl, json, csv or parquet; seen from the file by default.")
    ] = None,
    origin: Annotated[
        Origin, typer.Option(help="Who really said it, where the rows do not tell: simulated users are no people.")
    ] = "person",
    role: Annotated[Role, typer.Option(help="Whose tier of weight it gets; see feedback.role_weights.")] = "end_user",
    rejects: Annotated[
        Path | None, typer.Option(help="Where bad rows go, with line and reason; FILE.rejects.jsonl by default.")
    ] = None,
) -> None:
    """Bring a file of preferences, labels, ratings, demonstrations or chats into the store. Good rows are kept."""
    from thumbwheel.collect.formats import ImportResult, import_file
    from thumbwheel.collect.redact import Redactor
    from thumbwheel.rounds.watch import Shown

    settings = settings_from(settings_file, overrides)
    with opened(settings, create=True) as store, Shown(out).open() as watch:
        tick = watch.bar("import", "% of the file")

        def progress(result: ImportResult, share: float) -> None:
            if tick:
                tick(round(100 * share), 100)

        result = import_file(
            file,
            lambda steps: store.submit_steps(steps).result(),
            lambda feedback: store.submit_feedback(feedback, now=now()).result(),
            format=format,
            container=container,
            origin=origin,
            role=role,
            reject_path=rejects or file.with_name(file.name + ".rejects.jsonl"),
            now=now(),
            progress=progress,
            redactor=Redactor(settings.redact) if settings.redact.enabled else None,
        )
    say(result.line())
    say(f"stored: {result.steps} steps and {result.feedback} feedbacks in {settings.store.url}")
    if result.broken:
        raise typer.Exit(1)
    hint("thumbwheel round" + (f" -s store.url={settings.store.url}" if overrides else ""))


@app.command()
def export(
    view: Annotated[
        str, typer.Argument(help="preferences, labelled, demonstrations, process_labelled, transitions or groups.")
    ],
    file: Annotated[Path, typer.Argument(help="The ending decides: .jsonl, .jsonl.gz, .json, .csv, .parquet.")],
    settings_file: File = None,
    overrides: Overrides = None,
    format: Annotated[str | None, typer.Option(help="Name of the format; the view's own by default.")] = None,
) -> None:
    """Write a view of the feedback to a file that other tools read."""
    from thumbwheel.collect.formats import write
    from thumbwheel.collect.noise import NoiseFilter
    from thumbwheel.signals.views import views

    settings = settings_from(settings_file, overrides)
    made = views.get(view)
    with opened(settings) as store:
        quiet = NoiseFilter(settings.feedback)
        found = made(quiet(store.episodes(with_feedback_only=True)), settings.feedback)
    say(f"noise: {quiet.line()}")
    say(f"{view}: {found.account.line()}")
    say(write(found.rows, file, format=format).line())


@app.command()
def erase(
    who: Annotated[str, typer.Argument(help="The person's pseudonym.")],
    settings_file: File = None,
    overrides: Overrides = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
) -> None:
    """Remove all that a person said, everywhere, and list what must be retrained."""
    settings = settings_from(settings_file, overrides)
    if not yes:
        typer.confirm(f"Remove all feedback of '{who}' from {settings.store.url}? This cannot be undone", abort=True)
    with opened(settings) as store:
        erased = store.erase_person(who, now=now())
    say(f"{erased.feedback} feedbacks of '{who}' are gone; {len(erased.snapshots)} snapshots were rewritten.")
    for path in erased.missing:
        say(f"not found, so look for copies of it: {path}")
    if erased.models:
        table = Table("these learned from it and must be retrained", box=None, pad_edge=False)
        for model in erased.models:
            table.add_row(model)
        out.print(table)


@app.command()
def orphans(settings_file: File = None, overrides: Overrides = None) -> None:
    """Feedback that still waits for the step or task it is about."""
    settings = settings_from(settings_file, overrides)
    with opened(settings) as store:
        waiting = store.orphans(now=now(), older_than_h=settings.store.orphan_after_h)
    table = Table("feedback", "kind", "about", "received", box=None, pad_edge=False)
    for one in waiting:
        about = one.target.step_id or one.target.episode_id or one.target.task_id or ""
        table.add_row(one.id, one.kind, about, f"{one.received_at:%Y-%m-%d %H:%M}" if one.received_at else "")
    out.print(table if waiting else f"Nothing has waited for more than {settings.store.orphan_after_h:g} hours.")
