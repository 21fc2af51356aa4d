"""An iteration's answers: prompts chosen, answers sampled and scored, what the updates need worked out, all kept on disk."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from thumbwheel.config import OnlineSettings, SampleSettings
from thumbwheel.engines.base import Sampler
from thumbwheel.engines.ending import ids_of, room_for
from thumbwheel.errors import CheckpointError, DataError, TrainingError, explain
from thumbwheel.models.policy import LanguagePolicy
from thumbwheel.records import Prompt, digest_of
from thumbwheel.signals.reward_scale import RunningScale
from thumbwheel.stores import files as disk
from thumbwheel.train.lessons import Reference, counts_of, prepared
from thumbwheel.train.rollouts import PROMPTS, Rollouts, sample
from thumbwheel.train.units import epoch_order

ROLLOUTS = "rollouts"
SEEDS = 1_000_003  # a prime: seeds of iterations do not meet


class Scores(Protocol):
    """What a reward says of n answers: (n,) totals with NaN where there is none, and the same for each of its terms.

    Where it also has `unscored`, (term, reason) -> how many answers, the reasons are told; see `signals.rewards.Composed`.
    """

    @property
    def total(self) -> Sequence[float] | NDArray[Any]: ...

    @property
    def columns(self) -> Mapping[str, Sequence[float] | NDArray[Any]]: ...


Reward = Callable[[Sequence[Prompt], Sequence[str]], Scores]


class Source(ABC):
    """Where the answers of a run come from, an iteration at a time. Kept files make a killed run go on with the same ones.

    data      hash of what the answers are made from: a run is not resumed on another
    longest   tokens of the longest answer there may be
    no_room   prompts that fill the context, and are not asked
    own       the policy's own answers of this moment; False: answers at hand, whose length and repetition say nothing of it
    """

    data: str
    longest: int
    own: bool = True
    no_room: int = 0

    def __init__(self, settings: OnlineSettings, folder: Path) -> None:
        self.settings, self.folder = settings, folder / ROLLOUTS

    @abstractmethod
    def made(self, iteration: int) -> Rollouts:
        """The answers of an iteration, scored and prepared."""

    def rollouts(self, iteration: int) -> Rollouts:
        """The answers of an iteration, from disk where they were made before the run was killed."""
        path = self.folder / f"{iteration:06d}.npz"
        if path.exists():
            return Rollouts.from_file(path)
        rollouts = self.made(iteration)
        _keep(path, rollouts.to_bytes())
        return rollouts

    def figures(self, rollouts: Rollouts) -> dict[str, float]:
        """What people watch of an iteration's answers, before they are learned from."""
        return counts_of(rollouts, self.settings)

    def begin(self) -> None:
        """Forget answers that another run left in the folder."""
        for old in self.folder.glob("*.npz"):
            old.unlink(missing_ok=True)

    def forget(self, *, before: int) -> None:
        """Delete what is kept of iterations that no checkpoint goes back to."""
        for old in sorted(self.folder.glob("*.npz")):
            if int(old.stem) < before:
                old.unlink(missing_ok=True)


