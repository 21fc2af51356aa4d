"""`thumbwheel sample`: answers of a policy to many prompts, several each, kept for people to choose among."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from thumbwheel.cli.app import File, Overrides, app, hint, now, opened, out, say, settings_from
from thumbwheel.errors import SettingError
from thumbwheel.records import Prompt, digest_of

if TYPE_CHECKING:
    from thumbwheel.config import Settings
    from thumbwheel.engines.base import Sampler
    from thumbwheel.models.templates import ChatTemplate
    from thumbwheel.recorder import Recorder
    from thumbwheel.records import Step
    from thumbwheel.stores.base import PolicyVersion, Store

FRESH_TOP_P = 0.9
CHUNK = 64  # answers put on disk together: a kill loses no more


@app.command()
def sample(
    prompts: Annotated[
        Path | None,
        typer.Argument(help="A .txt with a prompt a line, or any file that `thumbwheel import` reads."),
    ] = None,
    settings_file: File = None,
    overrides: Overrides = None,
    each: Annotated[int, typer.Option("-n", min=1, help="Answers to each prompt.")] = 4,
    top_p: Annotated[
        float | None, typer.Option(min=0.0, max=1.0, help="As sample.top_p. Under 1, picks of them cannot train GRPO.")
    ] = None,
    version: Annotated[str | None, typer.Option(help="A version of the policy; the live one by default.")] = None,
    groups: Annotated[Path, typer.Option("--out", "-o", help="Prompts and answers, for whoever shows them.")] = Path(
        "groups.jsonl"
    ),
    fresh: Annotated[
        bool,
        typer.Option(
            "--fresh",
            help="Say what share of the reward model's pairs is of this version, and sample only as many prompts as "
            "bring it to reward.fresh_share, at top-p 0.9. Without PROMPTS: only say.",
        ),
    ] = False,
) -> None:
    """Let the policy answer every prompt several times, and keep the answers as attempts that people can choose or rank.

    Run it again with the same seed and nothing is sampled or stored twice; killed, it goes on where it was.
    """
    if prompts is None and not fresh:
        raise SettingError(
            "Name a file of prompts to answer: a .txt with a prompt a line, or any that can be imported."
        )
    if top_p is not None or fresh:
        overrides = [*(overrides or []), f"sample.top_p={FRESH_TOP_P if top_p is None else top_p}"]
    settings = settings_from(settings_file, overrides)
    if each > 1 and settings.sample.temperature == 0:
        raise SettingError(
            f"At sample.temperature 0 all {each} answers to a prompt are the same. Set it above 0 (0.7 is usual)."
        )
    with opened(settings, create=True) as store:
        from thumbwheel.cli.talk import version_of  # seconds of loading, which a missing file need not wait for

        chosen = version_of(store, settings, version)
        wanted = _wanted(store, settings, chosen, prompts, each=each, fresh=fresh)
        if prompts is None or not wanted:
            return
        made = _sampled(store, settings, chosen, wanted, each)
        _write(groups, made, chosen.id)
    say(f"{groups}: {len(made)} groups of answers by {chosen.id}, to be shown to people, to each in another order")
    if settings.sample.top_p < 1 or settings.sample.top_k:
        say("Choices among them make preferences; `thumbwheel train picks` sets answers cut to top-p or top-k aside.")
    hint("thumbwheel serve      [dim]people's choices come in over HTTP: POST /v1/feedback, kind choice or ranking[/]")


def _wanted(
    store: Store, settings: Settings, chosen: PolicyVersion, file: Path | None, *, each: int, fresh: bool
) -> list[Prompt]:
    """The prompts to answer: all of the file, or as many as make enough of the reward model's pairs fresh."""
    from thumbwheel.cli.rows import prompts_of
    from thumbwheel.collect.noise import NoiseFilter
    from thumbwheel.rounds.gather import learned_already
    from thumbwheel.signals.fresh import freshness, prompts_to_sample
    from thumbwheel.signals.prompts import held_out, prompt_key, split_by_prompt
    from thumbwheel.signals.views import preferences

    asked = [] if file is None else prompts_of(file)
    if not fresh:
        return asked
    share, seed, goal = settings.evals.holdout_share, settings.seed, settings.reward.fresh_share
    episodes = NoiseFilter(settings.feedback)(store.episodes(with_feedback_only=True))
    known = learned_already(store, store.live()) if settings.round.data == "new" else set()
    rows = [row for row in preferences(episodes, settings.feedback).rows if not known.issuperset(row.feedback_ids)]
    rows = split_by_prompt(rows, share, seed)[0]
    found = freshness(rows, chosen.id)
    needed = prompts_to_sample(found, share=goal, pairs_per_prompt=each - 1)
    say(f"{found.line(chosen.id)}; {needed} prompts of {each} answers bring them to {goal:.0%} of the pairs.")
    judged = {prompt_key(row.prompt) for row in rows if row.policy_version == chosen.id}
    usable = [one for one in asked if not held_out(one, share, seed) and prompt_key(one) not in judged]
    if file is not None and needed > len(usable):
        say(f"{file} has {len(usable)} of them that are neither held out to measure on nor judged already.")
    return usable[:needed]


