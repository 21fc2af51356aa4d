"""Bad input of a run from fresh answers: each a clear error or a counted row, nothing lost, and never a number out of nowhere."""

from __future__ import annotations

import errno
import json
import logging
import math
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from test_online import PROMPTS, SHORT, Killed, Said, hack, model, run, settings, vowels, weights

from thumbwheel.config import CompositeSettings, SampleSettings
from thumbwheel.errors import CheckpointError, StoreError, ThumbwheelError, TrainingError
from thumbwheel.models.language import LanguageModel
from thumbwheel.records import Message, Preference, Prompt
from thumbwheel.signals.reward_terms import open_reward
from thumbwheel.signals.rewards import CompositeReward
from thumbwheel.train.learner import Learner
from thumbwheel.train.online import OnlineResult, online
from thumbwheel.train.saves import Saves

KEEP_ALL = SampleSettings(max_new_tokens=2, batch_size=24, temperature=1.0)


def composed(scorer: str, asked: str = "each", **more: Any) -> CompositeReward:
    """As the command line and a round open it."""
    term = {"name": "mine", "scorer": f"{__name__}:{scorer}", "asked": asked, **more}
    return open_reward(CompositeSettings.model_validate({"terms": [term]}), scorers={}, max_unscored_share=1.0)


def same(a: LanguageModel, b: LanguageModel) -> bool:
    return all(torch.equal(x, y) for x, y in zip(weights(a).values(), weights(b).values(), strict=True))


def lines(folder: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text("utf-8").splitlines()]


# ---------------------------------------------------------------------- rewards


def raises_for_a(prompt: Prompt, text: str) -> float:
    if prompt[-1].content == "a":
        raise TimeoutError("the checker gave no answer")
    return float(len(text))


def nothing_for_a(prompt: Prompt, text: str) -> float:
    return math.nan if prompt[-1].content == "a" else float(len(text))


def one_too_few(prompts: Sequence[Prompt], texts: Sequence[str]) -> list[float]:
    return [float(len(text)) for text in texts[1:]]


def sorted_by_size(prompts: Sequence[Prompt], texts: Sequence[str]) -> list[float]:
    return sorted(sum(text.encode()) + len(prompt[-1].content) for prompt, text in zip(prompts, texts, strict=True))


@pytest.mark.parametrize(("scorer", "reason"), [("raises_for_a", "TimeoutError"), ("nothing_for_a", "NaN")])
def test_what_a_reward_cannot_score_is_counted_with_its_reason(tmp_path: Path, scorer: str, reason: str) -> None:
    """R8: unscored answers are neither 0 nor in a baseline; the reason stands in the result. All six prompts, one of them bad."""
    s = settings(prompts_per_iteration=6, iterations=2)
    result = run(tmp_path / "run", s, reward=composed(scorer))
    assert [line["unscored"] for line in lines(tmp_path / "run")] == [4.0, 4.0]
    assert [line["left_out"] for line in lines(tmp_path / "run")] == [4.0, 4.0]
    (note,) = result.notes
    assert "8 of 48 answers have no reward" in note
    assert f"mine: {reason}" in note
    assert "(8)" in note


def test_the_share_of_an_iteration_counts_not_of_a_call(tmp_path: Path) -> None:
    """R8: groups that are asked for again come in small calls; one of them may be unscored whole."""
    s = settings(prompts_per_iteration=6, iterations=1, resample_flat=2)
    assert run(tmp_path / "run", s, reward=composed("raises_for_a")).notes
    strict = settings(prompts_per_iteration=6, iterations=1, max_unscored_share=0.1)
    with pytest.raises(TrainingError, match=r"4 of 24: mine: TimeoutError: the checker gave no answer \(4\)"):
        run(tmp_path / "strict", strict, reward=composed("raises_for_a"))


@pytest.mark.parametrize(
    ("scorer", "told"), [("one_too_few", "one score an answer"), ("sorted_by_size", "another order")]
)
def test_a_reward_of_the_wrong_count_or_order_ends_the_run(tmp_path: Path, scorer: str, told: str) -> None:
    with pytest.raises(TrainingError, match=told):
        run(tmp_path / "run", settings(), reward=composed(scorer, "together"))


