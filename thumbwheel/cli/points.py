"""The points of a sweep: how one is trained in its folder and measured, and on which prompts."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from thumbwheel.cli.app import say
from thumbwheel.cli.composed import reward_from
from thumbwheel.cli.curves import put_curves
from thumbwheel.cli.rows import prompts_of, rows_of
from thumbwheel.config import FREE_SETTINGS, Settings
from thumbwheel.errors import DataError
from thumbwheel.models.language import LanguageModel, load
from thumbwheel.records import Prompt
from thumbwheel.rounds.gather import view_for
from thumbwheel.rounds.learn import lengths_of
from thumbwheel.signals.prompts import held_out, prompt_key
from thumbwheel.signals.rewards import CompositeReward
from thumbwheel.stores import checkpoints
from thumbwheel.train.dpo import dpo
from thumbwheel.train.lessons import Reference
from thumbwheel.train.online import online
from thumbwheel.train.rollouts import PROMPTS
from thumbwheel.train.stage import fingerprint
from thumbwheel.train.sweep import LEAST_ANSWERS, Knob, Point, checked, knob_of, measured

CURVES = "curves.html"


@dataclass(frozen=True)
class Sides:
    """What is trained on (prompts, or rows that have one), rows held out of that, and the prompts that points are compared on."""

    train: list[Any]
    held: list[Any]
    validation: list[Prompt]
    told: str


@dataclass(frozen=True)
class Job:
    """A sweep that can begin: every value is allowed, the data are split, the reward is open."""

    method: str
    online: bool
    settings: Settings
    knob: Knob
    values: list[float]
    sides: Sides
    reward: CompositeReward
    reward_files: str
    folder: Path

    def run(self, value: float, place: Path) -> Point:
        """Train with this value in `place`, from its last checkpoint where it was cut, and measure."""
        settings = self.knob.set(self.settings, value)
        resume = checkpoints.latest(place / "checkpoints") is not None
        turn = f"{self.values.index(value) + 1} of {len(self.values)}"
        say(f"{self.knob.name} = {value:g} ({turn})" + (": goes on where it was cut" if resume else ""))
        model = self._model()
        reference = Reference(model)  # before the first update
        actions: tuple[str, ...] = ()
        if self.online:
            result = online(
                model, self.sides.train, self.reward, settings.online, settings.sample, place,
                resume=resume, progress=settings.round.progress,
            )  # fmt: skip
            actions = result.actions
        else:
            dpo(
                model, self.sides.train, settings.update, place, lengths=lengths_of(settings),
                heldout=self.sides.held or None, cache=self.folder / "cache", resume=resume, progress=settings.round.progress,
            )  # fmt: skip
        if actions:
            say(f"the guard acted {len(actions)} times; see {place / CURVES}")
        title = f"{self.method}, {self.knob.name} = {value:g}"
        put_curves(place, title, settings, *self.sections, says=self.sides.told, actions=actions, model=place / "model")
        return self._measured(value, model, reference)

    def reference(self) -> Point:
        """The model as it is before any training."""
        say(f"reference, on {len(self.sides.validation)} validation prompts")
        model = self._model()
        return self._measured(0.0, model, Reference(model))

    def inputs(self) -> dict[str, Any]:
        """All that a point depends on beside its value."""
        tree = self.settings.model_dump(mode="json", include=set(self.sections))
        for name in self.sections:
            tree[name] = {key: value for key, value in tree[name].items() if key not in FREE_SETTINGS}
        *above, last = self.knob.key.split(".")
        node: Any = tree
        for name in above:
            node = node[name]
        del node[last]
        rows = self.sides.train
        data = PROMPTS.dump_python(rows, mode="json") if self.online else [row.model_dump(mode="json") for row in rows]
        return {
            "method": [self.method, self.knob.key], "settings": tree, "data": data, "reward": self.reward_files,
            "validation prompts": PROMPTS.dump_python(self.sides.validation, mode="json"), "model": fingerprint(self._model()),
        }  # fmt: skip

    @property
    def sections(self) -> tuple[str, ...]:
        """Sections of the settings that a point depends on; rewards and measuring are among those of fresh answers."""
        return ("model", "sample", "online") if self.online else ("model", "sample", "update", "online")

    def pages(self) -> list[tuple[float, str]]:
        """Values with the page of their curves, from the sweep's folder."""
        found = [(value, f"{value:.12g}/{CURVES}") for value in self.values]
        return [(value, page) for value, page in found if (self.folder / page).exists()]

    def _model(self) -> LanguageModel:
        seed = self.settings.online.seed if self.online else self.settings.update.seed
        return load(self.settings.model, trainable=True, seed=seed)

    def _measured(self, value: float, model: LanguageModel, reference: Reference) -> Point:
        s, asked = self.settings, self.sides.validation
        point = measured(value, model, asked, self.reward, s.online, s.sample, reference=reference)
        if point.answers < len(asked):
            why = "the others leave no room for an answer, or it has no reward"
            say(f"measured on {point.answers} of {len(asked)} validation prompts: {why}")
        return point


