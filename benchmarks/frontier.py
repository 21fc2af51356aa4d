"""Reward against KL: DPO, PPO, GRPO and best of n on one small task with a known reward: `make bench-frontier`.

After Rafailov et al. 2023, section 6.1, at the size of a CPU. A small model learned to go on with chat messages; the reward is
the sentiment of the whole message. DPO learns from pairs of the model's own answers, decided by that reward; PPO and GRPO
from the reward itself, at four KL targets held by a controller; PPO also from a reward model that saw only DPO's pairs.
Beside them best of n, and what no policy can pass: π_ref exp(r/β), from a pool of 64 answers a prefix.

Every policy is measured on prefixes that nothing was trained on. Intervals are 95 %.
"""

from __future__ import annotations

import argparse
import json
import math
import shutil
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import numpy as np
import torch

from benchmarks.figures import frontier_figure
from benchmarks.frontier_work import (
    TINY,
    Place,
    Size,
    Texts,
    best_possible,
    drawn,
    opened,
    pairs_of,
    place_of,
    sampling,
    sentiment,
    small_model,
    texts_of,
)
from benchmarks.human_data import data_folder
from benchmarks.table import Benchmark, Row, benchmark
from thumbwheel.config import OnlineSettings, RewardSettings, UpdateSettings
from thumbwheel.formulas.overoptimisation import best_of_n_kl, best_of_n_mean
from thumbwheel.models.heads import RewardModel
from thumbwheel.models.language import LanguageModel
from thumbwheel.models.scoring import score_answers
from thumbwheel.records import Preference, Prompt
from thumbwheel.signals.rewards import CompositeReward, RewardTerm
from thumbwheel.train.dpo import dpo
from thumbwheel.train.loop import StepReport
from thumbwheel.train.online import online
from thumbwheel.train.reward import reward as fit_reward

FOLDER = Path("build/bench/frontier")
BETAS = (0.05, 0.1, 0.5, 1.0)
START = {"ppo": 0.1, "grpo": 0.3}
"""β that the controller begins with. GRPO's rewards have deviation 1, PPO's are what they are."""
KL_TARGETS = (0.5, 1.0, 2.0, 4.0)  # nats a response
BEST_OF = (1, 2, 4, 8, 16, 32)
STRENGTHS = (0.0, 0.25, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0)
"""1/β of the possible. Larger ones would need more than 64 answers a prefix: KL cannot pass ln 64 = 4.2 there."""
COMPARED_AT = (0.5, 1.0, 2.0)  # nats a response
MOST_MINUTES = 40.0
Z = 1.959964  # 95 %


@dataclass
class Series:
    """One method: its last policies, by what was set, and the places they passed on the way."""

    name: str
    last: dict[str, Place] = field(default_factory=dict)
    passed: list[Place] = field(default_factory=list)


@dataclass(frozen=True)
class Bench:
    """What every run has."""

    size: Size
    base: Path
    folder: Path
    texts: Texts
    reward: CompositeReward
    reference: LanguageModel

    def place(self, model: LanguageModel) -> Place:
        """Where the model stands."""
        return place_of(model, self.reference, self.texts.test, self.reward, self.size)


def watched(bench: Bench, model: LanguageModel, into: list[Place]) -> Callable[[StepReport], None]:
    """Measures the policy a few times on its way, evenly."""
    at: set[int] = set()

    def watch(report: StepReport) -> None:
        at.update(math.ceil(report.steps * k / bench.size.places) for k in range(1, bench.size.places))
        if report.step in at:
            into.append(bench.place(model))

    return watch


def run_dpo(bench: Bench, series: Series, beta: float, pairs: Sequence[Preference]) -> None:
    """DPO on the pairs, one pass."""
    model = opened(bench.base, learns=True)
    settings = UpdateSettings(beta=beta, lr=1e-4, batch_size=32, epochs=1, eval_share=0.0, checkpoint_every_steps=10**6)
    passed: list[Place] = []
    dpo(model, pairs, settings, bench.folder / f"dpo-{beta:g}", watcher=watched(bench, model, passed), progress=False)
    finish(bench, series, f"β {beta:g}", model, passed)


