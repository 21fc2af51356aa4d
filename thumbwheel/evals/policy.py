"""Is the new policy better, and is its language whole? Figures from votes, texts and arrays; nothing is generated here.

    figures = win_rate(votes, settings=settings.evals, seed=7)
    figures += language_figures(Answers(…), parent=Answers(…), settings=settings.evals, seed=7)

Every interval resamples prompts, not answers: two answers to one prompt are not two independent witnesses.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from thumbwheel.config import EvalSettings
from thumbwheel.errors import DataError
from thumbwheel.evals.intervals import Resampling, figure_of, rate_figure
from thumbwheel.evals.judges import Votes, prompt_ids
from thumbwheel.evals.language import Answers, language_figures
from thumbwheel.formulas import stats
from thumbwheel.records import Figure, Prompt, Report

__all__ = ["Answers", "RewardKlPoint", "check_held_out", "language_figures", "reward_kl_points", "win_rate"]

MAX_UNVOTED_SHARE = 0.2


@dataclass(frozen=True)
class RewardKlPoint:
    """One policy on the reward-KL frontier: what it earns, and how far it moved from the reference to earn it."""

    name: str
    kl_per_response_nats: float
    reward: float


def reward_kl_points(report: Report) -> tuple[RewardKlPoint, ...]:
    """The parent and the new policy, from their figures `kl_per_response` and `reward`; those that have both."""
    found = []
    for name, suffix in ((report.parent, "_parent"), (report.policy, "")):
        kl, reward = report.figure(f"kl_per_response{suffix}"), report.figure(f"reward{suffix}")
        if kl is not None and kl.value is not None and reward is not None and reward.value is not None:
            found.append(RewardKlPoint(name, kl.value, reward.value))
    return tuple(found)


def check_held_out(prompts: Sequence[Prompt], trained_on: Collection[Prompt]) -> None:
    """Raises DataError where a prompt to judge on is one that the policy or the reward model was trained on."""
    seen = set(prompt_ids(list(trained_on)))
    leaked = sum(name in seen for name in prompt_ids(prompts))
    if leaked:
        raise DataError(
            f"{leaked} of {len(prompts)} held-out prompts were also trained on, so a win rate on them proves nothing. "
            "Hold prompts out by their text before building training data."
        )


def win_rate(
    votes: Votes, *, settings: EvalSettings, seed: int, max_unvoted_share: float = MAX_UNVOTED_SHARE
) -> tuple[Figure, ...]:
    """How often the new policy's answer is preferred to its parent's; a tie counts half.

    | figure             | value in | meaning                                                                            |
    | ------------------ | -------- | ---------------------------------------------------------------------------------- |
    | win_rate           | [0, 1]   | Wilson's interval at the effective number of votes; this one gates                 |
    | win_rate_bootstrap | [0, 1]   | the same rate, its interval by resampling prompts                                  |
    | win_share, tie_share, loss_share | [0, 1] | of the rows voted on                                                   |
    | side_a_share       | [0, 1]   | how often side A was preferred where somebody was asked: a fair judge is near 1/2  |
    | unvoted            | rows     | rows without a vote, in neither numerator nor denominator                          |

    Raises DataError for no row, or where more than `max_unvoted_share` of the rows have no vote.
    """
    n, voted = len(votes.new_wins), ~np.isnan(votes.new_wins)
    if n == 0:
        raise DataError("There is no vote to count: no held-out prompt was judged.")
    unvoted = int(n - voted.sum())
    if unvoted > max_unvoted_share * n or unvoted == n:
        first = f" The first reason: {votes.failures[0]}." if votes.failures else ""
        raise DataError(
            f"The judge '{votes.judge}' gave no vote on {unvoted} of {n} rows; at most {max_unvoted_share:.0%} may be without."
            f"{first} Mend the judge, or collect more votes."
        )
    wins = votes.new_wins[voted]
    prompts = np.array(votes.prompts)[voted]
    rate = rate_figure("win_rate", wins, prompts.tolist(), settings, note=f"judge: {votes.judge} ({votes.origin})")
    resampled = Resampling(prompts.tolist(), settings, seed).figure(
        "win_rate_bootstrap", lambda rows: float(wins[rows].mean()), unit="share", note="resampled by prompt"
    )
    return (
        rate,
        resampled,
        Figure(name="win_share", value=float((wins > 0.5).mean()), n=len(wins), unit="share"),
        Figure(name="tie_share", value=float((wins == 0.5).mean()), n=len(wins), unit="share"),
        Figure(name="loss_share", value=float((wins < 0.5).mean()), n=len(wins), unit="share"),
        _side_share(votes, settings.confidence),
        Figure(name="unvoted", value=float(unvoted), n=n, unit="rows", note="; ".join(votes.failures[:3])),
    )


def _side_share(votes: Votes, level: float) -> Figure:
    a_wins = votes.a_wins()
    share = stats.win_rate(a_wins, level=level)
    note = ""
    if share.low is not None and share.high is not None and not share.low <= 0.5 <= share.high:
        note = "the judge leans to one side; sides are balanced, so the win rate is not tilted, but it is noisier"
    return figure_of("side_a_share", share, unit="share", note=note)
