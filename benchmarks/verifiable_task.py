"""The task of `benchmarks.verifiable`: a question about a short text, and the package's own checker as the reward.

"Tayo accepts the color red. Ayan bears playing rugby. … Who accepts the color red? Reply only with a name." -> "Tayo"

From `needle_haystack` of reasoning-gym, which comes with the extra `bench`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from thumbwheel.config import CompositeSettings, RewardTermSettings
from thumbwheel.records import Message, Prompt
from thumbwheel.signals.reward_terms import open_reward
from thumbwheel.signals.rewards import CompositeReward, per_answer

DATASET = "needle_haystack"
SYSTEM = "Reply with one name only."
REWARD = CompositeSettings(terms=(RewardTermSettings(name="right", scorer="checker"),))
EXAMPLES = 2
EXAMPLE_FROM = 110
"""Of these two the one has its second name as the answer, the other its first: neither place is taught."""
TEST_FROM, TRAIN_FROM, SEED_STEP = 1_000, 1_000_000, 1_000_000
"""Where seeds begin. reasoning-gym draws entry i from seed + i, so that seeds close together give the same entries."""


def installed() -> bool:
    """Whether reasoning-gym is there."""
    return find_spec("reasoning_gym") is not None


@dataclass(frozen=True)
class Question:
    """One entry of the data set, as a prompt."""

    prompt: Prompt
    answer: str
    names: tuple[str, ...]


class Task:
    """Questions on texts of `statements` sentences, one of which holds the answer; two solved examples stand before each."""

    def __init__(self, statements: int = 3) -> None:
        self.statements = statements
        self._checker = self._dataset(EXAMPLE_FROM, EXAMPLES, 2)
        head = [Message(role="system", content=SYSTEM)]
        for example in (self._checker[i] for i in range(EXAMPLES)):
            head.append(Message(role="user", content=example["question"]))
            head.append(Message(role="assistant", content=example["answer"]))
        self.head = tuple(head)

    def test(self, size: int) -> list[Question]:
        """Held-out questions."""
        return self._questions(TEST_FROM, size)

    def train(self, size: int, *, seed: int, without: Sequence[Question] = ()) -> list[Question]:
        """Questions to learn from: none twice, and none of `without`."""
        known = {question.prompt for question in without}
        found: dict[Prompt, Question] = {}
        start = TRAIN_FROM + seed * SEED_STEP
        while len(found) < size:
            for question in self._questions(start, size - len(found)):
                if question.prompt not in known:
                    found[question.prompt] = question
            start += size
        return list(found.values())

    def right(self, question: Question, text: str) -> float:
        """What the package's checker says of the answer, a full stop at its end forgiven: 1 right, 0 wrong."""
        return float(self._checker.score_answer(text.strip().removesuffix("."), {"answer": question.answer}))

    def reward(self, questions: Sequence[Question]) -> CompositeReward:
        """The checker as a reward on these questions, as a user would make it."""
        by_prompt = {question.prompt: question for question in questions}
        checker = per_answer(lambda prompt, text: self.right(by_prompt[prompt], text))
        return open_reward(REWARD, scorers={"checker": checker})

    def without_learning(self, questions: Sequence[Question]) -> dict[str, float]:
        """Shares right of answers that need no reading: the commonest one, the text's first name, any of its names."""
        n = len(questions)
        commonest = Counter(question.answer for question in questions).most_common(1)[0][0]
        return {
            f"always '{commonest}', the commonest answer": sum(self.right(q, commonest) for q in questions) / n,
            "always the first name": sum(self.right(q, q.names[0]) for q in questions) / n,
            "a name of the text at random": sum(q.names.count(q.answer) / len(q.names) for q in questions) / n,
        }

    def _dataset(self, seed: int, size: int, statements: int) -> Any:
        import reasoning_gym

        bounds = {"min_num_statements": statements, "max_num_statements": statements}
        return reasoning_gym.create_dataset(DATASET, seed=seed, size=size, **bounds)

    def _questions(self, seed: int, size: int) -> list[Question]:
        entries = self._dataset(seed, size, self.statements)
        return [
            Question(
                (*self.head, Message(role="user", content=entry["question"])),
                entry["answer"],
                tuple(sentence.split()[0] for sentence in entry["question"].partition("\n")[0].split(". ") if sentence),
            )
            for entry in (entries[i] for i in range(size))
        ]
