"""The online loop whole: a killed run goes on bit for bit, nothing sampled is lost, the guard acts, bad input is told."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from thumbwheel.config import ModelSettings, OnlineSettings, SampleSettings
from thumbwheel.engines.batch_sampler import BatchSampler
from thumbwheel.errors import CheckpointError, DataError, SettingError, TrainingError
from thumbwheel.models.language import LanguageModel
from thumbwheel.records import Message, Preference, Prompt
from thumbwheel.testing.models import tiny_language_model
from thumbwheel.train.guard import Guard, Verdict
from thumbwheel.train.journal import metric_rows
from thumbwheel.train.online import OnlineResult, online
from thumbwheel.train.rollouts import Rollouts
from thumbwheel.train.saves import Saves

PROMPTS: list[Prompt] = [(Message(role="user", content=letter),) for letter in "abcdef"]
SHORT = SampleSettings(max_new_tokens=6, batch_size=24, temperature=1.0)


@dataclass
class Said:
    """What a reward says."""

    total: Sequence[float]
    columns: dict[str, Sequence[float]]


def vowels(prompts: Sequence[Prompt], texts: Sequence[str]) -> Said:
    """Share of vowels."""
    share = [sum(c in "aeiou" for c in text) / max(1, len(text)) for text in texts]
    return Said(share, {"vowels": share})


def settings(**changes: Any) -> OnlineSettings:
    base: dict[str, Any] = {
        "recipe": "rloo", "iterations": 3, "prompts_per_iteration": 3, "answers_per_prompt": 4, "batch_size": 2, "lr": 3e-3,
        "checkpoint_every_steps": 1, "kl": {"coefficient": 0.02},
    }  # fmt: skip
    return OnlineSettings(**{**base, **changes})


def model(*, adapter: str = "full") -> LanguageModel:
    made = tiny_language_model(seed=1, layers=1, dim=32)
    made.make_trainable(ModelSettings(adapter=adapter), seed=0)
    return made


def weights(of: LanguageModel) -> dict[str, torch.Tensor]:
    return {name: p.detach().clone() for name, p in of.named_parameters()}


def run(
    folder: Path, s: OnlineSettings, of: LanguageModel | None = None, reward: Any = vowels, **how: Any
) -> OnlineResult:
    return online(of or model(), PROMPTS, reward, s, SHORT, folder, progress=False, **how)


class Killed(Exception):
    """Stands for a kill."""


class Counting(BatchSampler):
    """Our sampler, which counts, and dies when asked to."""

    def __init__(self, of: LanguageModel) -> None:
        super().__init__(of)
        self.calls = 0

    def sample(self, *args: Any, **how: Any) -> Any:
        self.calls += 1
        return super().sample(*args, **how)


def untimed(folder: Path) -> list[dict[str, float]]:
    """The lines of metrics, but for what a clock says."""
    return [
        {name: value for name, value in line.items() if name not in ("seconds", "tokens_per_s")}
        for line in metric_rows(folder)
    ]


@pytest.mark.parametrize("changes", [
    {}, {"recipe": "ppo", "prompts_per_iteration": 3, "answers_per_prompt": 2, "reward": {"scale": "z_score"}},
    {"kl": {"controller": "pid", "target_per_response_nats": 1.0}},
], ids=["rloo", "ppo, scaled rewards", "pid"])  # fmt: skip
@pytest.mark.parametrize("updates", [1, 3])
def test_a_killed_run_goes_on_bit_for_bit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], updates: int
) -> None:
    """Pitfalls, X4: killed in the middle of an iteration's updates; the weights are those of an unbroken run."""
    s = settings(**changes)
    straight = model()
    whole = run(tmp_path / "straight", s, straight)

    from thumbwheel.train.learner import Learner

    done = 0
    step = Learner.update

    def dies(self: Any, *args: Any, **how: Any) -> Any:
        nonlocal done
        if done == updates:
            raise Killed
        done += 1
        return step(self, *args, **how)

    with monkeypatch.context() as patch:
        patch.setattr(Learner, "update", dies)
        with pytest.raises(Killed):
            run(tmp_path / "broken", s)
    resumed = model()
    sampler = Counting(resumed)
    result = run(tmp_path / "broken", s, resumed, sampler=sampler, resume=True)
    assert all(torch.equal(a, b) for a, b in zip(weights(straight).values(), weights(resumed).values(), strict=True))
    assert result.updates == whole.updates
    assert untimed(tmp_path / "straight") == untimed(tmp_path / "broken")  # figures of updates before the kill included
    assert sampler.calls < s.iterations  # the iteration it was killed in was read back, not sampled again


