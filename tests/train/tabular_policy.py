"""A policy of one table: the odds of the next token depend on the last one only. Small enough to know its optimum."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor, nn

from thumbwheel.batches import PackedBatch, token_row
from thumbwheel.models.policy import Evaluated
from thumbwheel.train.rollouts import Answer, Rollouts

PROMPT = 0


class TabularPolicy(nn.Module):
    """logits (tokens, tokens) by last and next token, and a value of each last token."""

    def __init__(self, logits: Tensor) -> None:
        super().__init__()
        self.logits = nn.Parameter(logits.clone())
        self.value = nn.Parameter(torch.zeros(len(logits)))

    def evaluate(self, batch: PackedBatch, *, temperature: float = 1.0, entropy: bool = False) -> Evaluated:
        last = torch.from_numpy(batch.ids[batch.source])
        logp = torch.log_softmax(self.logits[last] / temperature, 1)
        taken = logp.gather(1, torch.from_numpy(batch.target)[:, None])[:, 0]
        spread = -(logp.exp() * logp).sum(1) if entropy else None
        return Evaluated(taken, spread, self.value[last])

    @property
    def first(self) -> Tensor:
        """Odds of an answer's first token."""
        return torch.softmax(self.logits[PROMPT].detach(), 0)


class FixedReference:
    """A table that stays."""

    def __init__(self, logits: Tensor) -> None:
        self.table = TabularPolicy(logits)

    @contextmanager
    def policy(self) -> Iterator[TabularPolicy]:
        yield self.table


def drawn(
    policy: TabularPolicy, rewards: Sequence[float], *, groups: int, each: int, dice: torch.Generator
) -> Rollouts:
    """Answers of one token, `each` to every one of `groups` prompts, and what they earn."""
    arms = torch.multinomial(policy.first, groups * each, replacement=True, generator=dice).tolist()
    logp = torch.log(policy.first)
    answers = [
        Answer(
            token_row([PROMPT], [arm]),
            str(arm),
            True,
            np.array([float(logp[arm])], dtype=np.float32),
            reward=rewards[arm],
        )
        for arm in arms
    ]
    cut = [tuple(answers[g * each : (g + 1) * each]) for g in range(groups)]
    return Rollouts(((),) * groups, tuple(cut))  # type: ignore[arg-type]
