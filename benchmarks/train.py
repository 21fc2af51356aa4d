"""Training speed and memory beside TRL, a plain transformers loop and a hand-written floor, on one workload.

    python -m benchmarks.train [--only sft rm dpo] [--model tiny smol] [--quick] [--minutes 25]

The workload, the peers and the goals are those of `shared/bench/peers` (beside the checkout, or in the folder named by
THUMBWHEEL_SHARED). TRL gets a virtual environment of its own (PEERS_VENV, else build/peers/venv), made once by the peers'
own script. Runs alternate, each in a process of its own; a run that had less than 1.8 of two cores was disturbed and is
discarded; figures are medians of the rest.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.table import Benchmark, Row, benchmark

ROOT = Path(__file__).resolve().parents[1]
BUILD = ROOT / "build" / "peers"
LEAST_SHARE = 0.9  # of the processor time that its threads could have had
PAIRS = {"tiny": {"sft": 128, "rm": 128, "dpo": 32}, "smol": {"sft": 16, "rm": 16, "dpo": 8}}
QUICK = {"tiny": {"sft": 32, "rm": 32, "dpo": 16}, "smol": {"sft": 8, "rm": 8, "dpo": 8}}
GOALS = {
    ("sft", "tiny"): 5.0, ("sft", "smol"): 2.5, ("rm", "tiny"): 2.0, ("rm", "smol"): 1.8, ("dpo", "tiny"): 7.0,
    ("dpo", "smol"): 3.0,
}  # fmt: skip
MEMORY_GOAL = {("sft", "tiny"): 0.5, ("dpo", "tiny"): 0.5}
HELD_OUT = {"tiny": 32, "smol": 16}  # pairs that the peers' scripts hold out on runs of this size
LOSS_NOISE = 0.03  # share by which a held-out loss may be worse
JUDGED_BY = {"sft": "eval_loss", "rm": "eval_accuracy", "dpo": "eval_loss"}
FULL = {"sft": "SFT", "rm": "RM", "dpo": "DPO, reference included"}
MODEL = {"tiny": "tiny", "smol": "135M LoRA"}


@dataclass
class Runs:
    """Results of one implementation on one workload, each with `threads` threads."""

    threads: int = 2
    kept: list[dict[str, Any]] = field(default_factory=list)
    disturbed: list[dict[str, Any]] = field(default_factory=list)

    def add(self, result: dict[str, Any] | None) -> None:
        if result is not None:
            (self.kept if undisturbed(result, self.threads) else self.disturbed).append(result)

    @property
    def used(self) -> list[dict[str, Any]]:
        """Undisturbed runs, or all of them where there is none."""
        return self.kept or self.disturbed

    def figure(self, name: str) -> float | None:
        values = [float(run[name]) for run in self.used if run.get(name) is not None]
        return median(values) if values else None

    def metric(self, name: str) -> float | None:
        values = [float(run["metric"][name]) for run in self.used if name in run["metric"]]
        return median(values) if values else None


def undisturbed(result: dict[str, Any], threads: int) -> bool:
    """Whether a run had its cores to itself: 1.8 of two."""
    return bool(result["cores"] >= LEAST_SHARE * threads)


def main() -> int:
    """Measure, print, write build/bench/train.json; 0 where every goal is met."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="+", choices=list(FULL), default=list(FULL))
    parser.add_argument("--model", nargs="+", choices=list(MODEL), default=list(MODEL))
    parser.add_argument("--quick", action="store_true", help="fewer pairs, one round")
    parser.add_argument("--rounds", type=int, default=3, help="runs a side, at most")
    parser.add_argument("--minutes", type=float, default=25.0, help="start no further round after this")
    parser.add_argument("--threads", type=int, default=2)
    given = parser.parse_args()
    peers = peers_folder()
    if peers is None:
        print("No shared/bench/peers beside the checkout, and THUMBWHEEL_SHARED is not set: nothing to compare with.")
        return 2
    python = peers_python(peers)
    work = [(trainer, model) for model in given.model for trainer in given.only]
    with benchmark("train", "samples a second and memory of training, ours against TRL 1.16 (tuned)") as bench:
        rate = gemm_rate(given.threads)
        runs = rounds(work, peers, python, given)
        report(bench, runs, rate)
    return bench.exit_code


# ---------------------------------------------------------------- running


