"""The work of `benchmarks.frontier`: texts, a small model that learned from them, a known reward, and a policy's place.

The model is made here: a tokenizer and a small Llama learn from sentences of people's chats, so that they go on with a sentence
from its first words. The reward is the compound sentiment of the whole sentence by VADER (Hutto & Gilbert 2014), in [-1, 1].
"""

from __future__ import annotations

import gzip
import json
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from thumbwheel.config import ModelSettings, OnlineSettings, SampleSettings, TrainSettings
from thumbwheel.engines.batch_sampler import BatchSampler
from thumbwheel.models.language import LanguageModel, load
from thumbwheel.models.policy import LanguagePolicy
from thumbwheel.records import Demonstration, Message, Preference, Prompt
from thumbwheel.signals.rewards import CompositeReward, RewardTerm, per_answer
from thumbwheel.train.lessons import Reference, log_ratios, prepared
from thumbwheel.train.rollouts import sample
from thumbwheel.train.sft import sft

Floats = NDArray[np.float64]
PREFIX_WORDS = 3
SHORTEST, LONGEST = 6, 24  # words of a sentence that is used
COMMON_WORDS = 2_000
WORD = re.compile(r"[a-z']+|\d+|[^\w\s]")
SENTENCE_END = re.compile(r"(?<=[.!?])\s+")


@dataclass(frozen=True)
class Size:
    """How much of everything; `TINY` is for trying the script out."""

    texts: int = 20_000
    vocabulary: int = 2_400
    width: int = 192
    layers: int = 4
    sft_epochs: int = 4
    new_tokens: int = 22
    pair_prefixes: int = 2_000
    answers_for_pairs: int = 4
    test_prefixes: int = 400
    answers_for_test: int = 2
    pool_prefixes: int = 400
    pool: int = 64
    iterations: int = 60
    answers: int = 256
    places: int = 3


TINY = Size(
    texts=200, vocabulary=400, width=32, layers=1, sft_epochs=1, new_tokens=6, pair_prefixes=12, test_prefixes=8,
    pool_prefixes=4, pool=8, iterations=2, answers=16, places=1,
)  # fmt: skip


@dataclass(frozen=True)
class Texts:
    """Sentences to learn from, and prefixes: to make pairs and to train on, and to measure on."""

    sentences: tuple[str, ...]
    train: tuple[Prompt, ...]
    test: tuple[Prompt, ...]


@dataclass(frozen=True)
class Place:
    """Where a policy stands on the test prefixes; errors are standard errors. KL in nats a response."""

    reward: float
    reward_error: float
    kl: float
    kl_error: float
    length: float
    repeated: float


def texts_of(folder: Path, size: Size) -> Texts:
    """Sentences of `topical-chat`, in a fixed random order. Test prefixes come from sentences that nothing is trained on.

    A small model learns to speak from few words only, so sentences with a word beyond the commonest are left out.
    """
    with gzip.open(folder / "topical-chat" / "conversations.jsonl.gz", "rt", encoding="utf-8") as file:
        messages = [" ".join(turn["message"].lower().split()) for line in file for turn in json.loads(line)["turns"]]
    found = [text for message in messages for text in SENTENCE_END.split(message)]
    found = [text for text in found if SHORTEST <= len(text.split()) <= LONGEST]
    counts = Counter(word for text in found for word in WORD.findall(text))
    common = {word for word, _ in counts.most_common(COMMON_WORDS)}
    unique = sorted({text for text in found if common.issuperset(WORD.findall(text))})
    mixed = [unique[i] for i in np.random.default_rng(0).permutation(len(unique))]
    held = len(mixed) // 10
    rest, sentences = mixed[:held], mixed[held:][: size.texts]
    test = list(dict.fromkeys(prefix_of(text) for text in rest))[: size.test_prefixes]
    known = set(test)
    train = [text for text in dict.fromkeys(map(prefix_of, sentences)) if text not in known][: size.pair_prefixes]
    return Texts(tuple(sentences), tuple(map(asked, train)), tuple(map(asked, test)))


def prefix_of(text: str) -> str:
    """The first words, which the policy goes on from."""
    return " ".join(text.split()[:PREFIX_WORDS])


def asked(text: str) -> Prompt:
    """A prompt of plain text."""
    return (Message(role="user", content=text),)


