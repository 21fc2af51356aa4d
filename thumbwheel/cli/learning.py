"""Commands that make policies better: demo, round, train, rollback."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from thumbwheel.cli.app import File, Overrides, app, err, hint, now, opened, out, settings_from
from thumbwheel.cli.stopping import STOPPED


@app.command()
def demo(
    reckless: Annotated[
        bool, typer.Option("--reckless", help="A learning rate that wins with broken language; the gates must hold it.")
    ] = False,
    folder: Annotated[Path | None, typer.Option(help="Where everything goes; build/demo by default.")] = None,
    seed: Annotated[int, typer.Option(help="Of sampling, users, training and measuring.")] = 0,
) -> None:
    """One whole turn of the wheel on a real small language model, with simulated users. About five minutes on two cores."""
    from thumbwheel.demo.run import demo as run
    from thumbwheel.rounds.watch import Shown

    place = folder or Path("build") / ("demo-reckless" if reckless else "demo")
    with Shown(out).open() as watch:
        result, seconds = run(place, reckless=reckless, seed=seed, watch=watch, clock=now)
    out.print()
    _announce(result.report.verdict, result.version.id)
    out.print(f"Took {seconds:.0f} s. Made in {place}/: report.html, report.json, thumbwheel.db, data/")
    db = f"-s store.url=sqlite:///{place}/thumbwheel.db -s store.folder={place}/data"
    hint(
        f"open {place}/report.html",
        f"thumbwheel chat {db}        [dim]talk with the live policy[/]",
        f"thumbwheel versions {db}    [dim]what is live, and why[/]",
        "thumbwheel import FILE && thumbwheel round        [dim]the same with your own data and model[/]",
    )


@app.command(name="round")
def one_round(
    settings_file: File = None,
    overrides: Overrides = None,
    new: Annotated[bool, typer.Option("--new", help="Leave an unfinished round behind and begin another.")] = False,
) -> None:
    """One round: learn from the feedback in the store, measure the new policy blind, promote it or hold it back.

    Kill it anywhere and run it again: it goes on where it stopped.
    """
    from thumbwheel.rounds.watch import Shown

    settings = settings_from(settings_file, overrides)
    try:
        with opened(settings) as store, Shown(out, bars=settings.round.progress).open() as watch:
            from thumbwheel.rounds.run import run  # seconds of loading, which a missing store need not wait for

            result = run(store, settings, clock=now, watch=watch, fresh=new)
    except KeyboardInterrupt:
        err.print("\nStopped. Run the same command without --new again: the round goes on where it stopped.")
        raise typer.Exit(STOPPED) from None
    out.print()
    _announce(result.report.verdict, result.version.id)
    hint(
        f"open {result.html}",
        "thumbwheel versions",
        "thumbwheel chat",
        "thumbwheel rollback  [dim]if you change your mind[/]",
    )


def _announce(verdict: str, version: str) -> None:
    if verdict == "promote":
        out.print(f"[bold green]Promoted:[/] version {version} is live.")
    else:
        out.print(f"[bold yellow]Held back:[/] version {version} is not released; the one before goes on serving.")


@app.command()
def rollback(settings_file: File = None, overrides: Overrides = None) -> None:
    """Make the version that was live before the present one live again."""

    settings = settings_from(settings_file, overrides)
    with opened(settings) as store:
        version = store.rollback(now=now())
    out.print(f"Version [bold]{version.id}[/] is live again.")
    hint("thumbwheel versions")
