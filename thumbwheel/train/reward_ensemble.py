"""The reward model of a round or a command, of either trunk: one, or an ensemble of several that tells what it is not sure of.

    fit_reward_model(train, settings, folder)             # settings.reward.members of them
    reward_scorers(folder, settings)["reward_model"]      # the mean; "reward_model.0", "reward_model.1", … and "…spread" beside

A member learns from its own draw of the prompts, with replacement (a bootstrap), and from its own seed: members agree where
the data speak, and part where they do not (Lakshminarayanan et al. 2017; for reward models Coste et al. 2023).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path

import numpy as np

from thumbwheel.config import Settings
from thumbwheel.errors import CheckpointError
from thumbwheel.models.encoder import SentenceEncoder, load_encoder
from thumbwheel.models.heads import RewardModel, load_reward_model
from thumbwheel.models.language import load
from thumbwheel.models.scoring import score_answers
from thumbwheel.records import Preference, Prompt
from thumbwheel.signals.prompts import prompt_key
from thumbwheel.signals.reward_terms import SPREAD
from thumbwheel.signals.rewards import Floats
from thumbwheel.stores import checkpoints
from thumbwheel.stores import files as disk
from thumbwheel.train.encoder_features import Answers, read_answers
from thumbwheel.train.encoder_reward import HEAD, fit_encoder_reward, load_encoder_reward
from thumbwheel.train.loop import StepReport
from thumbwheel.train.reward import reward
from thumbwheel.train.rows import Lengths
from thumbwheel.train.stage import MODEL

MEAN = "reward_model"
ENSEMBLE = "ensemble.json"
CACHE = "cache"
Scores = Callable[[Sequence[Prompt], Sequence[str]], Floats]


def fit_reward_model(
    train: Sequence[Preference],
    settings: Settings,
    folder: Path,
    *,
    lengths: Lengths | None = None,
    heldout: Sequence[Preference] | None = None,
    resume: bool = False,
    watcher: Callable[[StepReport], None] | None = None,
    progress: bool = True,
) -> dict[str, float]:
    """Fit `settings.reward.members` reward models in `folder`; their metrics, averaged.

    With `resume` each member goes on from its last checkpoint, and one without a checkpoint begins. Raises as
    `thumbwheel.train.reward.reward` and `thumbwheel.train.encoder_reward.fit_encoder_reward` do.
    """
    count, s = settings.reward.members, settings.reward
    found: list[dict[str, float]] = []
    encoder = load_encoder(s.encoder) if s.trunk == "encoder" else None
    for place in member_folders(folder, count):
        k = len(found)
        how = s.model_copy(update={"seed": s.seed + k})
        rows = train if count == 1 else bootstrapped(train, seed=s.seed, member=k)
        if encoder is not None:
            vectors = folder / CACHE if count > 1 else None  # members read the same answers
            found.append(fit_encoder_reward(encoder, rows, how, place, cache=vectors).metrics)
            continue
        model = RewardModel(load(settings.model, trainable=True, seed=how.seed), seed=how.seed)
        result = reward(
            model, rows, how, place, lengths=lengths, heldout=heldout, progress=progress,
            resume=resume and checkpoints.latest(place / "checkpoints") is not None,
            watcher=watcher or (lambda report: None),
        )  # fmt: skip
        found.append(result.metrics)
    if count > 1:
        _write(folder / ENSEMBLE, {"members": count})
    names = sorted({name for metrics in found for name in metrics})
    return {name: float(np.mean([metrics[name] for metrics in found if name in metrics])) for name in names}


def member_folders(folder: Path, count: int) -> list[Path]:
    """Where each member is: the folder itself where there is one alone."""
    return [folder] if count == 1 else [folder / f"member-{k}" for k in range(count)]


def bootstrapped(rows: Sequence[Preference], *, seed: int, member: int) -> list[Preference]:
    """As many prompts as there are, drawn with replacement; a prompt drawn n times has weight n, one not drawn is out."""
    keys = [prompt_key(row.prompt) for row in rows]
    every = sorted(set(keys))
    drawn = np.random.default_rng([seed, member]).integers(len(every), size=len(every)) if every else np.zeros(0, int)
    times = dict(zip(every, np.bincount(drawn, minlength=len(every)).tolist(), strict=True))
    return [
        row.model_copy(update={"weight": row.weight * times[key]})
        for row, key in zip(rows, keys, strict=True)
        if times[key]
    ]


# ---------------------------------------------------------------------- scoring


def reward_scorers(folder: Path, settings: Settings) -> dict[str, Scores]:
    """What `fit_reward_model` left in `folder`, by name: "reward_model", and of an ensemble each member and the spread.

    Raises CheckpointError where the folder holds none, or not every member.
    """
    count = _members(folder / ENSEMBLE)
    if count == 1:
        return {MEAN: _scorer(folder, settings, lambda: load_encoder(settings.reward.encoder), read_answers)}
    missing = [place.name for place in member_folders(folder, count) if not place.is_dir()]
    if missing:
        raise CheckpointError(
            f"'{folder}' is an ensemble of {count} reward models, and {', '.join(missing)} is not there. "
            "Copy the whole folder, or train it again."
        )
    encoder = cache(lambda: load_encoder(settings.reward.encoder))
    read = _read_once()
    members = [remembered(_scorer(place, settings, encoder, read)) for place in member_folders(folder, count)]

    def all_of(prompts: Sequence[Prompt], texts: Sequence[str]) -> Floats:
        """(K, n), NaN in every row of an answer that a member does not score."""
        scores = np.array([member(prompts, texts) for member in members], dtype=np.float64).reshape(count, len(texts))
        return np.where(np.isnan(scores).any(axis=0), np.nan, scores)

    def mean_of(prompts: Sequence[Prompt], texts: Sequence[str]) -> Floats:
        mean: Floats = all_of(prompts, texts).mean(axis=0)
        return mean

    def spread_of(prompts: Sequence[Prompt], texts: Sequence[str]) -> Floats:
        spread: Floats = all_of(prompts, texts).std(axis=0, ddof=1)
        return spread

    return {MEAN: mean_of, **{f"{MEAN}.{k}": member for k, member in enumerate(members)}, SPREAD: spread_of}


def remembered(scorer: Scores) -> Scores:
    """The scorer, which remembers the last answers it was asked: several terms may ask one member of the same ones."""
    last: tuple[list[Prompt], list[str], Floats] | None = None

    def score(prompts: Sequence[Prompt], texts: Sequence[str]) -> Floats:
        nonlocal last
        if last is None or last[0] != list(prompts) or last[1] != list(texts):
            last = (list(prompts), list(texts), scorer(prompts, texts))
        return last[2]

    return score


Read = Callable[[SentenceEncoder, Sequence[Prompt], Sequence[str]], Answers]


def _read_once() -> Read:
    """`read_answers`, once for all members: they share the encoder."""
    last: tuple[list[Prompt], list[str], Answers] | None = None

    def read(encoder: SentenceEncoder, prompts: Sequence[Prompt], texts: Sequence[str]) -> Answers:
        nonlocal last
        if last is None or last[0] != list(prompts) or last[1] != list(texts):
            last = (list(prompts), list(texts), read_answers(encoder, prompts, texts))
        return last[2]

    return read


def _scorer(folder: Path, settings: Settings, encoder: Callable[[], SentenceEncoder], read: Read) -> Scores:
    if (folder / HEAD).exists():
        head = load_encoder_reward(folder, encoder())
        return lambda prompts, texts: head.score_answers(read(encoder(), prompts, texts))
    inner = folder / MODEL if (folder / MODEL).exists() else folder
    model = load_reward_model(settings.model.model_copy(update={"path": str(inner)}))
    return lambda prompts, texts: score_answers(model, prompts, texts, max_length=settings.model.max_length)


def _members(path: Path) -> int:
    if not path.exists():
        return 1
    try:
        return int(json.loads(path.read_text(encoding="utf-8"))["members"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"'{path}' cannot be read: {error!r}. Train the reward model again.") from error


def _write(path: Path, value: Mapping[str, int]) -> None:
    try:
        disk.put_file(path, json.dumps(value).encode())
    except OSError as error:
        raise CheckpointError(f"'{path}' cannot be written: {disk.why(error)}.") from error
