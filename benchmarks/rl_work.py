"""One measured on-policy run of ours on the peers' workload; `benchmarks.rl` starts these.

    python -m benchmarks.rl_work {grpo,ppo} {tiny,smol} --peers FOLDER

Prints one line "RESULT {json}" in the form of the peers' own scripts. The clock runs from the first prompt asked to the end of
the last update. GRPO's reward is the peers' rule; PPO's is a reward model with a head of random weights on a trunk of its
own, as theirs is. The guard and checkpoints are off, as the peers have none.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.train_work import Work, profiled
from thumbwheel.config import OnlineSettings, SampleSettings
from thumbwheel.models.heads import RewardModel
from thumbwheel.models.scoring import score_answers
from thumbwheel.records import Message, Prompt
from thumbwheel.signals.rewards import CompositeReward, RewardTerm
from thumbwheel.train.loop import StepReport
from thumbwheel.train.online import online

PPO_KL = 0.05  # the peers' kl_coef


def main() -> None:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trainer", choices=["grpo", "ppo"])
    parser.add_argument("model", choices=["tiny", "smol"])
    parser.add_argument("--peers", type=Path, required=True)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--steps", type=int, help="iterations, in place of the workload's")
    parser.add_argument("--profile", type=Path, help="write torch.profiler's table of operators (slows the run)")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    sys.path.insert(0, str(given.peers))
    import workload

    hp = workload.HPS[given.model]
    if given.steps:
        hp = dataclasses.replace(hp, rl_steps=given.steps)
    run = Online(workload, hp, given.trainer, given.model)
    lines = profiled(run.measure, given.profile)
    samples = hp.prompts_per_step * hp.group * hp.rl_steps
    sampling = sum(line["tokens"] / line["tokens_per_s"] for line in lines)
    answered = sum(line["tokens"] for line in lines)
    workload.emit(
        impl="ours", trainer=given.trainer, model=given.model, samples=samples, **run.meter.report(samples),
        policy_tokens=int(answered), sampling_share=round(sampling / run.meter.wall, 3),
        metric={"reward_first": round(lines[0]["reward"], 4), "reward_last": round(lines[-1]["reward"], 4)},
    )  # fmt: skip


class Online(Work):
    """The product's own loop on the peers' prompts and hyper-parameters."""

    def __init__(self, workload: Any, hp: Any, trainer: str, model: str) -> None:
        super().__init__(workload, hp, trainer, model)
        self.model = self.opened(trainable=True)
        self.reward = self.rule() if trainer == "grpo" else self.random_model()

    def rule(self) -> CompositeReward:
        """The peers' rule."""
        rule = self.workload.reward_rule
        return CompositeReward([RewardTerm("rule", lambda prompts, texts: rule(completions=list(texts)))])

    def random_model(self) -> CompositeReward:
        """A reward model whose head is random."""
        model = RewardModel(self.opened(trainable=False), seed=self.workload.SEED)

        def score(prompts: Sequence[Prompt], texts: Sequence[str]) -> list[float]:
            return [float(x) for x in score_answers(model, prompts, texts, max_length=1024)]

        return CompositeReward([RewardTerm("model", score)])

    def settings(self) -> OnlineSettings:
        """One weight update an iteration, at the peers' rate and KL."""
        hp = self.hp
        common = {
            "lr": hp.rl_lr, "iterations": hp.rl_steps, "temperature": 1.0, "weight_decay": 0.0, "epochs": 1,
            "seed": self.workload.SEED, "checkpoint_every_steps": 10**6, "guard": {"enabled": False}, "reward": {"scale": "none"},
        }  # fmt: skip
        if self.trainer == "grpo":
            own = {
                "answers_per_prompt": hp.group, "prompts_per_iteration": hp.prompts_per_step,
                "batch_size": hp.prompts_per_step, "kl": {"coefficient": hp.rl_beta},
            }  # fmt: skip
        else:
            prompts = hp.prompts_per_step * hp.group
            own = {
                "recipe": "ppo", "prompts_per_iteration": prompts, "batch_size": prompts, "epochs": hp.ppo_epochs,
                "kl": {"coefficient": PPO_KL},
            }  # fmt: skip
        return OnlineSettings.model_validate({**common, **own})

    def measure(self) -> list[dict[str, float]]:
        """The figures of every iteration; seconds and memory are in the meter."""
        lines: list[dict[str, float]] = []
        prompts = [(Message(role="user", content=row["prompt"]),) for row in self.train]
        batch = self.hp.prompts_per_step * self.hp.group
        sampling = SampleSettings(temperature=1.0, max_new_tokens=self.hp.new_tokens, batch_size=batch)

        def watch(report: StepReport) -> None:
            if report.step == 0:
                self.meter.__enter__()
                return
            lines.append(dict(report.figures))
            if report.step == report.steps:
                self.meter.__exit__()

        with tempfile.TemporaryDirectory() as folder:
            online(
                self.model, prompts, self.reward, self.settings(), sampling, Path(folder), watcher=watch, progress=False
            )
        if not lines or not math.isfinite(lines[-1]["reward"]):
            raise RuntimeError("The run did not end well.")
        return lines


if __name__ == "__main__":
    main()
