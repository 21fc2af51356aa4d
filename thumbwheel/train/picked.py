"""Learning from what people picked: GRPO and its family on groups of answers at hand, which are not the policy's fresh ones.

    result = picked(model, groups, settings, Path("run"))

The loop is that of `thumbwheel.train.online`; the answers come from `Picks`. An answer weighs min(π_old / μ, cap) a token
(`engine_weight_cap`): π_old is the policy before the iteration's first update, μ what sampled the answer, perhaps versions
ago. The sampled ids are learned from as they were recorded; a row whose odds are not known is set aside with a count.
"""

from __future__ import annotations

import logging
import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from thumbwheel.batches import TokenRow
from thumbwheel.config import OnlineSettings
from thumbwheel.errors import DataError, SettingError, explain
from thumbwheel.grouped import Grouped, GroupedAnswer
from thumbwheel.models.language import LanguageModel
from thumbwheel.models.policy import LanguagePolicy
from thumbwheel.records import Preference, Prompt, digest_of
from thumbwheel.signals.accounts import Account
from thumbwheel.train.collecting import Source
from thumbwheel.train.lessons import Reference, log_ratios, prepared
from thumbwheel.train.loop import StepReport
from thumbwheel.train.online import OnlineResult, learn_from
from thumbwheel.train.rollouts import Answer, Rollouts
from thumbwheel.train.rows import Lengths, within
from thumbwheel.train.units import epoch_order

log = logging.getLogger("thumbwheel.train")
ALONE = "no other answer of its group to compare with"
ROUNDING = 1e-3  # nats above 0 that a log-probability may be by rounding
ALIKE = "all answers of its group have one reward"


@dataclass(frozen=True)
class PickedResult:
    """What came out: the run, and what became of every answer."""

    run: OnlineResult
    account: Account
    groups: int


@dataclass(frozen=True, eq=False)
class Usable:
    """Groups that can be learned from. `summed` answers know their log-probability as a whole only."""

    rollouts: Rollouts
    summed: frozenset[tuple[int, int]]  # (group, answer)
    temperature: float
    account: Account


def picked(
    model: LanguageModel,
    groups: Sequence[Grouped],
    settings: OnlineSettings,
    folder: Path,
    *,
    lengths: Lengths | None = None,
    preferences: Sequence[Preference] = (),
    resume: bool = False,
    watcher: Callable[[StepReport], None] | None = None,
    progress: bool = True,
    clock: Callable[[], float] = time.perf_counter,
) -> PickedResult:
    """Train `model` in place on rewarded groups and save it in `folder`/model. The reference is the model as it comes in.

    The groups are walked through `settings.passes` times, `prompts_per_iteration` at a time, at the temperature that most of
    the answers were sampled at. Raises SettingError (an advantage that compares no answers), DataError (nothing to learn
    from, or more unusable answers than `max_unusable_share`), else as `thumbwheel.train.online.online` does.
    """
    if settings.advantage == "gae":
        raise SettingError.of(
            "Picks compare the answers of a group, and a value head compares with what it expects itself.",
            field="online.advantage",
            allowed="grpo, dr_grpo, rloo, batch or reinforce_pp",
            got="gae",
            next="Choose another recipe than ppo.",
        )
    usable = usable_of(groups, model, lengths=within(lengths, model))
    log.info("picks: %s", usable.account.line())
    _check(usable, settings)
    n = len(usable.rollouts.prompts)
    settings = settings.model_copy(
        update={
            "temperature": usable.temperature,
            "iterations": settings.passes * math.ceil(n / settings.prompts_per_iteration),
        }
    )

    def picks(policy: LanguagePolicy, reference: Reference) -> Source:
        return Picks(policy, reference, usable, settings, folder)

    run = learn_from(
        picks, model, settings, folder, preferences=preferences, resume=resume, watcher=watcher, progress=progress,
        clock=clock,
    )  # fmt: skip
    return PickedResult(run, usable.account, n)