def test_a_reward_of_ones_own_in_python_is_held_to_the_same(tmp_path: Path) -> None:
    def short(prompts: Sequence[Prompt], texts: Sequence[str]) -> Said:
        return Said([0.0] * (len(texts) - 1), {})

    def short_column(prompts: Sequence[Prompt], texts: Sequence[str]) -> Said:
        return Said([0.0] * len(texts), {"part": [0.0]})

    for reward in (short, short_column):
        with pytest.raises(TrainingError, match="one number an answer"):
            run(tmp_path / reward.__name__, settings(), reward=reward)

    def infinite_once(prompts: Sequence[Prompt], texts: Sequence[str]) -> Said:
        return Said([math.inf, *(float(len(text)) for text in texts[1:])], {})

    result = run(tmp_path / "infinite", settings(iterations=1), reward=infinite_once)
    assert "1 of 12 answers have no reward" in result.notes[0]
    assert math.isfinite(result.metrics["reward"])


# ---------------------------------------------------------------------- prompts and answers


def test_prompts_that_are_too_long_are_counted_and_the_others_go_on(tmp_path: Path) -> None:
    """The context is 512 tokens of a byte each; two prompts of six hundred."""
    long: list[Prompt] = [(Message(role="user", content=letter * 600),) for letter in "xy"]
    result = online(
        model(), [*long, *PROMPTS[:2]], vowels, settings(), SHORT, tmp_path / "run", progress=False
    )  # fmt: skip
    assert result.updates > 0
    assert any(note.startswith("2 prompts leave no room for an answer") for note in result.notes)
    alone = model()
    online(alone, PROMPTS[:2], vowels, settings(), SHORT, tmp_path / "alone", progress=False)
    mixed = model()
    online(mixed, [*long, *PROMPTS[:2]], vowels, settings(), SHORT, tmp_path / "mixed", progress=False)
    assert same(alone, mixed)


def cut(folder: Path, **changes: Any) -> tuple[OnlineResult, LanguageModel]:
    """Two tokens are too few for any answer of this model to end by itself."""
    of = model()
    s = settings(**{"iterations": 2, "lr": 1e-2, "seed": 3, **changes})
    return online(of, PROMPTS, vowels, s, KEEP_ALL, folder, progress=False), of


