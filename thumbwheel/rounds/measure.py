"""Last stages: both policies answer the held-out prompts, a judge compares them blind, gates decide.

`answer_new` and `answer_parent` give the answers and their likelihood under the reference; `vote` turns them into votes.
Both are kept, so a round that waits for people's votes goes on from there.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from thumbwheel.batches import TokenRow
from thumbwheel.config import Settings
from thumbwheel.engines.base import Progress, Sampler
from thumbwheel.errors import DataError
from thumbwheel.evals.ballots import BALLOTS, read_votes, write_ballots
from thumbwheel.evals.judges import Scorer, Votes, blind_votes, open_judge
from thumbwheel.evals.language import Answers
from thumbwheel.models.language import LanguageModel
from thumbwheel.models.scoring import summed_logps
from thumbwheel.records import Prompt
from thumbwheel.rounds.gather import PROMPTS
from thumbwheel.rounds.stages import Outcome


def answer_new(
    model: LanguageModel, sampler: Sampler, prompts: Sequence[Prompt], settings: Settings, *, progress: Progress | None
) -> Outcome:
    """The new policy's answers to the held-out prompts, with their log-probability under itself."""
    asked = [prompt for prompt in prompts for _ in range(settings.evals.samples_per_prompt)]
    side, rows = _answers(model, sampler, asked, settings, progress)
    return {
        "prompts": PROMPTS.dump_python(asked, mode="json"),
        "new": {**side, "policy_logp": _logps(model, rows)},
    }


def answer_parent(
    model: LanguageModel, sampler: Sampler, new: Outcome, settings: Settings, *, progress: Progress | None
) -> Outcome:
    """The parent's answers to the same prompts with the same seeds; the parent is the reference of both."""
    asked = PROMPTS.validate_python(new["prompts"])
    side, rows = _answers(model, sampler, asked, settings, progress)
    logps = _logps(model, rows)
    theirs = new["new"]
    of_new = [
        encoded(model, prompt, text, ids)
        for prompt, text, ids in zip(asked, theirs["texts"], theirs["token_ids"], strict=True)
    ]
    return {
        "prompts": new["prompts"],
        "new": {**theirs, "reference_logp": _logps(model, of_new)},
        "parent": {**side, "policy_logp": logps, "reference_logp": logps},
    }


def _answers(
    model: LanguageModel, sampler: Sampler, prompts: Sequence[Prompt], settings: Settings, progress: Progress | None
) -> tuple[dict[str, Any], list[TokenRow | None]]:
    seeds = [settings.seed * 1_000_003 + index for index in range(len(prompts))]
    how = settings.sample.model_copy(update={"temperature": settings.evals.temperature})
    samples = sampler.sample(prompts, seeds=seeds, settings=how, progress=progress)
    side = {
        "texts": [one.text for one in samples],
        "token_ids": [list(one.token_ids) for one in samples],
        "tokens": [len(one.token_ids) for one in samples],
        "finished": [one.stop_reason in ("completed", "stop_string") for one in samples],
    }
    rows = [encoded(model, prompt, one.text, one.token_ids) for prompt, one in zip(prompts, samples, strict=True)]
    return side, rows


def encoded(model: LanguageModel, prompt: Prompt, text: str, token_ids: Sequence[int]) -> TokenRow | None:
    """The very ids that were sampled; an answer without a token has no row."""
    if not token_ids:
        return None
    return model.template.encode(prompt, text, token_ids=token_ids, tokenizer=model.template.tokenizer_hash)


def _logps(model: LanguageModel, rows: Sequence[TokenRow | None]) -> list[float]:
    """An answer without a token has log-probability 0."""
    return [0.0 if row is None else float(value) for row, value in zip(rows, summed_logps(model, rows), strict=True)]


def answers_of(outcome: Outcome, whose: str, reward: Scorer | None = None) -> Answers:
    """The answers of "new" or "parent" as the evaluation takes them."""
    prompts = PROMPTS.validate_python(outcome["prompts"])
    side = outcome[whose]
    return Answers(
        prompts=prompts,
        texts=side["texts"],
        tokens=side["tokens"],
        finished=side["finished"],
        reference_logp=side["reference_logp"],
        policy_logp=side["policy_logp"],
        reward=None if reward is None else reward(prompts, side["texts"]),
    )


def vote(outcome: Outcome, settings: Settings, *, folder: Path, scorer: Scorer | None) -> Votes:
    """Blind votes on the sampled answers. With people as judges: write ballots the first time, read them after.

    Raises DataError while people have not voted, with the file that they fill in.
    """
    new, parent = answers_of(outcome, "new"), answers_of(outcome, "parent")
    if settings.evals.judge == "people":
        ballots = folder / BALLOTS
        if not ballots.exists():
            write_ballots(folder, new.prompts, new.texts, parent.texts, seed=settings.seed)
            raise DataError(
                f'The round waits for people: {ballots} holds the blind pairs. Fill in each "vote" with a, b or tie, '
                "then run `thumbwheel round` again."
            )
        return read_votes(folder).votes
    judge = open_judge(settings.evals.judge, scorer=scorer, origin=settings.evals.judge_origin)
    return blind_votes(judge, new.prompts, new.texts, parent.texts, seed=settings.seed)
