"""Middle stages: a reward model from the preferences, and one update of the policy."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

from thumbwheel.config import Settings
from thumbwheel.errors import CheckpointError
from thumbwheel.evals.judges import Floats, Scorer
from thumbwheel.evals.reward import RewardCheck, reward_figures, score_pairs
from thumbwheel.models.encoder import load_encoder
from thumbwheel.models.heads import RewardModel, load_reward_model
from thumbwheel.models.language import LanguageModel, load
from thumbwheel.models.scoring import score_answers
from thumbwheel.records import Demonstration, Labelled, Preference, Prompt
from thumbwheel.rounds.gather import Row
from thumbwheel.rounds.stages import Outcome
from thumbwheel.rounds.watch import Tick
from thumbwheel.signals.prompts import prompt_key
from thumbwheel.signals.reward_terms import open_reward as open_composed
from thumbwheel.train.dpo import dpo
from thumbwheel.train.encoder_reward import HEAD as ENCODER_HEAD
from thumbwheel.train.encoder_reward import fit_encoder_reward, load_encoder_reward
from thumbwheel.train.loop import StepReport
from thumbwheel.train.online import online
from thumbwheel.train.reward import reward
from thumbwheel.train.rows import Lengths
from thumbwheel.train.sft import sft
from thumbwheel.train.stage import MODEL

LEAST_PAIRS = 8
HELD_FOR_CURVES = 32
REWARD, UPDATE = "reward", "update"


# ---------------------------------------------------------------------- reward model


def fit_reward(
    train: Sequence[Preference], held: Sequence[Preference], settings: Settings, *, folder: Path, tick: Tick | None
) -> Outcome:
    """Fit the reward model and measure it on held-out pairs. `kind` is None, and `why` says why, where there is none."""
    if not settings.reward.enabled:
        return {"kind": None, "why": "reward.enabled is false"}
    if len(train) < LEAST_PAIRS:
        return {"kind": None, "why": f"{len(train)} preferences are too few for one ({LEAST_PAIRS} are needed)"}
    if settings.reward.trunk == "encoder":
        encoder = load_encoder(settings.reward.encoder)
        metrics = fit_encoder_reward(encoder, train, settings.reward, folder / REWARD).metrics
    else:
        model = RewardModel(load(settings.model, trainable=True, seed=settings.reward.seed), seed=settings.reward.seed)
        metrics = reward(
            model,
            train,
            settings.reward,
            folder / REWARD,
            lengths=lengths_of(settings),
            heldout=held[:HELD_FOR_CURVES],
            resume=_begun(folder / REWARD),
            watcher=_watcher(tick),
            progress=False,
        ).metrics
    outcome: Outcome = {"kind": settings.reward.trunk, "metrics": metrics, "n_train": len(train), "n_held": len(held)}
    check = check_reward(held, settings, outcome, folder=folder)
    return {**outcome, "figures": [one.model_dump(mode="json") for one in check.figures] if check else []}


def open_reward(settings: Settings, outcome: Outcome, *, folder: Path) -> Scorer | None:
    """The reward model of a finished stage as a scorer (prompts, texts) -> (n,); None where there is none."""
    if outcome.get("kind") is None:
        return None
    return reward_scorer(folder / REWARD, settings)


def reward_scorer(folder: Path, settings: Settings) -> Scorer:
    """The reward model that training left in `folder`, of either trunk, as a scorer.

    Raises CheckpointError where the folder holds none.
    """
    if (folder / ENCODER_HEAD).exists():
        return load_encoder_reward(folder, load_encoder(settings.reward.encoder)).score
    inner = folder / MODEL if (folder / MODEL).exists() else folder
    model = load_reward_model(settings.model.model_copy(update={"path": str(inner)}))

    def score(prompts: Sequence[Prompt], texts: Sequence[str]) -> Floats:
        return score_answers(model, prompts, texts, max_length=settings.model.max_length)

    return score


def check_reward(
    held: Sequence[Preference], settings: Settings, outcome: Outcome, *, folder: Path
) -> RewardCheck | None:
    """Figures of the reward model on held-out pairs; None without a model or pairs."""
    scorer = open_reward(settings, outcome, folder=folder)
    if scorer is None or not held:
        return None
    pairs = score_pairs(held, scorer, temperature=settings.reward.temperature)
    return reward_figures(pairs, settings=settings.evals, seed=settings.seed)


def reward_line(outcome: Outcome) -> str:
    """One line for people: how well the reward model agrees with them on pairs it has not seen."""
    found = {figure["name"]: figure for figure in outcome.get("figures", ())}
    accuracy, longer = found.get("reward_accuracy"), found.get("longer_accuracy")
    if not accuracy or accuracy["value"] is None:
        return f"reward model from {outcome['n_train']} pairs; there are no held-out pairs to measure it on"
    span = f" ({accuracy['low']:.0%} to {accuracy['high']:.0%})" if accuracy["low"] is not None else ""
    beside = (
        f"; always picking the longer answer: {longer['value']:.0%}" if longer and longer["value"] is not None else ""
    )
    return (
        f"reward model from {outcome['n_train']} pairs agrees with people on {accuracy['value']:.0%}{span} "
        f"of {accuracy['n']} held-out pairs{beside}"
    )


# ---------------------------------------------------------------------- policy


def fit_policy(
    model: LanguageModel,
    rows: Sequence[Row],
    held: Sequence[Row],
    settings: Settings,
    *,
    folder: Path,
    tick: Tick | None,
    scorer: Scorer | None = None,
) -> Outcome:
    """One update of `model`; goes on from the last checkpoint where the stage was cut short.

    `scorer` is the round's reward model, which an online update learns from.
    """
    how: dict[str, Any] = {
        "lengths": lengths_of(settings),
        "heldout": held[:HELD_FOR_CURVES],
        "resume": _begun(folder / UPDATE),
        "watcher": _watcher(tick),
        "progress": False,
    }
    if settings.update.method == "online":
        return fit_online(model, [row.prompt for row in rows], settings, folder=folder, scorer=scorer, tick=tick)
    if settings.update.method == "sft":
        result = sft(model, cast(Sequence[Demonstration], rows), settings.update, folder / UPDATE, **how)
        name = "sft"
    else:
        cache = settings.store.folder / "cache"
        pairs = cast(Sequence[Preference] | Sequence[Labelled], rows)
        result = dpo(model, pairs, settings.update, folder / UPDATE, cache=cache, **how)
        name = f"dpo_{settings.update.loss}"
    if result.checkpoint is None:
        raise CheckpointError("The update ended without a saved model. Run the round again; it resumes.")
    return {
        "method": name,
        "checkpoint": str(result.checkpoint.resolve()),
        "metrics": result.metrics,
        "accounts": {"update": result.account.line()},
        "lines": [f"{name}: {result.steps} weight updates; {result.account.line()}", *result.notes],
    }


def fit_online(
    model: LanguageModel,
    prompts: Sequence[Prompt],
    settings: Settings,
    *,
    folder: Path,
    scorer: Scorer | None,
    tick: Tick | None,
) -> Outcome:
    """The update by PPO, GRPO or one of their family, on the prompts of the training rows and the composed reward.

    Raises RegistryError where a reward term asks for the reward model and the round has none.
    """
    scorers = {} if scorer is None else {"reward_model": scorer}
    reward = open_composed(
        settings.online.reward, scorers=scorers, max_unscored_share=1.0
    )  # `online` checks iterations
    unique = list({prompt_key(prompt): prompt for prompt in prompts}.values())
    result = online(
        model, unique, reward, settings.online, settings.sample, folder / UPDATE,
        resume=_begun(folder / UPDATE), watcher=_watcher(tick), progress=False,
    )  # fmt: skip
    name = settings.online.recipe
    lines = [f"{name}: {result.iterations} iterations, {result.updates} weight updates on {len(unique)} prompts"]
    return {
        "method": name,
        "checkpoint": str(result.checkpoint.resolve()),
        "metrics": result.metrics,
        "accounts": {"update": lines[0], **({"guard": " ".join(result.actions)} if result.actions else {})},
        "lines": [*lines, *(f"guard: {action}" for action in result.actions)],
    }


def lengths_of(settings: Settings) -> Lengths:
    """How long a row may be, and what becomes of a longer one."""
    return Lengths(settings.model.max_length, settings.model.overlong)


def curves(folder: Path) -> dict[str, list[dict[str, Any]]]:
    """Metric rows of the round's training runs, for plots."""
    found = {}
    for title, part in (("Policy update", UPDATE), ("Reward model", REWARD)):
        path = folder / part / "metrics.jsonl"
        if path.exists():
            found[title] = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    return found


def _begun(folder: Path) -> bool:
    """Whether a training run left a checkpoint there."""
    checkpoints = folder / "checkpoints"
    return checkpoints.is_dir() and any(checkpoints.iterdir())


def _watcher(tick: Tick | None) -> Callable[[StepReport], None]:
    return lambda report: tick(report.step, report.steps) if tick else None
