"""The next token: drawn from exactly the stated distribution, with exactly its log-probability."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

from thumbwheel.config import SampleSettings
from thumbwheel.engines import choosing
from thumbwheel.engines.choosing import candidates, choose

FOUR = torch.tensor([[0.5, 0.25, 0.15, 0.1]]).log()


def settings(**changes: float) -> SampleSettings:
    return SampleSettings.model_validate({"temperature": 1.0, **changes})


@pytest.mark.parametrize(
    ("changes", "allowed"),
    [
        ({}, {0: 0.5, 1: 0.25, 2: 0.15, 3: 0.1}),
        ({"top_k": 2}, {0: 2 / 3, 1: 1 / 3}),
        ({"top_p": 0.5}, {0: 1.0}),
        ({"top_p": 0.51}, {0: 2 / 3, 1: 1 / 3}),
        ({"top_p": 0.9}, {0: 5 / 9, 1: 2.5 / 9, 2: 1.5 / 9}),
        ({"top_p": 0.0}, {0: 1.0}),
        ({"top_k": 3, "top_p": 0.7}, {0: 2 / 3, 1: 1 / 3}),  # .5/.9 + .25/.9 = .83 reaches .7 of what top_k left
        ({"temperature": 0.5}, {0: 0.25 / 0.345, 1: 0.0625 / 0.345, 2: 0.0225 / 0.345, 3: 0.01 / 0.345}),
    ],
)
def test_every_draw_gives_the_renormalised_probability_by_hand(
    changes: dict[str, float], allowed: dict[int, float]
) -> None:
    """Pitfalls: top-p sampling stores the renormalised value. A thousand even draws meet each token as often as its mass."""
    draws = (torch.arange(1000) + 0.5) / 1000
    tokens, logps = choose(FOUR.expand(1000, -1), draws, settings(**changes))
    counts = {int(t): int((tokens == t).sum()) for t in tokens.unique()}
    assert set(counts) == set(allowed)
    for token, p in allowed.items():
        assert counts[token] == pytest.approx(1000 * p, abs=1)
        assert logps[tokens == token].tolist() == pytest.approx([math.log(p)] * counts[token], abs=1e-5)


def test_greedy_takes_the_most_likely_with_certainty() -> None:
    """Temperature 0: the distribution really drawn from has one token, of log-probability 0."""
    tokens, logps = choose(torch.tensor([[0.1, 3.0, 2.0]]), torch.tensor([0.99]), settings(temperature=0.0))
    assert (tokens.tolist(), logps.tolist()) == ([1], [0.0])


@pytest.mark.parametrize("size", [1, 7, 256, 257, 5000])
@pytest.mark.parametrize("top", [(0, 1.0), (3, 1.0), (0, 0.8), (50, 0.95)])
def test_against_an_enumeration_of_the_whole_vocabulary(size: int, top: tuple[int, float]) -> None:
    """Renormalisation by enumeration: every token's probability by the definition, in float64."""
    top_k, top_p = top
    dice = torch.Generator().manual_seed(size)
    logits = 2 * torch.randn(1, size, generator=dice)
    p = torch.softmax(logits.double() / 0.7, 1)[0]
    order = sorted(range(size), key=lambda t: (-float(p[t]), t))[: top_k or size]
    left = sum(float(p[t]) for t in order)
    kept, reached = [], 0.0
    for token in order:
        kept.append(token)
        reached += float(p[token])
        if reached >= top_p * left and top_p < 1:
            break
    total = sum(float(p[t]) for t in kept)
    draws = torch.rand(400, generator=dice)
    tokens, logps = choose(logits.expand(400, -1), draws, settings(temperature=0.7, top_k=top_k, top_p=top_p))
    assert set(tokens.tolist()) <= set(kept)
    want = [math.log(float(p[t]) / total) for t in tokens.tolist()]
    assert logps.tolist() == pytest.approx(want, abs=1e-5)


def test_equally_likely_tokens_are_kept_by_their_ids() -> None:
    """Which of several equal tokens is kept must not hang on how a library sorts."""
    p = torch.full((1, 300), 1 / 300)
    kept, ids = candidates(p, settings(top_k=3))
    assert ids.tolist() == [[0, 1, 2]]
    kept, ids = candidates(p, settings(top_p=0.01))
    assert ids[kept > 0].tolist() == [0, 1, 2]


def test_a_flat_nucleus_wider_than_the_first_guess_is_found_whole() -> None:
    """The nucleus of a flat distribution holds almost everything; looking at a few tokens first must not cut it."""
    size = 40 * choosing.FIRST_GUESS
    p = torch.softmax(torch.linspace(0, 0.1, size), 0)[None]
    kept, _ = candidates(p, settings(top_p=0.9))
    ascending = sorted(p[0].double().tolist(), reverse=True)
    by_hand = next(n for n, mass in enumerate(itertools.accumulate(ascending), start=1) if mass >= 0.9)
    assert int((kept > 0).sum()) == pytest.approx(by_hand, abs=1)


def test_the_last_draw_never_takes_an_impossible_token() -> None:
    """A draw next to 1 ends on the last token that has any mass."""
    logits = torch.full((1, 600), -200.0)
    logits[0, 300] = 0.0
    tokens, logps = choose(logits, torch.tensor([1 - 2**-24]), settings())
    assert (tokens.tolist(), logps.tolist()) == ([300], [0.0])


def test_a_row_depends_on_its_own_draw_alone() -> None:
    """Neighbours have no say."""
    logits = torch.randn(8, 500, generator=torch.Generator().manual_seed(0))
    draws = torch.linspace(0.05, 0.95, 8)
    together = choose(logits, draws, settings(top_p=0.9))[0].tolist()
    alone = [int(choose(logits[i : i + 1], draws[i : i + 1], settings(top_p=0.9))[0]) for i in range(8)]
    assert together == alone
