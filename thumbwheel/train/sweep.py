"""A sweep: the same run with several strengths of the pull to the reference, and the rule that picks one.

found = sweep([0.01, 0.03, 0.1, 0.3], run, Path("sweep"), inputs={"method": "grpo"}, max_kl_per_token_nats=0.5)
found.picked, found.why

A finished point is on disk, so a sweep that was killed goes on with the next one. `measured` makes a point of a policy.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from thumbwheel.config import OnlineSettings, SampleSettings
from thumbwheel.engines.batch_sampler import BatchSampler
from thumbwheel.errors import CheckpointError, SettingError, TrainingError, explain
from thumbwheel.models.language import LanguageModel
from thumbwheel.models.policy import LanguagePolicy
from thumbwheel.records import Prompt, digest_of
from thumbwheel.stores import files as disk
from thumbwheel.train.collecting import Reward
from thumbwheel.train.lessons import Reference, log_ratios, prepared
from thumbwheel.train.rollouts import sample

FAR_KL_PER_TOKEN_NATS = 1.0


@dataclass(frozen=True)
class Point:
    """A policy on validation prompts. `value` is its β (or KL coefficient), `error` the standard error of `reward`."""

    value: float
    reward: float
    error: float
    kl_per_token_nats: float
    kl_per_response_nats: float
    answers: int


@dataclass(frozen=True)
class Found:
    """Every point in the order of its value, the reference's own (KL 0), and the value that is picked, or None, with why."""

    points: tuple[Point, ...]
    reference: Point
    picked: float | None
    why: str


def measured(
    value: float,
    model: LanguageModel,
    prompts: Sequence[Prompt],
    reward: Reward,
    settings: OnlineSettings,
    sampling: SampleSettings,
    *,
    reference: Reference,
) -> Point:
    """The model's mean reward on `prompts`, and its KL to `reference`, on one answer each.

    Raises TrainingError where no answer has a reward.
    """
    how = sampling.model_copy(update={"temperature": settings.temperature})
    seeds = [settings.seed * 7_919 + i for i in range(len(prompts))]
    rollouts = sample(BatchSampler(model), model.template, prompts, each=1, seeds=seeds, settings=how)
    rollouts = prepared(LanguagePolicy(model), reference, rollouts, settings)
    scores = np.asarray(reward(list(rollouts.prompts), [a.text for a in rollouts.flat]).total, dtype=np.float64)
    known = scores[~np.isnan(scores)]
    if not len(known):
        raise TrainingError("Not one answer to the validation prompts has a reward, so nothing can be compared.")
    ratios = [log_ratios(answer) for answer in rollouts.flat]
    error = float(known.std(ddof=1)) / math.sqrt(len(known)) if len(known) > 1 else math.inf
    return Point(
        value, float(known.mean()), error, float(np.concatenate(ratios).mean()),
        float(np.mean([ratio.sum() for ratio in ratios])), len(known),
    )  # fmt: skip


def sweep(
    values: Sequence[float],
    run: Callable[[float, Path], Point],
    folder: Path,
    *,
    reference: Callable[[], Point],
    inputs: Mapping[str, Any],
    max_kl_per_token_nats: float = 0.5,
) -> Found:
    """Run every value in a folder of its own, those that are not finished, and pick one.

    `inputs` is whatever a point depends on beside its value (settings, data, model), as JSON.
    Raises SettingError for no value, a value twice or one that is not above 0; CheckpointError where the folder holds a
    sweep of other inputs.
    """
    if not values or len(set(values)) < len(values) or not all(0 < value < math.inf for value in values):
        raise SettingError(
            explain(
                "A sweep needs values to try.",
                allowed="different numbers above 0, such as 0.01 0.05 0.1 0.5",
                got=list(values),
            )
        )
    digest = digest_of(dict(inputs))
    base = _point(folder / "reference.json", digest, reference)
    points = []
    for value in sorted(values):
        place = folder / f"{value:g}"
        points.append(_point(place / "point.json", digest, lambda value=value, place=place: run(value, place)))  # type: ignore[misc]
    picked, why = pick(points, base, max_kl_per_token_nats=max_kl_per_token_nats)
    return Found(tuple(points), base, picked, why)


def pick(points: Sequence[Point], reference: Point, *, max_kl_per_token_nats: float) -> tuple[float | None, str]:
    """The value of the largest reward among points whose KL is below the limit, if it beats the reference's at all; and why.

    "Beats" means by two standard errors of the difference. Of points that cannot be told apart from the best one (within one
    standard error of the difference) the one with the least KL is taken: it costs less.
    """
    near = [point for point in points if point.kl_per_token_nats < max_kl_per_token_nats]
    if not near:
        least = min(points, key=lambda point: point.kl_per_token_nats)
        far = " It is above 1 everywhere: raise β." if least.kl_per_token_nats > FAR_KL_PER_TOKEN_NATS else " Raise β."
        return None, (
            f"KL is {least.kl_per_token_nats:.3g} nats a token or more at every value (allowed: {max_kl_per_token_nats:g}).{far}"
        )
    best = max(near, key=lambda point: point.reward)
    gain = best.reward - reference.reward
    noise = math.hypot(best.error, reference.error)
    if gain <= 2 * noise:
        return None, (
            f"The best reward below the KL limit, {best.reward:.3g} at {best.value:g}, is not above the reference's "
            f"{reference.reward:.3g} by more than noise ({noise:.2g}). Lower β, train longer, or ask for more prompts."
        )
    alike = [
        p for p in near if best.reward - p.reward <= math.hypot(p.error, best.error) and p.reward > reference.reward
    ]
    taken = min(alike, key=lambda point: point.kl_per_token_nats)
    why = (
        f"{taken.value:g}: reward {taken.reward:.3g} against the reference's {reference.reward:.3g}, at "
        f"{taken.kl_per_token_nats:.3g} nats a token (allowed: {max_kl_per_token_nats:g})"
    )
    if taken != best:
        why += f"; {best.value:g} earned {best.reward:.3g}, which is within noise, at {best.kl_per_token_nats:.3g} nats"
    return taken.value, why + "."


def _point(path: Path, digest: str, make: Callable[[], Point]) -> Point:
    """A point from disk, or made and put there."""
    if path.exists():
        try:
            kept = json.loads(path.read_text(encoding="utf-8"))
            point, inputs = Point(**kept["point"]), kept["inputs"]
        except (ValueError, KeyError, TypeError) as error:
            raise CheckpointError(
                f"The point '{path}' cannot be read: {error}. Delete that file; it is made again."
            ) from error
        if inputs != digest:
            raise CheckpointError(
                f"'{path.parent}' holds a point of a sweep with other settings, data or model. Sweep in another folder."
            )
        return point
    point = make()
    text = json.dumps({"inputs": digest, "point": asdict(point)}, indent=1)
    try:
        disk.put_file(path, text.encode())
    except OSError as error:
        raise CheckpointError(f"The point '{path}' cannot be kept: {disk.why(error)}.") from error
    return point