def small_model(texts: Texts, size: Size, folder: Path) -> Path:
    """A tokenizer and a model that learned to go on with the sentences, saved; the folder of the model."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=size.vocabulary, special_tokens=["<s>", "</s>"], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(texts.sentences, trainer)
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", pad_token="</s>")
    torch.manual_seed(0)
    network = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(fast), hidden_size=size.width, intermediate_size=size.width * 8 // 3,
            num_hidden_layers=size.layers, num_attention_heads=max(1, size.width // 48),
            num_key_value_heads=max(1, size.width // 48), max_position_embeddings=128, bos_token_id=0, eos_token_id=1,
            pad_token_id=1, tie_word_embeddings=True,
        )
    )  # fmt: skip
    fresh = folder / "fresh"
    network.save_pretrained(fresh)
    fast.save_pretrained(fresh)
    rows = [
        Demonstration(
            prompt=asked(" ".join(words[:PREFIX_WORDS])), response=answer(" " + " ".join(words[PREFIX_WORDS:]))
        )
        for words in (text.split() for text in texts.sentences)
    ]
    settings = TrainSettings(
        lr=2e-3, schedule="cosine", warmup_share=0.03, batch_size=64, epochs=size.sft_epochs, eval_share=0.02,
        weight_decay=0.05, checkpoint_every_steps=10**6,
    )  # fmt: skip
    model = opened(fresh, learns=True)
    sft(model, rows, settings, folder / "sft")
    return folder / "sft" / "model"


def answer(text: str) -> Message:
    """What the policy says."""
    return Message(role="assistant", content=text)


def opened(path: Path, *, learns: bool = False) -> LanguageModel:
    """The model in that folder, on the CPU, all weights in float32."""
    return load(ModelSettings(path=str(path), adapter="full", dtype="float32", device="cpu"), trainable=learns)


# ---------------------------------------------------------------------- reward, places


def sentiment() -> CompositeReward:
    """The known reward."""
    from vaderSentiment.vaderSentiment import SentimentIntensityAnalyzer

    judge = SentimentIntensityAnalyzer()

    def score(prompt: Prompt, text: str) -> float:
        return float(judge.polarity_scores(prompt[-1].content + text)["compound"])

    return CompositeReward([RewardTerm("sentiment", per_answer(score))])


def drawn(
    model: LanguageModel, prompts: Sequence[Prompt], reward: CompositeReward, size: Size, *, each: int, seed: int
) -> tuple[list[list[str]], Floats]:
    """`each` answers to every prompt, and (prompts, each) rewards."""
    asked_for = [prompt for prompt in prompts for _ in range(each)]
    seeds = [seed * 1_000_003 + i for i in range(len(asked_for))]
    samples = BatchSampler(model).sample(asked_for, seeds=seeds, settings=sampling(size))
    texts = [one.text for one in samples]
    rewards = np.asarray(reward(asked_for, texts).total, dtype=np.float64).reshape(len(prompts), each)
    return [texts[i * each : (i + 1) * each] for i in range(len(prompts))], rewards


def sampling(size: Size) -> SampleSettings:
    """Of every method alike."""
    return SampleSettings(temperature=1.0, max_new_tokens=size.new_tokens, batch_size=128)


def pairs_of(prompts: Sequence[Prompt], texts: Sequence[Sequence[str]], rewards: Floats) -> list[Preference]:
    """Of every two answers to a prompt the one with the higher reward is chosen; equal ones make no pair."""
    return [
        Preference(prompt=prompt, chosen=answer(mine[better]), rejected=answer(mine[worse]))
        for prompt, mine, scores in zip(prompts, texts, rewards, strict=True)
        for a, b in combinations(range(len(mine)), 2)
        for better, worse in ([(a, b)] if scores[a] > scores[b] else [(b, a)] if scores[b] > scores[a] else [])
    ]


def place_of(
    model: LanguageModel, reference: LanguageModel, prompts: Sequence[Prompt], reward: CompositeReward, size: Size
) -> Place:
    """Reward of the policy's answers to the test prefixes, and KL to the reference on them."""
    each, settings = size.answers_for_test, OnlineSettings()
    seeds = [77_003 + i for i in range(len(prompts) * each)]
    was_training = model.network.training
    rollouts = sample(BatchSampler(model), model.template, prompts, each=each, seeds=seeds, settings=sampling(size))
    rollouts = prepared(LanguagePolicy(model), Reference(reference), rollouts, settings)
    model.network.train(was_training)
    flat = rollouts.flat
    owners = [prompt for prompt, group in zip(rollouts.prompts, rollouts.answers, strict=True) for _ in group]
    rewards = np.asarray(reward(owners, [one.text for one in flat]).total, dtype=np.float64)
    distance = np.array([log_ratios(one).sum() for one in flat])
    words = [one.text.split() for one in flat]
    repeated = float(np.mean([1 - len(set(w)) / len(w) if w else 0.0 for w in words]))
    n = len(flat)
    return Place(
        float(rewards.mean()), float(rewards.std(ddof=1)) / n**0.5, float(distance.mean()),
        float(distance.std(ddof=1)) / n**0.5, float(np.mean([len(one) for one in flat])), repeated,
    )  # fmt: skip


# ---------------------------------------------------------------------- what can be reached


def best_possible(rewards: Floats, strength: float) -> tuple[float, float]:
    """(reward, KL in nats) of π ∝ π_ref exp(r/β) at 1/β = `strength`, from a pool of the reference's answers.

    π weighs answer i of a prompt by wᵢ = exp(rᵢ/β) / Σ exp(r/β); KL = Σ wᵢ ln(N wᵢ). With N answers a prompt KL cannot pass
    ln N, and is close to the true one while it stays well below. rewards (prompts, N).
    """
    scaled = rewards * strength
    scaled = scaled - scaled.max(axis=1, keepdims=True)
    weight = np.exp(scaled) / np.exp(scaled).sum(axis=1, keepdims=True)
    known = np.where(weight > 0, weight, 1.0)
    kl = (weight * np.log(known * rewards.shape[1])).sum(axis=1)
    return float((weight * rewards).sum(axis=1).mean()), float(kl.mean())
