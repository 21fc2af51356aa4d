"""The reward model on a frozen encoder (R1, R7): learns order, survives saving, is the same twice, says what is wrong."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from tests.models.tiny_encoder import WORDS, write_encoder
from thumbwheel.config import RewardSettings
from thumbwheel.errors import CheckpointError, DataError, SettingError
from thumbwheel.models.encoder import SentenceEncoder, load_encoder
from thumbwheel.records import Message, Preference, ToolCall
from thumbwheel.train.encoder_reward import EncoderReward, fit_encoder_reward, load_encoder_reward, recipes_for

PLAIN = RewardSettings(encoder_recipes=("length", "surface", "volume@0"), encoder_folds=3, encoder_members=2)


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> SentenceEncoder:
    return load_encoder(str(write_encoder(tmp_path_factory.mktemp("encoder"))), device="cpu")


def prompt(text: str) -> tuple[Message, ...]:
    return (Message(role="user", content=text),)


def pair(asked: str, better: str, worse: str, **fields: object) -> Preference:
    sides = {
        "chosen": Message(role="assistant", content=better),
        "rejected": Message(role="assistant", content=worse),
    }
    return Preference(prompt=prompt(asked), **sides, **fields)  # type: ignore[arg-type]


def made(n: int = 60, *, seed: int = 0, good: str = "because", noise: float = 0.0) -> list[Preference]:
    """Random words; of two answers of like length the one with `good` in it is better."""
    rng = np.random.default_rng(seed)
    rows = []
    for i in range(n):
        first, second = (" ".join(rng.choice(WORDS[:20], size=int(rng.integers(4, 12)))) for _ in range(2))
        better, worse = f"{first} {good}", f"{second} cat"
        if rng.random() < noise:
            better, worse = worse, better
        rows.append(pair(f"question {i // 2} ?", better, worse))
    return rows


def accuracy(model: EncoderReward, rows: list[Preference]) -> float:
    prompts = [row.prompt for row in rows]
    gaps = model.score(prompts, [row.chosen for row in rows]) - model.score(prompts, [row.rejected for row in rows])
    return float(np.mean(gaps > 0))


@pytest.fixture(scope="module")
def fitted(encoder: SentenceEncoder, tmp_path_factory: pytest.TempPathFactory) -> tuple[EncoderReward, Path]:
    folder = tmp_path_factory.mktemp("reward")
    return fit_encoder_reward(encoder, made(), PLAIN, folder), folder


def test_it_learns_what_people_like(fitted: tuple[EncoderReward, Path]) -> None:
    """R1: a word that decides every pair is found from 60 of them, on prompts and answers it has not seen."""
    model, _ = fitted
    assert accuracy(model, made(200, seed=5)) > 0.9
    assert model.metrics["cv_accuracy"] > 0.9
    assert model.metrics["cv_longer_accuracy"] < 0.8
    assert (model.metrics["pairs"], model.metrics["groups"], model.metrics["ties"]) == (60, 30, 0)


def test_scores_are_centred_and_scaled(fitted: tuple[EncoderReward, Path]) -> None:
    """R7: mean 0 and deviation 1 over the distinct training answers."""
    model, _ = fitted
    answers = {(row.prompt, text) for row in made() for text in (row.chosen.content, row.rejected.content)}
    scores = model.score([one for one, _ in answers], [text for _, text in answers])
    assert scores.dtype == np.float64
    assert scores.mean() == pytest.approx(0, abs=1e-9)
    assert scores.std() == pytest.approx(1, abs=1e-9)


def test_without_normalising_the_settings_temperature_holds(encoder: SentenceEncoder) -> None:
    """R1, R7: σ(gap / τ) is the same probability, whichever way the scores are scaled."""
    rows = made(noise=0.3)
    scaled = fit_encoder_reward(encoder, rows, PLAIN, None)
    plain = fit_encoder_reward(encoder, rows, PLAIN.model_copy(update={"normalise": False, "temperature": 1.0}), None)
    assert plain.temperature == pytest.approx(1.0)
    asked, texts = [rows[0].prompt] * 2, [rows[0].chosen, rows[0].rejected]
    gaps = [float(np.subtract(*model.score(asked, texts))) / model.temperature for model in (scaled, plain)]
    assert gaps[0] == pytest.approx(gaps[1], rel=1e-6)


def test_probabilities_are_as_sure_as_people(encoder: SentenceEncoder) -> None:
    """E1: where a quarter of the labels are turned round, P(better) is near 3/4 and not near 1."""
    train, held = made(300, noise=0.25), made(400, seed=9)
    model = fit_encoder_reward(encoder, train, PLAIN, None)
    asked = [row.prompt for row in held]
    gaps = model.score(asked, [row.chosen for row in held]) - model.score(asked, [row.rejected for row in held])
    assert 0.65 < float(np.mean(1 / (1 + np.exp(-gaps / model.temperature)))) < 0.85


def test_saved_and_loaded_scores_alike(fitted: tuple[EncoderReward, Path], encoder: SentenceEncoder) -> None:
    """Pitfall: head random after load. Equal to 1e-6."""
    model, folder = fitted
    again = load_encoder_reward(folder, encoder)
    rows = made(20, seed=3)
    asked, texts = [row.prompt for row in rows], [row.chosen for row in rows]
    np.testing.assert_allclose(again.score(asked, texts), model.score(asked, texts), atol=1e-6)
    assert (again.temperature, again.metrics, again.recipes) == (model.temperature, model.metrics, model.recipes)


def test_a_head_that_is_missing_broken_or_anothers_is_an_error(
    fitted: tuple[EncoderReward, Path], encoder: SentenceEncoder, tmp_path: Path
) -> None:
    """Pitfall: a missing head is an error, and so is one of another encoder."""
    _, folder = fitted
    with pytest.raises(CheckpointError, match="no head"):
        load_encoder_reward(tmp_path, encoder)
    other = load_encoder(str(write_encoder(tmp_path / "other", seed=1)), device="cpu")
    with pytest.raises(CheckpointError, match="another 'encoder'"):
        load_encoder_reward(folder, other)
    shutil.copytree(folder, tmp_path / "cut")
    weights = tmp_path / "cut" / "head" / "weights.safetensors"
    weights.write_bytes(weights.read_bytes()[:-8])
    with pytest.raises(CheckpointError, match="cut short"):
        load_encoder_reward(tmp_path / "cut", encoder)


def test_the_same_seed_gives_the_same_model(encoder: SentenceEncoder, fitted: tuple[EncoderReward, Path]) -> None:
    model, _ = fitted
    again = fit_encoder_reward(encoder, made(), PLAIN, None)
    rows = made(10, seed=4)
    asked, texts = [row.prompt for row in rows], [row.chosen.content for row in rows]
    np.testing.assert_array_equal(again.score(asked, texts), model.score(asked, texts))


def test_an_answer_scores_alike_alone_and_among_others(fitted: tuple[EncoderReward, Path]) -> None:
    """Pitfall: score changes beside a long neighbour. Equal to 1e-5."""
    model, _ = fitted
    texts = ["the cat because", "the dog ran " * 30, "", "because"]
    together = model.score([prompt("why ?")] * 4, texts)
    for i, text in enumerate(texts):
        assert model.score([prompt("why ?")], [text])[0] == pytest.approx(together[i], abs=1e-5)


def test_ties_and_soft_labels_pull_less(encoder: SentenceEncoder) -> None:
    """R1: undecided pairs take part with p = 1/2; the model then believes the same gap less."""
    sure = fit_encoder_reward(encoder, made(), PLAIN, None)
    tied = [row.model_copy(update={"tie": True, "p": 0.5}) for row in made(60, seed=2)]
    torn = fit_encoder_reward(encoder, made() + tied, PLAIN, None)
    soft = fit_encoder_reward(encoder, [row.model_copy(update={"p": 0.7}) for row in made()], PLAIN, None)
    assert torn.metrics["ties"] == 60
    rows = made(30, seed=6)

    def belief(model: EncoderReward) -> float:
        asked = [row.prompt for row in rows]
        gaps = model.score(asked, [row.chosen for row in rows]) - model.score(asked, [row.rejected for row in rows])
        return float(np.mean(gaps)) / model.temperature

    assert belief(torn) < belief(sure)
    assert belief(soft) < belief(sure)
    assert belief(soft) > 0


def test_longer_is_better_is_learned_from_a_dozen_pairs(encoder: SentenceEncoder) -> None:
    rows = [pair(f"how {i} ?", "the cat sat on the mat " * (i % 3 + 2), "the cat") for i in range(12)]
    model = fit_encoder_reward(encoder, rows, PLAIN, None)
    short, long = model.score([prompt("why ?")] * 2, ["the dog", "the dog sat and the dog ran and it was good ."])
    assert long > short
    assert model.metrics["cv_longer_accuracy"] == 1.0


def test_every_pair_of_a_prompt_and_one_prompt_only(encoder: SentenceEncoder) -> None:
    """R1: six pairs of four answers; with a single prompt the pairs are dealt into folds one by one."""
    ranked = ["because it was good", "it was good", "it was", "it"]
    rows = [pair("why ?", ranked[i], ranked[j]) for i in range(4) for j in range(i + 1, 4)]
    model = fit_encoder_reward(encoder, rows, PLAIN, None)
    assert (model.metrics["answers"], model.metrics["pairs"], model.metrics["groups"]) == (4, 6, 1)
    assert np.argsort(-model.score([prompt("why ?")] * 4, ranked)).tolist() == [0, 1, 2, 3]


def test_one_pair_is_enough_to_begin(encoder: SentenceEncoder) -> None:
    model = fit_encoder_reward(encoder, [pair("why ?", "because it was good", "no")], PLAIN, None)
    assert accuracy(model, [pair("why ?", "because it was good", "no")]) == 1.0


def test_groups_hold_topics_together(encoder: SentenceEncoder) -> None:
    rows = made(20)
    model = fit_encoder_reward(encoder, rows, PLAIN, None, groups=[str(i % 4) for i in range(20)])
    assert model.metrics["groups"] == 4
    with pytest.raises(DataError, match="one group a preference"):
        fit_encoder_reward(encoder, rows, PLAIN, None, groups=["a"])


def test_tool_calls_are_part_of_the_answer(encoder: SentenceEncoder) -> None:
    def calls(name: str) -> Message:
        return Message(role="assistant", tool_calls=(ToolCall(id="1", name=name, arguments="{}"),))

    rows = [
        Preference(prompt=prompt(f"q {i}"), chosen=calls("because it was good"), rejected=calls("no")) for i in range(4)
    ]
    model = fit_encoder_reward(encoder, rows, PLAIN, None)
    better, worse = model.score([prompt("q")] * 2, [calls("because it was good"), calls("no")])
    assert better > worse


def test_equal_answers_are_refused_with_a_count(encoder: SentenceEncoder) -> None:
    """Pitfall: chosen = rejected after stripping."""
    rows = [*made(10), pair("q", "same", " same\n")]
    assert fit_encoder_reward(encoder, rows, PLAIN, None).metrics["pairs"] == 10
    many = [*made(2), *[pair("q", "same", "same")] * 3]
    with pytest.raises(DataError, match="3 of 5 pairs"):
        fit_encoder_reward(encoder, many, PLAIN, None)


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([], "no usable pair"),
        ([pair("q", "a", "b", tie=True, p=0.5)], "all ties"),
        ([pair("q", "a", "b", p=0.5)], "all ties"),
    ],
)
def test_data_that_cannot_teach(encoder: SentenceEncoder, rows: list[Preference], said: str) -> None:
    with pytest.raises(DataError, match=said):
        fit_encoder_reward(encoder, rows, PLAIN, None)


def test_no_feature_differs(encoder: SentenceEncoder) -> None:
    settings = PLAIN.model_copy(update={"encoder_recipes": ("length",)})
    with pytest.raises(DataError, match="look alike"):
        fit_encoder_reward(encoder, [pair("q", "ab", "cd")], settings, None)


def test_recipes_may_be_spelled_out_and_an_unknown_one_is_an_error(encoder: SentenceEncoder) -> None:
    own = PLAIN.model_copy(update={"encoder_recipes": ("surface=0.5+content@1=1",)})
    assert fit_encoder_reward(encoder, made(), own, None).recipes[0].startswith("surface=0.5+content@1=1, ridge ")
    with pytest.raises(SettingError, match="Did you mean 'surface'"):
        fit_encoder_reward(encoder, made(), PLAIN.model_copy(update={"encoder_recipes": ("surfce",)}), None)
    with pytest.raises(SettingError, match=r"content@k"):
        fit_encoder_reward(encoder, made(), PLAIN.model_copy(update={"encoder_recipes": ("content@9=1",)}), None)


def test_every_known_recipe_fits(encoder: SentenceEncoder) -> None:
    for name in recipes_for(len(encoder.depths)):
        one = PLAIN.model_copy(update={"encoder_recipes": (name,)})
        assert np.isfinite(fit_encoder_reward(encoder, made(12), one, None).score([prompt("q")], ["a cat"])).all()


def test_named_weights_show_what_counts(encoder: SentenceEncoder) -> None:
    rows = [pair(f"how {i} ?", "the cat sat on the mat " * (i % 3 + 2), "the cat") for i in range(12)]
    weights = fit_encoder_reward(encoder, rows, PLAIN.model_copy(update={"encoder_recipes": ("surface",)}), None)
    assert weights.named_weights()["log_characters"] > 0
    shown = [abs(value) for value in weights.named_weights().values()]
    assert shown == sorted(shown, reverse=True)


def test_lists_of_unequal_length_are_refused(fitted: tuple[EncoderReward, Path]) -> None:
    with pytest.raises(DataError, match="2 prompts and 1 responses"):
        fitted[0].score([prompt("q")] * 2, ["a"])


@pytest.mark.parametrize(
    "text", ["", " ", "🙂", "你好", "a\u0301", "!" * 500, "the " * 2000, "<b>x</b>", "\t", "ſtrange ﬁ"]
)
def test_odd_answers_have_a_score(fitted: tuple[EncoderReward, Path], text: str) -> None:
    assert np.isfinite(fitted[0].score([prompt(text or "q")], [text])).all()
