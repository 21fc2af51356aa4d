"""Learning from a checker: a 135M model learns a task of reasoning-gym by GRPO. `make bench-verifiable`, 30 minutes on 2 cores.

Groups of 4, 8 and 16 answers, with equally many answers an iteration (16 × 4, 8 × 8, 4 × 16), from the same weights and with the
same settings. Accuracy is that of greedy answers to held-out questions; the gain is paired by question, and its interval
resamples questions. No question to learn from is asked twice, so that an iteration's reward too is on unseen questions.
Stability: how far the reward jumps, groups that teach nothing, gradient norms, KL, and the spread between seeds.

Needs the extra `bench`: pip install -c constraints.txt -e '.[train,bench]'
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.table import FOLDER, Benchmark, Row, benchmark
from benchmarks.verifiable_figure import learning_figure
from benchmarks.verifiable_task import DATASET, REWARD, Question, Task, installed
from thumbwheel.config import GuardSettings, KLSettings, ModelSettings, OnlineSettings, SampleSettings
from thumbwheel.engines.batch_sampler import BatchSampler
from thumbwheel.formulas.figures import Interval
from thumbwheel.formulas.stats import bootstrap, wilson
from thumbwheel.models.language import LanguageModel, load
from thumbwheel.train.loop import StepReport
from thumbwheel.train.online import online

Floats = NDArray[np.float64]
SAMPLE = SampleSettings(max_new_tokens=8, batch_size=64)
MOST_MINUTES, LEAST_TIMES = 30.0, 2.0


@dataclass(frozen=True)
class Size:
    """How much is done."""

    groups: tuple[int, ...] = (4, 8, 16)
    seeds: int = 2
    iterations: int = 26
    answers: int = 64
    held_out: int = 200


@dataclass(frozen=True)
class Arm:
    """One run: prompts an iteration, the iterations' figures, and which held-out questions its policy answers right."""

    group: int
    seed: int
    prompts: int
    lines: tuple[Mapping[str, float], ...]
    right: Floats

    def column(self, name: str) -> Floats:
        """(iterations,) NaN where an iteration has no such figure."""
        return np.array([line.get(name, np.nan) for line in self.lines], dtype=np.float64)


def settings_of(size: Size, group: int, seed: int) -> OnlineSettings:
    """GRPO as it comes, but for what docs/howto/verifiable.md explains."""
    prompts = size.answers // group
    return OnlineSettings(
        lr=3e-4,
        schedule="linear",
        iterations=size.iterations,
        prompts_per_iteration=prompts,
        answers_per_prompt=group,
        batch_size=prompts,
        temperature=0.7,
        seed=seed,
        reward=REWARD,
        kl=KLSettings(coefficient=0.0),
        guard=GuardSettings(min_entropy_share=0.0),
    )


def answered(model: LanguageModel, task: Task, questions: Sequence[Question]) -> Floats:
    """(n,) 1 where the greedy answer is right."""
    how = SAMPLE.model_copy(update={"temperature": 0.0})
    samples = BatchSampler(model).sample([q.prompt for q in questions], seeds=range(len(questions)), settings=how)
    return np.array([task.right(q, sample.text) for q, sample in zip(questions, samples, strict=True)])


def learn(model: LanguageModel, task: Task, size: Size, group: int, seed: int, test: Sequence[Question]) -> Arm:
    """One run from the weights that the model has."""
    settings = settings_of(size, group, seed)
    asked = task.train(size.iterations * settings.prompts_per_iteration, seed=seed, without=test)
    lines: list[Mapping[str, float]] = []

    def watch(report: StepReport) -> None:
        if report.figures:
            lines.append(report.figures)
            say(f"group {group}, seed {seed}", report)

    with tempfile.TemporaryDirectory(prefix="bench-verifiable-") as folder:
        prompts = [question.prompt for question in asked]
        result = online(
            model, prompts, task.reward(asked), settings, SAMPLE, Path(folder), watcher=watch, progress=False
        )
    for action in result.actions:
        print(f"guard: {action}", file=sys.stderr, flush=True)
    return Arm(group, seed, settings.prompts_per_iteration, tuple(lines), answered(model, task, test))


