"""`thumbwheel train`: one update from a file, without a store or a round."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from thumbwheel.cli.app import File, Overrides, app, hint, out, settings_from
from thumbwheel.errors import SettingError

if TYPE_CHECKING:
    from thumbwheel.config import Settings


class What(StrEnum):
    """What can be trained from a file."""

    SFT = "sft"
    DPO = "dpo"
    REWARD = "reward"
    PPO = "ppo"
    GRPO = "grpo"


@app.command()
def train(
    what: Annotated[
        What,
        typer.Argument(
            help="sft: demonstrations; dpo: pairs (labels with update.loss=kto); reward: pairs; ppo, grpo: prompts and a reward."
        ),
    ],
    file: Annotated[
        Path,
        typer.Argument(
            help="Any format that `thumbwheel import` reads; for ppo and grpo also .txt with a prompt a line."
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
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the last checkpoint in the folder.")] = False,
) -> None:
    """Train on a file: supervised fine-tuning, a reward model, the DPO family, or from fresh answers. Killed runs go on
    with --resume."""
    from thumbwheel.cli.rows import rows_of
    from thumbwheel.rounds.gather import view_for

    if what is What.PPO:  # said first, so that the user's own settings go before it
        overrides = ["online.recipe=ppo", *(overrides or [])]
    settings = settings_from(settings_file, overrides)
    if what in (What.PPO, What.GRPO):
        _from_fresh_answers(file, settings, folder, reward_model, resume=resume)
        return
    view = {What.SFT: "demonstrations", What.REWARD: "preferences"}.get(what) or view_for(
        settings.update.model_copy(update={"method": "dpo"})
    )
    rows = rows_of(file, view, settings)
    metrics, place = _fit(what, rows, settings, folder, resume=resume)
    for name, value in sorted(metrics.items()):
        out.print(f"  {name:<28} {value:.4g}", markup=False)
    out.print(f"Saved in [bold]{place}[/]")
    if what is not What.REWARD:
        hint(f"thumbwheel chat -s model.path={place} -s store.url=sqlite:///try.db")


def _fit(
    what: What, rows: list[Any], settings: Settings, folder: Path, *, resume: bool
) -> tuple[dict[str, float], Path]:
    """Metrics, and the folder of the saved model."""
    from thumbwheel.models.language import load
    from thumbwheel.rounds.learn import lengths_of
    from thumbwheel.train.dpo import dpo
    from thumbwheel.train.reward_ensemble import fit_reward_model
    from thumbwheel.train.sft import sft

    how: dict[str, Any] = {"lengths": lengths_of(settings), "resume": resume, "progress": settings.round.progress}
    if what is What.REWARD:
        return fit_reward_model(rows, settings, folder, **how), folder
    model = load(settings.model, trainable=True, seed=settings.update.seed)
    if what is What.SFT:
        result = sft(model, rows, settings.update, folder, **how)
    else:
        result = dpo(model, rows, settings.update, folder, cache=folder / "cache", **how)
    return result.metrics, result.checkpoint or folder


def _from_fresh_answers(
    file: Path, settings: Settings, folder: Path, reward_model: Path | None, *, resume: bool
) -> None:
    """PPO, GRPO and their family: prompts from a file, rewards as `online.reward` lists them."""
    from thumbwheel.cli.rows import prompts_of
    from thumbwheel.models.language import load
    from thumbwheel.signals.reward_terms import open_reward
    from thumbwheel.train.online import online
    from thumbwheel.train.reward_ensemble import reward_scorers

    s = settings.online
    scorers = {} if reward_model is None else reward_scorers(reward_model, settings)
    needs = any(
        name.partition(".")[0] == "reward_model" for term in s.reward.terms for name in (term.scorer, *term.members)
    )
    if needs and reward_model is None:
        raise SettingError.of(
            "The reward asks for a reward model, and none was named.",
            allowed="--reward FOLDER, or online.reward.terms of your own such as {name='length', scorer='my_pkg.rules:score'}",
            got="neither",
            next="Make one with: thumbwheel train reward comparisons.jsonl --out my-reward",
        )
    reward = open_reward(s.reward, scorers=scorers, max_unscored_share=1.0)  # `online` checks each iteration
    prompts = prompts_of(file)
    model = load(settings.model, trainable=True, seed=s.seed)
    result = online(model, prompts, reward, s, settings.sample, folder, resume=resume, progress=settings.round.progress)
    out.print(f"{s.recipe}: {result.iterations} iterations, {result.updates} weight updates, {len(prompts)} prompts")
    for name in ("reward", "kl_per_response_nats", "entropy", "length", "repetition"):
        first, last = result.metrics.get(f"first_{name}"), result.metrics.get(name)
        if first is not None and last is not None:
            out.print(f"  {name:<22} {first:>9.4g}  ->  {last:.4g}", markup=False)
    for note in result.notes:
        out.print(note, markup=False, soft_wrap=True)
    for action in result.actions:
        out.print(f"guard: {action}", markup=False)
    out.print(f"Saved in [bold]{result.checkpoint}[/]")
    hint(f"thumbwheel chat -s model.path={result.checkpoint} -s store.url=sqlite:///try.db")