def run_online(
    bench: Bench, series: Series, recipe: str, target: float, prompts: Sequence[Prompt], reward: CompositeReward
) -> None:
    """PPO or GRPO with KL held at the target by a controller."""
    model = opened(bench.base, learns=True)
    size = bench.size
    each = 1 if recipe == "ppo" else 8
    groups = size.answers // each
    settings = OnlineSettings.model_validate(
        {
            "recipe": recipe, "lr": 2e-4, "iterations": size.iterations, "answers_per_prompt": each, "epochs": 1,
            "prompts_per_iteration": groups, "batch_size": max(1, groups // 2), "checkpoint_every_steps": 10**6,
            "kl": {"controller": "pid", "coefficient": START[recipe], "target_per_response_nats": target},
        }
    )  # fmt: skip
    passed: list[Place] = []
    name = f"{series.name}-{target:g}".replace(" ", "-").replace(",", "")
    result = online(
        model, prompts, reward, settings, sampling(size), bench.folder / name,
        watcher=watched(bench, model, passed), progress=False,
    )  # fmt: skip
    for action in result.actions:
        print(f"  guard: {action}", flush=True)
    finish(bench, series, f"target {target:g}", model, passed)


def finish(bench: Bench, series: Series, name: str, model: LanguageModel, passed: Iterable[Place]) -> None:
    """Note and tell where a run ended."""
    place = bench.place(model)
    series.last[name] = place
    series.passed += [*passed, place]
    print(
        f"{series.name} {name:<12} reward {place.reward:.3f} ± {Z * place.reward_error:.3f}   "
        f"KL {place.kl:.2f} ± {Z * place.kl_error:.2f}   {place.length:.1f} tokens   {place.repeated:.0%} repeated words",
        flush=True,
    )


def learned_reward(bench: Bench, pairs: Sequence[Preference]) -> CompositeReward:
    """A reward model of DPO's pairs: what PPO has where nobody knows the reward."""
    model = RewardModel(opened(bench.base, learns=True), seed=0)
    settings = RewardSettings(lr=2e-4, batch_size=16, epochs=1, checkpoint_every_steps=10**6)
    result = fit_reward(model, pairs, settings, bench.folder / "reward", progress=False)
    print(f"reward model: held-out accuracy {result.metrics.get('heldout_accuracy', math.nan):.3f}", flush=True)

    def score(prompts: Sequence[Prompt], texts: Sequence[str]) -> list[float]:
        return [float(x) for x in score_answers(model, prompts, texts, max_length=128)]

    return CompositeReward([RewardTerm("learned", score)])


def best_of(rewards: np.ndarray) -> Series:
    """Best of n from the pool: (prompts, N) rewards; KL by its formula, an upper bound."""
    series = Series("best of n")
    for n in BEST_OF:
        if n > rewards.shape[1]:
            continue
        means = np.array([best_of_n_mean(row, row, n=n).value for row in rewards], dtype=np.float64)
        error = float(means.std(ddof=1)) / len(means) ** 0.5
        series.last[f"n {n}"] = replace(on_curve(float(means.mean()), best_of_n_kl(n)), reward_error=error)
    return series


def at_kl(series: Series, kl: float) -> float | None:
    """The series' reward at that KL, between its last policies and the reference; None beyond the farthest of them."""
    places = sorted(series.last.values(), key=lambda place: place.kl)
    xs, ys = [place.kl for place in places], [place.reward for place in places]
    if not xs or kl > xs[-1] or kl < xs[0]:
        return None
    return float(np.interp(kl, xs, ys))


def report(bench: Benchmark, found: dict[str, Series], base: Place, pool: np.ndarray, minutes: float) -> None:
    """Rows of the table."""
    bench.add(Row("reference: reward", base.reward))
    for series in found.values():
        for name, place in series.last.items():
            bench.add(Row(f"{series.name}, {name}: reward", place.reward))
            bench.add(Row(f"{series.name}, {name}: KL", place.kl, unit="nats/response"))
    for series in (s for s in found.values() if s.name.startswith(("PPO", "GRPO"))):
        for name, place in series.last.items():
            target = float(name.removeprefix("target "))
            bench.add(Row(f"{series.name}, {name}: KL over target", place.kl / target, goal=1.25, goal_is="at_most"))
    for kl in COMPARED_AT:
        limit = at_kl(Series("possible", {str(i): on_curve(*spot) for i, spot in enumerate(possible(pool))}), kl)
        for series in found.values():
            reached = at_kl(Series(series.name, {"reference": base, **series.last}), kl)
            if reached is not None and limit is not None:
                share = (reached - base.reward) / (limit - base.reward)
                bench.add(Row(f"{series.name}: share of the possible gain at {kl:g} nats", share))
    for series in found.values():
        gain = max(
            place.reward - base.reward - Z * math.hypot(place.reward_error, base.reward_error)
            for place in series.last.values()
        )
        bench.add(Row(f"{series.name}: gain over the reference, lower end", gain, goal=0.0))
    bench.add(Row("minutes", minutes, goal=MOST_MINUTES, goal_is="at_most", unit="min"))


def on_curve(reward: float, kl: float) -> Place:
    """A place that is calculated, not measured."""
    return Place(reward, 0.0, kl, 0.0, math.nan, math.nan)


def possible(pool: np.ndarray) -> list[tuple[float, float]]:
    """(reward, KL) of the best policies at a few strengths, by rising KL."""
    return [best_possible(pool, strength) for strength in STRENGTHS]


def main(argv: Sequence[str] | None = None) -> int:
    """Exit status 0 where every goal is met."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tiny", action="store_true", help="a minute's run that shows nothing but that it runs")
    parser.add_argument("--base", type=Path, help="a model of an earlier run, in place of learning it anew")
    parser.add_argument("--only", nargs="+", default=["dpo", "ppo", "grpo", "learned"])
    parser.add_argument("--folder", type=Path, default=FOLDER)
    given = parser.parse_args(argv)
    data = data_folder()
    if data is None:
        print(
            "This benchmark needs the data set topical-chat in shared/data beside the checkout (or THUMBWHEEL_SHARED)."
        )
        return 2
    began = time.perf_counter()
    size = TINY if given.tiny else Size()
    shutil.rmtree(given.folder, ignore_errors=True)
    with benchmark("frontier", "reward against KL, small model, known reward", folder=given.folder.parent) as bench:
        found, base, pool = measure(given, size, data)
        minutes = (time.perf_counter() - began) / 60
        report(bench, found, base, pool, minutes)
        keep(given.folder, found, base, pool)
        bench.note(f"figure: {given.folder / 'frontier.svg'}; every place: {given.folder / 'places.json'}")
        bench.note(
            "Best of n: KL is its formula's, an upper bound; the possible: π_ref exp(r/β) from 64 answers a prefix."
        )
    return bench.exit_code


def measure(given: argparse.Namespace, size: Size, data: Path) -> tuple[dict[str, Series], Place, np.ndarray]:
    """Every series, the reference's place, and the rewards of the pool of its answers (prompts, N)."""
    texts, reward = texts_of(data, size), sentiment()
    base = given.base or small_model(texts, size, given.folder)
    reference = opened(base)
    bench = Bench(size, base, given.folder, texts, reward, reference)
    start = bench.place(reference)
    print(f"reference: reward {start.reward:.3f} ± {Z * start.reward_error:.3f}, {start.length:.1f} tokens", flush=True)
    shown, _ = drawn(reference, texts.test[:5], reward, size, each=1, seed=5)
    for prompt, (text,) in zip(texts.test, shown, strict=False):
        print(f"  {prompt[0].content}|{text}", flush=True)
    _, pool = drawn(reference, texts.test[: size.pool_prefixes], reward, size, each=size.pool, seed=3)
    answers, rewards = drawn(reference, texts.train, reward, size, each=size.answers_for_pairs, seed=2)
    pairs = pairs_of(texts.train, answers, rewards)
    print(f"{len(pairs)} pairs of {len(texts.train)} prefixes; pool {pool.shape}", flush=True)
    found = {"best": best_of(pool)}
    if "dpo" in given.only:
        series = found["dpo"] = Series("DPO")
        for beta in BETAS:
            run_dpo(bench, series, beta, pairs)
    for recipe in ("ppo", "grpo"):
        if recipe in given.only:
            series = found[recipe] = Series(recipe.upper())
            for target in KL_TARGETS:
                run_online(bench, series, recipe, target, texts.train, reward)
    if "learned" in given.only:
        proxy = learned_reward(bench, pairs)
        series = found["learned"] = Series("PPO, learned reward")
        for target in KL_TARGETS[1::2]:
            run_online(bench, series, "ppo", target, texts.train, proxy)
    return found, start, pool


def keep(folder: Path, found: dict[str, Series], base: Place, pool: np.ndarray) -> None:
    """Every place as JSON, and the figure."""
    folder.mkdir(parents=True, exist_ok=True)
    limit = [(kl, reward) for reward, kl in possible(pool)]
    rows = {"reference": asdict(base), "possible": limit, **{one.name: asdict(one) for one in found.values()}}
    (folder / "places.json").write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    spots = {
        one.name: [(name, place.kl, place.reward, Z * place.reward_error) for name, place in one.last.items()]
        for one in found.values()
    }
    frontier_figure(folder / "frontier.svg", (base.kl, base.reward), limit, spots)


if __name__ == "__main__":
    torch.manual_seed(0)
    raise SystemExit(main())
