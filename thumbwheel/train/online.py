"""Learning from the policy's own answers: sample, score, turn rewards into lessons, update, watch. PPO, GRPO and their family.

result = online(model, prompts, reward, settings, sample, Path("run"))

An iteration's answers are on disk before the first update learns from them; the order of everything random is a function
of seed and iteration. So a killed run goes on bit for bit on a CPU, in the middle of an iteration too.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from thumbwheel.batches import TokenRow
from thumbwheel.config import OnlineSettings, SampleSettings, UpdateSettings
from thumbwheel.engines.base import Sampler
from thumbwheel.engines.batch_sampler import BatchSampler
from thumbwheel.errors import CheckpointError, DataError
from thumbwheel.models.language import LanguageModel
from thumbwheel.models.policy import LanguagePolicy
from thumbwheel.records import Preference, Prompt
from thumbwheel.signals.reward_scale import RunningScale
from thumbwheel.stores import checkpoints
from thumbwheel.train.beside import texts_of
from thumbwheel.train.collecting import Collector, Reward, Source, rescaled
from thumbwheel.train.guard import Act, Guard
from thumbwheel.train.journal import Journal
from thumbwheel.train.kl_control import KLController, open_controller
from thumbwheel.train.learner import Learner
from thumbwheel.train.lessons import Reference, lessons_of
from thumbwheel.train.loop import StepReport
from thumbwheel.train.on_policy import Lesson, Lessons, OnPolicy
from thumbwheel.train.rollouts import Rollouts
from thumbwheel.train.rows import within
from thumbwheel.train.saves import Saves, settings_hash
from thumbwheel.train.schedule import learning_rate
from thumbwheel.train.stage import MODEL, fingerprint
from thumbwheel.train.tally import Tally
from thumbwheel.train.units import Unit, data_hash, epoch_order

log = logging.getLogger("thumbwheel.train")
DPO = "dpo"
Stopped = Literal["finished", "fell_back"]
OpenSource = Callable[[LanguagePolicy, Reference], Source]
OF_THE_POLICY = ("kl_per_response_nats", "entropy")  # what the guard may ask of answers that are not the policy's own


@dataclass(frozen=True)
class OnlineResult:
    """What came out of a run.

    iterations  done, over all resumed parts
    updates     weight updates done
    metrics     means over the last five iterations, and `first_…` of the first
    actions     what the guard did, a sentence each
    notes       what was lost on the way and what to be warned of, a sentence each
    stopped     "finished", or "fell_back" where the guard gave the method up
    checkpoint  folder of the saved model
    """

    iterations: int
    updates: int
    metrics: dict[str, float]
    actions: tuple[str, ...]
    notes: tuple[str, ...]
    stopped: Stopped
    seconds: float
    checkpoint: Path


@dataclass(frozen=True)
class Place:
    """Where a run stands: the iteration it is in, the updates done in it and in all, and what controls it."""

    iteration: int = 0
    update: int = 0
    updates: int = 0
    rate_scale: float = 1.0
    kl_scale: float = 1.0
    actions: tuple[str, ...] = ()
    stopped: bool = False
    kept: int | None = None  # the iteration whose answers were good and whose weights are kept


def online(
    model: LanguageModel,
    prompts: Sequence[Prompt],
    reward: Reward,
    settings: OnlineSettings,
    sampling: SampleSettings,
    folder: Path,
    *,
    sampler: Sampler | None = None,
    texts: Sequence[TokenRow] = (),
    preferences: Sequence[Preference] = (),
    resume: bool = False,
    watcher: Callable[[StepReport], None] | None = None,
    progress: bool = True,
    clock: Callable[[], float] = time.perf_counter,
) -> OnlineResult:
    """Train `model` in place and save it in `folder`/model. The reference is the model as it comes in.

    `reward` scores answers; `thumbwheel.signals.reward_terms.open_reward` makes one of `settings.reward`. `sampler` defaults
    to our own on the same weights; `texts` are rows of the language-model loss (`lm_weight`), by default those of the file
    `lm_texts`; `preferences` are what the guard falls back on, by DPO, when it gives the method up.
    Raises DataError (no prompt), SettingError (sampling from a part of the distribution), TrainingError (not finite, too
    many answers without a reward), CheckpointError as `thumbwheel.train.loop.fit` does.
    """
    if not prompts:
        raise DataError("There is no prompt to answer. Give at least one.")

    def collector(policy: LanguagePolicy, reference: Reference) -> Source:
        return Collector(policy, reference, prompts, reward, sampler or BatchSampler(model), sampling, settings, folder)

    return learn_from(
        collector, model, settings, folder, texts=texts, preferences=preferences, resume=resume, watcher=watcher,
        progress=progress, clock=clock,
    )  # fmt: skip


def learn_from(
    open_source: OpenSource,
    model: LanguageModel,
    settings: OnlineSettings,
    folder: Path,
    *,
    texts: Sequence[TokenRow] = (),
    preferences: Sequence[Preference] = (),
    resume: bool = False,
    watcher: Callable[[StepReport], None] | None = None,
    progress: bool = True,
    clock: Callable[[], float] = time.perf_counter,
) -> OnlineResult:
    """The loop of `online` on answers of any source."""
    if settings.lm_weight and not texts:
        texts = texts_of(settings, model, max_tokens=within(None, model).max_tokens)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CheckpointError(f"The folder '{folder}' cannot be made: {error}. Name another one.") from error
    with torch.random.fork_rng():
        torch.manual_seed(settings.seed)
        run = _Run(open_source, model, settings, folder, texts)
        try:
            run.begin(resume=resume)
            began = clock()
            run.train(watcher or (lambda report: None), progress=progress, clock=clock)
            if run.place.stopped:
                run.fall_back(preferences, progress=progress)
        finally:
            run.policy.zero_grad(set_to_none=True)
    place = run.place
    if run.policy.value is None or place.stopped:  # a critic's values are then of a policy that is no more
        model.save(folder / MODEL)
    else:
        run.policy.save(folder / MODEL)
    stopped: Stopped = "fell_back" if place.stopped else "finished"
    return OnlineResult(
        place.iteration, place.updates, run.metrics(), place.actions, tuple(run.tally.notes(settings).values()), stopped,
        clock() - began, folder / MODEL,
    )  # fmt: skip


class _Run:
    """The moving parts of one `online`."""

    def __init__(
        self,
        open_source: OpenSource,
        model: LanguageModel,
        settings: OnlineSettings,
        folder: Path,
        texts: Sequence[TokenRow],
    ) -> None:
        self.model, self.settings, self.folder = model, settings, folder
        self.texts: list[Unit[Lessons]] = [
            Unit(f"text {i}", (row,), (Lesson.of_text(int(row.trained.sum())),)) for i, row in enumerate(texts)
        ]
        with_value = settings.advantage == "gae"
        self.policy = LanguagePolicy(model, with_value=with_value, detached=settings.value_detached)
        if settings.value_head is not None:
            self.policy.load_value(Path(settings.value_head))
        self.source = open_source(self.policy, Reference(model))
        identity = {
            "data": self.source.data,
            "settings": settings_hash(settings),
            "template": model.template.hash,
            "model": fingerprint(model),
            **({"value_head": fingerprint(self.policy.value)} if self.policy.value is not None else {}),
            **({"texts": data_hash(self.texts)} if self.texts else {}),
        }
        self.task = OnPolicy(self.policy, settings, longest=self.source.longest)
        self.learner: Learner[Lessons] = Learner(self.task, settings)
        self.saves = Saves(folder, self.learner.parameters, self.learner.optimiser, identity, settings.keep_checkpoints)
        self.controller: KLController = open_controller(settings.kl, updates=settings.iterations)
        self.guard = Guard()
        self.scale = RunningScale(settings.reward.scale, settings.reward.clip)  # as it was when the iteration began
        self.tally = Tally(no_room=self.source.no_room)
        self.place = Place()
        self.told: list[dict[str, float]] = []  # figures of the iteration's updates so far
        self.lines: list[dict[str, float]] = []

    # ------------------------------------------------------------------ start, goal

    def begin(self, *, resume: bool) -> None:
        """A new run, or where the last checkpoint stands; one that was killed before its first checkpoint begins again."""
        if not resume:
            self.saves.begin()
            self.source.begin()
            self.saves.mark()
            for note in self.tally.notes(self.settings).values():
                log.warning("%s: %s", self.settings.recipe, note)
            return
        if self.saves.only_marked():
            return
        about = self.saves.resume().about
        self.place = Place(**{**about["place"], "actions": tuple(about["place"]["actions"])})
        self.controller = self.controller.restored(about["controller"])
        self.guard = Guard.restored(about["guard"])
        self.scale = self.scale.restored(about["scale"])
        self.tally = Tally.restored(about["tally"])
        self.told = list(about["told"])

    def save(self) -> None:
        """All that the next update depends on, beside the answers, which are on disk already."""
        place = asdict(self.place)
        about = {
            "place": place, "controller": self.controller.state(), "guard": self.guard.state(), "scale": self.scale.state(),
            "tally": self.tally.state(), "told": self.told,
        }  # fmt: skip
        self.saves.write(self.place.updates, about)
        self.source.forget(before=self.place.iteration)

    def train(self, watcher: Callable[[StepReport], None], *, progress: bool, clock: Callable[[], float]) -> None:
        """Iterations until the end, or until the guard gives up."""
        s = self.settings
        with Journal(
            self.folder, name=s.recipe, watch="reward", start=self.place.iteration, steps=s.iterations,
            progress=progress, tensorboard=s.tensorboard,
        ) as journal:  # fmt: skip
            watcher(StepReport(self.place.iteration, s.iterations, {}))
            while self.place.iteration < s.iterations and not self.place.stopped:
                figures, act = self.iteration(clock)
                done = self.place.iteration
                journal.step(done, figures, shown=shown(figures))
                if act != "go_on":
                    self.save()  # before other good weights take the place of those that were rolled back to
                watcher(StepReport(done, s.iterations, figures))
            if self.place.updates:
                self.save()
            self.lines = journal.lines()

    # ------------------------------------------------------------------ one iteration

    def iteration(self, clock: Callable[[], float]) -> tuple[dict[str, float], Act]:
        """Sample, watch, learn; the figures, and what the guard said. What it rolls back from is not learned from."""
        s, place = self.settings, self.place
        began = clock()
        rollouts = self.source.rollouts(place.iteration)
        seconds = max(clock() - began, 1e-9)
        figures = self.source.figures(rollouts)
        judged = place.update > 0  # before the run was killed
        act = self.watch(figures) if s.guard.enabled and not judged else "go_on"
        self.task.coefficient = self.controller.coefficient * self.place.kl_scale
        self.task.clip_scale = self.controller.clip_scale
        figures |= {"coefficient": self.task.coefficient, "tokens_per_s": figures["tokens"] / seconds}
        on_scale, scale = rescaled(rollouts, self.scale)
        if act in ("go_on", "cool_down"):
            figures |= self.updates(lessons_of(on_scale, s, coefficient=self.task.coefficient))
        figures["seconds"] = clock() - began
        per_response, per_token = figures["kl_per_response_nats"], figures["kl_per_token_nats"]
        kl = per_response if self.controller.unit == "response" else per_token
        self.controller = self.controller.after(kl, responses=len(rollouts.flat))
        self.scale = scale
        self.count(rollouts)
        self.place = replace(self.place, iteration=place.iteration + 1, update=0)
        return figures, act

    def count(self, rollouts: Rollouts) -> None:
        """Keep account of an iteration, and say what is new in it."""
        before = self.tally.notes(self.settings)
        self.tally = self.tally.after(rollouts, self.settings)
        for kind, note in self.tally.notes(self.settings).items():
            if kind not in before:
                log.warning("%s: %s", self.settings.recipe, note)

    def updates(self, units: Sequence[Unit[Lessons]]) -> dict[str, float]:
        """The weight updates of an iteration, from where it was left; their mean figures."""
        s = self.settings
        each = math.ceil(len(units) / s.batch_size)
        rate = learning_rate(self.place.iteration, s.iterations, s) * self.place.rate_scale
        while self.place.update < s.epochs * each:
            epoch, turn = divmod(self.place.update, each)
            order = epoch_order(len(units), seed=s.seed, epoch=self.place.iteration * s.epochs + epoch)
            batch = [units[int(i)] for i in order[turn * s.batch_size : (turn + 1) * s.batch_size]]
            figures = self.learner.update([*batch, *self._texts()], rate)
            limit = s.max_update_kl_per_token_nats
            far = limit is not None and figures.get("update_kl", 0.0) > limit
            self.place = replace(
                self.place,
                update=s.epochs * each if far else self.place.update + 1,
                updates=self.place.updates + 1,
            )
            self.told.append(figures | ({"stopped_early": 1.0} if far else {}))
            if self.place.updates % s.checkpoint_every_steps == 0:
                self.save()
        found, self.told = self.told, []
        names = {name for one in found for name in one} - {"tokens"}
        return {name: float(np.mean([one[name] for one in found if name in one])) for name in sorted(names)}

    def _texts(self) -> list[Unit[Lessons]]:
        """As many texts as an update has prompts, in turn."""
        if not self.texts or not self.settings.lm_weight:
            return []
        size, first = self.settings.batch_size, self.place.updates * self.settings.batch_size
        return [self.texts[(first + i) % len(self.texts)] for i in range(min(size, len(self.texts)))]

    def watch(self, figures: Mapping[str, float]) -> Act:
        """Ask the guard, and do what it says: the weights are good if the answers that they gave are."""
        s = self.settings.guard
        seen = figures if self.source.own else {n: v for n, v in figures.items() if n in OF_THE_POLICY}
        self.guard, verdict = self.guard.judged(seen, s)
        if verdict.act == "go_on":
            place = self.place
            if place.kept is None or place.iteration - place.kept >= s.save_every_iterations:
                self.saves.write_best(place.iteration)
                self.place = replace(place, kept=place.iteration)
            return verdict.act
        did = f"iteration {self.place.iteration + 1}: {'; '.join(verdict.why)}. "
        cooled: dict[str, Any] = {
            "rate_scale": self.place.rate_scale * s.cool_down,
            "kl_scale": self.place.kl_scale * s.kl_boost,
        }
        if verdict.act == "cool_down":
            pull = f", β times {s.kl_boost:g}" if self.controller.coefficient > 0 else "; β is 0 and stays so"
            did += f"Cooled down: learning rate times {s.cool_down:g}{pull}."
        elif not (self.saves.best / "manifest.json").exists():
            did, cooled = did + "There is no good iteration to roll back to: gave up.", {"stopped": True}
        else:
            step = self.saves.restore_best(with_optimiser=True)
            did += f"Rolled back to the weights that answered in iteration {step + 1}"
            did += ", cooled down." if verdict.act == "roll_back" else ", gave the method up."
            if verdict.act == "fall_back":
                cooled = {"stopped": True}
        log.warning("guard: %s", did)
        self.place = replace(self.place, actions=(*self.place.actions, did), **cooled)
        return verdict.act

    def fall_back(self, preferences: Sequence[Preference], *, progress: bool) -> None:
        """DPO from the last good weights on the preferences at hand; nothing where there are none."""
        from thumbwheel.train.dpo import dpo

        if not preferences:
            note = "No preferences were given to fall back on, so the last good weights are kept as they are."
            self.place = replace(self.place, actions=(*self.place.actions, note))
            return
        s, folder = self.settings, self.folder / DPO
        update = UpdateSettings(lr=s.lr, seed=s.seed, batch_size=s.batch_size, eval_share=0.0)
        begun = checkpoints.latest(folder / "checkpoints") is not None  # this run was killed in it
        try:
            result = dpo(self.model, preferences, update, folder, progress=progress, resume=begun)
            note = f"Learned by DPO from {result.account.kept} preferences instead ({result.steps} updates)."
        except DataError as error:
            note = f"DPO could not learn from the preferences at hand, so the last good weights are kept as they are: {error}"
        self.place = replace(self.place, actions=(*self.place.actions, note))

    def metrics(self) -> dict[str, float]:
        """Means over the last five iterations, and the first one's."""
        if not self.lines:
            return {}
        last = self.lines[-5:]
        names = sorted({name for line in last for name in line} - {"step"})
        means = {name: float(np.mean([line[name] for line in last if name in line])) for name in names}
        return means | {f"first_{name}": value for name, value in self.lines[0].items() if name != "step"}


def shown(figures: Mapping[str, float]) -> str:
    """What stands beside the progress bar."""
    return (
        f"reward {figures['reward']:.3g}  KL {figures['kl_per_response_nats']:.3g}  entropy {figures['entropy']:.2g}  "
        f"{figures['length']:.0f} tokens  {figures['tokens_per_s']:.0f}/s"
    )
