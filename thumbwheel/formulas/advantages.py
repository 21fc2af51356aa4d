"""From rewards of answers to advantages, by group or by batch; from a person's pick or ranking to rewards. numpy only.

Legend: R answers, G answers to one prompt (a group). A reward that is missing is NaN: it enters no baseline and its own
advantage is 0. Equal rewards give exactly 0, whatever rounding does to their mean.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from thumbwheel.formulas.figures import Floats
from thumbwheel.registry import Registry

EPS = 1e-6
"""Keeps a standard deviation of 0 from being divided by, and rewards that differ by rounding from being blown up."""

LARGEST = 1e100
"""Rewards beyond this are a fault: the square of their deviation is no number."""

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

AdvantageRule = Callable[[ArrayLike, ArrayLike], Floats]
"""(rewards (R,), group (R,)) -> advantages (R,)."""

advantage_rules: Registry[AdvantageRule] = Registry("advantage rule")


@advantage_rules.register("grpo")
def grpo(rewards: ArrayLike, group: ArrayLike) -> Floats:
    """A = (r - mean_g) / (std_g + ε),  std with n - 1, ε = 1e-6

    | symbol | name    | shape | unit | range                                            |
    | ------ | ------- | ----- | ---- | ------------------------------------------------ |
    | r      | rewards | (R,)  | any  | ℝ, or NaN where it is missing                    |
    | g      | group   | (R,)  | -    | whole numbers; answers to one prompt have one    |

    Source: Shao et al. 2024 (GRPO), sec. 4.1.2. Known value: (1, 0, 0, 0) -> 1.499997, -.499999 thrice;
    (1.00000, 1.00001) -> ±.619497. Raises ValueError for a group of one answer, which has nothing to be compared with, and
    for a reward beyond ±1e100.
    """
    r, members = _checked(rewards, group)
    advantage = np.zeros(len(r))
    for scored in _scored(r, members):
        centred = _centred(r[scored])
        if centred.any():
            advantage[scored] = centred / (_deviation(centred) + EPS)
    return advantage


@advantage_rules.register("dr_grpo")
def dr_grpo(rewards: ArrayLike, group: ArrayLike) -> Floats:
    """A = r - mean_g

    | symbol | name    | shape | unit | range                                         |
    | ------ | ------- | ----- | ---- | --------------------------------------------- |
    | r      | rewards | (R,)  | any  | ℝ, or NaN where it is missing                 |
    | g      | group   | (R,)  | -    | whole numbers; answers to one prompt have one |

    Source: Liu et al. 2025 (Dr. GRPO): without the division, hard and easy prompts are not weighed up. Known value:
    (1, 0, 0, 0) -> .75, -.25 thrice. (G - 1)/G of the exact gradient on average. Raises ValueError as `grpo` does.
    """
    r, members = _checked(rewards, group)
    advantage = np.zeros(len(r))
    for scored in _scored(r, members):
        advantage[scored] = _centred(r[scored])
    return advantage


@advantage_rules.register("rloo")
def rloo(rewards: ArrayLike, group: ArrayLike) -> Floats:
    """Aᵢ = rᵢ - mean of the group's other rewards = G/(G - 1) (rᵢ - mean_g)

    | symbol | name    | shape | unit | range                                         |
    | ------ | ------- | ----- | ---- | --------------------------------------------- |
    | r      | rewards | (R,)  | any  | ℝ, or NaN where it is missing                 |
    | g      | group   | (R,)  | -    | whole numbers; answers to one prompt have one |

    Source: Ahmadian et al. 2024 (RLOO), eq. 7; Kool et al. 2019. Known value: (1, 0, 0, 0) -> 1, -.333333 thrice. The
    baseline does not hold the answer itself, so the gradient is unbiased. G counts answers with a reward; alone, one has no
    baseline and advantage 0. Raises ValueError as `grpo` does.
    """
    r, members = _checked(rewards, group)
    advantage = np.zeros(len(r))
    for scored in _scored(r, members):
        if len(scored) > 1:
            advantage[scored] = _centred(r[scored]) * (len(scored) / (len(scored) - 1))
    return advantage


@advantage_rules.register("reinforce_pp")
def reinforce_pp(rewards: ArrayLike, group: ArrayLike) -> Floats:
    """A = (r - mean) / (std + ε) over the whole batch,  std with n - 1, ε = 1e-6

    | symbol | name    | shape | unit | range                         |
    | ------ | ------- | ----- | ---- | ----------------------------- |
    | r      | rewards | (R,)  | any  | ℝ, or NaN where it is missing |
    | g      | group   | (R,)  | -    | not looked at                 |

    Source: Hu 2025 (REINFORCE++), eq. 5. Known value: 1…9 -> 1.460593 for 9 and 0 for 5. One answer a prompt is enough.
    Raises ValueError for a reward beyond ±1e100.
    """
    r, _ = _checked(rewards, group, alone=True)
    advantage = np.zeros(len(r))
    scored = np.flatnonzero(~np.isnan(r))
    centred = _centred(r[scored])
    if centred.any():
        advantage[scored] = centred / (_deviation(centred) + EPS)
    return advantage


@advantage_rules.register("batch")
def batch_normalised(rewards: ArrayLike, group: ArrayLike) -> Floats:
    """A = (r - mean_g) / (std + ε),  std of all r - mean_g of the batch, with n - 1, ε = 1e-6

    | symbol | name    | shape | unit | range                                         |
    | ------ | ------- | ----- | ---- | --------------------------------------------- |
    | r      | rewards | (R,)  | any  | ℝ, or NaN where it is missing                 |
    | g      | group   | (R,)  | -    | whole numbers; answers to one prompt have one |

    Source: Hu 2025 (REINFORCE++, with a baseline by group), eq. 7. Known value: groups (1, 0), (3, 3): centred (½, -½, 0, 0)
    of deviation .408248 -> (1.224742, -1.224742, 0, 0). A group of equal rewards stays at exactly 0.
    Raises ValueError as `grpo` does.
    """
    advantage = dr_grpo(rewards, group)
    scored = ~np.isnan(np.asarray(rewards, dtype=np.float64))
    if advantage.any():
        advantage /= _deviation(advantage[scored]) + EPS  # the mean over the batch is 0 already: every group's is
    return advantage


@dataclass(frozen=True, slots=True)
class GroupCounts:
    """How many groups teach nothing, and which way.

    groups    all of them
    flat      groups whose rewards (two or more) are all equal, so that every advantage is 0
    too_easy  of these, at the best reward there is: every answer is right
    too_hard  of these, at the worst: every answer is wrong
    missing   answers without a reward
    """

    too_easy: int
    too_hard: int
    flat: int
    missing: int
    groups: int


def group_counts(
    rewards: ArrayLike, group: ArrayLike, *, best: float | None = None, worst: float | None = None
) -> GroupCounts:
    """How many groups are all alike, and at which end

    | symbol | name    | shape | unit | range                                                        |
    | ------ | ------- | ----- | ---- | ------------------------------------------------------------ |
    | r      | rewards | (R,)  | any  | ℝ, or NaN where it is missing                                |
    | g      | group   | (R,)  | -    | whole numbers; answers to one prompt have one                |
    | -      | best    | ()    | any  | a reward from which an answer is right; none: the batch's top |
    | -      | worst   | ()    | any  | a reward to which one is wrong; none: the batch's bottom      |

    Known value: (1, 1), (0, 0), (0, 0), (1, 0), (NaN, 0) -> 1 too easy, 2 too hard, 3 flat, 1 missing, 5 groups. Where the
    whole batch is one value and no bound is given, nobody can say at which end it lies: flat only.
    """
    r, members = _checked(rewards, group, alone=True)
    present = r[~np.isnan(r)]
    varied = present.size > 0 and float(np.ptp(present)) > 0
    top = best if best is not None else float(present.max()) if varied else np.inf
    bottom = worst if worst is not None else float(present.min()) if varied else -np.inf
    level = [float(r[scored[0]]) for scored in _scored(r, members) if len(scored) > 1 and not np.ptp(r[scored])]
    return GroupCounts(
        too_easy=sum(value >= top for value in level),
        too_hard=sum(value <= bottom for value in level),
        flat=len(level),
        missing=len(r) - len(present),
        groups=len(members),
    )


def with_spread(rewards: ArrayLike, group: ArrayLike) -> Bools:
    """max_g r > min_g r: the answers of groups that teach something; the others may be sampled anew

    | symbol | name    | shape | unit | range                                         |
    | ------ | ------- | ----- | ---- | --------------------------------------------- |
    | r      | rewards | (R,)  | any  | ℝ, or NaN where it is missing                 |
    | g      | group   | (R,)  | -    | whole numbers; answers to one prompt have one |

    Source: Yu et al. 2025 (DAPO), dynamic sampling, eq. 11. Returns (R,) bool.
    Known value: (1, 1), (1, 0, NaN) -> False twice, True thrice.
    """
    r, members = _checked(rewards, group, alone=True)
    spread = np.zeros(len(r), dtype=np.bool_)
    for answers in members:
        present = r[answers][~np.isnan(r[answers])]
        spread[answers] = present.size > 1 and float(np.ptp(present)) > 0
    return spread


def from_choice(picked: int | None, n: int) -> Floats:
    """r = 1 for the answer a person picked, 0 for the rest; NaN for all where nothing was picked

    | symbol | name   | shape | unit | range                                         |
    | ------ | ------ | ----- | ---- | --------------------------------------------- |
    | -      | picked | ()    | -    | 0 … G - 1, or none: a tie, all bad, or no word |
    | G      | n      | ()    | -    | ≥ 1                                           |

    Known value: the third of four -> (0, 0, 1, 0). Raises ValueError for a pick that was not on offer.
    """
    if picked is None:
        return np.full(n, np.nan)
    if not 0 <= picked < n:
        raise ValueError(f"The pick must be one of the {n} answers, 0 to {n - 1}. Got: {picked}.")
    reward = np.zeros(n)
    reward[picked] = 1.0
    return reward


def from_ranking(order: Sequence[Sequence[int]], n: int) -> Floats:
    """r = (answers below + half of those beside it) / (ranked answers - 1)

    | symbol | name  | shape           | unit | range                                                |
    | ------ | ----- | --------------- | ---- | ---------------------------------------------------- |
    | -      | order | places of 0…G-1 | -    | best first; answers of one place tie                 |
    | G      | n     | ()              | -    | ≥ 1; what stands in no place is not ranked: NaN       |

    In [0, 1]: the share of the others that the answer beat. Known value: 0 over 2 over 1 -> (1, 0, .5); 2 over 0 and 1 tied
    -> (.25, .25, 1). Raises ValueError for an answer that is not there or stands twice. One ranked answer alone is no
    comparison: NaN.
    """
    flat = [answer for place in order for answer in place]
    if len(set(flat)) != len(flat) or any(not 0 <= answer < n for answer in flat):
        raise ValueError(f"A ranking names each of the {n} answers (0 to {n - 1}) at most once. Got: {list(order)}.")
    reward = np.full(n, np.nan)
    if len(flat) < 2:
        return reward
    below = len(flat)
    for place in order:
        below -= len(place)
        reward[list(place)] = (below + (len(place) - 1) / 2) / (len(flat) - 1)
    return reward


def _checked(rewards: ArrayLike, group: ArrayLike, *, alone: bool = False) -> tuple[Floats, list[Ints]]:
    """Rewards as float64, and the answers of each group."""
    r, g = np.asarray(rewards, dtype=np.float64), np.asarray(group)
    if r.ndim != 1 or g.shape != r.shape or (g.size and g.dtype.kind not in "iu"):
        raise ValueError(
            f"Rewards and groups must be (R,), groups whole numbers. Got {r.shape} and {g.shape} of {g.dtype}."
        )
    if (np.abs(r[~np.isnan(r)]) > LARGEST).any():
        far = float(r[np.abs(r) > LARGEST][0])
        raise ValueError(f"A reward must be finite and within ±{LARGEST:g}, or NaN where it is missing. Got: {far}.")
    order = np.argsort(g, kind="stable")
    names, starts = np.unique(g[order], return_index=True)
    members = [part.astype(np.int64) for part in np.split(order, starts[1:])] if r.size else []
    if not alone:
        for name, answers in zip(names, members, strict=True):
            if len(answers) < 2:
                raise ValueError(
                    f"A group needs at least 2 answers to one prompt to compare. Got 1 in group {name}. Sample more answers "
                    "a prompt, or use the rule 'reinforce_pp', which compares over the batch."
                )
    return r, members


def _scored(r: Floats, members: list[Ints]) -> Iterator[Ints]:
    for answers in members:
        scored = answers[~np.isnan(r[answers])]
        if len(scored):
            yield scored


def _centred(r: Floats) -> Floats:
    """r - mean. Over the smallest first, which is exact for close numbers: equal ones give exactly 0."""
    if not r.size:
        return r
    above = r - r.min()
    centred: Floats = above - above.mean() if above.any() else above
    return centred


def _deviation(centred: Floats) -> float:
    return float(np.sqrt((centred**2).sum() / max(1, len(centred) - 1)))
