"""Does a reward model agree with people, is it sure for good reason, and does it do more than measure length?

    pairs = score_pairs(preferences, scorer)                      # or ScoredPairs(…) from arrays
    check = reward_figures(pairs, settings=settings.evals, seed=7)

"Pick the longer answer" and the human noise ceiling stand beside every accuracy: below the first a model has learnt nothing,
above the second its labels are too noisy to tell. Intervals resample prompts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike

from thumbwheel.config import EvalSettings
from thumbwheel.errors import DataError, SettingError, explain
from thumbwheel.evals.intervals import Resampling, rate_figure
from thumbwheel.evals.judges import Bools, Floats, Scorer, prompt_ids
from thumbwheel.formulas import accuracy, agreement, calibration
from thumbwheel.formulas.calibration import CalibrationBin
from thumbwheel.formulas.stats import Indices
from thumbwheel.records import Figure, Preference

MAX_UNSCORED_SHARE = 0.2
# The length-controlled rate is a fit per resample, so it gets fewer of them.
LENGTH_CONTROLLED_RESAMPLES = 200


@dataclass(frozen=True)
class ScoredPairs:
    """Held-out pairs of answers with the model's scores and people's labels.

    | field       | shape | unit       | meaning                                                                  |
    | ----------- | ----- | ---------- | ------------------------------------------------------------------------ |
    | gap         | (n,)  | score      | score(a) - score(b); NaN where the model gave no score                    |
    | label       | (n,)  | -          | P(a is better): 1, 0, a share of votes; 0.5 is a tie                      |
    | prompts     | (n,)  | -          | the name of each pair's prompt; pairs of one prompt stay together         |
    | length_gap  | (n,)  | characters | length(a) - length(b), or None (any unit will do)                         |
    | temperature | ()    | score      | τ of P(a is better) = σ(gap/τ)                                           |
    | votes       | (n,)  | -          | the single votes a pair (1 for a, 0 for b, 0.5 tie), or None              |
    | slices      | -     | -          | name -> (n,) label of each pair, such as {"topic": [...]}                 |
    """

    gap: ArrayLike
    label: ArrayLike
    prompts: Sequence[str]
    length_gap: ArrayLike | None = None
    temperature: float = 1.0
    votes: Sequence[Sequence[float]] | None = None
    slices: Mapping[str, Sequence[str]] = field(default_factory=dict)


@dataclass(frozen=True)
class Slice:
    """The model and the longer answer on one part of the pairs."""

    name: str
    label: str
    accuracy: Figure
    longer: Figure


@dataclass(frozen=True)
class RewardCheck:
    """What is known of a reward model: figures, the same accuracy per slice, and the points of its calibration plot."""

    figures: tuple[Figure, ...]
    slices: tuple[Slice, ...] = ()
    bins: tuple[CalibrationBin, ...] = ()


def score_pairs(
    preferences: Sequence[Preference],
    scorer: Scorer,
    *,
    temperature: float = 1.0,
    votes: Sequence[Sequence[float]] | None = None,
) -> ScoredPairs:
    """Score both answers of each preference; a is the chosen one. Slices are by origin, where there are several."""
    prompts = [one.prompt for one in preferences]
    chosen, rejected = [one.chosen.content for one in preferences], [one.rejected.content for one in preferences]
    with np.errstate(invalid="ignore"):  # two infinite scores have no gap; NaN is how a pair without a score is written
        gap = np.asarray(scorer(prompts, chosen), np.float64) - np.asarray(scorer(prompts, rejected), np.float64)
    origins = [one.origin for one in preferences]
    return ScoredPairs(
        gap=gap,
        label=[0.5 if one.tie else one.p for one in preferences],
        prompts=prompt_ids(prompts),
        length_gap=[len(a) - len(b) for a, b in zip(chosen, rejected, strict=True)],
        temperature=temperature,
        votes=votes,
        slices={"origin": origins} if len(set(origins)) > 1 else {},
    )


def reward_figures(pairs: ScoredPairs, *, settings: EvalSettings, seed: int) -> RewardCheck:
    """Every figure of a reward model on held-out pairs. What cannot be measured has value None and says why.

    | figure                            | unit    | meaning                                                                   |
    | --------------------------------- | ------- | ------------------------------------------------------------------------- |
    | reward_accuracy                   | share   | agrees with people where they decided; an even score is half; Wilson      |
    | reward_accuracy_bootstrap         | share   | the same, resampled by prompt                                             |
    | longer_accuracy                   | share   | "pick the longer answer" on the same pairs                                |
    | reward_over_longer                | share   | the difference of the two, resampled together                             |
    | reward_accuracy_length_balanced   | share   | mean of: accuracy where the better is longer, and where it is shorter     |
    | reward_accuracy_length_controlled | share   | accuracy at equal lengths, by a logistic fit                              |
    | reward_auc                        | share   | each decided pair in both orders, so which is listed first does not matter |
    | reward_brier                      | -       | of P(a is better) = σ(gap/τ), against ties and shares of votes as they are |
    | reward_log_loss                   | nats    | the same                                                                  |
    | reward_ece                        | share   | 10 bins of equal width, each pair in both orders                          |
    | tie_labels                        | share   | pairs that people called a tie: in no accuracy                            |
    | unscored                          | pairs   | pairs without a score: in no figure                                       |
    | human_agreement                   | share   | how often two people agree on a pair                                      |
    | human_ceiling                     | share   | the accuracy that a perfect model would show against one person's labels  |

    Raises DataError for no pair, wrong shapes, labels outside [0, 1], or over 20 % of the pairs without a score.
    """
    rows = _Rows.of(pairs)
    sampling = Resampling(rows.prompts.tolist(), settings, seed)
    bins = calibration.calibration(rows.both_ways(rows.stated), rows.both_ways(rows.label), binning="equal_width")
    figures = [
        *_accuracies(rows, sampling, settings),
        sampling.figure(
            "reward_auc", rows.auc, unit="share", note="" if rows.decided.any() else "people decided no pair"
        ),
        sampling.figure("reward_brier", lambda i: float(((rows.stated - rows.label)[i] ** 2).mean())),
        sampling.figure(
            "reward_log_loss", lambda i: calibration.log_loss(rows.stated[i], rows.label[i]).value or 0.0, unit="nats"
        ),
        Figure(
            name="reward_ece", value=bins.error.value, n=len(rows.gap), unit="share", note="biased upwards on few pairs"
        ),
        sampling.figure("tie_labels", lambda i: float((~rows.decided[i]).mean()), unit="share"),
        Figure(name="unscored", value=float(rows.unscored), n=len(rows.gap) + rows.unscored, unit="pairs"),
        *_human(rows, sampling),
    ]
    return RewardCheck(tuple(figures), _slices(rows, settings), bins.bins)


@dataclass(frozen=True)
class _Rows:
    """The scored pairs as arrays; a `right` of 1, 0 or 1/2 says whether a choice agrees with the people's."""

    gap: Floats
    label: Floats
    prompts: np.ndarray[tuple[int], np.dtype[np.str_]]
    length_gap: Floats | None
    stated: Floats  # σ(gap/τ)
    votes: tuple[tuple[float, ...], ...]
    slices: Mapping[str, Sequence[str]]
    unscored: int

    @classmethod
    def of(cls, pairs: ScoredPairs) -> _Rows:
        gap, label = np.asarray(pairs.gap, np.float64), np.asarray(pairs.label, np.float64)
        n = gap.size
        _check(pairs, gap, label)
        scored = np.isfinite(gap)
        if (n - scored.sum()) > MAX_UNSCORED_SHARE * n:
            raise DataError(
                f"The reward model gave no finite score to {int(n - scored.sum())} of {n} pairs; "
                f"at most {MAX_UNSCORED_SHARE:.0%} may be without. Look at the rows it fails on first."
            )
        kept = [int(i) for i in np.flatnonzero(scored)]
        gap = gap[kept]
        return cls(
            gap=gap,
            label=label[kept],
            prompts=np.asarray(pairs.prompts, dtype=np.str_)[kept],
            length_gap=None if pairs.length_gap is None else np.asarray(pairs.length_gap, np.float64)[kept],
            stated=np.exp(-np.logaddexp(0, -gap / pairs.temperature)),
            votes=() if pairs.votes is None else tuple(tuple(pairs.votes[i]) for i in kept),
            slices={name: [labels[i] for i in kept] for name, labels in pairs.slices.items()},
            unscored=n - len(kept),
        )

    @property
    def decided(self) -> Bools:
        return np.asarray(self.label != 0.5)

    def right(self, preference: Floats) -> Floats:
        """(n,) 1 where the sign of `preference` is that of the label, 0 where it is the other, 1/2 where it is even."""
        return 0.5 + np.sign(preference) * np.sign(self.label - 0.5) / 2

    def auc(self, rows: Indices) -> float:
        rows = rows[self.decided[rows]]
        found = accuracy.auc(np.concatenate([self.gap[rows], -self.gap[rows]]), self.both_ways(self.label[rows]) > 0.5)
        return float("nan") if found.value is None else found.value

    @staticmethod
    def both_ways(p: Floats) -> Floats:
        """(2n,) each pair listed as (a, b) and as (b, a)."""
        return np.concatenate([p, 1 - p])


