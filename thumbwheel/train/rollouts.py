"""Rollouts: answers that the policy gave to prompts, scored, with all that the updates after them need. Kept in checkpoints.

Axes: R answer, T token of one answer, G answers of one prompt.
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray
from pydantic import TypeAdapter

from thumbwheel.batches import TokenRow
from thumbwheel.config import SampleSettings
from thumbwheel.engines.base import Progress, Sampler
from thumbwheel.errors import CheckpointError, SettingError, explain
from thumbwheel.models.templates import ChatTemplate
from thumbwheel.records import Prompt

Floats = NDArray[np.float32]
PROMPTS = TypeAdapter(list[Prompt])
ENDED = ("completed", "stop_string")


@dataclass(frozen=True, eq=False)
class Answer:
    """One answer and what is known of its tokens; arrays are (T,) over its sampled tokens, end token included.

    row        prompt and answer as sampled
    ended      the policy ended it itself; False: cut at the longest length allowed
    reward     of the whole answer, NaN where it has none
    terms      each reward term by name, NaN where unscored
    behaviour  log-probability by the engine, nats
    old        log-probability by the trainer before its first update
    reference  log-probability by the reference; old where no KL is asked for
    value      by the value head, 0 without one
    entropy    of the distribution each token came from
    """

    row: TokenRow
    text: str
    ended: bool
    behaviour: Floats
    reward: float = float("nan")
    terms: dict[str, float] | None = None
    old: Floats | None = None
    reference: Floats | None = None
    value: Floats | None = None
    entropy: Floats | None = None

    def __len__(self) -> int:
        return len(self.behaviour)


@dataclass(frozen=True, eq=False)
class Rollouts:
    """An iteration's answers: `answers[i]` are those to `prompts[i]`.

    no_room   prompts that were asked and left no room for an answer
    unscored  "term: reason" -> answers of which that term had no score
    """

    prompts: tuple[Prompt, ...]
    answers: tuple[tuple[Answer, ...], ...]
    no_room: int = 0
    unscored: Mapping[str, int] = field(default_factory=dict)

    @property
    def flat(self) -> list[Answer]:
        """Every answer, prompt by prompt."""
        return [answer for group in self.answers for answer in group]

    @property
    def group(self) -> NDArray[np.int64]:
        """(R,) which prompt an answer belongs to."""
        return np.repeat(np.arange(len(self.answers)), [len(group) for group in self.answers])

    @property
    def rewards(self) -> NDArray[np.float64]:
        """(R,) NaN where missing."""
        return np.array([answer.reward for answer in self.flat], dtype=np.float64)

    def regrouped(self, flat: Sequence[Answer]) -> Rollouts:
        """The same prompts with these answers in place of `flat`."""
        left = iter(flat)
        return replace(self, answers=tuple(tuple(next(left) for _ in group) for group in self.answers))

    # ------------------------------------------------------------------ bytes

    ARRAYS = ("behaviour", "old", "reference", "value", "entropy")

    def to_bytes(self) -> bytes:
        """Everything, exactly."""
        flat = self.flat
        about = {
            "prompts": PROMPTS.dump_python(list(self.prompts), mode="json"),
            "groups": [len(group) for group in self.answers], "no_room": self.no_room, "unscored": dict(self.unscored),
            "answers": [
                {
                    "text": a.text, "ended": a.ended, "reward": None if np.isnan(a.reward) else a.reward,
                    "terms": {k: None if np.isnan(v) else v for k, v in (a.terms or {}).items()},
                    "shared": a.row.shared, "tokens": len(a.row), "known": [n for n in self.ARRAYS if getattr(a, n) is not None],
                }
                for a in flat
            ],
        }  # fmt: skip
        arrays = {name: _joined([getattr(a, name) for a in flat]) for name in self.ARRAYS}
        file = io.BytesIO()
        np.savez(
            file,
            about=np.frombuffer(json.dumps(about).encode(), dtype=np.uint8),
            ids=np.concatenate([a.row.ids for a in flat]),
            trained=np.concatenate([a.row.trained for a in flat]),
            allow_pickle=False,
            **arrays,
        )
        return file.getvalue()

    @classmethod
    def from_file(cls, path: Path) -> Rollouts:
        """What `to_bytes` gave. Raises CheckpointError where the file cannot be read."""
        try:
            with path.open("rb") as raw, np.load(raw, allow_pickle=False) as file:
                about = json.loads(file["about"].tobytes())
                columns = {name: file[name] for name in ("ids", "trained", *cls.ARRAYS)}
            flat = list(_answers(about["answers"], columns))
            prompts = tuple(PROMPTS.validate_python(about["prompts"]))
        except (OSError, ValueError, KeyError, EOFError, BadZipFile) as error:
            raise CheckpointError(
                f"The answers kept in '{path}' cannot be read: {error}. Delete that file and resume; they are sampled "
                "again, from the policy as it stands."
            ) from error
        left = iter(flat)
        groups = tuple(tuple(next(left) for _ in range(n)) for n in about["groups"])
        return cls(prompts, groups, about["no_room"], about["unscored"])


def sample(
    sampler: Sampler,
    template: ChatTemplate,
    prompts: Sequence[Prompt],
    *,
    each: int,
    seeds: Sequence[int],
    settings: SampleSettings,
    progress: Progress | None = None,
) -> Rollouts:
    """`each` answers to every prompt; answer g of prompt p draws from seeds[p · each + g].

    An answer without a token is left out; a prompt without an answer (it fills the context) is counted in `no_room`.
    Raises SettingError for top-k or top-p: the trainer's log-probabilities are those of the whole distribution.
    """
    if settings.top_k or settings.top_p < 1.0:
        raise SettingError(
            explain(
                "Answers to learn from are sampled from the whole distribution; what was cut to top-k or top-p has other odds "
                "than those in the update.",
                allowed="sample.top_k = 0 and sample.top_p = 1",
                got=f"top_k {settings.top_k}, top_p {settings.top_p:g}",
                next="Take both out of the settings of this run.",
            ),
            field="sample",
        )
    asked = [prompt for prompt in prompts for _ in range(each)]
    samples = sampler.sample(asked, seeds=seeds, settings=settings, progress=progress)
    answers: list[list[Answer]] = [[] for _ in prompts]
    for place, (prompt, one) in enumerate(zip(asked, samples, strict=True)):
        if one.token_ids:
            row = template.encode(prompt, one.text, token_ids=one.token_ids, tokenizer=template.tokenizer_hash)
            ended = one.stop_reason in ENDED
            answers[place // each].append(Answer(row, one.text, ended, np.asarray(one.token_logps, dtype=np.float32)))
    kept = [(prompt, tuple(group)) for prompt, group in zip(prompts, answers, strict=True) if group]
    return Rollouts(tuple(p for p, _ in kept), tuple(group for _, group in kept), no_room=len(prompts) - len(kept))


def _joined(arrays: Sequence[Floats | None]) -> Floats:
    known = [array for array in arrays if array is not None]
    return np.concatenate(known) if known else np.zeros(0, dtype=np.float32)


def _answers(rows: Sequence[dict[str, Any]], columns: dict[str, NDArray[Any]]) -> list[Answer]:
    at = dict.fromkeys(columns, 0)

    def take(name: str, n: int) -> NDArray[Any]:
        at[name] += n
        return columns[name][at[name] - n : at[name]]

    found = []
    for one in rows:
        ids, trained = take("ids", one["tokens"]), take("trained", one["tokens"])
        length = int(trained.sum())
        arrays = {name: take(name, length) if name in one["known"] else None for name in Rollouts.ARRAYS}
        terms = {k: float("nan") if v is None else v for k, v in one["terms"].items()}
        reward = float("nan") if one["reward"] is None else one["reward"]
        row = TokenRow(ids, trained, one["shared"])
        found.append(Answer(row, one["text"], one["ended"], reward=reward, terms=terms, **arrays))  # type: ignore[arg-type]
    return found
