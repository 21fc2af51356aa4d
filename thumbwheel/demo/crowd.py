"""The application and its simulated users: answers go out, clicks come back over HTTP. Everything says "simulated"."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import resources
from itertools import count

from thumbwheel.client import Batch, Client
from thumbwheel.engines.base import Sample
from thumbwheel.recorder import Recorder
from thumbwheel.records import Prompt, Step
from thumbwheel.testing.population import Population, Reaction, taste


def questions() -> list[str]:
    """The demo's prompts, one a line of prompts.txt."""
    text = resources.files("thumbwheel.demo").joinpath("prompts.txt").read_text(encoding="utf-8")
    return [line.strip() for line in text.splitlines() if line.strip()]


def simulated_taste(prompt: Prompt, text: str) -> float:
    """The hidden preference of the simulated users, as a judge rule."""
    return taste(prompt[-1].content, text)


def report_answers(
    client: Client, prompts: Sequence[str], answers: Sequence[tuple[Sample, Sample]], *, tokenizer: str, seed: int
) -> list[tuple[Step, Step]]:
    """Send what the assistant said, two attempts a prompt, as an application would. Ids are made from the seed."""
    pairs: list[tuple[Step, Step]] = []
    with client.batch() as batch:
        for number, (prompt, two) in enumerate(zip(prompts, answers, strict=True)):
            first, second = (
                batch.step(
                    prompt,
                    one.text,
                    id=f"demo-{seed}-{number:04d}-{attempt}",
                    task_id=f"demo-{seed}-{number:04d}",
                    attempt=attempt,
                    token_ids=one.token_ids,
                    tokenizer=tokenizer,
                    behaviour_logp=one.logp,
                    truncated=one.stop_reason == "max_tokens",
                )
                for attempt, one in enumerate(two)
            )
            pairs.append((first, second))
    return pairs


def click(client: Client, pairs: Sequence[tuple[Step, Step]], population: Population, *, seed: int) -> dict[str, int]:
    """Let a simulated user look at each pair; what they do is sent as feedback. Returns counts by what was done."""
    did: dict[str, int] = {}
    numbers = count()
    with client.batch() as batch:
        for pair in pairs:
            user, reactions = population.react(pair[0].state[-1].content, [step.action.content for step in pair])
            if not reactions:
                did["said nothing"] = did.get("said nothing", 0) + 1
            for reaction in reactions:
                _send(batch, pair, reaction, who=user.name, id=f"demo-{seed}-f{next(numbers):04d}")
                did[reaction.kind] = did.get(reaction.kind, 0) + 1
    return did


def _send(recorder: Recorder | Batch, pair: tuple[Step, Step], reaction: Reaction, *, who: str, id: str) -> None:
    step = pair[reaction.answer]
    match reaction.kind:
        case "choice":
            recorder.choice(pair, step, who=who, id=id)
        case "tie":
            recorder.choice(pair, tie=True, who=who, id=id)
        case "thumb":
            recorder.thumb(step, up=reaction.up, who=who, id=id)
        case "stars":
            recorder.stars(step, reaction.stars, who=who, id=id)
        case "edit":
            recorder.edit(step, reaction.text, who=who, id=id)