def _accuracies(rows: _Rows, sampling: Resampling, settings: EvalSettings) -> list[Figure]:
    decided = rows.decided
    right = rows.right(rows.gap)
    figures = [
        _clustered("reward_accuracy", right, rows, decided, settings),
        sampling.figure(
            "reward_accuracy_bootstrap", _mean_of(right, decided), unit="share", note="resampled by prompt"
        ),
    ]
    if rows.length_gap is None:
        names = (
            "longer_accuracy",
            "reward_over_longer",
            "reward_accuracy_length_balanced",
            "reward_accuracy_length_controlled",
        )
        return figures + [Figure(name=name, value=None, n=len(right), note="no lengths were given") for name in names]
    lengths = rows.length_gap
    longer = rows.right(lengths)
    better_minus_worse = lengths * np.sign(rows.label - 0.5)

    def balanced(i: Indices) -> float:
        found = accuracy.length_balanced_accuracy(rows.gap[i], rows.label[i], lengths[i]).accuracy.value
        return float("nan") if found is None else found

    def controlled(i: Indices) -> float:
        i = i[decided[i]]
        found = accuracy.length_controlled_win_rate(right[i], better_minus_worse[i]).value if i.size else None
        return float("nan") if found is None else found

    fewer = min(settings.bootstrap_samples, LENGTH_CONTROLLED_RESAMPLES)
    slower = Resampling(sampling.prompts, settings.model_copy(update={"bootstrap_samples": fewer}), sampling.seed)
    return [
        *figures,
        _clustered("longer_accuracy", longer, rows, decided, settings),
        sampling.figure("reward_over_longer", _mean_of(right - longer, decided), unit="share"),
        sampling.figure("reward_accuracy_length_balanced", balanced, unit="share"),
        slower.figure("reward_accuracy_length_controlled", controlled, unit="share"),
    ]


