"""P5: learning from a person's pick of the group, on answers that an older policy gave."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from thumbwheel.config import ModelSettings, OnlineSettings, SampleSettings
from thumbwheel.engines.batch_sampler import BatchSampler
from thumbwheel.engines.recording import sampled_fields
from thumbwheel.errors import CheckpointError, DataError, SettingError
from thumbwheel.grouped import Grouped, GroupedAnswer
from thumbwheel.models.language import LanguageModel
from thumbwheel.models.policy import LanguagePolicy
from thumbwheel.models.scoring import summed_logps
from thumbwheel.recorder import Recorder
from thumbwheel.records import Message
from thumbwheel.signals.groups import answer_of
from thumbwheel.testing.models import tiny_language_model
from thumbwheel.train.lessons import Reference, lessons_of
from thumbwheel.train.picked import PickedResult, Picks, Usable, kl_at_hand, picked, spread, usable_of
from thumbwheel.train.rollouts import Answer, Rollouts
from thumbwheel.train.rows import Lengths

EACH = 4
PROMPT = (Message(role="user", content="a"),)
SHORT = SampleSettings(max_new_tokens=6, batch_size=24, temperature=0.8)
LENGTHS = Lengths(max_tokens=64)


def model(*, adapter: str = "full") -> LanguageModel:
    made = tiny_language_model(seed=1, layers=1, dim=32)
    made.make_trainable(ModelSettings(adapter=adapter), seed=0)
    return made


def settings(**changes: Any) -> OnlineSettings:
    base: dict[str, Any] = {
        "recipe": "rloo", "passes": 2, "prompts_per_iteration": 2, "batch_size": 1, "lr": 3e-3, "checkpoint_every_steps": 1,
        "kl": {"coefficient": 0.0},
    }  # fmt: skip
    return OnlineSettings(**{**base, **changes})


def sampled(of: LanguageModel, sampling: SampleSettings = SHORT, letters: str = "abcd") -> list[Grouped]:
    """Four answers to each prompt, recorded as `thumbwheel sample` records them; the one of the most vowels is picked."""
    recorder = Recorder(policy_version="v0")
    prompts = [(Message(role="user", content=letter),) for letter in letters for _ in range(EACH)]
    samples = BatchSampler(of).sample(prompts, seeds=range(len(prompts)), settings=sampling)
    steps = [
        recorder.step(prompt, one.text, id=f"{n}", attempt=n % EACH, **sampled_fields(one, of.template, sampling))
        for n, (prompt, one) in enumerate(zip(prompts, samples, strict=True))
    ]
    return [pick(steps[i : i + EACH]) for i in range(0, len(steps), EACH)]


def pick(steps: Sequence[Any]) -> Grouped:
    best = max(range(len(steps)), key=lambda i: sum(c in "aeiouAEIOU" for c in steps[i].action.content))
    answers = tuple(answer_of(step, 1.0 if i == best else 0.0) for i, step in enumerate(steps))
    return Grouped(prompt=steps[0].state, answers=answers, feedback_ids=("f",))


@pytest.fixture(scope="module")
def groups() -> list[Grouped]:
    return sampled(model())


def run(
    folder: Path, s: OnlineSettings, groups: Sequence[Grouped], of: LanguageModel | None = None, **how: Any
) -> PickedResult:
    return picked(of or model(), groups, s, folder, progress=False, lengths=LENGTHS, **how)


def changed(groups: Sequence[Grouped], **update: Any) -> list[Grouped]:
    """The groups with these fields in every answer."""
    return [g.model_copy(update={"answers": tuple(a.model_copy(update=update) for a in g.answers)}) for g in groups]


def resampled(groups: Sequence[Grouped], **update: Any) -> list[Grouped]:
    """The groups as if they had been sampled otherwise."""
    return [
        g.model_copy(
            update={
                "answers": tuple(
                    a.model_copy(update={"sampling": a.sampling.model_copy(update=update) if a.sampling else None})
                    for a in g.answers
                )
            }
        )
        for g in groups
    ]


def logps(of: LanguageModel, groups: Sequence[Grouped]) -> tuple[float, float]:
    """Mean log-probability of the picked answers, and of the others."""
    rows = {
        reward: [
            of.template.encode(g.prompt, a.response, token_ids=a.token_ids, tokenizer=a.tokenizer)
            for g in groups for a in g.answers if a.reward == reward
        ]
        for reward in (1.0, 0.0)
    }  # fmt: skip
    return float(np.mean(summed_logps(of, rows[1.0]))), float(np.mean(summed_logps(of, rows[0.0])))


def weights(of: LanguageModel) -> dict[str, torch.Tensor]:
    return {name: p.detach().clone() for name, p in of.named_parameters()}


def first_rollouts(groups: Sequence[Grouped], s: OnlineSettings, folder: Path) -> Any:
    of = model()
    usable = usable_of(groups, of, lengths=LENGTHS)
    s = s.model_copy(update={"temperature": usable.temperature})
    return Picks(LanguagePolicy(of), Reference(of), usable, s, folder).made(0)


# ---------------------------------------------------------------------- what is learned


def test_a_tiny_model_learns_to_prefer_what_was_picked(tmp_path: Path, groups: list[Grouped]) -> None:
    """P5: the log-probability of picked answers rises against that of the others."""
    of = model()
    before = logps(of, groups)
    result = run(tmp_path, settings(passes=6), groups, of)
    after = logps(of, groups)
    assert after[0] - after[1] > before[0] - before[1] + 1.0
    assert result.groups == 4
    assert (result.account.read, result.account.kept) == (16, 16)
    assert result.run.iterations == 6 * 2  # passes over 4 groups, 2 at a time
    assert (tmp_path / "model" / "config.json").exists()


@pytest.mark.parametrize(("rule", "expected"), [
    ("rloo", (1.0, -1 / 3)), ("dr_grpo", (0.75, -0.25)), ("grpo", (1.499997, -0.499999)),
])  # fmt: skip
def test_advantages_of_a_pick_by_hand(
    rule: str, expected: tuple[float, float], tmp_path: Path, groups: list[Grouped]
) -> None:
    """P5, golden values: one of four picked."""
    s = settings(advantage=rule)
    rollouts = first_rollouts(groups, s, tmp_path)
    for unit, answers in zip(lessons_of(rollouts, s, coefficient=0.0), rollouts.answers, strict=True):
        for lesson, answer in zip(unit.label, answers, strict=True):
            assert lesson.advantage == pytest.approx(expected[0] if answer.reward == 1 else expected[1], abs=1e-5)


def test_the_ratio_is_one_for_what_the_policy_itself_sampled(tmp_path: Path, groups: list[Grouped]) -> None:
    """Pitfall: sampled at temperature .8, scored before any update at the same one: old is what was recorded."""
    for answer in first_rollouts(groups, settings(), tmp_path).flat:
        assert answer.old == pytest.approx(answer.behaviour, abs=1e-5)
        assert answer.reference == pytest.approx(answer.behaviour, abs=1e-5)


def test_a_sum_alone_is_spread_over_the_tokens(tmp_path: Path, groups: list[Grouped]) -> None:
    """Old (-1, -3) and a recorded sum of -6: two nats over two tokens, so (-2, -4)."""
    empty = np.zeros(2, dtype=np.float32)
    known = Answer(None, "", True, empty - 3, old=np.array([-1, -3], dtype=np.float32))  # type: ignore[arg-type]
    assert spread(known).behaviour == pytest.approx([-2, -4])
    whole = first_rollouts(changed(groups, token_logps=None), settings(), tmp_path)
    for answer in whole.flat:
        assert answer.behaviour == pytest.approx(answer.old, abs=1e-4)  # the policy itself: no difference to spread


def test_answers_that_an_old_policy_liked_better_count_less(tmp_path: Path, groups: list[Grouped]) -> None:
    """P5: min(π_old/μ, cap). Half as likely now: the first gradient is half as large; where it is twice the cap, as the cap."""
    norms = {}
    for name, nats in (("fresh", 0.0), ("half", math.log(2)), ("capped", -math.log(4))):
        shifted = [
            g.model_copy(
                update={
                    "answers": tuple(
                        a.model_copy(update={"token_logps": tuple(x + nats for x in a.token_logps or ())})
                        for a in g.answers
                    )
                }
            )
            for g in groups
        ]
        s = settings(passes=1, prompts_per_iteration=4, batch_size=4, engine_weight_cap=2.0, max_grad_norm=1e9)
        run(tmp_path / name, s, shifted)
        norms[name] = json.loads((tmp_path / name / "metrics.jsonl").read_text().splitlines()[0])["grad_norm"]
    assert norms["half"] == pytest.approx(norms["fresh"] / 2, rel=1e-3)
    assert norms["capped"] == pytest.approx(norms["fresh"] * 2, rel=1e-3)


def test_recorded_ids_are_learned_from_never_the_text(tmp_path: Path, groups: list[Grouped]) -> None:
    """Pitfall: an answer whose text says something else than its ids; the ids are what is trained."""
    lying = changed(groups, response=Message(role="assistant", content="quite another text"))
    one, other = model(), model()
    run(tmp_path / "a", settings(passes=1), groups, one)
    run(tmp_path / "b", settings(passes=1), lying, other)
    assert all(torch.equal(a, b) for a, b in zip(weights(one).values(), weights(other).values(), strict=True))


def test_micro_batches_do_not_change_the_update(tmp_path: Path, groups: list[Grouped]) -> None:
    """Invariance: one prompt a forward pass or all of them."""
    made = []
    for tokens in (1, 100_000):
        of = model()
        s = settings(
            passes=1, prompts_per_iteration=4, batch_size=4, tokens_per_micro_batch=tokens, lr=1e-3, adam_eps=1e-3
        )
        run(tmp_path / str(tokens), s, groups, of)
        made.append(weights(of))
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(made[0].values(), made[1].values(), strict=True))


class Killed(Exception):
    """Stands for a kill."""


@pytest.mark.parametrize("updates", [1, 3, 4])
def test_a_killed_run_goes_on_bit_for_bit(
    updates: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, groups: list[Grouped]
) -> None:
    """X4: killed inside an iteration and between two; the weights are those of an unbroken run."""
    s = settings(epochs=2, kl={"coefficient": 0.05})
    straight = model()
    whole = run(tmp_path / "straight", s, groups, straight)
    from thumbwheel.train.learner import Learner

    step, done = Learner.update, 0

    def dies(self: Any, *args: Any, **how: Any) -> Any:
        nonlocal done
        if done == updates:
            raise Killed
        done += 1
        return step(self, *args, **how)

    with monkeypatch.context() as patch:
        patch.setattr(Learner, "update", dies)
        with pytest.raises(Killed):
            run(tmp_path / "broken", s, groups)
    resumed = model()
    result = run(tmp_path / "broken", s, groups, resumed, resume=True)
    assert all(torch.equal(a, b) for a, b in zip(weights(straight).values(), weights(resumed).values(), strict=True))
    assert result.run.updates == whole.run.updates


def test_other_picks_are_not_resumed_on(tmp_path: Path, groups: list[Grouped]) -> None:
    """X4: resume with changed data is an error."""
    run(tmp_path, settings(), groups)
    with pytest.raises(CheckpointError, match="data"):
        run(tmp_path, settings(), groups[:2] + groups[:1:-1], resume=True)
    with pytest.raises(CheckpointError, match="data"):
        run(tmp_path, settings(), changed(groups, token_logps=None), resume=True)


def test_every_group_comes_once_a_pass(tmp_path: Path, groups: list[Grouped]) -> None:
    """Pitfall: a ragged last batch is not dropped. Three groups, two at a time."""
    of = model()
    usable = usable_of(groups[:3], of, lengths=LENGTHS)
    picks = Picks(LanguagePolicy(of), Reference(of), usable, settings(), tmp_path)
    asked = [prompt[0].content for iteration in range(4) for prompt in picks.made(iteration).prompts]
    assert len(asked) == 6
    assert sorted(asked[:3]) == sorted(asked[3:]) == ["a", "b", "c"]


def test_the_guard_looks_at_kl_and_entropy_alone(
    tmp_path: Path, groups: list[Grouped], monkeypatch: pytest.MonkeyPatch
) -> None:
    """P6: length and reward of answers at hand say nothing of the policy; KL does."""
    first = groups[0].model_copy(
        update={
            "answers": tuple(
                a.model_copy(update={"token_ids": (a.token_ids or ())[:2], "token_logps": (a.token_logps or ())[:2]})
                for a in groups[0].answers
            )
        }
    )
    groups = [first, *groups[1:]]  # one of them a third as long as the others
    wild = settings(passes=2, prompts_per_iteration=1, lr=1e-6, guard={"max_length_ratio": 1.5})
    assert run(tmp_path / "a", wild, groups).run.actions == ()
    with monkeypatch.context() as patch:
        patch.setattr(Picks, "own", True)
        assert run(tmp_path / "own", wild, groups).run.actions != ()
    strict = settings(prompts_per_iteration=4, guard={"max_kl_per_response_nats": 1e-9})
    result = run(tmp_path / "b", strict, groups)
    assert any("KL to the reference" in action for action in result.run.actions)


def test_kl_on_answers_at_hand_by_hand() -> None:
    """d = (.1, -.2): ½ Σ d² = .025 a response, .0125 a token. Their sum, -.1, would be no KL."""
    zeros = np.zeros(2, dtype=np.float32)
    answer = Answer(None, "", True, zeros, old=np.array([0.1, -0.2], dtype=np.float32), reference=zeros)  # type: ignore[arg-type]
    found = kl_at_hand(Rollouts((PROMPT,), ((answer,),)))
    assert found == {"kl_per_response_nats": pytest.approx(0.025), "kl_per_token_nats": pytest.approx(0.0125)}


# ---------------------------------------------------------------------- what cannot be used


def usable(groups: Sequence[Grouped]) -> Usable:
    return usable_of(groups, model(), lengths=LENGTHS)


@pytest.mark.parametrize(("update", "reason"), [
    ({"token_ids": None, "token_logps": None}, "no token ids were recorded"),
    ({"tokenizer": "another"}, "sampled with another tokenizer"),
    ({"tokenizer": None}, "sampled with another tokenizer"),
    ({"sampling": None}, "how it was sampled was not recorded"),
    ({"behaviour_logp": None, "token_logps": None}, "no log-probability was recorded"),
    ({"token_logps": None, "behaviour_logp": 12.0}, "a recorded log-probability is above 0"),
    ({"token_ids": (2**31 - 1,), "token_logps": (-1.0,)}, "token ids outside the model's vocabulary"),
    ({"token_ids": (65,) * 80, "token_logps": (-1.0,) * 80}, "longer than 64 tokens"),
])  # fmt: skip
def test_rows_that_cannot_be_used_are_counted(
    update: dict[str, Any], reason: str, groups: list[Grouped], tmp_path: Path
) -> None:
    """P5: never re-tokenised, never guessed; and with none left, an error that says why."""
    odd = changed(groups, **update)
    found = usable([*groups[:3], odd[3]])
    assert found.account.dropped == {reason: EACH}
    assert (found.account.read, found.account.kept) == (16, 12)
    with pytest.raises(DataError, match=f"nothing to learn from.*{reason[:20]}"):
        run(tmp_path / "none", settings(), odd)
    with pytest.raises(DataError, match="Too many answers cannot be used"):
        run(tmp_path / "most", settings(max_unusable_share=0.1), [*groups[:3], odd[3]])


@pytest.mark.parametrize(("update", "reason"), [
    ({"top_p": 0.9}, "sampled greedily, or from a part of the distribution (top-p, top-k)"),
    ({"top_k": 40}, "sampled greedily, or from a part of the distribution (top-p, top-k)"),
    ({"temperature": 0.0}, "sampled greedily, or from a part of the distribution (top-p, top-k)"),
    ({"temperature": 1.1}, "sampled at another temperature than most"),
    ({"template": "another"}, "sampled with another chat template"),
])  # fmt: skip
def test_rows_sampled_otherwise_are_counted(update: dict[str, Any], reason: str, groups: list[Grouped]) -> None:
    """Pitfall: top-p .9 sampling is refused for RL."""
    found = usable([*groups[:3], *resampled(groups[3:], **update)])
    assert found.account.dropped == {reason: EACH}
    assert found.temperature == 0.8


def test_answers_without_a_difference_are_set_aside_and_counted(groups: list[Grouped]) -> None:
    """P5: a group of one, a tie, an answer without a vote: never a reward of 0."""
    a, b, c, d = groups
    tie = changed([a], reward=0.5)[0]
    silent = changed([b], reward=None)[0]
    alone = c.model_copy(
        update={
            "answers": tuple(
                one.model_copy(update={"reward": 1.0 if i == 0 else None}) for i, one in enumerate(c.answers)
            )
        }
    )
    found = usable([tie, silent, alone, d])
    assert found.account.notes == {
        "all answers of its group have one reward": 4, "no vote on it": 7, "no other answer of its group to compare with": 1,
    }  # fmt: skip
    assert (found.account.unscored, found.account.kept, found.account.dropped_share) == (12, 4, 0.0)


def test_every_group_a_tie_is_an_error(tmp_path: Path, groups: list[Grouped]) -> None:
    with pytest.raises(DataError, match="all answers of its group have one reward 16"):
        run(tmp_path, settings(), changed(groups, reward=0.5))
    with pytest.raises(DataError, match="nothing to learn from"):
        run(tmp_path, settings(), [])


def test_a_value_head_is_refused(tmp_path: Path, groups: list[Grouped]) -> None:
    with pytest.raises(SettingError, match=r"online\.advantage|gae"):
        run(tmp_path, settings(recipe="ppo"), groups)


def test_adapters_learn_too(tmp_path: Path, groups: list[Grouped]) -> None:
    """P5, with adapters: the reference is the same weights with the adapter as it was."""
    of = model(adapter="lora")
    of.save = lambda *args, **notes: None  # type: ignore[method-assign]  # an adapter without a base cannot be saved
    before = logps(of, groups)
    run(tmp_path, settings(passes=6, lr=1e-2), groups, of)
    after = logps(of, groups)
    assert after[0] - after[1] > before[0] - before[1] + 0.5


def test_a_grouped_answer_needs_a_reward_in_its_range() -> None:
    with pytest.raises(ValueError, match="less than or equal to 1"):
        GroupedAnswer(step_id="a", response=Message(role="assistant", content="x"), reward=3.0)