def open_job(
    method: str,
    file: Path,
    settings: Settings,
    folder: Path,
    values: Sequence[float],
    *,
    reward_model: Path | None,
    validation: Path | None,
) -> Job:
    """A sweep of `method` over `values` (the knob's usual ones where there are none).

    Raises SettingError (values, reward), DataError (nothing to train or to validate on), before anything is trained.
    """
    fresh = method != "dpo"
    knob = knob_of(settings, online=fresh)
    rising = checked(values or knob.usual)
    for value in rising:
        knob.set(settings, value)
    reward = reward_from(settings, reward_model)
    part = settings.online if fresh else settings.update
    rows = (
        prompts_of(file)
        if fresh
        else rows_of(file, view_for(settings.update.model_copy(update={"method": "dpo"})), settings)
    )
    sides = split(
        rows, online=fresh, share=part.eval_share, seed=part.seed, name="online" if fresh else "update", file=validation
    )
    tried = ", ".join(f"{value:g}" for value in rising)
    name = settings.online.recipe if fresh else f"dpo ({settings.update.loss})"
    say(f"{name}, {knob.name}: {tried}; {sides.told}")
    return Job(name, fresh, settings, knob, rising, sides, reward, _contents(reward_model), folder)


def split(rows: Sequence[Any], *, online: bool, share: float, seed: int, name: str, file: Path | None) -> Sides:
    """Rows to train on and prompts to validate on; no prompt is on both sides. Validation prompts are those of `file`, or
    a seeded share of the rows'.

    Raises DataError where a side has too few.
    """
    prompts: list[Prompt] = list(rows) if online else [row.prompt for row in rows]
    keys = [prompt_key(prompt) for prompt in prompts]
    if file is None:
        validation = list({key: p for key, p in zip(keys, prompts, strict=True) if held_out(p, share, seed)}.values())
        how = f"held out: {name}.eval_share = {share:g}, seed {seed}"
    else:
        validation, how = prompts_of(file), f"of {file}"
    kept_out = {prompt_key(prompt) for prompt in validation}
    train = [row for row, key in zip(rows, keys, strict=True) if key not in kept_out]
    held = [row for row, key in zip(rows, keys, strict=True) if key in kept_out]
    if len(validation) < LEAST_ANSWERS:
        raise DataError.of(
            f"{len(validation)} prompts are too few to compare points on.",
            allowed=f"{LEAST_ANSWERS} or more; from 50 on, values can be told apart",
            got=how,
            next=f"Give --validation FILE, or raise {name}.eval_share.",
        )
    if not train:
        raise DataError(
            "Every prompt is one to validate on, so none is left to train on. Give others to one of the two."
        )
    lost = f", {len(held)} left out of training since they are validated on" if file is not None and held else ""
    noun = "prompts" if online else "rows"
    return Sides(
        train,
        held,
        validation,
        f"{len(train)} {noun} to train on{lost}, {len(validation)} prompts to validate on ({how})",
    )


def _contents(folder: Path | None) -> str:
    """Hash of every file of a reward model, so that another one in its place is seen."""
    if folder is None:
        return ""
    digest = hashlib.sha256()
    for path in sorted(p for p in folder.rglob("*") if p.is_file()):
        digest.update(str(path.relative_to(folder)).encode())
        with path.open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()
