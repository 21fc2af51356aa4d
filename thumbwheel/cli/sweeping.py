"""`thumbwheel sweep`: one method with several strengths of the pull to the reference, compared on validation prompts."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from thumbwheel.cli.app import File, Overrides, app, err, hint, now, out, say, settings_from
from thumbwheel.cli.stopping import STOPPED
from thumbwheel.errors import SettingError, explain

if TYPE_CHECKING:
    from thumbwheel.cli.points import Job
    from thumbwheel.evals.pages import Next
    from thumbwheel.train.sweep import Found


class Swept(StrEnum):
    """What can be swept."""

    DPO = "dpo"
    GRPO = "grpo"
    PPO = "ppo"


@app.command()
def sweep(
    what: Annotated[
        Swept, typer.Argument(help="dpo: values of update.beta; grpo, ppo: of online.kl.coefficient, or of its target.")
    ],
    file: Annotated[Path, typer.Argument(help="Pairs for dpo; prompts for grpo and ppo, also a .txt with one a line.")],
    more: Annotated[list[str] | None, typer.Argument(hidden=True)] = None,
    values: Annotated[
        list[str] | None,
        typer.Option(
            "--values", help="What to try, such as 0.01 0.05 0.1 0.5, or 0.01,0.05; four usual ones by default."
        ),
    ] = None,
    settings_file: File = None,
    overrides: Overrides = None,
    folder: Annotated[
        Path, typer.Option("--out", "-o", help="Where points and the page go; run again, it goes on.")
    ] = Path("sweep"),
    validation: Annotated[
        Path | None, typer.Option(help="Prompts to compare on; by default a share (eval_share) of FILE's is held out.")
    ] = None,
    reward_model: Annotated[
        Path | None, typer.Option("--reward", help="Folder of a reward model made by `thumbwheel train reward`.")
    ] = None,
    max_kl_per_token: Annotated[
        float, typer.Option(help="A point this far from the reference, in nats, is not picked.")
    ] = 0.5,
) -> None:
    """Train with several β (or KL targets), compare reward and KL on validation prompts, and pick one by a stated rule.

    Kill it anywhere and run it again: it goes on where it stopped.
    """  # fmt: skip
    from thumbwheel.cli.points import open_job
    from thumbwheel.train.sweep import sweep as run

    if not max_kl_per_token > 0:
        raise SettingError(
            explain("'--max-kl-per-token' is no bound.", allowed="a number of nats above 0", got=max_kl_per_token)
        )
    given = numbers([*(values or []), *(more or [])])
    settings = settings_from(
        settings_file, ["online.recipe=ppo", *(overrides or [])] if what is Swept.PPO else overrides
    )
    job = open_job(what, file, settings, folder, given, reward_model=reward_model, validation=validation)
    try:
        found = run(
            job.values, job.run, folder, reference=job.reference, inputs=job.inputs(),
            max_kl_per_token_nats=max_kl_per_token, knob=job.knob,
        )  # fmt: skip
    except KeyboardInterrupt:
        err.print("\nStopped. The same command goes on where it was.")
        raise typer.Exit(STOPPED) from None
    again = _command(what, file, settings_file, overrides, folder, validation, reward_model, max_kl_per_token)
    _tell(found, job, again, max_kl_per_token)


def numbers(texts: Sequence[str]) -> list[float]:
    """Numbers that were typed apart or with commas between. Raises SettingError for what is none."""
    found = []
    for text in (part for one in texts for part in one.replace(",", " ").split()):
        try:
            found.append(float(text))
        except ValueError:
            raise SettingError(
                explain("A sweep tries numbers.", allowed="such as --values 0.01 0.05 0.1 0.5", got=text)
            ) from None
    return found


def _command(
    what: Swept, file: Path, settings_file: Path | None, overrides: Sequence[str] | None, folder: Path,
    validation: Path | None, reward_model: Path | None, max_kl_per_token: float,
) -> list[str]:  # fmt: skip
    """What was typed, without its values."""
    words = ["thumbwheel", "sweep", what.value, str(file), "-o", str(folder)]
    for flag, value in (("-c", settings_file), ("--validation", validation), ("--reward", reward_model)):
        words += [] if value is None else [flag, str(value)]
    words += [] if max_kl_per_token == 0.5 else ["--max-kl-per-token", f"{max_kl_per_token:g}"]
    return [*words, *(word for override in overrides or () for word in ("-s", override))]


def _tell(found: Found, job: Job, again: Sequence[str], max_kl_per_token: float) -> None:
    """The table, the page, and what to run next."""
    from rich.table import Table

    from thumbwheel.cli.curves import changed
    from thumbwheel.evals import sweep_page

    table = Table(job.knob.name, "reward", "KL a token", "KL a response", "answers", "", box=None, pad_edge=False)
    for point in (found.reference, *found.points):
        picked = point is not found.reference and point.value == found.picked
        table.add_row(
            "reference" if point is found.reference else f"{point.value:g}",
            sweep_page.with_error(point.reward, sweep_page.DEVIATIONS * point.error),
            f"{point.kl_per_token_nats:.3g}",
            f"{point.kl_per_response_nats:.3g}",
            str(point.answers),
            "[bold green]picked[/]" if picked else "",
        )
    out.print()
    out.print(table)
    out.print("Errors are of 95 %; KL is in nats.", style="dim")
    say(f"Picked {found.why}" if found.picked is not None else f"Nothing is picked. {found.why}")
    steps = next_steps(found, job, again, max_kl_per_token)
    page = sweep_page.write(
        sweep_page.Sweep(
            found.points,
            found.reference,
            found.picked,
            found.why if found.picked is None else f"Picked {found.why}",
            job.knob.name,
            max_kl_per_token,
            about=f"{job.folder} · {now():%Y-%m-%d %H:%M} UTC",
            says=f"{job.method}: {job.sides.told}",
            next=steps,
            settings=changed(job.settings, *job.sections),
            links=job.pages(),
        ),
        job.folder,
    )
    out.print(f"Made in {job.folder}/: sweep.html, sweep.json, and a folder a value", markup=False)
    hint(f"open {page}", *(escape(step.command) for step in steps if step.command.startswith("thumbwheel ")))


def next_steps(found: Found, job: Job, again: Sequence[str], max_kl_per_token: float) -> list[Next]:
    """What may be done with what was picked, or about it that nothing was."""
    from thumbwheel.cli.curves import chat_with
    from thumbwheel.evals.pages import Next
    from thumbwheel.train.sweep import further

    steps = []
    if found.picked is not None:
        section, _, key = job.knob.key.rpartition(".")
        steps += [
            Next("Talk with it:", chat_with(job.folder / f"{found.picked:.12g}" / "model")),
            Next("Learn so in a round: put this into thumbwheel.toml.", f"[{section}]\n{key} = {found.picked:g}"),
        ]
    why, values = further(found.points, found.picked, max_kl_per_token_nats=max_kl_per_token, knob=job.knob)
    if why:
        tried = ",".join(f"{value:g}" for value in sorted({*values, *(point.value for point in found.points)}))
        steps.append(Next(f"{why}. Finished points are kept:", shlex.join([*again, "--values", tried])))
    if found.picked is None:
        longer = "online.iterations" if job.online else "update.epochs"
        steps.append(
            Next(f"Or train longer ({longer}) in another folder, or measure on more prompts (--validation FILE).")
        )
    return steps
