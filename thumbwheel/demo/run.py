"""The demo from an empty folder to a report: an application, a server, simulated users, one round.

The application and the users talk to a real HTTP server in front of a real SQLite file; the round reads that file.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

from thumbwheel.client import Client
from thumbwheel.config import ModelSettings, Settings
from thumbwheel.demo.crowd import click, questions, report_answers
from thumbwheel.demo.settings import demo_settings
from thumbwheel.engines.base import Sample
from thumbwheel.engines.opening import open_sampler
from thumbwheel.errors import ConflictError
from thumbwheel.models.language import load
from thumbwheel.records import Message
from thumbwheel.rounds.run import RoundResult, base_version, model_of, run
from thumbwheel.rounds.stages import read_json, write_json
from thumbwheel.rounds.watch import Shown
from thumbwheel.stores.base import Store
from thumbwheel.stores.sql import open_store
from thumbwheel.testing.population import Population
from thumbwheel.web.app import create_app
from thumbwheel.web.serve import running

MARK = ".thumbwheel-demo"


def demo(
    folder: Path, *, reckless: bool, seed: int, watch: Shown, clock: Callable[[], datetime], prompts: int | None = None
) -> tuple[RoundResult, float]:
    """Run the demo in `folder` and copy its report there; returns the round and the seconds all of it took.

    `prompts` asks only the first so many questions. Raises ConflictError where the folder holds something else.
    """
    began = time.monotonic()
    settings = demo_settings(_empty(folder), reckless=reckless, seed=seed)
    store = open_store(settings.store.url)
    try:
        live = base_version(store, settings, now=clock())
        watch.stage("answer users (the live policy, version v0)", done=False)
        answers = _answer(settings, questions()[:prompts], watch, model_of(live, settings))
        _use(store, settings, answers, watch, policy=live.id)
        result = run(store, settings, clock=clock, watch=watch)
    finally:
        store.close()
    seconds = time.monotonic() - began
    shutil.copyfile(result.html, folder / result.html.name)
    told = read_json(result.json)
    # The copy says how long the whole demo took, the round's own report how long the round did.
    write_json(folder / result.json.name, {**told, "seconds": round(seconds, 1), "round_seconds": told["seconds"]})
    return result, seconds


def _empty(folder: Path) -> Path:
    """A fresh folder of the demo's own; an earlier demo's is cleared, anything else is left alone."""
    if folder.exists() and any(folder.iterdir()):
        if not (folder / MARK).exists():
            raise ConflictError(f"The folder '{folder}' holds something that is no demo. Give another with --folder.")
        shutil.rmtree(folder)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / MARK).touch()
    return folder


def _answer(
    settings: Settings, asked: list[str], watch: Shown, model_settings: ModelSettings
) -> tuple[list[str], list[tuple[Sample, Sample]], str]:
    """Two answers to every question, sampled from the live policy; and the tokenizer's hash."""
    model = load(model_settings)
    twice = [(Message(role="user", content=question),) for question in asked for _ in range(2)]
    seeds = [settings.seed * 7_919 + index for index in range(len(twice))]
    drawn = open_sampler(model, settings.engine).sample(
        twice, seeds=seeds, settings=settings.sample, progress=watch.bar("answers", "answers")
    )
    return asked, list(zip(drawn[::2], drawn[1::2], strict=True)), model.template.tokenizer_hash


def _use(
    store: Store,
    settings: Settings,
    answers: tuple[list[str], list[tuple[Sample, Sample]], str],
    watch: Shown,
    *,
    policy: str,
) -> None:
    """Serve the store, and let the application and its simulated users send what they do."""
    asked, pairs, tokenizer = answers
    watch.stage("collect feedback from SIMULATED users over HTTP", done=False)
    with (
        running(create_app(store, settings), settings=settings) as url,
        Client(url, origin="simulated", surface="demo", policy_version=policy) as client,
    ):
        steps = report_answers(client, asked, pairs, tokenizer=tokenizer, seed=settings.seed)
        did = click(client, steps, Population(seed=settings.seed), seed=settings.seed)
        counts = client.counts()
    watch.say(f"{url}: {counts['steps']} answers and {counts['feedback']} feedbacks stored in {settings.store.url}")
    watch.say("what they did: " + ", ".join(f"{n} {what}" for what, n in sorted(did.items())))