def _mean_of(values: Floats, decided: Bools) -> Callable[[Indices], float]:
    def mean(rows: Indices) -> float:
        rows = rows[decided[rows]]
        return float(values[rows].mean()) if rows.size else float("nan")

    return mean


def _clustered(name: str, right: Floats, rows: _Rows, chosen: Bools, settings: EvalSettings) -> Figure:
    """Accuracy on the rows chosen, with Wilson's interval at the effective number of pairs."""
    if not chosen.any():
        return Figure(name=name, value=None, n=0, unit="share", note="people decided no pair here")
    return rate_figure(name, right[chosen], rows.prompts[chosen].tolist(), settings)


def _slices(rows: _Rows, settings: EvalSettings) -> tuple[Slice, ...]:
    right = rows.right(rows.gap)
    longer = None if rows.length_gap is None else rows.right(rows.length_gap)
    found = []
    for name, labels in rows.slices.items():
        for label in sorted(set(labels)):
            here = np.array([one == label for one in labels]) & rows.decided
            found.append(
                Slice(
                    name,
                    label,
                    _clustered("reward_accuracy", right, rows, here, settings),
                    Figure(name="longer_accuracy", value=None, note="no lengths were given")
                    if longer is None
                    else _clustered("longer_accuracy", longer, rows, here, settings),
                )
            )
    return tuple(found)


def _human(rows: _Rows, sampling: Resampling) -> list[Figure]:
    """Agreement of two people on decided votes, pooled over pairs of voters, and the ceiling that follows from it."""
    votes = [[vote for vote in single if vote != 0.5] for single in rows.votes] or [[] for _ in rows.gap]
    couples = np.array([len(single) * (len(single) - 1) / 2 for single in votes])
    if not couples.any():
        note = "no pair has two decided votes"
        return [
            Figure(name=name, value=None, n=0, unit="share", note=note) for name in ("human_agreement", "human_ceiling")
        ]
    alike = couples * np.array([agreement.raw_agreement([[vote] for vote in single]).value or 0.0 for single in votes])

    def agreed(i: Indices) -> float:
        return float(alike[i].sum() / couples[i].sum()) if couples[i].any() else float("nan")

    def ceiling(i: Indices) -> float:
        agreement_here = agreed(i)
        found = accuracy.noise_ceiling(min(agreement_here, 1.0)).value if agreement_here == agreement_here else None
        return float("nan") if found is None else found

    counted = f"{int(couples.sum())} pairs of votes"
    note = "against one person's label; a majority of several is less noisy"
    return [
        sampling.figure("human_agreement", agreed, unit="share", note=counted),
        sampling.figure("human_ceiling", ceiling, unit="share", note=note),
    ]


def _check(pairs: ScoredPairs, gap: Floats, label: Floats) -> None:
    n = gap.size
    if n == 0:
        raise DataError("There is no held-out pair to measure the reward model on. Hold some out, or collect more.")
    if not pairs.temperature > 0:
        raise SettingError(
            explain("The temperature of a reward model is out of range.", allowed="(0, inf)", got=pairs.temperature)
        )
    shapes = {
        "gap": gap.shape,
        "label": label.shape,
        "prompts": (len(pairs.prompts),),
        "length_gap": (n,) if pairs.length_gap is None else np.shape(pairs.length_gap),
        "votes": (n,) if pairs.votes is None else (len(pairs.votes),),
        **{f"slices[{name!r}]": (len(labels),) for name, labels in pairs.slices.items()},
    }
    for name, shape in shapes.items():
        if shape != (n,):
            raise DataError(
                explain(f"'{name}' does not fit the pairs.", allowed=f"one value a pair, ({n},)", got=shape)
            )
    if not np.all((label >= 0) & (label <= 1)):
        raise DataError(
            explain(
                "A label is out of range.",
                allowed="the probability in [0, 1] that a is better; 0.5 for a tie",
                got=label[~((label >= 0) & (label <= 1))][:5].tolist(),
            )
        )
