"""Middle stages: a reward model from the preferences, and one update of the policy."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np

from thumbwheel.config import Settings
from thumbwheel.errors import CheckpointError
from thumbwheel.evals.fresh import Fresh
from thumbwheel.evals.judges import Scorer
from thumbwheel.evals.reward import RewardCheck, reward_figures, score_pairs
from thumbwheel.grouped import Grouped
from thumbwheel.models.language import LanguageModel
from thumbwheel.records import Demonstration, Figure, Labelled, Preference, Prompt
from thumbwheel.rounds.gather import Row
from thumbwheel.rounds.stages import Outcome
from thumbwheel.rounds.watch import Tick
from thumbwheel.signals.fresh import freshened, freshness
from thumbwheel.signals.prompts import prompt_key
from thumbwheel.signals.reward_terms import SPREAD
from thumbwheel.signals.reward_terms import open_reward as open_composed
from thumbwheel.stores import checkpoints
from thumbwheel.train.dpo import dpo
from thumbwheel.train.journal import METRICS
from thumbwheel.train.loop import StepReport
from thumbwheel.train.online import DPO, OnlineResult, online
from thumbwheel.train.picked import picked
from thumbwheel.train.reward_ensemble import MEAN, fit_reward_model, reward_scorers
from thumbwheel.train.rows import Lengths
from thumbwheel.train.saves import BEGUN
from thumbwheel.train.sft import sft

LEAST_PAIRS = 8
HELD_FOR_CURVES = 32
REWARD, UPDATE = "reward", "update"
PICKS = "_picks"


# ---------------------------------------------------------------------- reward model


def fit_reward(
    train: Sequence[Preference],
    held: Sequence[Preference],
    settings: Settings,
    *,
    folder: Path,
    tick: Tick | None,
    live: str | None = None,
) -> Outcome:
    """Fit the reward model and measure it on held-out pairs. `kind` is None, and `why` says why, where there is none.

    Pairs of the version `live` are weighed up to `reward.fresh_share`.
    """
    if not settings.reward.enabled:
        return {"kind": None, "why": "reward.enabled is false"}
    if len(train) < LEAST_PAIRS:
        return {"kind": None, "why": f"{len(train)} preferences are too few for one ({LEAST_PAIRS} are needed)"}
    s = settings.reward
    weighed = train if live is None else freshened(train, live, share=s.fresh_share, cap=s.fresh_weight_cap)
    metrics = fit_reward_model(
        weighed, settings, folder / REWARD, lengths=lengths_of(settings), heldout=held[:HELD_FOR_CURVES], resume=True,
        watcher=_watcher(tick), progress=False,
    )  # fmt: skip
    outcome: Outcome = {
        "kind": settings.reward.trunk, "members": settings.reward.members, "metrics": metrics, "n_train": len(train),
        "n_held": len(held), "accounts": {} if live is None else {"fresh": _fresh_line(train, weighed, live)},
    }  # fmt: skip
    check = check_reward(held, settings, outcome, folder=folder)
    figures = [*(check.figures if check else ()), *_spread(held, settings, folder)]
    return {**outcome, "figures": [one.model_dump(mode="json") for one in figures]}


def _fresh_line(before: Sequence[Preference], after: Sequence[Preference], live: str) -> str:
    """How much of the reward model's pairs is about answers of the live version, before and after weighing."""
    line, share = freshness(before, live).line(live), freshness(after, live).share
    return line + (f"; weighed up to {share:.0%}" if after != before else "")


def open_scorers(settings: Settings, outcome: Outcome, *, folder: Path) -> dict[str, Scorer]:
    """The reward model of a finished stage and its members by name, see `reward_scorers`; empty where there is none."""
    return {} if outcome.get("kind") is None else reward_scorers(folder / REWARD, settings)


def open_reward(settings: Settings, outcome: Outcome, *, folder: Path) -> Scorer | None:
    """The reward model of a finished stage as a scorer (prompts, texts) -> (n,); None where there is none."""
    return open_scorers(settings, outcome, folder=folder).get(MEAN)


