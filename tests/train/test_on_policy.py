"""PPO, GRPO and their family against what is known: the optimum of a table, exact ratios, sums of rewards, micro-batches."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from tests.train.tabular_policy import FixedReference, TabularPolicy, drawn
from thumbwheel.batches import token_row
from thumbwheel.config import OnlineSettings
from thumbwheel.train.learner import Learner
from thumbwheel.train.lessons import lessons_of, prepared
from thumbwheel.train.on_policy import Lesson, OnPolicy, unit_of
from thumbwheel.train.rollouts import Answer, Rollouts
from thumbwheel.train.task import accelerator_of, through
from thumbwheel.train.units import epoch_order

REWARDS = (0.0, 1.0, 0.5, -0.5, 0.2)
REFERENCE = torch.tensor([[0.3, -0.4, 0.8, 0.1, -0.2]] * 5)
BETA = 0.5


def learned(settings: OnlineSettings, *, iterations: int, groups: int, beta: float) -> TabularPolicy:
    """A table after so many iterations of the loop's own steps."""
    policy, reference = TabularPolicy(REFERENCE), FixedReference(REFERENCE)
    task = OnPolicy(policy, settings, longest=1)  # type: ignore[arg-type]
    task.coefficient = beta
    learner: Learner[Any] = Learner(task, settings)
    dice = torch.Generator().manual_seed(0)
    for iteration in range(iterations):
        rollouts = drawn(policy, REWARDS, groups=groups, each=settings.answers_per_prompt, dice=dice)
        rollouts = prepared(policy, reference, rollouts, settings)  # type: ignore[arg-type]
        units = lessons_of(rollouts, settings, coefficient=beta)
        for epoch in range(settings.epochs):
            order = epoch_order(len(units), seed=0, epoch=iteration * settings.epochs + epoch)
            for at in range(0, len(units), settings.batch_size):
                batch = [units[int(i)] for i in order[at : at + settings.batch_size]]
                learner.update(batch, settings.lr * (1 - iteration / iterations))
    return policy