def test_answers_that_are_all_cut(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Kept: learned from. Masked: nothing is left, which is said and moves nothing. Penalised: all alike, so as kept."""
    kept, learned = cut(tmp_path / "keep")
    assert kept.metrics["ended_share"] == 0.0, "the case of this test"
    assert kept.notes == ()
    fresh = model()
    assert not same(learned, fresh)

    with caplog.at_level(logging.WARNING, logger="thumbwheel.train"):
        masked, untouched = cut(tmp_path / "mask", cut_answers="mask")
    assert same(untouched, fresh)
    (note,) = masked.notes
    assert "In 2 iterations not one answer could be learned from" in note
    assert "sample.max_new_tokens" in note
    assert sum("not one answer could be learned from" in text for text in caplog.messages) == 1
    assert all(math.isfinite(value) for line in lines(tmp_path / "mask") for value in line.values())
    assert [line["left_out"] for line in lines(tmp_path / "mask")] == [12.0, 12.0]

    cut(tmp_path / "penalise", cut_answers="penalise")
    assert lines(tmp_path / "penalise")[0]["reward"] == lines(tmp_path / "keep")[0]["reward"]


def test_all_masked_with_a_value_head(tmp_path: Path) -> None:
    """Standardising over no token at all is no division by 0."""
    result, of = cut(tmp_path / "run", recipe="ppo", answers_per_prompt=1, prompts_per_iteration=3, cut_answers="mask")
    assert same(of, model())
    assert all(math.isfinite(value) for line in lines(tmp_path / "run") for value in line.values())
    assert "not one answer could be learned from" in " ".join(result.notes)


@pytest.mark.parametrize(("lam", "warned"), [(0.3, 1), (0.32, 0), (1.0, 0)])
def test_a_lambda_that_cannot_reach_back_is_told(tmp_path: Path, lam: float, warned: int) -> None:
    """P3: (γλ)^n < 1/1000 for the longest answer. Of six tokens: .3^6 = .00073, .32^6 = .00107."""
    s = settings(recipe="ppo", prompts_per_iteration=3, answers_per_prompt=2, iterations=2, lam=lam)
    result = run(tmp_path / "run", s)
    told = [note for note in result.notes if "(γλ)^n" in note]
    assert len(told) == warned
    if warned:
        assert "0.0007" in told[0]
        assert "n = 6 tokens" in told[0]
        assert "online.lam = 1" in told[0]
        assert "0.3163" in told[0]  # the sixth root of a thousandth
    assert not run(tmp_path / "grpo", settings(lam=lam, iterations=1)).notes


# ---------------------------------------------------------------------- files of a run


def begun(folder: Path) -> None:
    """A run that was killed in its second iteration."""
    step, done = Learner.update, 0

    def dies(self: Any, *args: Any, **how: Any) -> Any:
        nonlocal done
        done += 1
        if done == 4:
            raise Killed
        return step(self, *args, **how)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Learner, "update", dies)
        with pytest.raises(Killed):
            run(folder, settings())


def files_of(folder: Path) -> list[Path]:
    newest = max((folder / "checkpoints").glob("step-*"))
    return [*(path for path in sorted(newest.iterdir()) if path.is_file()), max((folder / "rollouts").glob("*.npz"))]


def test_every_file_of_a_checkpoint_that_was_cut_short_is_told(tmp_path: Path) -> None:
    """Pitfalls: half-written checkpoints and answers; the message names the file or folder and what to do."""
    folder = tmp_path / "run"
    begun(folder)
    files = files_of(folder)
    assert [path.suffix for path in files] == [".json", ".pt", ".safetensors", ".npz"]
    for path in files:
        whole = path.read_bytes()
        for cut_at in (0, len(whole) // 2, len(whole) - 1):
            path.write_bytes(whole[:cut_at])
            with pytest.raises(CheckpointError, match=r"Delete that (folder|file)") as told:
                run(folder, settings(), resume=True)
            assert path.stem in str(told.value) or path.parent.name in str(told.value)
        path.write_bytes(whole)
    files[-1].unlink()  # as the message says: the answers are sampled again
    assert run(folder, settings(), resume=True).iterations == 3


def test_a_run_killed_before_its_first_checkpoint_goes_on_and_takes_no_others_answers(tmp_path: Path) -> None:
    """X4, pitfalls: answers that lie in a folder belong to the run that sampled them."""

    def dies(self: Any, *args: Any, **how: Any) -> Any:
        raise Killed

    straight = model()
    run(tmp_path / "straight", settings(), straight)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Learner, "update", dies)
        with pytest.raises(Killed):
            run(tmp_path / "run", settings(), reward=hack)
    assert list((tmp_path / "run" / "rollouts").glob("*.npz"))
    other = model()
    with pytest.raises(CheckpointError, match="'settings'"):
        run(tmp_path / "run", settings(lr=1e-4), resume=True)
    run(tmp_path / "run", settings(), other)  # anew, with another reward
    assert same(straight, other)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Learner, "update", dies)
        with pytest.raises(Killed):
            run(tmp_path / "early", settings())
    resumed = model()
    run(tmp_path / "early", settings(), resumed, resume=True)
    assert same(straight, resumed)


def full_at(patch: pytest.MonkeyPatch, where: str) -> None:
    """The disk is full when the named file is written, the second time if there is one."""
    full = OSError(errno.ENOSPC, "No space left on device")
    seen = 0

    def second(real: Callable[..., Any], this: Callable[..., bool]) -> Callable[..., Any]:
        def write(*args: Any, **how: Any) -> Any:
            nonlocal seen
            if this(*args):
                seen += 1
                if seen == (1 if where == "model" else 2):
                    raise full
            return real(*args, **how)

        return write

    from thumbwheel.train.journal import Journal

    if where == "answers":
        patch.setattr(Path, "write_bytes", second(Path.write_bytes, lambda path, data: path.suffix == ".partial"))
    elif where == "weights":
        patch.setattr(
            Saves, "_write_weights", second(Saves._write_weights, lambda self, path: "step" in path.parent.name)
        )
    elif where == "optimiser":
        patch.setattr(Saves, "_write_optimiser", second(Saves._write_optimiser, lambda self, path: True))
    elif where == "best":
        patch.setattr(Saves, "_write_weights", second(Saves._write_weights, lambda self, path: "best" in path.parts))
    elif where == "manifest":
        patch.setattr(Path, "write_text", second(Path.write_text, lambda path, *a: path.name == "manifest.json"))
    elif where == "metrics":
        patch.setattr(Journal, "_put", second(Journal._put, lambda self, text: True))
    else:
        patch.setattr(LanguageModel, "write", second(LanguageModel.write, lambda *a: True))


@pytest.mark.parametrize("where", ["answers", "weights", "optimiser", "best", "manifest", "metrics", "model"])
def test_the_disk_fills_up_at_each_kind_of_file_and_the_run_goes_on(tmp_path: Path, where: str) -> None:
    """X4: a clear error; after room was made the run resumes to the same weights, bit for bit, with every line of metrics."""
    straight, s = model(), settings(guard={"save_every_iterations": 1})
    run(tmp_path / "straight", s, straight)
    with pytest.MonkeyPatch.context() as patch:
        full_at(patch, where)
        with pytest.raises(ThumbwheelError, match="Free some space") as told:
            run(tmp_path / "full", s)
        assert isinstance(told.value, CheckpointError | StoreError)
    resumed = model()
    run(tmp_path / "full", s, resumed, resume=True)
    assert same(straight, resumed)
    assert [line["step"] for line in lines(tmp_path / "full")] == [1, 2, 3]


# ---------------------------------------------------------------------- the guard's last resort


def pairs(*answers: str) -> list[Preference]:
    better, worse = (Message(role="assistant", content=text) for text in answers)
    return [Preference(prompt=prompt, chosen=better, rejected=worse) for prompt in PROMPTS]


BAD = settings(
    iterations=25, prompts_per_iteration=6, answers_per_prompt=8, batch_size=6, lr=1e-2, kl={"coefficient": 0.0},
    guard={"max_kl_per_response_nats": 4.0, "warnings_before_rollback": 1, "max_rollbacks": 1},
)  # fmt: skip


def test_killed_while_it_falls_back_it_goes_on_there(tmp_path: Path) -> None:
    """P6, X4: killed in the DPO that the guard fell back on; the same weights as without the kill."""
    straight, resumed = model(), model()
    whole = run(tmp_path / "straight", BAD, straight, hack, preferences=pairs("yes", "eee"))
    assert whole.stopped == "fell_back"
    step = Learner.update

    def dies(self: Any, *args: Any, **how: Any) -> Any:
        if self.task.name == "dpo":
            raise Killed
        return step(self, *args, **how)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Learner, "update", dies)
        with pytest.raises(Killed):
            run(tmp_path / "broken", BAD, None, hack, preferences=pairs("yes", "eee"))
    again = run(tmp_path / "broken", BAD, resumed, hack, preferences=pairs("yes", "eee"), resume=True)
    assert again.actions == whole.actions
    assert same(straight, resumed)


def test_preferences_that_cannot_be_learned_from_keep_the_last_good_weights(tmp_path: Path) -> None:
    """P6: pairs of an answer with itself; the run still ends with a model, and says why it is no other."""
    result = run(tmp_path / "run", BAD, None, hack, preferences=pairs("yes", "yes"))
    assert result.stopped == "fell_back"
    assert "the last good weights are kept" in result.actions[-1]
    assert result.checkpoint.is_dir()


def test_a_gold_reward_that_falls_behind_is_an_alarm(tmp_path: Path) -> None:
    """P6, over-optimisation: a term of weight 0 is watched; the reward may not run ahead of it by more than allowed."""

    def gold(prompts: Sequence[Prompt], texts: Sequence[str]) -> Said:
        proxy = [text.count("e") / 6 for text in texts]
        return Said(proxy, {"proxy": proxy, "gold": [-score for score in proxy]})

    s = settings(
        iterations=10, prompts_per_iteration=6, answers_per_prompt=8, batch_size=6, lr=1e-2, kl={"coefficient": 0.0},
        guard={"max_gold_gap": 0.05, "max_reward_jump": 50.0, "warnings_before_rollback": 20},
    )  # fmt: skip
    result = run(tmp_path / "run", s, reward=gold)
    assert "gold" in lines(tmp_path / "run")[0]
    assert any("more than the gold reward (allowed: 0.05)" in action for action in result.actions)
    first, last = lines(tmp_path / "run")[0], lines(tmp_path / "run")[-1]
    assert np.isclose(first["gold"], -first["reward"])
    assert (last["reward"] - first["reward"]) - (last["gold"] - first["gold"]) > 0.05


FULL = """
import resource, signal, sys
sys.path[:0] = sys.argv[1].split(":")
from pathlib import Path
from test_online import model, run, settings
from thumbwheel.errors import ThumbwheelError

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[3]),) * 2)
try:
    run(Path(sys.argv[2]), settings(), model())
