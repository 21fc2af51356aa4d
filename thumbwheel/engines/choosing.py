"""Drawing the next token, and its log-probability under the distribution it was really drawn from.

Order: temperature, then the k most likely, then the nucleus of what is left (Holtzman et al. 2020), then renormalisation.
Axes: B row, V vocabulary.
"""

from __future__ import annotations

import torch
from torch import Tensor

from thumbwheel.config import SampleSettings

CELLS = 256  # the cumulative sum is taken over this many cells first, then inside one cell
FIRST_GUESS = 64  # tokens looked at first when a nucleus is sought


def choose(logits: Tensor, draws: Tensor, settings: SampleSettings) -> tuple[Tensor, Tensor]:
    """Tokens (B,) and their log-probabilities (B,) float32, from logits (B, V) and uniform draws (B,) in [0, 1).

    A draw of u takes the first token whose cumulative probability exceeds u, so a row depends on its own draw alone.
    Temperature 0 takes the most likely token, which has log-probability 0.
    """
    if settings.temperature == 0:
        return logits.argmax(1), torch.zeros(len(logits), device=logits.device)
    p = torch.softmax(logits.to(torch.float32, copy=True).div_(settings.temperature), 1)
    if settings.top_k == 0 and settings.top_p >= 1.0:
        token = _invert(p, draws)
        return token, p.gather(1, token[:, None])[:, 0].log()
    kept, ids = candidates(p, settings)
    place = _invert(kept, draws)
    logp = kept.gather(1, place[:, None])[:, 0].log() - kept.sum(1).log()
    return ids.gather(1, place[:, None])[:, 0], logp


def candidates(p: Tensor, settings: SampleSettings) -> tuple[Tensor, Tensor]:
    """Probabilities (B, C) of the tokens that may be drawn, 0 for the others, most likely first, and their ids (B, C).

    The nucleus is the fewest most likely tokens whose mass reaches top_p of what top_k left; of equally likely tokens
    the one with the lower id counts as more likely.
    """
    size = p.shape[1]
    limit = min(settings.top_k or size, size)
    width = min(limit, FIRST_GUESS) if settings.top_p < 1.0 and not settings.top_k else limit
    while True:
        kept, ids = _most_likely(p, width)
        total = kept.sum(1, keepdim=True) if width == limit else torch.ones_like(kept[:, :1])
        before = kept.cumsum(1) - kept
        if width == limit or bool(((before + kept)[:, -1:] >= settings.top_p * total).all()):
            break
        width = min(limit, width * 8)
    if settings.top_p < 1.0:
        kept = kept.masked_fill(before >= settings.top_p * total, 0.0)
        kept[:, 0] = torch.where(kept[:, 0] > 0, kept[:, 0], p.amax(1))  # top_p 0 still leaves one token
    return kept, ids


def _most_likely(p: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """The `width` largest of each row, in order, equal ones by their ids."""
    if width == p.shape[1]:
        kept, ids = torch.sort(p, dim=1, descending=True, stable=True)
        return kept, ids
    kept, ids = torch.topk(p, width, dim=1)
    least = kept[:, -1:]
    ties = bool(((p == least).sum(1) > (kept == least).sum(1)).any())
    if ties:  # which of the equal ones topk returned is its own choice
        kept, ids = torch.sort(p, dim=1, descending=True, stable=True)
        return kept[:, :width], ids[:, :width]
    order = torch.argsort(ids, 1)
    kept, ids = kept.gather(1, order), ids.gather(1, order)
    kept, order = torch.sort(kept, dim=1, descending=True, stable=True)
    return kept, ids.gather(1, order)


def _invert(p: Tensor, draws: Tensor) -> Tensor:
    """(B,) first place where the cumulative sum of p (B, C) exceeds `draws` times its total."""
    rows, size = p.shape
    cells = -(-size // CELLS)
    if size % CELLS:
        p = torch.nn.functional.pad(p, (0, cells * CELLS - size))
    mass = p.view(rows, cells, CELLS).sum(2)
    reached = mass.cumsum(1)
    goal = draws[:, None] * reached[:, -1:]
    cell = _first_above(reached, goal)
    inside = p.view(rows, cells, CELLS).gather(1, cell[:, None, None].expand(-1, 1, CELLS))[:, 0]
    before = (reached - mass).gather(1, cell[:, None])
    place = _first_above(inside.cumsum(1), goal - before)
    possible = inside.gather(1, place[:, None])[:, 0] > 0
    place = torch.where(possible, place, inside.argmax(1))  # rounding left the goal behind the cell's last token
    return cell * CELLS + place


def _first_above(reached: Tensor, goal: Tensor) -> Tensor:
    """(B,) first column of a rising (B, C) that exceeds goal (B, 1); the last column if none does."""
    return (reached <= goal).sum(1).clamp_(max=reached.shape[1] - 1)