def say(name: str, report: StepReport) -> None:
    """A line of progress."""
    figures = report.figures
    print(
        f"{name}: {report.step}/{report.steps}  reward {figures['reward']:.2f}  KL {figures['kl_per_response_nats']:.2f}  "
        f"entropy {figures['entropy']:.2f}  {figures['seconds']:.0f} s",
        file=sys.stderr,
        flush=True,
    )


# ---------------------------------------------------------------------- figures


def gain(before: Floats, after: Sequence[Floats]) -> Interval:
    """Accuracy after, mean over seeds, minus accuracy before, on the same questions; the interval resamples questions."""
    difference = np.mean(after, axis=0) - before
    return bootstrap(lambda rows: float(difference[rows].mean()), len(difference), rng=np.random.default_rng(0))


def accuracy_rows(group: int, before: Floats, arms: Sequence[Arm], baseline: float) -> list[Row]:
    """What was learned, against the start and against the best answer that needs no reading."""
    after = [arm.right for arm in arms]
    rate, risen = float(np.mean(after)), gain(before, after)
    low = min((wilson(float(one.sum()), len(one)).low or 0.0) for one in after)
    least = (
        LEAST_TIMES if group == OnlineSettings().answers_per_prompt else None
    )  # other sizes are there to compare with
    return [
        Row(f"group {group}: accuracy after (peer: before)", rate, float(before.mean()), goal=least, goal_on="ratio"),
        Row(f"group {group}: gain", risen.value),
        Row(f"group {group}: gain, low", risen.low, goal=0.0, met=(risen.low or 0.0) > 0.0),
        Row(f"group {group}: gain, high", risen.high),
        Row(f"group {group}: accuracy of the worst seed, low (peer: without reading)", low, baseline, goal=1.0, goal_on="ratio"),
    ]  # fmt: skip


def stability_rows(group: int, arms: Sequence[Arm]) -> list[Row]:
    """Means over seeds, and the spread between them."""

    def mean(values: Sequence[float]) -> float:
        return float(np.mean(values))

    def share(name: str) -> float:
        return mean([float(arm.column(name).mean()) / arm.prompts for arm in arms])

    norms = [arm.column("grad_norm") for arm in arms]
    after = [float(arm.right.mean()) for arm in arms]
    rows = [
        Row(f"group {group}: reward, std of its change in an iteration", mean([jumps(arm.column("reward")) for arm in arms])),
        Row(f"group {group}: reward, mean over all iterations", mean([arm.column("reward").mean() for arm in arms])),
        Row(f"group {group}: share of groups that teach nothing", share("flat_groups")),
        Row(f"group {group}: share too hard", share("too_hard")),
        Row(f"group {group}: share too easy", share("too_easy")),
        Row(f"group {group}: gradient norm, std over mean", mean([unevenness(x) for x in norms])),
        Row(f"group {group}: KL at the end", mean([arm.column("kl_per_response_nats")[-1] for arm in arms]), unit="nats"),
        Row(f"group {group}: seconds an iteration", mean([arm.column("seconds").mean() for arm in arms]), unit="s"),
    ]  # fmt: skip
    if len(arms) > 1:
        rows.append(Row(f"group {group}: accuracy, best seed less worst", max(after) - min(after)))
    return rows


def unevenness(values: Floats) -> float:
    """Std over mean, NaN left out; 0 where all are 0 or none is there. Known value: (1, 3) -> .5."""
    present = values[~np.isnan(values)]
    return float(present.std() / present.mean()) if present.any() else 0.0


def jumps(reward: Floats) -> float:
    """Std of r[t + 1] - r[t]. Known value: (0, 1, 0) -> 1."""
    return float(np.std(np.diff(reward))) if len(reward) > 1 else 0.0


def curves(arms: Sequence[Arm]) -> dict[str, list[Floats]]:
    """The reward of every iteration, a line a seed, by group size."""
    found: dict[str, list[Floats]] = {}
    for arm in arms:
        found.setdefault(f"groups of {arm.group}", []).append(arm.column("reward"))
    return found


def ends(before: Floats, arms: Sequence[Arm]) -> dict[str, list[Interval]]:
    """Held-out accuracy before, and after by group size, a seed each."""
    found = {"before": [wilson(float(before.sum()), len(before))]}
    for arm in arms:
        found.setdefault(f"groups of {arm.group}", []).append(wilson(float(arm.right.sum()), len(arm.right)))
    return found