def peers_folder() -> Path | None:
    """Where the workload and the peers' scripts are."""
    named = os.environ.get("THUMBWHEEL_SHARED")
    for base in ([Path(named)] if named else []) + [ROOT / "shared", ROOT.parent / "shared"]:
        if (base / "bench" / "peers" / "workload.py").is_file():
            return base / "bench" / "peers"
    return None


def environment(threads: int) -> dict[str, str]:
    """Where models are cached, and how many threads everyone gets."""
    made = {**os.environ, "OMP_NUM_THREADS": str(threads), "PYTHONDONTWRITEBYTECODE": "1"}
    made.setdefault("PEERS_CACHE", str(BUILD / "cache"))
    made.setdefault("PEERS_VENV", str(BUILD / "venv"))
    return made


def peers_python(peers: Path) -> Path | None:
    """The interpreter that has TRL, its environment made once; None where it cannot be made."""
    env = environment(2)
    python = Path(env["PEERS_VENV"]) / "bin" / "python"
    if not python.exists():
        print(f"making TRL's environment in {python.parents[1]} (minutes, once)", flush=True)
        python.parents[1].parent.mkdir(parents=True, exist_ok=True)
        made = subprocess.run(
            ["bash", str(peers / "run.sh"), os.devnull, "--help"], env=env, capture_output=True, text=True
        )
        if made.returncode:
            print(f"TRL is not measured: its environment cannot be made.\n{made.stderr[-600:]}")
            return None
    return python


def rounds(
    work: list[tuple[str, str]], peers: Path, python: Path | None, given: argparse.Namespace
) -> dict[tuple[str, str, str], Runs]:
    """Alternate ours and TRL; the plain loop and the floor run once each."""
    runs = {(impl, *item): Runs(given.threads) for item in work for impl in ("ours", "trl", "floor", "plain")}
    until = time.monotonic() + 60 * given.minutes
    pairs = QUICK if given.quick else PAIRS
    for turn in range(1 if given.quick else given.rounds):
        for trainer, model in work:
            for impl in ("trl", "ours") if turn else ("trl", "ours", "floor", "plain"):
                enough = len(runs[impl, trainer, model].kept) >= given.rounds
                if enough or (turn and time.monotonic() > until):
                    continue
                command = command_of(impl, peers, python, given.threads)
                if command is None:
                    continue
                result = run_one(
                    [*command, trainer, model, "--n-train", str(pairs[model][trainer])], impl, peers, given
                )
                runs[impl, trainer, model].add(result)
                say(impl, trainer, model, result, given.threads)
    return runs


def command_of(impl: str, peers: Path, python: Path | None, threads: int) -> list[str] | None:
    """The beginning of the command that runs one implementation."""
    if impl in ("ours", "plain"):
        return [sys.executable, "-m", "benchmarks.train_work", impl]
    script = peers / ("run_trl.py" if impl == "trl" else "run_floor.py")
    return None if python is None else [str(python), str(script)]


def run_one(command: list[str], impl: str, peers: Path, given: argparse.Namespace) -> dict[str, Any] | None:
    """The result line of one process; None, said aloud, where it fails."""
    extra = ["--peers", str(peers)] if impl in ("ours", "plain") else []
    command = [*command, *extra, "--threads", str(given.threads)]
    try:
        done = subprocess.run(
            command, cwd=ROOT, env=environment(given.threads), capture_output=True, text=True, timeout=900
        )
    except subprocess.TimeoutExpired:
        print(f"{impl}: out of time", flush=True)
        return None
    line = next((line[7:] for line in done.stdout.splitlines() if line.startswith("RESULT ")), None)
    if line is None:
        print(f"{impl} failed:\n{done.stderr[-800:]}", flush=True)
        return None
    result: dict[str, Any] = json.loads(line)
    if "samples_s_with_ref" in result:  # the peers measure the reference pass apart
        result["samples_s"] = result["samples_s_with_ref"]
    return result


def say(impl: str, trainer: str, model: str, result: dict[str, Any] | None, threads: int) -> None:
    """One line a run, so that a person can follow."""
    if result is not None:
        state = "" if undisturbed(result, threads) else "  DISTURBED, discarded"
        print(
            f"{trainer} {model} {impl:<6} {result['samples_s']:8.3f} samples/s  {result['cores']:.2f} cores  "
            f"{result['peak_rss_mib']} MiB  {result['metric']}{state}",
            flush=True,
        )