def test_answers_are_on_disk_before_the_first_update_and_equal_when_read(tmp_path: Path) -> None:
    """P3: un-trained rollouts checkpointed, exactly."""
    run(tmp_path / "run", settings(iterations=1, checkpoint_every_steps=100, guard={"enabled": False}))
    files = list((tmp_path / "run" / "rollouts").glob("*.npz"))
    assert files == []  # what has been learned from is forgotten at the end

    kept: list[Rollouts] = []
    from thumbwheel.train import collecting

    class Seen(collecting.Collector):
        def rollouts(self, iteration: int) -> Rollouts:
            fresh = super().rollouts(iteration)
            kept.extend([fresh, Rollouts.from_file(self.folder / f"{iteration:06d}.npz")])
            return fresh

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("thumbwheel.train.online.Collector", Seen)
        run(tmp_path / "again", settings(iterations=1))
    fresh, read = kept
    assert fresh.prompts == read.prompts
    for a, b in zip(fresh.flat, read.flat, strict=True):
        assert (a.text, a.ended, a.reward, a.terms) == (b.text, b.ended, b.reward, b.terms)
        for name in ("behaviour", "old", "reference", "value", "entropy"):
            assert np.array_equal(getattr(a, name), getattr(b, name))
        assert np.array_equal(a.row.ids, b.row.ids)


def test_before_the_first_update_the_ratio_is_one_and_kl_is_zero(tmp_path: Path) -> None:
    """Golden values: ratio exactly 1, KL to self 0, at a sampling temperature that is not 1."""
    run(tmp_path / "run", settings(iterations=1, temperature=0.7, batch_size=3))
    import json

    line = json.loads((tmp_path / "run" / "metrics.jsonl").read_text("utf-8").splitlines()[0])
    assert line["ratio"] == 1.0
    assert line["update_kl"] == 0.0
    assert line["kl_per_response_nats"] == 0.0
    assert line["engine_gap_nats"] < 1e-5


def test_adapters_learn_and_their_reference_stays(tmp_path: Path) -> None:
    """L3, P9: with adapters no second copy; KL is measured against them as they were."""
    tiny_language_model(seed=1, layers=1, dim=32).save(tmp_path / "base")
    from thumbwheel.models.language import load

    adapted = load(ModelSettings(path=str(tmp_path / "base"), dtype="float32", lora_r=4), trainable=True)
    result = run(tmp_path / "run", settings(iterations=4, lr=3e-2), adapted)
    assert result.metrics["kl_per_response_nats"] > 0
    assert load(ModelSettings(path=str(result.checkpoint))).adapted()


def test_rewards_rise(tmp_path: Path) -> None:
    """P5: sixty answers an iteration, twelve of them."""
    s = settings(iterations=12, prompts_per_iteration=6, answers_per_prompt=8, batch_size=6, kl={"coefficient": 0.0})
    result = run(tmp_path / "run", s)
    assert result.metrics["reward"] > result.metrics["first_reward"] + 0.1


# ---------------------------------------------------------------------- the guard


def hack(prompts: Sequence[Prompt], texts: Sequence[str]) -> Said:
    """A reward with a way round it: one letter, over and over."""
    score = [text.count("e") / 6 for text in texts]
    return Said(score, {"hack": score})


def test_a_hacked_reward_without_kl_is_caught_and_rolled_back(tmp_path: Path) -> None:
    """P6: no KL, a hackable reward, a high rate. The guard acts, and the policy that is kept still speaks as at first."""
    s = settings(
        iterations=25, prompts_per_iteration=6, answers_per_prompt=8, batch_size=6, lr=1e-2, kl={"coefficient": 0.0},
        guard={"max_kl_per_response_nats": 8.0, "warnings_before_rollback": 1, "max_rollbacks": 1},
    )  # fmt: skip
    pairs = [
        Preference(prompt=prompt, chosen=Message(role="assistant", content="yes"),
                   rejected=Message(role="assistant", content="eeeeee"))
        for prompt in PROMPTS
    ]  # fmt: skip
    caught = model()
    result = run(tmp_path / "run", s, caught, hack, preferences=pairs)
    assert result.stopped == "fell_back"
    assert any("Cooled down: learning rate times 0.5; β is 0 and stays so." in action for action in result.actions)
    assert any("Rolled back" in action for action in result.actions)
    assert "Learned by DPO from 6 preferences instead" in result.actions[-1]
    unguarded = model()
    free = run(
        tmp_path / "free",
        s.model_copy(update={"guard": s.guard.model_copy(update={"enabled": False})}),
        unguarded,
        hack,
    )
    assert free.metrics["kl_per_response_nats"] > 8.0
    assert free.actions == ()


