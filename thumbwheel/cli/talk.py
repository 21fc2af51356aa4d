"""`thumbwheel chat`: a talk in the terminal whose replies can be judged on the spot."""

from __future__ import annotations

from uuid import uuid4

from rich.live import Live
from rich.markdown import Markdown
from rich.prompt import Prompt as Ask
from rich.text import Text

from thumbwheel.cli.app import now, opened, out
from thumbwheel.config import Settings
from thumbwheel.engines.base import StreamingSampler, listen
from thumbwheel.engines.opening import open_sampler
from thumbwheel.engines.recording import sampled_fields
from thumbwheel.errors import NotFound
from thumbwheel.models.language import load
from thumbwheel.models.templates import ChatTemplate
from thumbwheel.recorder import Recorder
from thumbwheel.records import Message, Step
from thumbwheel.rounds.run import base_version, model_of
from thumbwheel.stores.base import PolicyVersion, Store

HELP = "+ liked it   - did not   = TEXT how it should have been   ? another answer   /new a new talk   /quit"


def talk(settings: Settings, *, version: str | None, who: str) -> None:
    """Read, answer, and keep what is said about the answers, until the end of input."""
    with opened(settings, create=True) as store:
        chosen = version_of(store, settings, version)
        model = load(model_of(chosen, settings))
        out.print(f"[bold]{chosen.id}[/] ({chosen.status}). {HELP}", highlight=False)
        _loop(
            store,
            settings,
            open_sampler(model, settings.engine),
            model.template,
            Recorder(clock=now, who=who, surface="terminal", policy_version=chosen.id),
        )


def version_of(store: Store, settings: Settings, wanted: str | None) -> PolicyVersion:
    """The version of that name; without one the live one. Raises NotFound."""
    live = base_version(store, settings, now=now())
    if wanted is None:
        return live
    found = {version.id: version for version in store.versions()}
    if wanted not in found:
        raise NotFound(f"There is no version '{wanted}'. There are: {', '.join(found)}.")
    return found[wanted]


def _loop(
    store: Store, settings: Settings, sampler: StreamingSampler, template: ChatTemplate, recorder: Recorder
) -> None:
    talked: list[Message] = []
    last: Step | None = None
    episode = uuid4().hex
    while True:
        try:
            said = Ask.ask("[bold cyan]you[/]", console=out).strip()
        except EOFError:
            return
        if said in ("/quit", "/exit"):
            return
        if said == "/new":
            talked, last, episode = [], None, uuid4().hex
        elif said in ("+", "-", "?") or said.startswith("="):
            last = _react(store, settings, sampler, template, recorder, said, last)
            if said == "?" and last is not None:
                talked[-1] = last.action
        elif said:
            talked.append(Message(role="user", content=said))
            last = _answer(store, settings, sampler, template, recorder, talked, episode, attempt=0)
            talked.append(last.action)


def _react(
    store: Store,
    settings: Settings,
    sampler: StreamingSampler,
    template: ChatTemplate,
    recorder: Recorder,
    said: str,
    last: Step | None,
) -> Step | None:
    """A thumb, an edit, or another attempt at the last answer."""
    if last is None:
        out.print("There is no answer yet to say that about.")
        return None
    if said == "?":
        attempt = last.attempt + 1
        return _answer(store, settings, sampler, template, recorder, list(last.state), last.episode_id, attempt=attempt)
    if said.startswith("="):
        text = said[1:].strip()
        if not text:
            out.print("Write the better answer after the sign: = TEXT")
            return last
        feedback = recorder.edit(last, text)
    else:
        feedback = recorder.thumb(last, up=said == "+")
    store.add_feedback([feedback], now=now())
    out.print("[dim]kept[/]")
    return last


def _answer(
    store: Store,
    settings: Settings,
    sampler: StreamingSampler,
    template: ChatTemplate,
    recorder: Recorder,
    talked: list[Message],
    episode: str,
    *,
    attempt: int,
) -> Step:
    prompt = tuple(talked)
    seed = settings.seed + 1009 * len(talked) + attempt
    with Live(Text("…"), console=out, refresh_per_second=10, vertical_overflow="visible") as line:
        said: list[str] = []

        def show(piece: str) -> None:
            said.append(piece)
            line.update(Markdown("".join(said)))

        sample = listen(sampler.stream(prompt, seed=seed, settings=settings.sample), show)
        line.update(Markdown(sample.text or "*(nothing)*"))
    step = recorder.step(
        prompt,
        sample.text,
        task_id=episode,
        index=sum(message.role == "user" for message in talked) - 1,
        attempt=attempt,
        **sampled_fields(sample, template, settings.sample),
    )
    store.add_steps([step])
    return step
