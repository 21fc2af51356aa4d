"""A sweep: the same run with several strengths of the pull to the reference, and the rule that picks one.

found = sweep([0.01, 0.03, 0.1, 0.3], run, Path("sweep"), inputs={"method": "grpo"}, max_kl_per_token_nats=0.5)
found.picked, found.why

A finished point is on disk, so a sweep that was killed goes on with the next one. `measured` makes a point of a policy,
`knob_of` says which setting a method's values are of.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from thumbwheel.config import OnlineSettings, SampleSettings, Settings, from_tree
from thumbwheel.engines.batch_sampler import BatchSampler
from thumbwheel.errors import CheckpointError, SettingError, ThumbwheelError, TrainingError, explain
from thumbwheel.models.language import LanguageModel
from thumbwheel.models.policy import LanguagePolicy
from thumbwheel.records import Prompt, digest_of
from thumbwheel.stores import files as disk
from thumbwheel.train.collecting import Reward
from thumbwheel.train.lessons import Reference, log_ratios, prepared
from thumbwheel.train.rollouts import sample

INPUTS, POINT, RESULT = "inputs.json", "point.json", "sweep.json"
LEAST_ANSWERS = 2  # a mean of fewer has no error
FAR_KL_PER_TOKEN_NATS = 1.0


@dataclass(frozen=True)
class Knob:
    """What a sweep turns: a setting by its dotted key, its name for people, and what brings a policy nearer or lets it go."""

    key: str
    name: str
    nearer: str
    farther: str
    larger_is_nearer: bool
    usual: tuple[float, ...]

    def set(self, settings: Settings, value: float) -> Settings:
        """The settings with this value. Raises SettingError where it is not allowed."""
        tree = settings.model_dump()
        *above, last = self.key.split(".")
        node = tree
        for name in above:
            node = node[name]
        node[last] = value
        return from_tree(tree)


_PULL = ("raise β", "Lower β", True, (0.01, 0.05, 0.1, 0.5))
BETA = Knob("update.beta", "β", *_PULL)
COEFFICIENT = Knob("online.kl.coefficient", "β", *_PULL)
TARGET_PER_RESPONSE = Knob(
    "online.kl.target_per_response_nats", "KL target a response", "lower the target", "Raise the target", False,
    (1.0, 3.0, 6.0, 12.0),
)  # fmt: skip
TARGET_PER_TOKEN = Knob(
    "online.kl.target_per_token_nats", "KL target a token", "lower the target", "Raise the target", False,
    (0.01, 0.03, 0.1, 0.3),
)  # fmt: skip


def knob_of(settings: Settings, *, online: bool) -> Knob:
    """β of the DPO family; from fresh answers the target that the KL controller aims at, or β where it aims at none.

    Raises SettingError for the controller "cosine", whose schedule has no one value.
    """
    if not online:
        return BETA
    kl = settings.online.kl
    if kl.controller == "cosine":
        raise SettingError(
            explain(
                "The KL controller 'cosine' follows a schedule of its own, which has no one value to try.",
                allowed="'fixed' (values are of β), or a controller with a target (values are of the target)",
                got=kl.controller,
                next="Leave online.kl.controller out.",
            ),
            field="online.kl.controller",
        )
    if kl.target_per_response_nats is not None:
        return TARGET_PER_RESPONSE
    return TARGET_PER_TOKEN if kl.target_per_token_nats is not None else COEFFICIENT


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

    Raises TrainingError where fewer than two answers have a reward, or more than `max_unscored_share` have none.
    """
    how = sampling.model_copy(update={"temperature": settings.temperature})
    seeds = [settings.seed * 7_919 + i for i in range(len(prompts))]
    rollouts = sample(BatchSampler(model), model.template, prompts, each=1, seeds=seeds, settings=how)
    rollouts = prepared(LanguagePolicy(model), reference, rollouts, settings)
    scores = np.asarray(reward(list(rollouts.prompts), [a.text for a in rollouts.flat]).total, dtype=np.float64)
    known = scores[~np.isnan(scores)]
    if len(known) < max(LEAST_ANSWERS, (1 - settings.max_unscored_share) * len(scores)):
        raise TrainingError(
            f"{len(known)} of {len(scores)} answers to validation prompts have a reward, so nothing can be compared (at most "
            f"online.max_unscored_share = {settings.max_unscored_share:g} may lack one). Look at the reward function: call "
            "it on an answer of your own."
        )
    ratios = [log_ratios(answer) for answer in rollouts.flat]
    error = float(known.std(ddof=1)) / math.sqrt(len(known))
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
    knob: Knob = BETA,
) -> Found:
    """Run every value in a folder of its own, those that are not finished, pick one, and keep all that in `folder`/sweep.json.

    `run` may find its folder begun, by a sweep that was killed. `inputs` is whatever a point depends on beside its value
    (settings, data, model), as JSON by name. More values may be given to a later call.
    Raises SettingError as `checked` does; CheckpointError where the folder holds a sweep of other inputs or cannot be written.
    """
    places = {value: folder / f"{value:.12g}" for value in checked(values)}
    _claim(folder, inputs)
    base = _point(folder / "reference" / POINT, reference)
    points = []
    for value, place in places.items():
        try:
            points.append(_point(place / POINT, lambda value=value, place=place: run(value, place)))  # type: ignore[misc]
        except ThumbwheelError as error:
            error.add_note(
                f"This was at {knob.name} = {value:g}. Points that are finished are kept for the next sweep."
            )
            raise
    picked, why = pick(points, base, max_kl_per_token_nats=max_kl_per_token_nats, knob=knob)
    found = Found(tuple(points), base, picked, why)
    _keep(folder / RESULT, {"over": knob.key, "max_kl_per_token_nats": max_kl_per_token_nats, **asdict(found)})
    return found


