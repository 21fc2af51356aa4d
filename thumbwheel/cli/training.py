"""`thumbwheel train`: one update from a file, without a store or a round."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from thumbwheel.cli.app import File, Overrides, app, hint, out, settings_from

if TYPE_CHECKING:
    from thumbwheel.config import Settings


class What(StrEnum):
    """What can be trained from a file."""

    SFT = "sft"
    DPO = "dpo"
    REWARD = "reward"


@app.command()
def train(
    what: Annotated[
        What, typer.Argument(help="sft: demonstrations; dpo: pairs (labels with update.loss=kto); reward: pairs.")
    ],
    file: Annotated[Path, typer.Argument(help="Any format that `thumbwheel import` reads.")],
    settings_file: File = None,
    overrides: Overrides = None,
    folder: Annotated[Path, typer.Option("--out", "-o", help="Where checkpoints, metrics and the model go.")] = Path(
        "trained"
    ),
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the last checkpoint in the folder.")] = False,
) -> None:
    """Train on a file: supervised fine-tuning, a reward model, or the DPO family. Killed runs go on with --resume."""
    from thumbwheel.cli.rows import rows_of
    from thumbwheel.rounds.gather import view_for

    settings = settings_from(settings_file, overrides)
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
    from thumbwheel.models.heads import RewardModel
    from thumbwheel.models.language import load
    from thumbwheel.rounds.learn import lengths_of
    from thumbwheel.train.dpo import dpo
    from thumbwheel.train.reward import reward
    from thumbwheel.train.sft import sft

    how: dict[str, Any] = {"lengths": lengths_of(settings), "resume": resume, "progress": settings.round.progress}
    if what is What.REWARD and settings.reward.trunk == "encoder":
        from thumbwheel.models.encoder import load_encoder
        from thumbwheel.train.encoder_reward import fit_encoder_reward

        return fit_encoder_reward(load_encoder(settings.reward.encoder), rows, settings.reward, folder).metrics, folder
    seed = settings.reward.seed if what is What.REWARD else settings.update.seed
    model = load(settings.model, trainable=True, seed=seed)
    if what is What.REWARD:
        result = reward(RewardModel(model, seed=seed), rows, settings.reward, folder, **how)
    elif what is What.SFT:
        result = sft(model, rows, settings.update, folder, **how)
    else:
        result = dpo(model, rows, settings.update, folder, cache=folder / "cache", **how)
    return result.metrics, result.checkpoint or folder