# ---------------------------------------------------------------------- bad input


def test_part_of_the_distribution_is_refused(tmp_path: Path) -> None:
    """Pitfalls: top-p sampling is renormalised or refused for RL; here refused."""
    with pytest.raises(SettingError, match="top_p = 1"):
        online(model(), PROMPTS, vowels, settings(), SHORT.model_copy(update={"top_p": 0.9}), tmp_path, progress=False)


def test_no_reward_at_all_ends_the_run_with_a_reason(tmp_path: Path) -> None:
    def nothing(prompts: Sequence[Prompt], texts: Sequence[str]) -> Said:
        return Said([math.nan] * len(texts), {})

    with pytest.raises(TrainingError, match="Not one answer has a reward"):
        run(tmp_path / "run", settings(), reward=nothing)


def test_prompts_that_fill_the_context_are_told(tmp_path: Path) -> None:
    long: list[Prompt] = [(Message(role="user", content="x" * 600),)]
    with pytest.raises(DataError, match="fill the model's context"):
        online(model(), long, vowels, settings(), SHORT, tmp_path, progress=False)
    with pytest.raises(DataError, match="no prompt"):
        online(model(), [], vowels, settings(), SHORT, tmp_path, progress=False)


def test_another_run_model_or_a_broken_file_is_not_resumed(tmp_path: Path) -> None:
    """Pitfalls: an empty folder, changed prompts or settings, another model, half-written answers: an error each."""
    with pytest.raises(CheckpointError, match="nothing to resume"):
        run(tmp_path / "empty", settings(), resume=True)
    folder = tmp_path / "run"
    run(folder, settings())
    with pytest.raises(CheckpointError, match="holds a run"):
        run(folder, settings())
    with pytest.raises(CheckpointError, match="'settings'"):
        run(folder, settings(lr=1e-4), resume=True)
    with pytest.raises(CheckpointError, match="'data'"):
        online(model(), PROMPTS[:3], vowels, settings(), SHORT, folder, progress=False, resume=True)
    other = tiny_language_model(seed=2, layers=1, dim=32)
    other.make_trainable(ModelSettings(adapter="full"), seed=0)
    with pytest.raises(CheckpointError, match="'model'"):
        run(folder, settings(), other, resume=True)
    (tmp_path / "half.npz").write_bytes(b"PK\x03\x04 cut short")
    with pytest.raises(CheckpointError, match="cannot be read"):
        Rollouts.from_file(tmp_path / "half.npz")


def test_a_full_disk_is_told_and_the_run_goes_on_afterwards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """X4: the disk fills up while answers are kept; after room was made the run resumes to the same weights."""
    import errno

    s = settings()
    straight = model()
    run(tmp_path / "straight", s, straight)
    write, calls = Path.write_bytes, 0

    def full(self: Path, data: bytes) -> int:
        nonlocal calls
        calls += self.suffix == ".partial"
        if calls == 2:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(self, data)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_bytes", full)
        with pytest.raises(CheckpointError, match="Free some space"):
            run(tmp_path / "full", s)
    resumed = model()
    run(tmp_path / "full", s, resumed, resume=True)
    assert all(torch.equal(a, b) for a, b in zip(weights(straight).values(), weights(resumed).values(), strict=True))


def test_a_bare_kl_target_and_a_group_of_one_are_refused() -> None:
    """Golden values: the unit of a KL target is in its name. Pitfalls: a group of one is refused."""
    with pytest.raises(ValueError, match="target_per_response_nats"):
        settings(kl={"target": 6.0})
    with pytest.raises(ValueError, match="answers_per_prompt is 1"):
        settings(recipe="grpo", answers_per_prompt=1)


@pytest.mark.parametrize(("alarm_at", "kept"), [(None, [0, 2, 4]), (2, [0, 3])])
def test_weights_are_kept_now_and_then_and_never_where_there_was_an_alarm(
    alarm_at: int | None, kept: list[int], tmp_path: Path
) -> None:
    """P6: full weights and their optimiser are large; an iteration with an alarm is passed over, and the next good one kept."""
    written: list[int] = []
    judged, write = Guard.judged, Saves.write_best

    def alarms(self: Guard, figures: Any, settings: Any) -> Any:
        turns.append(1)
        guard, verdict = judged(self, figures, settings)
        return guard, Verdict("cool_down", ("an alarm",)) if len(turns) - 1 == alarm_at else verdict

    def notes(self: Saves, step: int) -> None:
        written.append(step)
        write(self, step)

    turns: list[int] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Guard, "judged", alarms)
        patch.setattr(Saves, "write_best", notes)
        run(tmp_path / "run", settings(iterations=5, lr=1e-9, guard={"save_every_iterations": 2}))
    assert written == kept


