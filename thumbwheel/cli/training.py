"""`thumbwheel train`: one update from a file, without a store or a round."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from thumbwheel.cli.app import File, Overrides, app, hint, out, say, settings_from
from thumbwheel.cli.stopping import stoppable

if TYPE_CHECKING:
    from thumbwheel.config import Settings
    from thumbwheel.train.online import OnlineResult


class What(StrEnum):
    """What can be trained from a file."""

    SFT = "sft"
    DPO = "dpo"
    REWARD = "reward"
    PPO = "ppo"
    GRPO = "grpo"
    PICKS = "picks"


@app.command()
def train(
    what: Annotated[
        What,
        typer.Argument(
            help="sft: demonstrations; dpo: pairs (labels with update.loss=kto); reward: pairs; ppo, grpo: prompts and a reward; "
            "picks: groups that people picked from."
        ),
    ],
    file: Annotated[
        Path,
        typer.Argument(
            help="Any format that `thumbwheel import` reads; for ppo and grpo also .txt with a prompt a line; for picks what "
            "`thumbwheel export groups` wrote."
        ),
    ],
    settings_file: File = None,
    overrides: Overrides = None,
    folder: Annotated[Path, typer.Option("--out", "-o", help="Where checkpoints, metrics and the model go.")] = Path(
        "trained"
    ),
    reward_model: Annotated[
        Path | None,
        typer.Option("--reward", help="ppo, grpo: folder of a reward model made by `thumbwheel train reward`."),
    ] = None,
    preferences: Annotated[
        Path | None,
        typer.Option(help="ppo, grpo: pairs to learn from by DPO instead, should the guard give the method up."),
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the last checkpoint in the folder.")] = False,
) -> None:
    """Train on a file: supervised fine-tuning, a reward model, the DPO family, from fresh answers, or from people's picks.
    Killed runs go on with --resume."""
    from thumbwheel.cli.curves import chat_with, put_curves
    from thumbwheel.cli.rows import rows_of
    from thumbwheel.rounds.gather import view_for

    if what is What.PPO:  # said first, so that the user's own settings go before it
        overrides = ["online.recipe=ppo", *(overrides or [])]
    settings = settings_from(settings_file, overrides)
    with stoppable(folder):
        if what in (What.PPO, What.GRPO):
            _from_fresh_answers(file, settings, folder, reward_model, preferences, resume=resume)
            return
        if what is What.PICKS:
            _from_picks(file, settings, folder, resume=resume)
            return
        view = {What.SFT: "demonstrations", What.REWARD: "preferences"}.get(what) or view_for(
            settings.update.model_copy(update={"method": "dpo"})
        )
        rows = rows_of(file, view, settings)
        metrics, place = _fit(what, rows, settings, folder, resume=resume)
        for name, value in sorted(metrics.items()):
            out.print(f"  {name:<28} {value:.4g}", markup=False)
        out.print(f"Saved in [bold]{place}[/]")
        talkative = what is not What.REWARD
        page = put_curves(
            folder, what.value, settings, "model", "update" if talkative else "reward",
            says=f"{len(rows)} rows of {file}", model=place if talkative else None,
        )  # fmt: skip
        if page or talkative:
            hint(*_looked_at(page), *([chat_with(place)] if talkative else []))


def _fit(
    what: What, rows: list[Any], settings: Settings, folder: Path, *, resume: bool
) -> tuple[dict[str, float], Path]:
    """Metrics, and the folder of the saved model."""
    from thumbwheel.models.language import load
    from thumbwheel.rounds.learn import lengths_of
    from thumbwheel.train.dpo import dpo
    from thumbwheel.train.reward_ensemble import fit_reward_model
    from thumbwheel.train.sft import sft
    from thumbwheel.train.stage import MODEL

    how: dict[str, Any] = {"lengths": lengths_of(settings), "resume": resume, "progress": settings.round.progress}
    if what is What.REWARD:
        metrics = fit_reward_model(rows, settings, folder, **how)
        return metrics, folder / MODEL if (folder / MODEL).is_dir() else folder
    model = load(settings.model, trainable=True, seed=settings.update.seed)
    if what is What.SFT:
        result = sft(model, rows, settings.update, folder, **how)
    else:
        result = dpo(model, rows, settings.update, folder, cache=folder / "cache", **how)
    return result.metrics, result.checkpoint or folder


def _from_fresh_answers(
    file: Path, settings: Settings, folder: Path, reward_model: Path | None, preferences: Path | None, *, resume: bool
) -> None:
    """PPO, GRPO and their family: prompts from a file, rewards as `online.reward` lists them."""
    from thumbwheel.cli.composed import reward_from
    from thumbwheel.cli.rows import prompts_of, rows_of
    from thumbwheel.models.language import load
    from thumbwheel.train.online import online

    s = settings.online
    reward = reward_from(settings, reward_model)
    prompts = prompts_of(file)
    pairs = [] if preferences is None else rows_of(preferences, "preferences", settings)
    model = load(settings.model, trainable=True, seed=s.seed)
    result = online(
        model, prompts, reward, s, settings.sample, folder, preferences=pairs, resume=resume,
        progress=settings.round.progress,
    )  # fmt: skip
    _tell_run(result, settings, folder, f"{len(prompts)} prompts")


def _from_picks(file: Path, settings: Settings, folder: Path, *, resume: bool) -> None:
    """GRPO and its family on groups of answers that people picked from or ranked."""
    from thumbwheel.cli.rows import groups_of
    from thumbwheel.models.language import load
    from thumbwheel.rounds.learn import lengths_of
    from thumbwheel.train.picked import picked

    groups = groups_of(file)
    model = load(settings.model, trainable=True, seed=settings.online.seed)
    result = picked(
        model, groups, settings.online, folder, lengths=lengths_of(settings), resume=resume,
        progress=settings.round.progress,
    )  # fmt: skip
    say(f"answers: {result.account.line()}")
    _tell_run(result.run, settings, folder, f"{result.groups} groups", ("kl_per_response_nats", "entropy"))


FIGURES = ("reward", "kl_per_response_nats", "entropy", "length", "repetition")


def _tell_run(
    result: OnlineResult, settings: Settings, folder: Path, on: str, figures: Sequence[str] = FIGURES
) -> None:
    """What a run of the online loop made, and where to look."""
    from thumbwheel.cli.curves import chat_with, put_curves

    recipe = settings.online.recipe
    out.print(f"{recipe}: {result.iterations} iterations, {result.updates} weight updates, {on}")
    for name in figures:
        first, last = result.metrics.get(f"first_{name}"), result.metrics.get(name)
        if first is not None and last is not None:
            out.print(f"  {name:<22} {first:>9.4g}  ->  {last:.4g}", markup=False)
    for note in result.notes:
        out.print(note, markup=False, soft_wrap=True)
    for action in result.actions:
        out.print(f"guard: {action}", markup=False)
    out.print(f"Saved in [bold]{result.checkpoint}[/]")
    page = put_curves(
        folder, f"{recipe}: {result.iterations} iterations", settings, "model", "sample", "online",
        says=f"{result.updates} weight updates on {on}", notes=result.notes, actions=result.actions,
        model=result.checkpoint,
    )  # fmt: skip
    hint(*_looked_at(page), chat_with(result.checkpoint))


def _looked_at(page: Path | None) -> list[str]:
    return [] if page is None else [f"open {page}"]