class Picks(Source):
    """Groups at hand, in a new order in every pass over them; a group comes once a pass."""

    own = False

    def __init__(
        self, policy: LanguagePolicy, reference: Reference, usable: Usable, settings: OnlineSettings, folder: Path
    ) -> None:
        super().__init__(settings, folder)
        self.policy, self.reference, self.usable = policy, reference, usable
        told = [
            [[a.row.ids.tolist(), a.row.shared, a.reward, a.behaviour.tolist(), a.ended] for a in group]
            for group in usable.rollouts.answers
        ]
        self.data = digest_of([told, sorted(usable.summed)])
        self.longest = max(len(answer) for answer in usable.rollouts.flat)

    def made(self, iteration: int) -> Rollouts:
        """The iteration's groups, with what the policy and its reference say of them now."""
        every, size = self.usable.rollouts, self.settings.prompts_per_iteration
        n = len(every.prompts)
        turn, place = divmod(iteration, math.ceil(n / size))
        order = epoch_order(n, seed=self.settings.seed, epoch=turn)[place * size : (place + 1) * size]
        chosen = [int(i) for i in order]
        rollouts = Rollouts(tuple(every.prompts[i] for i in chosen), tuple(every.answers[i] for i in chosen))
        rollouts = prepared(self.policy, self.reference, rollouts, self.settings)
        summed = [
            (group, answer) in self.usable.summed for group in chosen for answer in range(len(every.answers[group]))
        ]
        return rollouts.regrouped(
            [spread(one) if whole else one for one, whole in zip(rollouts.flat, summed, strict=True)]
        )

    def figures(self, rollouts: Rollouts) -> dict[str, float]:
        """As of fresh answers, but for KL: the mean log-ratio of answers that the policy did not give may be below 0."""
        return super().figures(rollouts) | kl_at_hand(rollouts)


def kl_at_hand(rollouts: Rollouts) -> dict[str, float]:
    """KL ≈ ½ E[d²] a token,  d = log π - log π_ref,  on answers that are not of π: nats a response and a token

    Source: Schulman 2020, k2; near the reference every f-divergence has this second order, whichever of the two was sampled
    from. Known value: d = (.1, -.2) -> .025 a response, .0125 a token.
    """
    halves = [log_ratios(answer) ** 2 / 2 for answer in rollouts.flat]
    return {
        "kl_per_response_nats": float(np.mean([half.sum() for half in halves])),
        "kl_per_token_nats": float(np.concatenate(halves).mean()),
    }


def spread(answer: Answer) -> Answer:
    """log μ_t = log π_old_t - (Σ log π_old - Σ log μ) / T:  of an answer's ratio every token has the geometric mean.

    For answers whose log-probability was recorded as a sum. Known value: old (-1, -3), sum -6 -> (-2, -4): two nats of
    difference over two tokens.
    """
    old = np.asarray(answer.old, dtype=np.float64)
    gap = old.sum() - float(np.asarray(answer.behaviour, dtype=np.float64).sum())
    return replace(answer, behaviour=(old - gap / len(old)).astype(np.float32))


# ---------------------------------------------------------------------- what can be used


def usable_of(groups: Sequence[Grouped], model: LanguageModel, *, lengths: Lengths) -> Usable:
    """Answers whose reward, ids and odds are known, in groups with a difference to learn from; the rest in the account.

    The account counts answers. Dropped are those whose record does not do; unscored those that nobody's vote tells apart.
    """
    dropped: Counter[str] = Counter()
    aside: Counter[str] = Counter()
    fit: list[tuple[Grouped, list[tuple[GroupedAnswer, TokenRow]]]] = []
    for group in groups:
        scored = [answer for answer in group.answers if answer.reward is not None]
        aside["no vote on it"] += len(group.answers) - len(scored)
        rows = []
        for answer in scored:
            row = _row(answer, group.prompt, model, lengths.max_tokens)
            if isinstance(row, str):
                dropped[row] += 1
            else:
                rows.append((answer, row))
        fit.append((group, rows))
    temperature = _commonest(fit)
    prompts: list[Prompt] = []
    answers: list[tuple[Answer, ...]] = []
    summed: set[tuple[int, int]] = set()
    for group, rows in fit:
        kept = [(one, row) for one, row in rows if one.sampling and one.sampling.temperature == temperature]
        dropped["sampled at another temperature than most"] += len(rows) - len(kept)
        if len({one.reward for one, _ in kept}) < 2:
            aside[ALONE if len(kept) == 1 else ALIKE] += len(kept)
            continue
        summed |= {(len(prompts), place) for place, (one, _) in enumerate(kept) if one.token_logps is None}
        prompts.append(group.prompt)
        answers.append(tuple(_answer(one, row) for one, row in kept))
    account = Account(
        read=sum(len(group.answers) for group in groups),
        kept=sum(len(group) for group in answers),
        dropped=+dropped,
        unscored=aside.total(),
        notes=+aside,
    )
    return Usable(Rollouts(tuple(prompts), tuple(answers)), frozenset(summed), temperature, account)