def test_what_is_rolled_back_to_are_the_weights_whose_answers_were_good(tmp_path: Path) -> None:
    """P6: an update that wrecks the policy shows in the answers of the next iteration; the weights of before it come back.

    Nothing is learned from the answers that it is rolled back from.
    """
    from thumbwheel.train.collecting import Collector
    from thumbwheel.train.learner import Learner

    s = settings(
        iterations=6, batch_size=3, guard={"max_kl_per_response_nats": 2.0, "max_reward_jump": 50, "max_length_ratio": 50,
        "max_repetition_rise": 1, "min_entropy_share": 0, "warnings_before_rollback": 1, "save_every_iterations": 1},
        lr=1e-9,
        max_update_kl_per_token_nats=None,
    )  # fmt: skip
    step, made, updates, seen = Learner.update, Collector.made, 0, []

    def wrecks(self: Any, *args: Any, **how: Any) -> Any:
        nonlocal updates
        updates += 1
        figures = step(self, *args, **how)
        if updates == 2:
            dice = torch.Generator().manual_seed(5)
            with torch.no_grad():
                for parameter in self.parameters.values():
                    parameter.add_(torch.randn(parameter.shape, generator=dice))
        return figures

    def sees(self: Any, iteration: int) -> Any:
        seen.append((updates, weights(self.policy.language_model)))
        return made(self, iteration)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Learner, "update", wrecks)
        patch.setattr(Collector, "made", sees)
        result = run(tmp_path / "run", s)
    assert len(result.actions) == 2
    assert result.actions[0].startswith("iteration 3: KL to the reference")
    assert "Cooled down" in result.actions[0]
    assert "iteration 4: " in result.actions[1]
    assert "Rolled back to the weights that answered in iteration 2" in result.actions[1]
    assert [done for done, _ in seen] == [0, 1, 2, 3, 3, 4], "iteration 4 was not learned from"
    assert all(torch.equal(a, b) for a, b in zip(seen[1][1].values(), seen[4][1].values(), strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(seen[2][1].values(), seen[4][1].values(), strict=True))


def test_the_value_head_is_kept_beside_the_model_and_the_next_run_starts_from_it(tmp_path: Path) -> None:
    """P3: zeros at first; with `value_head` the values that the run before ended with. A model without one is told."""
    from thumbwheel.models.policy import LanguagePolicy

    s = settings(
        recipe="ppo",
        prompts_per_iteration=3,
        answers_per_prompt=2,
        iterations=10,
        lr=1e-2,
        value_clip=None,
        lam=1.0,
        epochs=1,
        batch_size=3,
    )

    def half(prompts: Sequence[Prompt], texts: Sequence[str]) -> Said:
        return Said([0.5] * len(texts), {})

    first = run(tmp_path / "first", s, reward=half)
    head = LanguagePolicy(model(), with_value=True)
    head.load_value(first.checkpoint)
    assert head.value is not None
    assert head.value.weight.abs().max() > 0
    again = run(
        tmp_path / "again",
        settings(**{**s.model_dump(exclude_unset=True), "value_head": str(first.checkpoint)}),
        reward=half,
    )
    from_zeros, from_head = (
        next(line["value_loss"] for line in metrics(tmp_path / name)) for name in ("first", "again")
    )
    assert from_zeros == pytest.approx(0.125, abs=1e-3), "half of (0 - 0.5)², but for a little KL"
    assert from_head < 0.9 * from_zeros
    assert again.iterations == 10
    run(tmp_path / "without", settings())
    with pytest.raises(CheckpointError, match="holds no value head"):
        run(tmp_path / "x", settings(recipe="ppo", value_head=str(tmp_path / "without" / "model")))
    wide = LanguagePolicy(tiny_language_model(seed=1, layers=1, dim=64), with_value=True)
    with pytest.raises(CheckpointError, match="another width"):
        wide.load_value(first.checkpoint)
    with pytest.raises(ValueError, match="no value head with advantage"):
        settings(value_head="somewhere")


def metrics(folder: Path) -> list[dict[str, float]]:
    import json

    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text("utf-8").splitlines()]
