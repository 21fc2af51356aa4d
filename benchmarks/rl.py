"""Online reinforcement learning beside its peers: tokens sampled a second against `transformers`, whole GRPO and PPO
iterations against TRL: `make bench-rl`.

The sampling part is `benchmarks.rl_sampling`. Whole iterations are those of `shared/bench/peers` (beside the checkout, or in the
folder named by THUMBWHEEL_SHARED): sampling, scoring and one weight update, same prompts, hyper-parameters and reward.
Runs alternate, each in a process of its own; one that had less than 1.8 of two cores was disturbed and is discarded;
figures are medians of the rest. TRL 1.16 has no PPO any more; its 1.12 is measured.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks import rl_sampling
from benchmarks.table import Benchmark, Row, benchmark
from benchmarks.train import Runs, environment, peers_folder, peers_python, run_one, say
from thumbwheel.config import ModelSettings

WORK = (("grpo", "tiny"), ("ppo", "tiny"), ("grpo", "smol"))
GOALS = {("grpo", "tiny"): 5.0, ("ppo", "tiny"): 4.0, ("grpo", "smol"): 3.0}
MEMORY_GOAL = 0.5
NAMES = {"grpo": "GRPO", "ppo": "PPO", "tiny": "tiny", "smol": "135M LoRA"}
BATCHES = (1, 8, 32, 64)


def main(argv: Sequence[str] | None = None) -> int:
    """Exit status 0 where every goal is met."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3, help="runs a side, at most")
    parser.add_argument("--minutes", type=float, default=15.0, help="start no further round of iterations after this")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--without-sampling", action="store_true", help="whole iterations only")
    given = parser.parse_args(argv)
    peers = peers_folder()
    if peers is None:
        print("No shared/bench/peers beside the checkout, and THUMBWHEEL_SHARED is not set: nothing to compare with.")
        return 2
    python = peers_python(peers)
    with benchmark("rl", "sampling against transformers, whole iterations against TRL") as bench:
        whole_iterations(bench, peers, python, given)
        if not given.without_sampling:
            rl_sampling.measure(bench, ModelSettings().path, "bfloat16", BATCHES, new_tokens=48, turns=3)
    return bench.exit_code


def whole_iterations(bench: Benchmark, peers: Path, python: Path | None, given: argparse.Namespace) -> None:
    """GRPO and PPO, ours and TRL's in turns."""
    runs = {(impl, *work): Runs(given.threads) for work in WORK for impl in ("ours", "trl")}
    until = time.monotonic() + 60 * given.minutes
    for turn in range(given.rounds):
        for trainer, model in WORK:
            for impl in ("trl", "ours"):
                if turn and time.monotonic() > until:
                    continue
                command = command_of(impl, trainer, peers, python)
                result = command and run_one([*command, trainer, model], impl, peers, given)
                runs[impl, trainer, model].add(result or None)
                say(impl, trainer, model, result or None, given.threads)
    for trainer, model in WORK:
        add_rows(bench, trainer, model, runs["ours", trainer, model], runs["trl", trainer, model])
    bench.note(
        "PPO: TRL trains a value model of its own, ours a value head on the policy's trunk; a part of the lead is that choice."
    )


def command_of(impl: str, trainer: str, peers: Path, python: Path | None) -> list[str] | None:
    """The beginning of the command that runs one implementation; None where TRL is not there."""
    if impl == "ours":
        return [sys.executable, "-m", "benchmarks.rl_work"]
    if python is None:
        return None
    script = [str(python), str(peers / "run_trl.py")]
    if trainer != "ppo":
        return script
    older = os.environ.get("TRL_PPO", str(Path(environment(2)["PEERS_VENV"]) / "trl-1.12.0"))
    return ["env", f"PYTHONPATH={older}", *script]


def add_rows(bench: Benchmark, trainer: str, model: str, ours: Runs, trl: Runs) -> None:
    """Speed, which has the goal, by the clock and by processor time; memory; and what was learned."""
    name = f"{NAMES[trainer]} {NAMES[model]}"
    goal = GOALS[trainer, model]
    bench.add(
        Row(f"{name}: answers a second", ours.figure("samples_s"), trl.figure("samples_s"), goal=goal, goal_on="ratio"),
        Row(f"{name}: answers a CPU second", ours.figure("samples_cpu_s"), trl.figure("samples_cpu_s")),
        Row(
            f"{name}: peak memory", ours.figure("peak_rss_mib"), trl.figure("peak_rss_mib"),
            goal=MEMORY_GOAL, goal_on="ratio", goal_is="at_most", unit="MiB",
        ),
    )  # fmt: skip
    if trainer == "grpo":  # PPO's rewards are those of two random heads, which have nothing in common
        bench.add(Row(f"{name}: reward at the last iteration", ours.metric("reward_last"), trl.metric("reward_last")))
    share = ours.figure("sampling_share")
    bench.add(
        Row(f"{name}: share of the time that is sampling and scoring", None if share is None else 100 * share, unit="%")
    )
    for impl, them in (("ours", ours), ("TRL", trl)):
        if them.disturbed:
            kept = "all are used, do not quote them" if not them.kept else f"{len(them.kept)} undisturbed are used"
            bench.note(f"{name}, {impl}: {len(them.disturbed)} runs were disturbed; {kept}.")


if __name__ == "__main__":
    raise SystemExit(main())