def checked(values: Sequence[float]) -> list[float]:
    """The values in rising order. Raises SettingError for none, for one twice or for one that is not above 0."""
    if (
        not values
        or not all(0 < value < math.inf for value in values)
        or len({f"{v:.12g}" for v in values}) < len(values)
    ):
        raise SettingError(
            explain(
                "A sweep needs values to try.",
                allowed="different numbers above 0, such as 0.01 0.05 0.1 0.5",
                got=list(values),
            )
        )
    return sorted(map(float, values))


def pick(
    points: Sequence[Point], reference: Point, *, max_kl_per_token_nats: float, knob: Knob = BETA
) -> tuple[float | None, str]:
    """The value of the largest reward among points whose KL is below the limit, if it beats the reference's at all; and why.

    "Beats" means by two standard errors of the difference. Of points that beat it and cannot be told apart from the best one
    (within one standard error of the difference) the one with the least KL is taken: it costs less.
    """
    near = [point for point in points if point.kl_per_token_nats < max_kl_per_token_nats]
    if not near:
        least = min(points, key=lambda point: point.kl_per_token_nats)
        far = least.kl_per_token_nats > FAR_KL_PER_TOKEN_NATS
        advice = f"It is above 1 everywhere: {knob.nearer}." if far else f"{knob.nearer.capitalize()}."
        return None, (
            f"KL is {least.kl_per_token_nats:.3g} nats a token or more at every value (allowed: less than "
            f"{max_kl_per_token_nats:g}). {advice}"
        )
    best = max(near, key=lambda point: point.reward)
    noise = math.hypot(best.error, reference.error)
    if best.reward - reference.reward <= 2 * noise:
        gap = _gap(points, max_kl_per_token_nats)
        farther = f"Try values between {gap[0]:g} and {gap[1]:g}" if gap else knob.farther
        return None, (
            f"The best reward below the KL limit, {best.reward:.3g} at {best.value:g}, is not above the reference's "
            f"{reference.reward:.3g} by more than noise (2 × {noise:.2g}). {farther}, train longer, or measure on more prompts."
        )
    alike = [
        p for p in near
        if best.reward - p.reward <= math.hypot(p.error, best.error)
        and p.reward - reference.reward > 2 * math.hypot(p.error, reference.error)
    ]  # fmt: skip
    taken = min(alike, key=lambda point: point.kl_per_token_nats)
    why = (
        f"{taken.value:g}: reward {taken.reward:.3g} against the reference's {reference.reward:.3g}, at "
        f"{taken.kl_per_token_nats:.3g} nats a token (allowed: less than {max_kl_per_token_nats:g})"
    )
    if taken != best:
        why += f"; {best.value:g} earned {best.reward:.3g}, which is within noise, at {best.kl_per_token_nats:.3g} nats"
    return taken.value, why + "."


def further(
    points: Sequence[Point], picked: float | None, *, max_kl_per_token_nats: float, knob: Knob = BETA
) -> tuple[str, tuple[float, ...]]:
    """Which values to try next, and why; ("", ()) where the best one has others on both sides.

    Two values between the last point under the KL limit and the first beyond it, or past the end of what was tried.
    """
    values = sorted(point.value for point in points)
    near = [point.value for point in points if point.kl_per_token_nats < max_kl_per_token_nats]
    below, above = (values[0] / 5, values[0] / 2), (values[-1] * 2, values[-1] * 5)
    if not near:
        return "Hold it nearer to the reference", above if knob.larger_is_nearer else below
    farthest = min(near) if knob.larger_is_nearer else max(near)
    if picked not in (None, farthest):
        return "", ()
    gap = _gap(points, max_kl_per_token_nats)
    if gap:
        low, high = gap
        between = [low * (high / low) ** (turn / 3) for turn in (1, 2)]
        return f"The limit of KL lies between {low:g} and {high:g}", tuple(float(f"{value:.2g}") for value in between)
    return "Let it go farther from the reference", below if knob.larger_is_nearer else above


def _gap(points: Sequence[Point], limit: float) -> tuple[float, float] | None:
    """Two neighbouring values, low and high, of which one is under the limit of KL and the other is not."""
    rising = sorted(points, key=lambda point: point.value)
    for one, other in itertools.pairwise(rising):
        if (one.kl_per_token_nats < limit) != (other.kl_per_token_nats < limit):
            return one.value, other.value
    return None


def _claim(folder: Path, inputs: Mapping[str, Any]) -> None:
    """Write down what the sweep in `folder` depends on. Raises CheckpointError where it depends on something else."""
    path = folder / INPUTS
    digests = {name: digest_of(value) for name, value in inputs.items()}
    if not path.exists():
        _keep(path, digests)
        return
    try:
        kept = dict(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError) as error:
        raise CheckpointError(f"'{path}' cannot be read: {error}. Sweep in another folder.") from error
    other = sorted(name for name in {*kept, *digests} if kept.get(name) != digests.get(name))
    if other:
        raise CheckpointError(f"'{folder}' holds a sweep with other {', '.join(other)}. Sweep in another folder.")


def _point(path: Path, make: Callable[[], Point]) -> Point:
    """A point from disk, or made and put there."""
    if path.exists():
        try:
            return Point(**json.loads(path.read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError) as error:
            raise CheckpointError(
                f"The point '{path}' cannot be read: {error}. Delete that file; it is made again."
            ) from error
    point = make()
    _keep(path, asdict(point))
    return point


def _keep(path: Path, content: Mapping[str, Any]) -> None:
    try:
        disk.put_file(path, (json.dumps(content, indent=1, ensure_ascii=False) + "\n").encode())
    except OSError as error:
        raise CheckpointError(f"'{path}' cannot be written: {disk.why(error)}.") from error
