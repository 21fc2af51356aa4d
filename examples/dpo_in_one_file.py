"""Direct preference optimisation, whole, in one file: a character model learns manners from pairs of its own answers.

    python examples/dpo_in_one_file.py

A model that greets people at random is asked twice by each of 160 people, at dawn or at dusk. A made-up user says which was
nicer. DPO learns from those pairs; the new model is compared with the old one on people it never met. Seconds on a CPU.
"""

from __future__ import annotations

import copy
import random
from collections import Counter
from collections.abc import Callable

import torch
from torch import Tensor, nn

from thumbwheel.formulas.preference import dpo
from thumbwheel.formulas.stats import win_rate

LETTERS = "\n abcdefghijklmnopqrstuvwxyz>"  # a line end ends the answer; > stands between prompt and answer
GREETINGS = ("good morning", "good evening", "hello", "hey", "yo")
LONGEST, SEEN = 14, 18  # letters of an answer; letters that the model looks back at


class Policy(nn.Module):
    """The last SEEN letters in, logits of the next letter out."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(len(LETTERS), 16)
        self.net = nn.Sequential(nn.Linear(16 * SEEN, 128), nn.Tanh(), nn.Linear(128, len(LETTERS)))

    def forward(self, ids: Tensor) -> Tensor:  # (B, T) -> (B, T, V)
        seen = nn.functional.pad(ids, (SEEN - 1, 0)).unfold(1, SEEN, 1)  # (B, T, SEEN)
        return self.net(self.embed(seen).flatten(2))


def numbers(texts: list[str]) -> Tensor:
    """(B, T) ids; shorter texts end in line ends, which are not counted below."""
    longest = max(map(len, texts))
    return torch.tensor([[LETTERS.index(letter) for letter in text.ljust(longest, "\n")] for text in texts])


def answer_logp(policy: nn.Module, prompts: list[str], answers: list[str]) -> Tensor:
    """(B,) log-probability, in nats, of each answer and its one line end, given its prompt."""
    rows = [f"{prompt}>{answer}\n" for prompt, answer in zip(prompts, answers, strict=True)]
    ids = numbers(rows)
    counts = torch.tensor([[row.find(">") < t < len(row) for t in range(ids.shape[1])] for row in rows])  # True counts
    logp = policy(ids[:, :-1]).log_softmax(-1).gather(-1, ids[:, 1:, None])[..., 0]  # (B, T-1)
    return (logp * counts[:, 1:]).sum(1)


@torch.no_grad()
def sample(policy: nn.Module, prompts: list[str], dice: torch.Generator) -> list[str]:
    """An answer to each prompt, letter by letter, all side by side (the prompts are of one length)."""
    ids = numbers([f"{prompt}>" for prompt in prompts])
    for _ in range(LONGEST):
        ids = torch.cat([ids, torch.multinomial(policy(ids)[:, -1].softmax(-1), 1, generator=dice)], dim=1)
    return ["".join(LETTERS[n] for n in row).split(">", 1)[1].split("\n")[0] for row in ids.tolist()]


def liking(prompt: str, answer: str) -> float:
    """The user: the right time of day is best, then plain manners; gibberish is worst. The model is never told."""
    right, wrong = ("good morning", "good evening")[:: 1 if prompt.endswith("dawn") else -1]
    return {right: 2.0, "hello": 1.0, "hey": 0.0, "yo": -1.0, wrong: -2.0}.get(answer, -3.0)


def learn(policy: nn.Module, steps: int, lr: float, loss: Callable[[], Tensor]) -> None:
    adam = torch.optim.Adam(policy.parameters(), lr=lr)
    for _ in range(steps):
        adam.zero_grad()
        loss().backward()
        adam.step()


def main(*, seed: int = 0, beta: float = 1.0) -> tuple[float, float]:
    """Returns the lower end of the win rate's interval, and the share of the new answers that are greetings at all."""
    torch.manual_seed(seed)
    dice, draw = torch.Generator().manual_seed(seed), random.Random(seed)
    names = [a + b + c for a in "bdklmnprst" for b in "aeiou" for c in "lmnrs"]
    asked = [f"{name} {draw.choice(('dawn', 'dusk'))}" for name in draw.sample(names, 220)]
    known, strangers = asked[:160], asked[160:]

    def imitate() -> Tensor:
        prompts = draw.choices(known, k=32)
        return -answer_logp(policy, prompts, draw.choices(GREETINGS, k=32)).mean()

    policy = Policy()
    learn(policy, 600, 3e-3, imitate)  # before any feedback: fluent, and without manners
    reference = copy.deepcopy(policy).requires_grad_(False)

    pairs = []  # (prompt, chosen, rejected)
    for prompt, *two in zip(known, sample(policy, known, dice), sample(policy, known, dice), strict=True):
        worse, better = sorted(two, key=lambda answer: liking(prompt, answer))
        if liking(prompt, worse) < liking(prompt, better):
            pairs.append((prompt, better, worse))
    print(f"{len(known)} people asked, {len(pairs)} verdicts, such as {pairs[0]}")

    def prefer() -> Tensor:
        prompts, *sides = (list(column) for column in zip(*draw.sample(pairs, 16), strict=True))
        logps = [answer_logp(model, prompts, side) for model in (policy, reference) for side in sides]
        return dpo(*logps, beta=beta).mean()

    first = prefer().item()
    learn(policy, 150, 3e-4, prefer)
    print(f"loss at the reference {first:.4f}, which is ln 2; after training {prefer().item():.4f}")
    new, old = (sample(model, strangers, dice) for model in (policy, reference))
    gaps = [liking(p, a) - liking(p, b) for p, a, b in zip(strangers, new, old, strict=True)]
    rate = win_rate([1.0 if gap > 0 else 0.5 if gap == 0 else 0.0 for gap in gaps])
    whole = sum(answer in GREETINGS for answer in new) / len(new)
    print(f"win rate on strangers {rate.value:.0%} ({rate.low:.0%} to {rate.high:.0%}); {whole:.0%} still greet")
    print("before:", Counter(old).most_common(5), "\nafter: ", Counter(new).most_common(5))
    return float(rate.low or 0.0), whole


if __name__ == "__main__":
    torch.set_num_threads(1)  # a model this small is slower with more
    main()