@pytest.mark.parametrize(
    "changes",
    [
        {"recipe": "ppo", "standardise": False, "epochs": 2, "batch_size": 128, "value_clip": None},
        {"recipe": "rloo", "answers_per_prompt": 4, "batch_size": 64},
        {"recipe": "dr_grpo", "answers_per_prompt": 4, "batch_size": 64},
        {"recipe": "rloo", "answers_per_prompt": 4, "batch_size": 64, "kl": {"place": "loss", "estimator": "k2"}},
    ],
    ids=["ppo", "rloo", "dr_grpo", "rloo, KL in the loss"],
)
def test_the_optimum_of_a_table_is_reached(changes: dict[str, Any]) -> None:
    """P3, P5: with KL to the reference the best policy is π ∝ π_ref e^(r/β). Total variation below 0.02."""
    settings = OnlineSettings(**{"lr": 0.05, "adam_betas": (0.8, 0.99), "engine_weight_cap": None, **changes})
    policy = learned(settings, iterations=150, groups=256 // settings.answers_per_prompt, beta=BETA)
    weights = torch.softmax(REFERENCE[0], 0) * torch.exp(torch.tensor(REWARDS) / BETA)
    best = weights / weights.sum()
    assert float((policy.first - best).abs().sum() / 2) < 0.02


def test_without_reward_a_policy_goes_back_to_its_reference() -> None:
    """Pitfalls: a KL-only loss on a bandit: KL falls to 0."""
    settings = OnlineSettings(
        recipe="rloo", answers_per_prompt=4, batch_size=64, lr=0.05, engine_weight_cap=None,
        kl={"place": "loss", "estimator": "k2"},
    )  # fmt: skip
    policy, reference = TabularPolicy(torch.zeros(5, 5)), FixedReference(REFERENCE)
    task = OnPolicy(policy, settings, longest=1)  # type: ignore[arg-type]
    task.coefficient = 1.0
    learner: Learner[Any] = Learner(task, settings)
    dice = torch.Generator().manual_seed(0)

    def kl() -> float:
        return float((policy.first * (policy.first.log() - torch.log_softmax(REFERENCE[0], 0))).sum())

    began = kl()
    for _ in range(80):
        rollouts = drawn(policy, (0.0,) * 5, groups=64, each=4, dice=dice)
        rollouts = prepared(policy, reference, rollouts, settings)  # type: ignore[arg-type]
        learner.update(lessons_of(rollouts, settings, coefficient=1.0), 0.05)
    assert began > 0.05
    assert kl() < 0.002


# ---------------------------------------------------------------------- rewards and lessons


def answer(
    tokens: int, *, reward: float = 1.0, ended: bool = True, old: float = -1.0, reference: float = -1.25
) -> Answer:
    """An answer whose log-probabilities are known."""
    known = {
        "old": np.full(tokens, old, np.float32), "reference": np.full(tokens, reference, np.float32),
        "value": np.zeros(tokens, np.float32), "entropy": np.ones(tokens, np.float32),
    }  # fmt: skip
    return Answer(token_row([1], [2] * tokens), "x", ended, np.full(tokens, old, np.float32), reward=reward, **known)


def of(*groups: tuple[Answer, ...]) -> Rollouts:
    return Rollouts(((),) * len(groups), groups)  # type: ignore[arg-type]


def test_the_rewards_of_tokens_sum_to_the_score_less_the_kl() -> None:
    """Golden values: Σ rewards = score - β Σ KL. With values 0, γ = λ = 1 the first token's return is that sum."""
    settings = OnlineSettings(recipe="ppo", standardise=False, lam=1.0)
    (unit,) = lessons_of(of((answer(4, reward=2.0),)), settings, coefficient=0.1)
    (lesson,) = unit.label
    assert lesson.returns.tolist() == pytest.approx([2 - 0.1, 2 - 0.075, 2 - 0.05, 2 - 0.025])
    assert lesson.advantage.tolist() == pytest.approx(lesson.returns.tolist())  # a value head of zeros


def test_group_advantages_take_the_kl_of_the_whole_answer_off() -> None:
    """RLOO on rewards 1 and 0, KL .25 a token over 2 and 4 tokens, β .1: .95 against -.1, so ±1.05."""
    settings = OnlineSettings(recipe="rloo", answers_per_prompt=2)
    (unit,) = lessons_of(of((answer(2, reward=1.0), answer(4, reward=0.0))), settings, coefficient=0.1)
    assert [lesson.advantage[0] for lesson in unit.label] == pytest.approx([1.05, -1.05])


def test_grpo_does_not_blow_the_kl_of_a_flat_group_up() -> None:
    """KL of .5 and 1 nats, β .1. All right: ±.025, where a division by the deviation would make it ±.71. Of 1 and 0 the
    scores alone give ±.707106, and the KL stands beside: + .025 and - .025."""
    settings = OnlineSettings(recipe="grpo", answers_per_prompt=2)
    flat = (answer(2, reward=1.0), answer(4, reward=1.0))
    (unit,) = lessons_of(of(flat), settings, coefficient=0.1)
    assert [lesson.advantage[0] for lesson in unit.label] == pytest.approx([0.025, -0.025])
    apart = (answer(2, reward=1.0), answer(4, reward=0.0))
    (unit,) = lessons_of(of(apart), settings, coefficient=0.1)
    assert [lesson.advantage[0] for lesson in unit.label] == pytest.approx([0.732106, -0.732106], abs=1e-5)
    missing = (answer(2, reward=1.0), answer(4, reward=math.nan), answer(6, reward=1.0))
    (unit,) = lessons_of(of(missing), settings, coefficient=0.1)
    assert [float(lesson.advantage[0]) for lesson in unit.label] == pytest.approx([0.05, 0.0, -0.05])


def test_the_kl_of_an_update_is_that_of_old_to_new() -> None:
    """Old (½, ¼, ¼), new (¼, ¼, ½) on answers drawn from the old: KL(old‖new) = ½ ln 2 + ¼ ln ½ = .173287, without error."""
    settings = OnlineSettings(recipe="rloo", answers_per_prompt=2)
    arms = [(0, 0.5), (0, 0.5), (1, 0.25), (2, 0.25)]
    rows = [token_row([0], [arm]) for arm, _ in arms]
    unit = unit_of("p", rows, [lesson(1, old=math.log(odds)) for _, odds in arms])
    table = torch.log(torch.tensor([[0.25, 0.25, 0.5]] * 3))
    task = OnPolicy(TabularPolicy(table), settings, longest=1)  # type: ignore[arg-type]
    figures, _ = through(task, [unit], settings, accelerator_of(), learn=False)
    assert figures["update_kl"] == pytest.approx(0.25 * math.log(2), rel=1e-5)


def test_an_answer_without_reward_is_left_out_and_has_no_advantage() -> None:
    """Pitfalls: rewards (1, None, 0, 0): the baseline is over three, the missing one's advantage is 0 and not counted."""
    settings = OnlineSettings(recipe="dr_grpo", answers_per_prompt=4)
    group = tuple(answer(1, reward=r) for r in (1.0, math.nan, 0.0, 0.0))
    (unit,) = lessons_of(of(group), settings, coefficient=0.0)
    assert [float(lesson.advantage[0]) for lesson in unit.label] == pytest.approx([2 / 3, 0, -1 / 3, -1 / 3])
    assert [lesson.counted for lesson in unit.label] == [True, False, True, True]


@pytest.mark.parametrize(("policy", "advantages", "counted"), [
    ("keep", [0.5, -0.5], [True, True]), ("mask", [0.5, -0.5], [False, True]), ("penalise", [-0.5, 0.5], [True, True]),
])  # fmt: skip
def test_cut_answers_are_kept_masked_or_penalised(policy: Any, advantages: list[float], counted: list[bool]) -> None:
    """P3: missing-EOS handling. The cut answer has reward 1, the other one 0; the penalty is 2."""
    settings = OnlineSettings(recipe="dr_grpo", answers_per_prompt=2, cut_answers=policy, cut_penalty=2.0)
    (unit,) = lessons_of(of((answer(1, ended=False), answer(1, reward=0.0))), settings, coefficient=0.0)
    assert [float(lesson.advantage[0]) for lesson in unit.label] == pytest.approx(advantages)
    assert [lesson.counted for lesson in unit.label] == counted


# ---------------------------------------------------------------------- the loss


def lesson(tokens: int, *, advantage: float = 1.0, counted: bool = True, old: float = 0.0) -> Lesson:
    of_ = np.full
    zeros = np.zeros(tokens, np.float32)
    return Lesson(counted, of_(tokens, advantage, np.float32), of_(tokens, old, np.float32), zeros, zeros, zeros, zeros)


def step(units: list[Any], settings: OnlineSettings, logits: torch.Tensor = REFERENCE) -> tuple[float, torch.Tensor]:
    """Loss and gradient of one step."""
    from thumbwheel.train.task import accelerator_of

    policy = TabularPolicy(logits)
    task = OnPolicy(policy, settings, longest=8)  # type: ignore[arg-type]
    figures, _ = through(task, units, settings, accelerator_of(), learn=True)
    grad = policy.logits.grad
    return figures["loss"], torch.zeros_like(policy.logits) if grad is None else grad


@pytest.mark.parametrize("reduction", ["token_mean", "sequence_mean", "constant_length"])
@pytest.mark.parametrize("ratio", ["token", "sequence"])
def test_micro_batches_never_change_the_gradient(reduction: str, ratio: Any) -> None:
    """Pitfalls: the same answers in one, some and many micro-batches, unequal lengths: gradients equal to 1e-6."""
    units = [
        unit_of(f"p{i}", [token_row([i], list(range(1, n + 1))) for n in (1 + i, 4 - i)], [
            lesson(1 + i, advantage=0.3 * i - 0.5, old=-1.5), lesson(4 - i, advantage=0.7, counted=i != 2, old=-1.6)
        ])
        for i in range(4)
    ]  # fmt: skip
    found = [
        step(units, OnlineSettings(recipe="rloo", answers_per_prompt=2, engine_weight_cap=None, reduction=reduction,
                                   ratio=ratio, tokens_per_micro_batch=n))
        for n in (1000, 12, 1)
    ]  # fmt: skip
    for loss, gradient in found[1:]:
        assert loss == pytest.approx(found[0][0], abs=1e-6)
        assert torch.allclose(gradient, found[0][1], atol=1e-6)
    assert float(found[0][1].abs().max()) > 0.01


def test_a_masked_answer_is_in_neither_numerator_nor_denominator() -> None:
    """Pitfalls: one 3-token answer beside a masked one of 4 tokens gives the loss of the first alone."""
    settings = OnlineSettings(recipe="rloo", answers_per_prompt=2, engine_weight_cap=None)
    rows = [token_row([0], [1, 2, 3]), token_row([0], [4, 3, 2, 1])]
    alone = step([unit_of("p", rows[:1], [lesson(3, old=-2.0)])], settings)
    both = step([unit_of("p", rows, [lesson(3, old=-2.0), lesson(4, counted=False)])], settings)
    assert both[0] == pytest.approx(alone[0], abs=1e-7)
    assert torch.allclose(both[1], alone[1], atol=1e-7)


def test_a_step_whose_answers_are_all_masked_is_zero() -> None:
    """Pitfalls: every answer masked: loss 0, gradient 0, no NaN."""
    unit = unit_of("p", [token_row([0], [1, 2])], [lesson(2, counted=False, advantage=math.nan)])
    loss, gradient = step([unit], OnlineSettings(recipe="rloo", answers_per_prompt=2))
    assert loss == 0.0
    assert torch.equal(gradient, torch.zeros_like(gradient))


def test_texts_beside_are_learned_by_their_mean_token_loss() -> None:
    """P3: auxiliary language-model loss. Uniform odds over 5 tokens: NLL ln 5, times its weight."""
    settings = OnlineSettings(recipe="rloo", answers_per_prompt=2, lm_weight=0.5)
    row = token_row([0], [1, 2, 3])
    text = unit_of("t", [row], [Lesson.of_text(3)])
    loss, gradient = step([text], settings, torch.zeros(5, 5))
    assert loss == pytest.approx(0.5 * math.log(5), rel=1e-6)
    assert float(gradient[0, 1]) == pytest.approx(0.5 / 3 * (0.2 - 1), rel=1e-5)


def test_entropy_is_rewarded_by_its_weight() -> None:
    """Uniform over 5: entropy ln 5; advantage 0, so the loss is the bonus alone."""
    settings = OnlineSettings(recipe="rloo", answers_per_prompt=2, entropy_weight=0.1, engine_weight_cap=None)
    unit = unit_of("p", [token_row([0], [1])], [lesson(1, advantage=0.0, old=-math.log(5))])
    loss, _ = step([unit], settings, torch.zeros(5, 5))
    assert loss == pytest.approx(-0.1 * math.log(5), rel=1e-6)


def test_engine_and_trainer_apart_weigh_tokens_up_to_the_cap() -> None:
    """Truncated importance sampling: π_old/μ = e² is cut to 2, so the loss of ratio 1, advantage 1 is -2."""
    settings = OnlineSettings(recipe="rloo", answers_per_prompt=2, engine_weight_cap=2.0)
    known = lesson(1, old=-math.log(5))
    apart = replace(known, behaviour=np.array([-math.log(5) - 2.0], np.float32))
    loss, _ = step([unit_of("p", [token_row([0], [1])], [apart])], settings, torch.zeros(5, 5))
    assert loss == pytest.approx(-2.0, rel=1e-5)