def _spread(held: Sequence[Preference], settings: Settings, folder: Path) -> list[Figure]:
    """How far the members of an ensemble part on held-out answers; nothing where there is one model."""
    if settings.reward.members == 1 or not held:
        return []
    answers = {(pair.prompt, side.content): None for pair in held for side in (pair.chosen, pair.rejected)}
    prompts, texts = [prompt for prompt, _ in answers], [text for _, text in answers]
    spread = np.asarray(reward_scorers(folder / REWARD, settings)[SPREAD](prompts, texts), dtype=np.float64)
    known = spread[~np.isnan(spread)]
    note = f"mean deviation of a score over the {settings.reward.members} reward models, on held-out answers"
    return [
        Figure(
            name="reward_spread",
            value=float(known.mean()) if len(known) else None,
            unit="score",
            n=len(known),
            note=note,
        )
    ]


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
    accuracy, longer, spread = (found.get(name) for name in ("reward_accuracy", "longer_accuracy", "reward_spread"))
    kind = "reward model" if outcome.get("members", 1) == 1 else f"ensemble of {outcome['members']} reward models"
    if not accuracy or accuracy["value"] is None:
        return f"{kind} from {outcome['n_train']} pairs; there are no held-out pairs to measure it on"
    span = f" ({accuracy['low']:.0%} to {accuracy['high']:.0%})" if accuracy["low"] is not None else ""
    beside = (
        f"; always picking the longer answer: {longer['value']:.0%}" if longer and longer["value"] is not None else ""
    )
    apart = f"; its members part by {spread['value']:.2g} of a score" if spread and spread["value"] is not None else ""
    return (
        f"{kind} from {outcome['n_train']} pairs agrees with people on {accuracy['value']:.0%}{span} "
        f"of {accuracy['n']} held-out pairs{beside}{apart}"
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
    scorers: Mapping[str, Scorer] | None = None,
    preferences: Sequence[Preference] = (),
) -> Outcome:
    """One update of `model`; goes on from the last checkpoint where the stage was cut short.

    An online update learns from `scorers`, the round's reward model by name, and falls back on `preferences`.
    """
    how: dict[str, Any] = {
        "lengths": lengths_of(settings),
        "heldout": held[:HELD_FOR_CURVES],
        "resume": _begun(folder / UPDATE),
        "watcher": _watcher(tick),
        "progress": False,
    }
    if settings.update.method == "online":
        prompts = [row.prompt for row in rows]
        return fit_online(
            model, prompts, settings, folder=folder, scorers=scorers or {}, preferences=preferences, tick=tick
        )
    if settings.update.method == "picks":
        groups = cast(Sequence[Grouped], rows)
        return fit_picks(model, groups, settings, folder=folder, preferences=preferences, tick=tick)
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
    scorers: Mapping[str, Scorer],
    preferences: Sequence[Preference],
    tick: Tick | None,
) -> Outcome:
    """The update by PPO, GRPO or one of their family, on the prompts of the training rows and the composed reward.

    Raises RegistryError where a reward term asks for the reward model and the round has none.
    """
    reward = open_composed(
        settings.online.reward, scorers=scorers, max_unscored_share=1.0
    )  # `online` checks iterations
    unique = list({prompt_key(prompt): prompt for prompt in prompts}.values())
    result = online(
        model, unique, reward, settings.online, settings.sample, folder / UPDATE,
        preferences=preferences, resume=_begun(folder / UPDATE), watcher=_watcher(tick), progress=False,
    )  # fmt: skip
    terms = [term.name for term in reward.terms]
    return _of_run(settings.online.recipe, result, f"on {len(unique)} prompts", terms=terms)


def fit_picks(
    model: LanguageModel,
    groups: Sequence[Grouped],
    settings: Settings,
    *,
    folder: Path,
    preferences: Sequence[Preference],
    tick: Tick | None,
) -> Outcome:
    """The update by GRPO or one of its family, on groups of answers that people picked from or ranked."""
    result = picked(
        model, groups, settings.online, folder / UPDATE, lengths=lengths_of(settings), preferences=preferences,
        resume=_begun(folder / UPDATE), watcher=_watcher(tick), progress=False,
    )  # fmt: skip
    return _of_run(
        f"{settings.online.recipe}{PICKS}", result.run, f"on {result.groups} groups; answers: {result.account.line()}"
    )


def _of_run(name: str, result: OnlineResult, on: str, *, terms: Sequence[str] = ()) -> Outcome:
    """What a round keeps of a run of the online loop."""
    line = f"{name}: {result.iterations} iterations, {result.updates} weight updates {on}"
    return {
        "method": name,
        "checkpoint": str(result.checkpoint.resolve()),
        "metrics": result.metrics,
        "accounts": {"update": line},
        "terms": _columns(terms, result.metrics),
        "actions": list(result.actions),
        "notes": list(result.notes),
        "lines": [line, *result.notes, *(f"guard: {action}" for action in result.actions)],
    }


def _columns(terms: Sequence[str], metrics: Mapping[str, float]) -> list[str]:
    """The keys of reward terms in metrics.jsonl; one with the name of another figure stands there as "term_NAME"."""
    keys = [f"term_{name}" if f"term_{name}" in metrics else name for name in terms]
    return [key for key in keys if key in metrics]


def fresh_of(outcome: Outcome, folder: Path) -> Fresh | None:
    """What the report shows of an update from fresh answers; None for other updates."""
    if "actions" not in outcome:
        return None
    own = not outcome["method"].endswith(PICKS)
    return Fresh(_lines(folder / UPDATE / METRICS), outcome["terms"], outcome["actions"], outcome["notes"], own=own)


def lengths_of(settings: Settings) -> Lengths:
    """How long a row may be, and what becomes of a longer one."""
    return Lengths(settings.model.max_length, settings.model.overlong)


def curves(folder: Path) -> dict[str, list[dict[str, Any]]]:
    """Metric rows of the round's training runs, for plots."""
    found = {}
    parts = [
        ("Policy update", UPDATE),
        ("Policy update: DPO after the guard gave up", f"{UPDATE}/{DPO}"),
        ("Reward model", REWARD),
    ]
    members = sorted((folder / REWARD).glob("member-*"))
    parts += [(f"Reward model {k} of {len(members)}", f"{REWARD}/{one.name}") for k, one in enumerate(members, 1)]
    for title, part in parts:
        path = folder / part / METRICS
        if path.exists():
            found[title] = _lines(path)
    return found


def _lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]


def _begun(folder: Path) -> bool:
    """Whether a training run was begun there."""
    return checkpoints.latest(folder / "checkpoints") is not None or (folder / BEGUN).exists()


def _watcher(tick: Tick | None) -> Callable[[StepReport], None]:
    return lambda report: tick(report.step, report.steps) if tick else None
