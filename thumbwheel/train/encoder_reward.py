"""Reward model on a frozen sentence encoder: for tens to thousands of comparisons, in seconds, on a CPU.

    model = fit_encoder_reward(load_encoder("all-minilm-l6-v2"), preferences, settings.reward, folder)
    model.score(prompts, responses)                     # (n,) float64; higher is better
    load_encoder_reward(folder, encoder)                # the same scores

The head is linear in blocks of features (`thumbwheel.train.encoder_features`). Which blocks, and how strong the ridge, is
chosen by cross-validation over prompts; the best few choices are averaged, and stay one linear head.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from thumbwheel.config import RewardSettings
from thumbwheel.errors import CheckpointError, DataError, SettingError, did_you_mean, explain
from thumbwheel.formulas.accuracy import pair_accuracy
from thumbwheel.models.encoder import SentenceEncoder
from thumbwheel.records import Message, Preference, Prompt
from thumbwheel.stores import checkpoints
from thumbwheel.train.encoder_features import Answers, Floats, Progress, Scaling, columns_of, read_answers, text_of
from thumbwheel.train.pair_ridge import Comparisons, best_scale, crossed_gaps, fit_ridge, folds_of, log_loss_of

HEAD = "head"
WEIGHTS = "weights.safetensors"
COARSE, FINE = (100.0, 20.0, 4.0), (300.0, 45.0, 9.0, 1.0)
"""Ridges tried for every recipe, and those tried besides for the best recipes; strongest first."""
COMPONENTS = 256
"""Principal directions of the training answers that a fit moves in; the others hardly vary."""

Recipe = Mapping[str, float]


def recipes_for(depths: int) -> dict[str, Recipe]:
    """The choices of blocks, simplest first, with the share each takes: a larger share is shrunk less."""
    form, last = {"surface": 1.0, "likeness": 0.4}, depths - 1
    found: dict[str, Recipe] = {
        "length": {"length": 1.0},
        "surface": form,
        f"content@{last}": {**form, f"content@{last}": 1.0},
    }
    for k in range(last):
        found[f"content@{k}"] = {**form, f"content@{k}": 1.0}
        found[f"match@{k}"] = {**form, f"content@{k}": 0.8, f"match@{k}": 0.6}
        found[f"volume@{k}"] = {"surface": 0.5, "likeness": 0.4, f"volume@{k}": 1.0}
        found[f"whole@{k}"] = {**found[f"volume@{k}"], f"content@{last}": 0.8}
    return found


@dataclass(frozen=True)
class EncoderReward:
    """A fitted reward model. P(a is better than b) = σ((score(a) - score(b)) / temperature).

    `parts` holds the scaling and the weights (columns,) of each block; `metrics` what cross-validation measured.
    """

    encoder: SentenceEncoder
    parts: tuple[tuple[Scaling, Floats], ...]
    offset: float
    temperature: float
    metrics: dict[str, float] = field(default_factory=dict)
    recipes: tuple[str, ...] = ()

    def score(
        self, prompts: Sequence[Prompt], responses: Sequence[str | Message], *, cache: Path | None = None
    ) -> Floats:
        """(n,) float64. Each answer's score stands alone; with `cache` the encoder's part is kept on disk."""
        if len(prompts) != len(responses):
            raise DataError(f"Give one prompt a response. Got {len(prompts)} prompts and {len(responses)} responses.")
        return self.score_answers(read_answers(self.encoder, prompts, responses, cache=cache))

    def score_answers(self, answers: Answers) -> Floats:
        """(n,) scores of answers that were read already."""
        total = np.full(len(answers.surface), -self.offset)
        for scaling, weights in self.parts:
            # Row by row, since a matrix product may round one row differently beside others.
            total += (scaling(answers.block(scaling.name)) * weights).sum(axis=1)
        return total

    def named_weights(self) -> dict[str, float]:
        """What one deviation more of each named feature adds to the score, the strongest first."""
        found: dict[str, float] = {}
        for scaling, weights in self.parts:
            if scaling.name.partition("@")[2] == "":
                for name, weight in zip(columns_of(scaling.name, len(weights)), weights, strict=True):
                    found[name] = found.get(name, 0.0) + float(weight) * scaling.factor
        return dict(sorted(found.items(), key=lambda item: -abs(item[1])))

    def save(self, folder: Path) -> Path:
        """Write the head to `folder`/head, whole or not at all; the encoder is named there, not copied."""
        from safetensors.numpy import save as to_bytes

        tensors: dict[str, Floats] = {}
        for i, (scaling, weights) in enumerate(self.parts):
            tensors |= {f"{i}.mean": scaling.mean, f"{i}.deviation": scaling.deviation, f"{i}.weights": weights}
        about = {
            "kind": "encoder_reward",
            "encoder": self.encoder.hash,
            "encoder_name": self.encoder.name,
            "blocks": [[scaling.name, scaling.factor] for scaling, _ in self.parts],
            "offset": self.offset,
            "temperature": self.temperature,
            "metrics": self.metrics,
            "recipes": list(self.recipes),
        }
        contiguous = {name: np.ascontiguousarray(value) for name, value in tensors.items()}
        checkpoints.save(folder / HEAD, {WEIGHTS: to_bytes(contiguous)}, about)
        return folder

    @classmethod
    def load(cls, folder: Path, encoder: SentenceEncoder) -> EncoderReward:
        """The model that `save` wrote. Raises CheckpointError where the head is missing, broken or of another encoder."""
        from safetensors.numpy import load as from_bytes

        if not (folder / HEAD).is_dir():
            raise CheckpointError(
                f"'{folder}' holds no head of an encoder reward model ({HEAD}/): nothing was fitted here, or it was cut "
                "short. A fresh head would score at random, so none is made. Fit it again with 'thumbwheel train reward'."
            )
        kept = checkpoints.load(folder / HEAD, expect={"kind": "encoder_reward", "encoder": encoder.hash})
        tensors = from_bytes(kept.files[WEIGHTS].read_bytes())
        parts = [
            (Scaling(name, tensors[f"{i}.mean"], tensors[f"{i}.deviation"], factor), tensors[f"{i}.weights"])
            for i, (name, factor) in enumerate(kept.about["blocks"])
        ]
        about = kept.about
        return cls(
            encoder, tuple(parts), about["offset"], about["temperature"], about["metrics"], tuple(about["recipes"])
        )


def load_encoder_reward(folder: Path, encoder: SentenceEncoder) -> EncoderReward:
    """See `EncoderReward.load`."""
    return EncoderReward.load(folder, encoder)


def fit_encoder_reward(
    encoder: SentenceEncoder,
    preferences: Sequence[Preference],
    settings: RewardSettings,
    folder: Path | None,
    *,
    groups: Sequence[str] | None = None,
    cache: Path | None = None,
    progress: Progress | None = None,
) -> EncoderReward:
    """Fit a reward model to comparisons and save it in `folder` (None: do not).

    Ties, soft labels, margins and weights enter the loss as `thumbwheel.formulas.bradley_terry` has them; every pair of a
    prompt takes part, and an answer is read once however many pairs it is in. Of the settings, `temperature`, `centring`,
    `normalise`, `seed`, `max_unusable_share` and those that start with `encoder` count; learning rate, epochs and the
    like belong to the language-model trunk. The same data, settings and seed give the same model. Cross-validation keeps
    pairs of one prompt together, or of one of `groups` (one name a preference), such as a topic with several prompts.

    Raises DataError without a decided pair, where too many pairs are of two equal texts, or where no feature differs
    between answers; SettingError for an unknown block; StoreError where `cache` cannot be written.
    """
    prompts, responses, pairs = compared(preferences, settings, groups=groups)
    answers = read_answers(encoder, prompts, responses, cache=cache, progress=progress)
    fit = _Fit(answers, pairs, settings)
    members = fit.members(encoder)
    model = fit.averaged(encoder, members)
    if folder is not None:
        model.save(folder)
    return model


def compared(
    preferences: Sequence[Preference], settings: RewardSettings, *, groups: Sequence[str] | None = None
) -> tuple[list[Prompt], list[str], Comparisons]:
    """The distinct answers, each with its prompt, and the comparisons among them. Raises DataError."""
    if groups is not None and len(groups) != len(preferences):
        raise DataError(f"Give one group a preference. Got {len(groups)} groups and {len(preferences)} preferences.")
    kept = [i for i, one in enumerate(preferences) if text_of(one.chosen).strip() != text_of(one.rejected).strip()]
    usable = [preferences[i] for i in kept]
    refused = len(preferences) - len(usable)
    if refused > settings.max_unusable_share * len(preferences):
        raise DataError(
            f"{refused} of {len(preferences)} pairs hold the same answer twice; at most {settings.max_unusable_share:.0%} "
            "may. Look at how the pairs were made, or raise 'reward.max_unusable_share'."
        )
    preference = np.array([0.5 if one.tie else one.p for one in usable], dtype=np.float64)
    if not (preference != 0.5).any():
        raise DataError(
            explain(
                "A reward model needs pairs that people decided.",
                allowed="at least one pair with p other than 1/2",
                got=f"{len(usable)} usable pairs, all ties" if usable else "no usable pair",
                next="Collect more comparisons.",
            )
        )
    seen: dict[str, int] = {}
    places: dict[tuple[int, str], int] = {}
    prompts, group, rows = [], [], []
    for one in usable:
        name = json.dumps([turn.model_dump(mode="json") for turn in one.prompt], sort_keys=True)
        here = seen.setdefault(name, len(seen))
        group.append(here)
        for message in (one.chosen, one.rejected):
            key = (here, text_of(message))
            if key not in places:
                places[key] = len(places)
                prompts.append(one.prompt)
            rows.append(places[key])
    weight = np.array([one.weight for one in usable], dtype=np.float64)
    pairs = Comparisons(
        chosen=np.array(rows[0::2]),
        rejected=np.array(rows[1::2]),
        preference=preference,
        margin=np.array([one.margin or 0.0 for one in usable], dtype=np.float64),
        weight=weight / weight.mean(),
        group=np.array(group) if groups is None else np.unique([groups[i] for i in kept], return_inverse=True)[1],
    )
    return prompts, [text for _, text in places], pairs


@dataclass(frozen=True)
class Member:
    """One choice: its blocks, its ridge, and the gaps (P,) that it gave to pairs it had not seen."""

    name: str
    recipe: Recipe
    ridge: float
    gaps: Floats
    loss: float


@dataclass(frozen=True)
class _Fit:
    answers: Answers
    pairs: Comparisons
    settings: RewardSettings

    def members(self, encoder: SentenceEncoder) -> list[Member]:
        """The best choices by log-loss on unseen prompts: every recipe at a few ridges, the best ones at more."""
        every = recipes_for(len(encoder.depths))
        named = self.settings.encoder_recipes or tuple(every)
        folds = folds_of(
            self.pairs.group, most=self.settings.encoder_folds, rng=np.random.default_rng(self.settings.seed)
        )
        tried = [self._best(name, recipe_of(name, every), COARSE, folds) for name in named]
        # Sorting is stable: of equals the simpler recipe comes first.
        best = sorted(tried, key=lambda one: one.loss)[: self.settings.encoder_members]
        refined = [min((one, self._best(one.name, one.recipe, FINE, folds)), key=lambda two: two.loss) for one in best]
        return sorted(refined, key=lambda one: one.loss)

    def _best(self, name: str, recipe: Recipe, ridges: Sequence[float], folds: Any) -> Member:
        features, _, _ = self._features(recipe)
        tau, centre = self.settings.temperature, self.settings.centring
        found = crossed_gaps(features, self.pairs, folds, ridges=ridges, tau=tau, centre=centre)
        losses = [log_loss_of(best_scale(gaps, self.pairs) * gaps, self.pairs) for gaps in found]
        best = int(np.argmin(losses))
        return Member(name, recipe, ridges[best], found[best], losses[best])

    def averaged(self, encoder: SentenceEncoder, members: Sequence[Member]) -> EncoderReward:
        """One linear head: the members' fits on all pairs, each stretched to be believed, and averaged."""
        parts: list[tuple[Scaling, Floats]] = []
        gaps = np.zeros(len(self.pairs))
        for member in members:
            features, scalings, basis = self._features(member.recipe)
            fitted = fit_ridge(
                features, self.pairs, ridge=member.ridge, tau=self.settings.temperature, centre=self.settings.centring
            )
            w: Floats = np.matmul(basis, fitted)
            stretch = best_scale(member.gaps, self.pairs) / len(members)
            gaps += stretch * member.gaps
            start = 0
            for scaling in scalings:
                parts.append((scaling, stretch * w[start : start + len(scaling.mean)]))
                start += len(scaling.mean)
        believed = best_scale(gaps, self.pairs)
        names = tuple(f"{member.name}, ridge {member.ridge:g}" for member in members)
        raw = EncoderReward(encoder, tuple(parts), 0.0, 1 / believed, self._metrics(believed * gaps), names)
        return self._centred(raw)

    def _centred(self, raw: EncoderReward) -> EncoderReward:
        """Scores of mean 0 on the training answers; of deviation 1, or such that the settings' τ holds."""
        scores = raw.score_answers(self.answers)
        deviation = float(scores.std())
        if not deviation > 1e-12 or not math.isfinite(deviation):
            raise DataError("All answers look alike to the reward model: no feature differs. Look at the texts.")
        shrink = 1 / deviation if self.settings.normalise else raw_to_tau(raw.temperature, self.settings.temperature)
        return EncoderReward(
            raw.encoder,
            tuple((scaling, weights * shrink) for scaling, weights in raw.parts),
            float(scores.mean()) * shrink,
            raw.temperature * shrink,
            raw.metrics | {"temperature": raw.temperature * shrink},
            raw.recipes,
        )

    def _features(self, recipe: Recipe) -> tuple[Floats, list[Scaling], Floats]:
        """(R, C) in principal directions, the scalings of the blocks, and the directions (columns, C)."""
        scaled, scalings = [], []
        for name, share in recipe.items():
            block = self.answers.block(name)
            fitted = Scaling.fitted(name, block)
            scalings.append(Scaling(name, fitted.mean, fitted.deviation, fitted.factor * share))
            scaled.append(scalings[-1](block))
        x = np.concatenate(scaled, axis=1)
        size, directions = np.linalg.eigh(x.T @ x)
        kept = np.flatnonzero(size > 1e-10 * max(float(size[-1]), 1e-300))[-COMPONENTS:]
        basis = directions[:, kept]
        return x @ basis, scalings, basis

    def _metrics(self, gaps: Floats) -> dict[str, float]:
        """Measured on pairs whose prompts the fit had not seen; slightly flattering, since recipes were chosen on them."""
        pairs = self.pairs
        lengths = self.answers.surface[:, 0]
        found = pair_accuracy(gaps, pairs.preference)
        longer = pair_accuracy(pairs.gaps(lengths), pairs.preference)
        measured = {
            "cv_accuracy": found.accuracy.value,
            "cv_longer_accuracy": longer.accuracy.value,
            "cv_log_loss": log_loss_of(gaps, pairs),
            "pairs": float(len(pairs)),
            "ties": float(found.ties),
            "answers": float(len(lengths)),
            "groups": float(len(np.unique(pairs.group))),
        }
        return {name: value for name, value in measured.items() if value is not None}


def raw_to_tau(temperature: float, tau: float) -> float:
    """What scores are multiplied by so that σ(gap/τ) is what σ(gap/temperature) was."""
    return tau / temperature


def recipe_of(name: str, known: Mapping[str, Recipe]) -> Recipe:
    """A recipe by name, or spelled out as "block=share+block=share". Raises SettingError."""
    if name in known:
        return known[name]
    try:
        return {block.strip(): float(share) for block, share in (part.split("=") for part in name.split("+"))}
    except ValueError:
        raise SettingError(
            explain(
                f"There is no recipe of features '{name}'.{did_you_mean(name, known)}",
                allowed=f"{', '.join(known)}, or block=share+block=share",
            )
        ) from None
