"""What any engine must do: derive a test class from `SamplerConformance` and say how to open your engine.

    class TestMyEngine(SamplerConformance):
        @pytest.fixture(scope="class")
        @classmethod
        def sampler(cls):
            return MyEngine(...)

pytest runs every test of it. Nothing here asks the engine what to expect, but for answers that are compared with each other.
"""

from __future__ import annotations

import math

import pytest

from thumbwheel.config import SampleSettings
from thumbwheel.engines.base import Sample, StreamingSampler, listen
from thumbwheel.errors import DataError, SettingError
from thumbwheel.records import Message, Prompt

QUESTIONS = ("What is a thumb wheel?", "Name three birds.", "What is a thumb wheel?", "Say hello in French.")
SEEDS = (11, 12, 13, 14)


def asked(text: str) -> Prompt:
    """A prompt of one user message."""
    return (Message(role="user", content=text),)


class SamplerConformance:
    """P9. `questions` are what is asked. `draws` is False for a fake whose answers and log-probabilities are scripted."""

    questions: tuple[str, ...] = QUESTIONS
    draws: bool = True

    @pytest.fixture(scope="class")
    @classmethod
    def sampler(cls) -> StreamingSampler:
        """The engine under test."""
        raise NotImplementedError("give the fixture 'sampler'")

    def settings(self, **changes: object) -> SampleSettings:
        """Short answers."""
        return SampleSettings.model_validate({"temperature": 0.8, "max_new_tokens": 12, "batch_size": 3, **changes})

    def answers(self, sampler: StreamingSampler, **changes: object) -> list[Sample]:
        """One answer a question."""
        prompts = [asked(question) for question in self.questions]
        return sampler.sample(prompts, seeds=SEEDS[: len(prompts)], settings=self.settings(**changes))

    def test_it_has_every_method_of_the_protocol(self, sampler: StreamingSampler) -> None:
        """P9."""
        assert isinstance(sampler, StreamingSampler)

    def test_every_prompt_has_its_answer_in_order(self, sampler: StreamingSampler) -> None:
        """P9: one sample a prompt, each with its own seed; alone it is the same."""
        together = self.answers(sampler)
        assert [sample.seed for sample in together] == list(SEEDS[: len(self.questions)])
        for question, seed, sample in zip(self.questions, SEEDS, together, strict=False):
            (alone,) = sampler.sample([asked(question)], seeds=[seed], settings=self.settings())
            assert alone.token_ids == sample.token_ids
            assert alone.token_logps == pytest.approx(sample.token_logps, abs=1e-3)

    def test_every_token_has_its_log_probability(self, sampler: StreamingSampler) -> None:
        """P9: behaviour log-probabilities, nats."""
        for sample in self.answers(sampler):
            assert len(sample.token_logps) == len(sample.token_ids) > 0
            assert all(math.isfinite(logp) and logp <= 0 for logp in sample.token_logps)
            assert sample.logp == pytest.approx(math.fsum(sample.token_logps), abs=1e-5)

    def test_the_seed_decides(self, sampler: StreamingSampler) -> None:
        """P9: same seed, same answer; among twenty seeds, more than one answer."""
        prompt = asked(self.questions[0])
        again = [sampler.sample([prompt], seeds=[5], settings=self.settings())[0] for _ in range(2)]
        assert again[0] == again[1]
        if self.draws:
            many = sampler.sample([prompt] * 20, seeds=range(20), settings=self.settings(temperature=1.5))
            assert len({sample.token_ids for sample in many}) > 1

    def test_greedy_is_certain_and_the_seed_changes_nothing(self, sampler: StreamingSampler) -> None:
        """P9: at temperature 0 the token drawn has probability 1."""
        if not self.draws:
            pytest.skip("a scripted engine draws nothing")
        prompt = asked(self.questions[0])
        first, second = (
            sampler.sample([prompt], seeds=[seed], settings=self.settings(temperature=0.0))[0] for seed in (1, 2)
        )
        assert first.token_ids == second.token_ids
        assert first.token_logps == pytest.approx([0.0] * len(first.token_ids), abs=1e-6)

    def test_one_candidate_is_certain(self, sampler: StreamingSampler) -> None:
        """Pitfall: behaviour log-probability not renormalised after top-k and top-p."""
        if not self.draws:
            pytest.skip("a scripted engine draws nothing")
        for narrow in ({"top_k": 1}, {"top_p": 1e-6}):
            for sample in self.answers(sampler, **narrow):
                assert sample.token_logps == pytest.approx([0.0] * len(sample.token_ids), abs=1e-6)

    def test_a_limit_is_kept_and_told(self, sampler: StreamingSampler) -> None:
        """Terminated and truncated are two things."""
        for sample in self.answers(sampler, max_new_tokens=2):
            assert len(sample.token_ids) <= 2
            assert sample.stop_reason in ("max_tokens", "completed")
            assert (sample.stop_reason == "completed") or len(sample.token_ids) == 2

    def test_a_stop_string_ends_the_answer(self, sampler: StreamingSampler) -> None:
        """The text ends before the string; the tokens are those drawn until it was complete."""
        prompt = asked(self.questions[0])
        for seed in range(50):  # until an answer has two plain characters that begin nothing else in it
            (free,) = sampler.sample([prompt], seeds=[seed], settings=self.settings())
            pairs = [free.text[i : i + 2] for i in range(1, len(free.text) - 1)]
            if stop := next((pair for pair in pairs if pair.isascii()), None):
                break
        assert stop is not None, "fifty answers without two plain characters side by side"
        (cut,) = sampler.sample([prompt], seeds=[seed], settings=self.settings(stop=("\N{SNOWMAN}", stop)))
        assert cut.stop_reason == "stop_string"
        assert cut.text == free.text[: free.text.index(stop)]
        assert cut.token_ids == free.token_ids[: len(cut.token_ids)]
        assert len(cut.token_logps) == len(cut.token_ids)

    def test_what_is_streamed_is_the_sample(self, sampler: StreamingSampler) -> None:
        """Pieces join to the text; the whole sample is the generator's result, and equals the one not streamed."""
        for stop in ((), (". ", "e t")):
            for question, seed in zip(self.questions, SEEDS, strict=False):
                settings = self.settings(stop=stop)
                pieces: list[str] = []
                sample = listen(sampler.stream(asked(question), seed=seed, settings=settings), pieces.append)
                (whole,) = sampler.sample([asked(question)], seeds=[seed], settings=settings)
                assert "".join(pieces) == sample.text == whole.text
                assert sample.token_ids == whole.token_ids
                assert "" not in pieces

    def test_a_stream_can_be_left(self, sampler: StreamingSampler) -> None:
        """Whoever stops listening gets the engine back."""
        spoken = sampler.stream(asked(self.questions[0]), seed=1, settings=self.settings(max_new_tokens=400))
        next(spoken)
        spoken.close()
        assert len(self.answers(sampler)) == len(self.questions)

    def test_progress_counts_to_the_end(self, sampler: StreamingSampler) -> None:
        """X5."""
        seen: list[tuple[int, int]] = []
        prompts = [asked(question) for question in self.questions]
        sampler.sample(
            prompts,
            seeds=SEEDS[: len(prompts)],
            settings=self.settings(),
            progress=lambda done, total: seen.append((done, total)),
        )
        assert seen[-1] == (len(prompts), len(prompts))
        assert [done for done, _ in seen] == sorted({done for done, _ in seen})

    def test_nothing_asked_nothing_answered(self, sampler: StreamingSampler) -> None:
        """An empty call is no error."""
        assert sampler.sample([], seeds=[], settings=self.settings()) == []

    def test_what_cannot_be_sampled_is_refused(self, sampler: StreamingSampler) -> None:
        """Bad input: seeds missing or negative, an empty stop string."""
        prompt = asked(self.questions[0])
        with pytest.raises(DataError, match="seed of its own"):
            sampler.sample([prompt, prompt], seeds=[1], settings=self.settings())
        with pytest.raises(DataError, match="0 or more"):
            sampler.sample([prompt], seeds=[-1], settings=self.settings())
        with pytest.raises(SettingError, match="empty string"):
            sampler.sample([prompt], seeds=[1], settings=self.settings(stop=("",)))
        with pytest.raises(SettingError, match="empty string"):
            next(sampler.stream(prompt, seed=1, settings=self.settings(stop=("",))))
