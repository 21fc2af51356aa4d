"""P3, P5: `thumbwheel train ppo|grpo`, and the same from a round, on a tiny model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from made_commands import Run

RULE = "def short(prompt, text):\n    return -len(text)\n"
TERMS = (
    'online.reward.terms=[{name="short",scorer="rule_for_test:short"},{name="rep",scorer="repetition",role="multiply"}]'
)
SMALL = (
    "-s", "model.dtype=float32", "-s", "model.lora_r=4", "-s", "round.progress=false", "-s", "online.iterations=2",
    "-s", "online.prompts_per_iteration=2", "-s", "online.answers_per_prompt=3", "-s", "sample.max_new_tokens=5",
)  # fmt: skip


@pytest.fixture
def small(tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, ...]:
    """A tiny and quick run whose reward is a rule of the user's."""
    (tmp_path / "rule_for_test.py").write_text(RULE, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "prompts.txt").write_text("Say hello.\n\nName a fruit.\nSay  hello.\n", encoding="utf-8")
    return (*SMALL, "-s", f"model.path={tiny_model}", "-s", TERMS)


@pytest.mark.parametrize("what", ["grpo", "ppo"])
def test_prompts_and_a_rule_train_a_policy(what: str, thumbwheel: Run, small: tuple[str, ...], tmp_path: Path) -> None:
    done = thumbwheel("train", what, str(tmp_path / "prompts.txt"), "--out", str(tmp_path / "run"), *small)
    assert done.status == 0, done.out + done.err
    assert "2 prompts, 1 more were there already" in (done.out + done.err)
    assert f"{what}: 2 iterations, 2 weight updates" in (done.out + done.err) or f"{what}: 2 iterations, 4 weight" in (
        done.out + done.err
    )
    assert "kl_per_response_nats" in (done.out + done.err)
    assert (tmp_path / "run" / "model" / "adapter_model.safetensors").exists()
    assert "curves.html" in done.out
    page = (tmp_path / "run" / "curves.html").read_text(encoding="utf-8")
    for said in (
        "Reward term: short",
        "Reward term: rep",
        "Nothing: no alarm was raised.",
        "online.answers_per_prompt",
    ):
        assert said in page, said
    again = thumbwheel("train", what, str(tmp_path / "prompts.txt"), "--out", str(tmp_path / "run"), *small)
    assert again.status != 0
    assert "--resume" in (again.out + again.err)


def test_a_reward_model_that_was_not_named_is_asked_for(thumbwheel: Run, tiny_model: Path, tmp_path: Path) -> None:
    (tmp_path / "p.txt").write_text("Say hello.\n", encoding="utf-8")
    done = thumbwheel("train", "grpo", str(tmp_path / "p.txt"), *SMALL, "-s", f"model.path={tiny_model}")
    assert done.status != 0
    assert "--reward FOLDER" in (done.out + done.err)
    assert "thumbwheel train reward" in (done.out + done.err)


@pytest.mark.parametrize(
    ("text", "said"),
    [(b"\n \n", "holds no prompt"), (None, "There is no file"), (b"Caf\xe9?\n", "cannot be read as UTF-8")],
)
def test_no_prompts_are_told(
    text: bytes | None, said: str, thumbwheel: Run, small: tuple[str, ...], tmp_path: Path
) -> None:
    file = tmp_path / "none.txt"
    if text is not None:
        file.write_bytes(text)
    done = thumbwheel("train", "grpo", str(file), *small)
    assert done.status != 0
    assert said in (done.out + done.err)