class Collector(Source):
    """Fresh answers of the policy to prompts, scored by a reward."""

    def __init__(
        self,
        policy: LanguagePolicy,
        reference: Reference,
        prompts: Sequence[Prompt],
        reward: Reward,
        sampler: Sampler,
        sampling: SampleSettings,
        settings: OnlineSettings,
        folder: Path,
    ) -> None:
        super().__init__(settings, folder)
        self.data = digest_of(PROMPTS.dump_python(list(prompts), mode="json"))
        model = policy.language_model
        self.prompts = [prompt for prompt in prompts if room_for(model, ids_of(model, prompt)) > 0]
        self.no_room = len(prompts) - len(self.prompts)
        if not self.prompts:
            raise DataError("No prompt leaves room for an answer: all fill the model's context. Shorten them.")
        self.longest = sampling.max_new_tokens
        self.policy, self.reference = policy, reference
        self.template = policy.language_model.template
        self.reward, self.sampler = reward, sampler
        self.sampling = sampling.model_copy(update={"temperature": settings.temperature})

    def made(self, iteration: int) -> Rollouts:
        """Sampled, scored, and flat groups sampled again as often as the settings say."""
        rollouts = self.scored(self.asked(iteration), iteration, turn=0)
        for turn in range(1, self.settings.resample_flat + 1):
            flat = [i for i, group in enumerate(rollouts.answers) if _alike([a.reward for a in group])]
            if not flat:
                break
            again = self.scored([rollouts.prompts[i] for i in flat], iteration, turn=turn)
            fresh = dict(zip(flat, again.answers, strict=True))
            rollouts = replace(
                rollouts,
                answers=tuple(fresh.get(i, group) for i, group in enumerate(rollouts.answers)),
                unscored=Counter(rollouts.unscored) + Counter(again.unscored),
            )
        self._check_scored(rollouts)
        return prepared(self.policy, self.reference, rollouts, self.settings)

    def asked(self, iteration: int) -> list[Prompt]:
        """The iteration's prompts: the list in a new order in every pass over it."""
        n, size = len(self.prompts), self.settings.prompts_per_iteration
        places = range(iteration * size, (iteration + 1) * size)
        return [self.prompts[int(epoch_order(n, seed=self.settings.seed, epoch=p // n)[p % n])] for p in places]

    def scored(self, prompts: Sequence[Prompt], iteration: int, *, turn: int) -> Rollouts:
        """Sampled answers with their rewards. Raises DataError where the sampler gives none."""
        s = self.settings
        count = len(prompts) * s.answers_per_prompt
        first = (s.seed * SEEDS + iteration * (s.resample_flat + 1) + turn) * SEEDS
        rollouts = sample(
            self.sampler, self.template, prompts,
            each=s.answers_per_prompt, seeds=[first + i for i in range(count)], settings=self.sampling,
        )  # fmt: skip
        flat = rollouts.flat
        if not flat:
            raise DataError("The sampler gave no answer to any prompt of an iteration. Look at the engine.")
        asked = [prompt for prompt, group in zip(rollouts.prompts, rollouts.answers, strict=True) for _ in group]
        scores = self.reward(asked, [answer.text for answer in flat])
        total = _column("reward", scores.total, len(flat))
        columns = {name: _column(name, values, len(flat)) for name, values in scores.columns.items()}
        said: Mapping[tuple[str, str], int] = getattr(scores, "unscored", {})
        rollouts = replace(rollouts, unscored={f"{term}: {reason}": n for (term, reason), n in said.items()})
        return rollouts.regrouped(
            [
                replace(answer, reward=float(total[i]), terms={name: float(v[i]) for name, v in columns.items()})
                for i, answer in enumerate(flat)
            ]
        )

    def _check_scored(self, rollouts: Rollouts) -> None:
        """Raises TrainingError where more answers of an iteration than allowed have no reward."""
        missing = np.isnan(rollouts.rewards)
        if missing.mean() <= self.settings.max_unscored_share:
            return
        reasons = "; ".join(f"{reason} ({n})" for reason, n in rollouts.unscored.items())
        raise TrainingError(
            explain(
                "Not one answer has a reward." if missing.all() else "Too many answers have no reward.",
                allowed=f"a share of up to {self.settings.max_unscored_share:g} of an iteration's answers",
                got=f"{missing.sum()} of {len(missing)}{f': {reasons}' if reasons else ''}",
                next="Mend the scorer that is named (call it on an answer of your own), or raise online.max_unscored_share.",
            )
        )


def rescaled(rollouts: Rollouts, scale: RunningScale) -> tuple[Rollouts, RunningScale]:
    """Rewards on the running scale, which has seen these too; and the scale to go on with."""
    scale = scale.after(rollouts.rewards)
    values = scale.apply(rollouts.rewards)
    flat = [replace(answer, reward=float(value)) for answer, value in zip(rollouts.flat, values, strict=True)]
    return rollouts.regrouped(flat), scale


def _column(name: str, values: Sequence[float] | NDArray[Any], n: int) -> NDArray[np.float64]:
    """(n,) with NaN where a value is missing or no finite number. Raises TrainingError for another count."""
    column = np.array([math.nan if value is None else value for value in values], dtype=np.float64)
    if column.shape != (n,):
        raise TrainingError(
            explain(
                f"The reward's '{name}' does not hold one number an answer, so nobody can say which is whose.",
                allowed=f"{n} numbers, NaN for an answer without one, in the order of the answers",
                got=column.shape,
            )
        )
    return np.where(np.isfinite(column), column, math.nan)


def _alike(rewards: Sequence[float]) -> bool:
    known = [reward for reward in rewards if not math.isnan(reward)]
    return len(known) < 2 or max(known) == min(known)


def _keep(path: Path, content: bytes) -> None:
    """Write a file whole or not at all. Raises CheckpointError (disk full, not writable)."""
    try:
        disk.put_file(path, content)
    except OSError as error:
        raise CheckpointError(f"Answers cannot be kept in '{path}': {disk.why(error)}.") from error