def gemm_rate(threads: int) -> dict[str, float]:
    """FLOP/s of large matrix products here and now, in the dtypes that training uses."""
    import torch

    torch.set_num_threads(threads)
    rates = {}
    for dtype in (torch.bfloat16, torch.float32):
        a, b = torch.randn(2048, 2048).to(dtype), torch.randn(2048, 2048).to(dtype)
        torch.mm(a, b)
        took = []
        for _ in range(7):
            began = time.perf_counter()
            torch.mm(a, b)
            took.append(time.perf_counter() - began)
        rates[str(dtype).removeprefix("torch.")] = 2 * 2048**3 / median(took)
    return rates


# ---------------------------------------------------------------- reporting


def report(bench: Benchmark, runs: dict[tuple[str, str, str], Runs], rate: dict[str, float]) -> None:
    """Rows of the table, in the order of the work."""
    for name, flops in rate.items():
        bench.add(Row(f"machine: GEMM rate, {name}", flops / 1e9, unit="GFLOP/s"))
    for trainer, model in dict.fromkeys((trainer, model) for _, trainer, model in runs):
        ours, trl, floor, plain = (runs[impl, trainer, model] for impl in ("ours", "trl", "floor", "plain"))
        name = f"{FULL[trainer]} {MODEL[model]}"
        bench.add(speed_row(name, trainer, model, ours, trl))
        for other, title in ((plain, "a plain transformers loop"), (floor, "the floor script")):
            peer = other.figure("samples_s")
            bench.add(Row(f"{name}: against {title}", ours.figure("samples_s"), peer, unit="samples/s"))
        bench.add(Row(f"{name}: samples a CPU second", ours.figure("samples_cpu_s"), trl.figure("samples_cpu_s")))
        bench.add(Row(f"{name}: tokens computed", ours.figure("tokens_s"), trl.figure("tokens_s"), unit="tokens/s"))
        goal = MEMORY_GOAL.get((trainer, model))
        memory = (ours.figure("peak_rss_mib"), trl.figure("peak_rss_mib"))
        bench.add(Row(f"{name}: peak memory", *memory, goal=goal, goal_on="ratio", goal_is="at_most", unit="MiB"))
        flops, wall = ours.figure("flops"), ours.figure("wall_s")
        share = None if flops is None or wall is None else 100 * flops / wall / rate["bfloat16"]
        bench.add(Row(f"{name}: share of the GEMM limit", share, unit="%"))
        judged = JUDGED_BY[trainer]
        bench.add(Row(f"{name}: held-out {judged.removeprefix('eval_')}", ours.metric(judged), trl.metric(judged)))
        for impl, them in (("ours", ours), ("TRL", trl)):
            if them.disturbed:
                kept = "all are used, do not quote them" if not them.kept else f"{len(them.kept)} undisturbed are used"
                bench.note(
                    f"{name}, {impl}: {len(them.disturbed)} runs had under {LEAST_SHARE * them.threads:.1f} cores; {kept}."
                )
    bench.note(
        "SFT and DPO: much of the lead is a CPU lead. Without Triton TRL scores every position in float32; not so on a GPU."
    )


def speed_row(name: str, trainer: str, model: str, ours: Runs, trl: Runs) -> Row:
    """Samples a second; the goal is met only where what was learned is as good."""
    row = Row(
        f"{name}: samples a second", ours.figure("samples_s"), trl.figure("samples_s"),
        goal=GOALS[trainer, model], goal_on="ratio", unit="samples/s",
    )  # fmt: skip
    judged = JUDGED_BY[trainer]
    if row.met and not as_good(ours.metric(judged), trl.metric(judged), judged, held_out=HELD_OUT[model]):
        return Row(row.name, row.ours, row.peer, goal=row.goal, met=False, unit=row.unit, goal_on="ratio")
    return row


def as_good(ours: float | None, peer: float | None, name: str, *, held_out: int) -> bool:
    """Whether a held-out figure is no worse than the peer's but for noise.

    Accuracies may differ by two standard errors of the difference of two shares, each of `held_out` pairs.
    """
    if ours is None or peer is None:
        return False
    if name.endswith("loss"):
        return ours <= peer * (1 + LOSS_NOISE)
    p = min(max(peer, 0.1), 0.9)
    return ours >= peer - 2 * math.sqrt(2 * p * (1 - p) / held_out)


if __name__ == "__main__":
    raise SystemExit(main())