def test_a_round_learns_from_fresh_answers(
    thumbwheel: Run, small: tuple[str, ...], pairs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """W: update.method = online; the judge is another rule, and a reward model that taught may not judge."""
    monkeypatch.chdir(tmp_path)
    assert thumbwheel("import", str(pairs)).status == 0
    options = (
        *small,
        "-s",
        "update.method=online",
        "-s",
        "reward.enabled=false",
        "-s",
        "evals.judge=rule_for_test:short",
    )
    done = thumbwheel("round", *options)
    assert done.status in (0, 1), done.out + done.err
    assert "grpo: 2 iterations, 2 weight updates" in (done.out + done.err)
    refused = thumbwheel("round", *SMALL, "-s", "update.method=online")
    assert refused.status != 0
    assert "cannot judge it" in (refused.out + refused.err)


def test_an_ensemble_from_a_file_teaches_a_policy(
    thumbwheel: Run, small: tuple[str, ...], pairs: Path, tmp_path: Path
) -> None:
    """R8: `train reward` with two members; `train ppo --reward` takes their lower bound, and logs how far they part."""
    members = ("-s", "reward.members=2", "-s", "reward.trunk=language_model", "-s", "reward.epochs=1")
    made = thumbwheel("train", "reward", str(pairs), "--out", str(tmp_path / "rm"), *small, *members)
    assert made.status == 0, made.out + made.err
    terms = 'online.reward.terms=[{name="low",scorer="lower_bound"},{name="second",scorer="reward_model.1",weight=0.0}]'
    taught = thumbwheel(
        "train", "ppo", str(tmp_path / "prompts.txt"), "--out", str(tmp_path / "run"), "--reward", str(tmp_path / "rm"),
        *small, "-s", terms,
    )  # fmt: skip
    assert taught.status == 0, taught.out + taught.err
    for line in (tmp_path / "run" / "metrics.jsonl").read_text("utf-8").splitlines():
        assert {"low", "second", "reward_spread"} <= json.loads(line).keys()
    bare = thumbwheel("train", "ppo", str(tmp_path / "prompts.txt"), "--out", str(tmp_path / "x"), *small, "-s", terms)
    assert bare.status != 0
    assert "--reward FOLDER" in (bare.out + bare.err)


def test_ctrl_c_in_a_round_says_how_to_go_on(
    thumbwheel: Run, small: tuple[str, ...], pairs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """X4: exit status 130 and a sentence; the same command then ends the round."""
    options = (
        *small,
        "-s",
        "update.method=online",
        "-s",
        "reward.enabled=false",
        "-s",
        "evals.judge=rule_for_test:short",
    )
    assert thumbwheel("import", str(pairs)).status == 0

    def stopped(*arguments: object, **how: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("thumbwheel.train.learner.Learner.update", stopped)
        ended = thumbwheel("round", *options)
    assert ended.status == 130
    assert "goes on where it stopped" in ended.err
    assert "Traceback" not in ended.err
    done = thumbwheel("round", *options)
    assert done.status in (0, 1), done.out + done.err
    assert "(done before)" in done.out


def test_texts_beside_are_learned_and_another_file_of_them_is_another_run(
    thumbwheel: Run, small: tuple[str, ...], tmp_path: Path
) -> None:
    """P3: the auxiliary language-model loss from the command line; a run is not resumed on other texts."""
    texts = tmp_path / "texts.txt"
    texts.write_text("the sea is wide\nthe sky is blue\n", encoding="utf-8")
    beside = ("-s", "online.lm_weight=0.25", "-s", f"online.lm_texts={texts}")
    command = ("train", "ppo", str(tmp_path / "prompts.txt"), "--out", str(tmp_path / "run"), *small)
    done = thumbwheel(*command, *beside)
    assert done.status == 0, done.out + done.err
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text("utf-8").splitlines()]
    assert all(line["lm_loss"] > 0 for line in lines)
    texts.write_text("other words\n", encoding="utf-8")
    other = thumbwheel(*command, *beside, "--resume")
    assert other.status != 0
    assert "texts" in (other.out + other.err)
    none = thumbwheel(*command, "-s", "online.lm_weight=0.25", "--out", str(tmp_path / "other"))
    assert none.status != 0
    assert "online.lm_texts" in (none.out + none.err)


def test_pairs_at_hand_take_over_where_the_guard_gives_up(
    thumbwheel: Run, small: tuple[str, ...], pairs: Path, tmp_path: Path
) -> None:
    """P6: a bound that nothing keeps; at the second roll-back the run learns by DPO from --preferences."""
    done = thumbwheel(
        "train", "grpo", str(tmp_path / "prompts.txt"), "--out", str(tmp_path / "run"), *small,
        "--preferences", str(pairs), "-s", "online.iterations=20", "-s", "online.lr=0.05", "-s", "online.kl.coefficient=0",
        "-s", "online.guard.max_kl_per_response_nats=0.0001", "-s", "online.guard.warnings_before_rollback=1",
        "-s", "online.guard.max_rollbacks=1", "-s", "online.guard.cool_down=0.99",
    )  # fmt: skip
    said = done.out + done.err
    assert done.status == 0, said
    assert "gave the method up" in said
    assert "Learned by DPO from" in said