# ---------------------------------------------------------------------- answers


@dataclass(frozen=True)
class _Wish:
    """One answer that is wanted. Its id says all that it depends on, so that it is made once."""

    prompt: Prompt
    task_id: str
    attempt: int

    @property
    def id(self) -> str:
        return f"{self.task_id}-{self.attempt}"

    @property
    def seed(self) -> int:
        return int.from_bytes(hashlib.sha256(self.id.encode()).digest()[:6], "big")


def task_of(prompt: Prompt, version: str, settings: Settings) -> str:
    """The task's id: of the prompt, the version, the seed and how it is sampled."""
    how = settings.sample.model_dump(mode="json", exclude={"batch_size"})
    words = [[message.model_dump(mode="json") for message in prompt], version, settings.seed, how, settings.engine.kind]
    return f"sample-{digest_of(words)[:24]}"


def _sampled(
    store: Store, settings: Settings, version: PolicyVersion, prompts: Sequence[Prompt], each: int
) -> list[list[Step]]:
    """The steps of every prompt, those of before and new ones. An answer without a token is none."""
    from thumbwheel.recorder import Recorder
    from thumbwheel.rounds.watch import Shown

    wishes = [_Wish(p, task_of(p, version.id, settings), n) for p in prompts for n in range(each)]
    found = {wish.id: step for wish in wishes if (step := store.step(wish.id)) is not None}
    missing = [wish for wish in wishes if wish.id not in found]
    empty = 0
    if missing:
        from thumbwheel.engines.opening import open_sampler
        from thumbwheel.models.language import load
        from thumbwheel.rounds.run import model_of

        model = load(model_of(version, settings))
        sampler = open_sampler(model, settings.engine)
        recorder = Recorder(clock=now, surface="sample", policy_version=version.id)
        with Shown(out, bars=settings.round.progress).open() as watch:
            tick = watch.bar("answers", "answers") or (lambda done, total: None)
            for start in range(0, len(missing), CHUNK):
                part = missing[start : start + CHUNK]
                steps = _answered(part, sampler, model.template, recorder, settings, _after(tick, start, len(missing)))
                store.add_steps(steps)
                found |= {step.id: step for step in steps}
                empty += len(part) - len(steps)
    say(f"{len(missing) - empty} answers sampled, {len(wishes) - len(missing)} were there already")
    if empty:
        say(f"{empty} answers have no token: their prompts fill the model's context")
    groups: dict[str, list[Step]] = {}
    for wish in wishes:
        if wish.id in found:
            groups.setdefault(wish.task_id, []).append(found[wish.id])
    return list(groups.values())


def _answered(
    wishes: Sequence[_Wish],
    sampler: Sampler,
    template: ChatTemplate,
    recorder: Recorder,
    settings: Settings,
    tick: Callable[[int, int], None],
) -> list[Step]:
    from thumbwheel.engines.recording import sampled_fields

    samples = sampler.sample(
        [wish.prompt for wish in wishes], seeds=[wish.seed for wish in wishes], settings=settings.sample, progress=tick
    )
    return [
        recorder.step(
            wish.prompt,
            one.text,
            id=wish.id,
            task_id=wish.task_id,
            attempt=wish.attempt,
            **sampled_fields(one, template, settings.sample),
        )
        for wish, one in zip(wishes, samples, strict=True)
        if one.token_ids
    ]


def _after(tick: Callable[[int, int], None], start: int, total: int) -> Callable[[int, int], None]:
    """The bar of all parts, told of one that begins at `start`."""
    return lambda done, _: tick(start + done, total)


def _write(path: Path, groups: Sequence[Sequence[Step]], version: str) -> None:
    """One line a group, whole or not at all. Raises StoreError where the file cannot be written."""
    from thumbwheel.errors import StoreError
    from thumbwheel.stores import files

    lines = [
        {
            "task_id": steps[0].task_id,
            "policy_version": version,
            "prompt": [message.model_dump(mode="json", exclude_defaults=True) for message in steps[0].state],
            "answers": [{"step_id": step.id, "text": step.action.content} for step in steps],
        }
        for steps in groups
    ]
    text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
    try:
        files.put_file(path, text.encode("utf-8"))
    except OSError as error:
        raise StoreError(f"'{path}' cannot be written: {files.why(error)}.") from error
