"""A reward model, whole, in one file: from pairs of answers to a score, by the Bradley-Terry loss.

    python examples/reward_model_in_one_file.py

Made-up users compare two replies to a complaint. They like an apology and a next step, they do not like to be blamed, and
one time in ten they click the wrong one. The model sees words and learns a number. What it learned is measured on pairs it
has not seen, beside two figures that every reward model should stand beside: "the longer answer is better", and the best
that anyone could reach against labels as noisy as these. The package does the same with sentence encoders and language
models: `thumbwheel/train/encoder_reward.py`, `thumbwheel/train/reward.py`.
"""

from __future__ import annotations

import random

import torch
from torch import Tensor, nn

from thumbwheel.formulas.bradley_terry import bradley_terry, centring
from thumbwheel.formulas.stats import wilson

OPENERS = {
    "sorry about that": 1.0,
    "we are so sorry": 1.2,
    "thanks for writing": 0.3,
    "": 0.0,
    "you must be wrong": -1.5,
}
MIDDLES = {"your parcel is late": 0.0, "your parcel is late because of the snow": 0.2, "parcels are late": -0.3}
ENDINGS = {"we send it again today": 1.5, "please wait": -0.5, "call us at any time and we will see": 0.4, "": 0.0}
NOISE = 0.1

Pair = tuple[str, str]  # what was chosen, what was rejected


def reply(draw: random.Random) -> tuple[str, float]:
    """A reply, and how much users like it."""
    parts = [draw.choice(list(table.items())) for table in (OPENERS, MIDDLES, ENDINGS)]
    return ". ".join(text for text, _ in parts if text), sum(liked for _, liked in parts)


def compare(draw: random.Random) -> Pair:
    """One comparison by one user, wrong with probability NOISE."""
    while True:
        (a, liked_a), (b, liked_b) = reply(draw), reply(draw)
        if liked_a != liked_b:
            break
    better, worse = (a, b) if liked_a > liked_b else (b, a)
    return (worse, better) if draw.random() < NOISE else (better, worse)


class Reward(nn.Module):
    """Words in, a score out: the mean of learned word vectors through a small network."""

    def __init__(self, words: list[str]) -> None:
        super().__init__()
        self.index = {word: n for n, word in enumerate(words)}
        self.bag = nn.EmbeddingBag(len(words), 16, mode="sum")
        self.net = nn.Sequential(nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 1))

    def forward(self, texts: list[str]) -> Tensor:  # B texts -> (B,)
        rows = [[self.index[word] for word in text.replace(".", "").split()] for text in texts]
        starts = torch.tensor([0, *torch.tensor([len(row) for row in rows]).cumsum(0).tolist()[:-1]])
        return self.net(self.bag(torch.tensor([n for row in rows for n in row]), starts))[:, 0]


def accuracy(correct: list[bool]) -> str:
    """A share with its interval, for people."""
    share = wilson(sum(correct), len(correct))
    return f"{share.value:.0%} ({share.low:.0%} to {share.high:.0%})"


def main(*, seed: int = 0, pairs: int = 600) -> tuple[float, float]:
    """Returns the share of unseen pairs that the model orders as the users did, and the same for "longer"."""
    torch.manual_seed(seed)
    draw = random.Random(seed)
    train, unseen = [compare(draw) for _ in range(pairs)], [compare(draw) for _ in range(400)]
    words = sorted({w for table in (OPENERS, MIDDLES, ENDINGS) for text in table for w in text.split()})
    model = Reward(words)
    adam = torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.01)
    for step in range(300):
        chosen, rejected = map(list, zip(*draw.sample(train, 32), strict=True))
        r_chosen, r_rejected = model(chosen), model(rejected)
        loss = bradley_terry(r_chosen, r_rejected).mean() + 0.01 * centring(r_chosen, r_rejected).mean()
        adam.zero_grad()
        loss.backward()
        adam.step()
        if step % 100 == 0:
            print(f"step {step:3}: loss {loss.item():.3f}")
    with torch.no_grad():
        good, bad = (model([pair[side] for pair in unseen]) for side in (0, 1))
        right = (good > bad).tolist()
        longer = [len(chosen) > len(rejected) for chosen, rejected in unseen]
        scores = {text: float(model([text])) for text in (*OPENERS, *ENDINGS) if text}
    print(f"agrees with users on {accuracy(right)} of {len(unseen)} unseen pairs")
    print(
        f"the longer one: {accuracy(longer)}; nobody could agree on more than {1 - NOISE:.0%}, as users are wrong at times"
    )
    for text, score in sorted(scores.items(), key=lambda item: -item[1]):
        print(f"{score:+6.2f}  {text}")
    return sum(right) / len(right), sum(longer) / len(longer)


if __name__ == "__main__":
    torch.set_num_threads(1)  # a model this small is slower with more
    main()