except ThumbwheelError as error:
    print(type(error).__name__, error)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="RLIMIT_FSIZE is POSIX")
@pytest.mark.parametrize("largest", [60_000, 100_000])
def test_writers_outside_python_tell_a_full_disk_too(tmp_path: Path, largest: int) -> None:
    """X4: the weights are written in Rust (72 kB here) and the optimiser's state in C++ (twice that); no file may be larger."""
    here = Path(__file__).parent
    paths = os.pathsep.join([str(here), str(here.parents[1])])
    done = subprocess.run(
        [sys.executable, "-c", FULL, paths, str(tmp_path / "run"), str(largest)],
        capture_output=True, text=True, check=False, timeout=200,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("CheckpointError")
    assert "Free some space" in done.stdout
    straight, resumed = model(), model()
    run(tmp_path / "straight", settings(), straight)
    run(tmp_path / "run", settings(), resumed, resume=True)
    assert same(straight, resumed)


def test_reward_terms_with_names_of_other_figures_have_a_column_of_their_own(tmp_path: Path) -> None:
    def named(prompts: Sequence[Prompt], texts: Sequence[str]) -> Said:
        parts = {name: [7.0] * len(texts) for name in ("step", "loss", "reward", "ratio", "seconds", "mine")}
        return Said([float(len(text)) for text in texts], parts)

    run(tmp_path / "run", settings(iterations=2), reward=named)
    for k, line in enumerate(lines(tmp_path / "run"), start=1):
        assert line["step"] == k
        assert [line[f"term_{name}"] for name in ("step", "loss", "reward", "ratio", "seconds")] == [7.0] * 5
        assert line["mine"] == 7.0
        assert line["loss"] != 7.0


def test_killed_right_after_the_guard_rolled_back_no_line_is_lost(tmp_path: Path) -> None:
    """X4, P6: killed where the checkpoint after an alarm is written; weights, actions and metrics as without the kill."""
    s = BAD.model_copy(
        update={"iterations": 8, "guard": BAD.guard.model_copy(update={"max_kl_per_response_nats": 1.0})}
    )
    straight, resumed = model(), model()
    whole = run(tmp_path / "straight", s, straight, hack)
    assert any("Rolled back" in action for action in whole.actions)
    write = Saves.write

    def dies(self: Any, step: int, about: Any, files: Any = None) -> None:
        write(self, step, about, files)
        if any("Rolled back" in action for action in about["place"]["actions"]):
            raise Killed

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Saves, "write", dies)
        with pytest.raises(Killed):
            run(tmp_path / "broken", s, None, hack)
    again = run(tmp_path / "broken", s, resumed, hack, resume=True)
    assert again.actions == whole.actions
    assert same(straight, resumed)
    steps = [[line["step"] for line in lines(tmp_path / name)] for name in ("straight", "broken")]
    assert steps[0] == steps[1] == list(range(1, whole.iterations + 1))