def report(bench: Benchmark, task: Task, test: Sequence[Question], before: Floats, arms: Sequence[Arm]) -> None:
    """All rows."""
    share = wilson(float(before.sum()), len(before))
    bench.add(
        Row("accuracy before", share.value),
        Row("accuracy before, low", share.low),
        Row("accuracy before, high", share.high),
    )
    plain = task.without_learning(test)
    bench.add(*(Row(f"without reading: {name}", value) for name, value in plain.items()))
    groups = list(dict.fromkeys(arm.group for arm in arms))
    for group in groups:
        bench.add(*accuracy_rows(group, before, [arm for arm in arms if arm.group == group], max(plain.values())))
    for group in groups:
        bench.add(*stability_rows(group, [arm for arm in arms if arm.group == group]))


def main(argv: Sequence[str] | None = None) -> int:
    """Returns 1 where a goal was missed, 2 without reasoning-gym."""
    if not installed():
        print("This benchmark needs reasoning-gym: pip install -c constraints.txt -e '.[train,bench]'", file=sys.stderr)
        return 2
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    usual = Size()
    parser.add_argument("--model", default=ModelSettings().path, help="as model.path")
    parser.add_argument("--groups", type=count, nargs="+", default=list(usual.groups), help="answers to a question")
    parser.add_argument("--seeds", type=count, default=usual.seeds, help="runs of each group size")
    parser.add_argument("--iterations", type=count, default=usual.iterations)
    parser.add_argument(
        "--answers", type=count, default=usual.answers, help="an iteration, a multiple of each group size"
    )
    parser.add_argument("--held-out", type=count, default=usual.held_out, help="questions")
    parser.add_argument("--statements", type=count, default=3, help="sentences of a text")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where table and figure go")
    given = parser.parse_args(argv)
    size = Size(tuple(given.groups), given.seeds, given.iterations, given.answers, given.held_out)
    odd = [group for group in size.groups if group < 2 or size.answers % group]
    if odd:
        parser.error(f"--answers {size.answers} is no multiple of a group of {odd[0]} (2 or more)")
    return run(given.model, Task(given.statements), size, given.folder)


def count(text: str) -> int:
    """A whole number from 1 on, of the command line."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is not 1 or more")
    return number


def run(path: str, task: Task, size: Size, folder: Path) -> int:
    """Every arm, the table and the figure; the exit status."""
    folder.mkdir(
        parents=True, exist_ok=True
    )  # first: a run that ends where nothing can be written has lost half an hour
    began = time.perf_counter()
    test = task.test(size.held_out)
    what = f"{path} learns {DATASET} by GRPO, {size.answers} answers an iteration, {size.iterations} iterations"
    with benchmark("verifiable", what, folder=folder) as bench:
        before = answered(fresh(path), task, test)
        print(f"accuracy before: {before.mean():.3f} of {len(test)}", file=sys.stderr, flush=True)
        arms = []
        for seed in range(size.seeds):
            for group in size.groups:
                arms.append(learn(fresh(path), task, size, group, seed, test))
                print(f"group {group}, seed {seed}: accuracy {arms[-1].right.mean():.3f}", file=sys.stderr, flush=True)
        report(bench, task, test, before, arms)
        minutes = (time.perf_counter() - began) / 60
        bench.add(Row("minutes", minutes, goal=MOST_MINUTES, goal_is="at_most", unit="min"))
        bench.note(
            f"{torch.get_num_threads()} threads; seeds {size.seeds}; greedy answers to {len(test)} held-out questions"
        )
        figure = folder / "verifiable-groups.svg"
        learning_figure(
            figure, curves(arms), ends(before, arms), without_reading=max(task.without_learning(test).values())
        )
        bench.note(f"figure: {figure}")
    return bench.exit_code


def fresh(path: str) -> LanguageModel:
    """The model with new adapters, the same ones for every arm."""
    return load(ModelSettings(path=path, dtype="bfloat16", device="cpu"), trainable=True)


if __name__ == "__main__":
    raise SystemExit(main())