def _row(answer: GroupedAnswer, prompt: Prompt, model: LanguageModel, longest: int) -> TokenRow | str:
    """Prompt and answer as they were sampled, or the reason why not."""
    template = model.template
    if not answer.token_ids:
        return "no token ids were recorded"
    if answer.tokenizer != template.tokenizer_hash:
        return "sampled with another tokenizer"
    if answer.sampling is None:
        return "how it was sampled was not recorded"
    if answer.sampling.template != template.hash:
        return "sampled with another chat template"
    if not answer.sampling.whole:
        return "sampled greedily, or from a part of the distribution (top-p, top-k)"
    if answer.behaviour_logp is None and answer.token_logps is None:
        return "no log-probability was recorded"
    if max(answer.token_logps or (answer.behaviour_logp or 0.0,)) > ROUNDING:
        return "a recorded log-probability is above 0"
    if max(answer.token_ids) >= model.network.get_input_embeddings().num_embeddings:
        return "token ids outside the model's vocabulary"
    try:
        row = template.encode(
            prompt, answer.response, token_ids=answer.token_ids, tokenizer=answer.tokenizer, name=answer.step_id
        )
    except DataError:
        return "the template refuses its prompt"
    return row if len(row) <= longest else f"longer than {longest} tokens"


def _answer(answer: GroupedAnswer, row: TokenRow) -> Answer:
    """Where the log-probability is known as a sum, `behaviour` has that sum until `spread` puts it right."""
    n = len(answer.token_ids or ())
    logps = answer.token_logps or [(answer.behaviour_logp or 0.0) / n] * n
    reward = math.nan if answer.reward is None else answer.reward
    return Answer(row, answer.response.content, answer.ended, np.array(logps, dtype=np.float32), reward=reward)


def _commonest(fit: Sequence[tuple[Grouped, Sequence[tuple[GroupedAnswer, TokenRow]]]]) -> float:
    """The temperature of most answers; of equally common ones the lowest. 1 where there is none."""
    counts = Counter(_temperatures(fit))
    return min(counts, key=lambda t: (-counts[t], t)) if counts else 1.0


def _temperatures(fit: Sequence[tuple[Grouped, Sequence[tuple[GroupedAnswer, TokenRow]]]]) -> Iterator[float]:
    for _, rows in fit:
        for answer, _ in rows:
            if answer.sampling is not None:
                yield answer.sampling.temperature


def _check(usable: Usable, settings: OnlineSettings) -> None:
    """Raises DataError where nothing is left, or too much could not be used."""
    account = usable.account
    if not usable.rollouts.prompts:
        raise DataError(
            f"There is nothing to learn from: {account.line()}. Picks teach where answers to one prompt were rewarded "
            "differently and how they were sampled is on record; `thumbwheel sample` records it."
        )
    if account.dropped_share > settings.max_unusable_share:
        raise DataError(
            explain(
                f"Too many answers cannot be used: {account.line()}.",
                allowed=f"a share of at most {settings.max_unusable_share:.0%}",
                got=f"{account.dropped_share:.0%}",
                next="Look at the reasons; where they are as you meant it, raise online.max_unusable_share.",
            )
        )
