"""Do raters agree beyond chance? Krippendorff α, Cohen κ, Fleiss κ, raw agreement and the majority vote. numpy only.

`ratings` has one row per rater and one column per unit; None or NaN says that this rater did not rate this unit. A figure
that the data cannot carry is undefined, with the reason.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from thumbwheel.formulas.figures import Figure, Floats

Ratings: TypeAlias = Sequence[Sequence[Hashable | None]]
Level: TypeAlias = Literal["nominal", "ordinal", "interval", "ratio"]


def krippendorff_alpha(ratings: Ratings, *, level: Level) -> Figure:
    """α = 1 - D_o/D_e = 1 - (n - 1) Σ o_ck δ²_ck / Σ n_c n_k δ²_ck,  o_ck = Σ_u (pairs c, k of two raters in u) / (m_u - 1)

    | symbol | name    | shape           | unit  | range                                                        |
    | ------ | ------- | --------------- | ----- | ------------------------------------------------------------ |
    | -      | ratings | (raters, units) | any   | values or None; numbers unless nominal; ≥ 0 if ratio         |
    | m_u    | -       | ()              | count | ratings of unit u; a unit with fewer than two is in no sum   |
    | n_c, n | -       | ()              | count | how often c was given in those units, and the sum over c     |
    | δ²_ck  | level   | ()              | -     | nominal: c ≠ k; interval: (c - k)²; ratio: ((c - k)/(c + k))² |
    |        |         |                 |       | ordinal: (n_c/2 + n_k/2 + n of every value between)²         |

    Source: Krippendorff 2011, "Computing Krippendorff's alpha-reliability". 1 is full agreement, 0 is chance.
    Known value: its four coders and twelve units -> nominal .743, ordinal .815, interval .849, ratio .797.
    Undefined where no unit has two ratings, or where all ratings are equal: chance then cannot be told from agreement.
    Raises ValueError for rows of unequal length, a value that is no number where one is needed, a negative ratio value.
    """
    units = [unit for unit in _by_unit(ratings) if len(unit) > 1]
    if not units:
        return Figure(None, "no unit has two ratings")
    values = _domain(units, level)
    place = {value: i for i, value in enumerate(values)}
    coincidence = np.zeros((len(values), len(values)))
    for unit in units:
        count = np.bincount([place[value] for value in unit], minlength=len(values))
        coincidence += (np.outer(count, count) - np.diag(count)) / (len(unit) - 1)
    marginal = coincidence.sum(axis=1)
    distance = _squared_distance(values, marginal, level)
    expected = float(marginal @ distance @ marginal)
    if expected == 0:
        return Figure(None, "all ratings are equal, so agreement cannot be told from chance")
    return Figure(1 - (float(marginal.sum()) - 1) * float((coincidence * distance).sum()) / expected)


def cohen_kappa(first: Sequence[Hashable | None], second: Sequence[Hashable | None]) -> Figure:
    """κ = (p_o - p_e) / (1 - p_e),  p_o = share of equal labels, p_e = Σ_c p₁(c) p₂(c)

    | symbol | name          | shape    | unit | range                                           |
    | ------ | ------------- | -------- | ---- | ----------------------------------------------- |
    | -      | first, second | (units,) | any  | labels or None; units that both rated are taken |

    Source: Cohen 1960. 1 is full agreement, 0 is chance. Known value: 20 yes-yes, 5 yes-no, 10 no-yes, 15 no-no -> .4.
    Undefined where no unit has both, or where both gave one and the same label throughout.
    Raises ValueError for unequal lengths. Left out: weights for near misses; α with level="ordinal" has them.
    """
    pairs = [unit for unit in _by_unit((first, second)) if len(unit) == 2]
    if not pairs:
        return Figure(None, "no unit has ratings of both")
    n = len(pairs)
    ours, theirs = Counter(a for a, _ in pairs), Counter(b for _, b in pairs)
    chance = sum(ours[label] * theirs[label] for label in ours) / n**2
    if chance == 1:
        return Figure(None, "all ratings are equal, so agreement cannot be told from chance")
    observed = sum(a == b for a, b in pairs) / n
    return Figure((observed - chance) / (1 - chance))


def fleiss_kappa(counts: ArrayLike) -> Figure:
    """κ = (P̄ - P_e) / (1 - P_e),  P_i = Σ_c n_ic (n_ic - 1) / (n_i (n_i - 1)),  P_e = Σ_c (Σ_i n_ic / Σ_i n_i)²

    | symbol | name   | shape               | unit  | range                                       |
    | ------ | ------ | ------------------- | ----- | ------------------------------------------- |
    | n_ic   | counts | (units, categories) | count | ≥ 0, how many raters put unit i into c      |
    | n_i    | -      | ()                  | count | raters of unit i; units with fewer than two |
    |        |        |                     |       | are left out                                |

    Source: Fleiss 1971. Units may have unequal numbers of raters: each P_i uses its own, and nothing is rescaled, so a 1-1
    split has P_i = 0. Known value: one split 1-1 and one 2-0 of the same first label -> P̄ = ½, P_e = .625, κ = -⅓.
    Undefined where no unit has two raters, or all used one category. Raises ValueError for negative or fractional counts.
    """
    table = np.asarray(counts, dtype=np.float64)
    if table.ndim != 2 or (table < 0).any() or (table != np.floor(table)).any():
        raise ValueError(f"Counts must be whole numbers of shape (units, categories). Got the shape {table.shape}.")
    table = table[table.sum(axis=1) > 1]
    if not table.size:
        return Figure(None, "no unit has two raters")
    raters = table.sum(axis=1)
    observed = float(((table * (table - 1)).sum(axis=1) / (raters * (raters - 1))).mean())
    chance = float(((table.sum(axis=0) / raters.sum()) ** 2).sum())
    if np.count_nonzero(table.sum(axis=0)) < 2:
        return Figure(None, "all ratings are equal, so agreement cannot be told from chance")
    return Figure((observed - chance) / (1 - chance))


def raw_agreement(ratings: Ratings) -> Figure:
    """#(pairs of raters of one unit who gave the same label) / #(pairs of raters of one unit)

    | symbol | name    | shape           | unit | range           |
    | ------ | ------- | --------------- | ---- | --------------- |
    | -      | ratings | (raters, units) | any  | labels or None  |

    In [0, 1]; pairs are pooled, so a unit with many raters weighs more. Known value: (1, 1, 2), (1, 2, None) -> ½.
    Undefined where no unit has two ratings. Left out: chance; see `krippendorff_alpha`.
    """
    same = pairs = 0
    for unit in _by_unit(ratings):
        same += sum(count * (count - 1) // 2 for count in Counter(unit).values())
        pairs += len(unit) * (len(unit) - 1) // 2
    return Figure(same / pairs) if pairs else Figure(None, "no unit has two ratings")


@dataclass(frozen=True, slots=True)
class Majority:
    """The label with most votes; None where several have as many (`leaders` lists them) or nobody voted."""

    value: Hashable | None
    leaders: tuple[Hashable, ...]  # in the order of their first vote
    votes: int  # for each of the leaders
    n: int

    @property
    def tied(self) -> bool:
        return len(self.leaders) > 1


def majority(votes: Sequence[Hashable | None]) -> Majority:
    """argmax_c #{votes = c}, kept open where it is not one label

    | symbol | name  | shape | unit | range          |
    | ------ | ----- | ----- | ---- | -------------- |
    | -      | votes | (n,)  | any  | labels or None |

    A tie is never broken, by alphabet or otherwise: it goes to another rater. Known value: (A, B, A) -> A; (B, A) -> tied.
    """
    count = Counter(vote for vote in votes if not _missing(vote))
    if not count:
        return Majority(None, (), 0, 0)
    most = max(count.values())
    leaders = tuple(label for label, votes_for in count.items() if votes_for == most)
    return Majority(leaders[0] if len(leaders) == 1 else None, leaders, most, count.total())


def _missing(value: object) -> bool:
    return value is None or bool(value != value)  # NaN, of whatever float type, differs from itself


def _by_unit(ratings: Ratings) -> list[list[Hashable]]:
    """The ratings that each unit has. Raises ValueError for raters with unequal numbers of units."""
    if len({len(row) for row in ratings}) > 1:
        lengths = sorted({len(row) for row in ratings})
        raise ValueError(f"Every rater needs one entry per unit (None for no rating). Got rows of {lengths} entries.")
    return [[value for value in column if not _missing(value)] for column in zip(*ratings, strict=True)]


def _domain(units: list[list[Hashable]], level: Level) -> list[Hashable]:
    """The distinct values, in ascending order where they have one."""
    values = list(dict.fromkeys(value for unit in units for value in unit))
    if level == "nominal":
        return values
    if not all(isinstance(value, int | float | np.number) for value in values):
        odd = next(value for value in values if not isinstance(value, int | float | np.number))
        raise ValueError(f"Ratings at level '{level}' must be numbers. Got: {odd!r}. For names, use level 'nominal'.")
    ordered = sorted(values, key=float)  # type: ignore[arg-type]
    if level == "ratio" and float(ordered[0]) < 0:  # type: ignore[arg-type]
        raise ValueError(f"Ratings at level 'ratio' must be 0 or more. Got: {ordered[0]!r}. Use level 'interval'.")
    return ordered


def _squared_distance(values: list[Hashable], marginal: Floats, level: Level) -> Floats:
    if level == "nominal":
        return 1.0 - np.eye(len(values))
    if level == "ordinal":
        middle = np.cumsum(marginal) - marginal / 2
        return (middle[:, None] - middle[None, :]) ** 2
    number = np.array(values, dtype=np.float64)
    difference = number[:, None] - number[None, :]
    if level == "interval":
        return difference**2
    total = number[:, None] + number[None, :]
    return (difference / np.where(total > 0, total, 1.0)) ** 2
