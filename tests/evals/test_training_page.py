"""P3, P5: the page that a training run ends with, from metric rows as a run logs them."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from thumbwheel.evals.curves import panels
from thumbwheel.evals.pages import Next
from thumbwheel.evals.training_page import Training, summary, write


def row(step: int, **more: Any) -> dict[str, Any]:
    return {
        "step": step, "reward": step / 10, "human": 1.0, "term_length": 2.0, "kl_per_response_nats": 3.0, "coefficient": 0.1,
        "entropy": 2.0, "length": 30.0, "repetition": 0.02, "flat_groups": 1.0, "too_easy": 1.0, "too_hard": 0.0, "unscored": 0.0,
        "loss": 1e-9, "tokens_per_s": 100.0, "clipped_share": 0.0, "grad_norm": 1.0, "tokens": 9.0, "lr": 1e-5, **more,
    }  # fmt: skip


def test_reward_and_its_terms_come_first_and_each_has_a_plot() -> None:
    """R6: a column each. What never happened (no reward missing, a loss of 0) has no plot; the share clipped has."""
    titles = [panel["title"] for panel in panels([row(1), row(2)])]
    assert titles == [
        "Reward", "Reward term: human", "Reward term: length", "KL to the reference, nats a response",
        "β, the pull to the reference", "Entropy, nats a token", "Length of answers, tokens", "Share of repeated 3-grams",
        "Prompts whose answers all earned the same", "Share of tokens whose ratio was clipped", "Sampled tokens a second",
        "Gradient norm, before clipping",
    ]  # fmt: skip
    assert "Answers left out of the update" in [panel["title"] for panel in panels([row(1, unscored=2.0), row(2)])]
    flat = next(panel for panel in panels([row(1), row(2)]) if panel["title"].startswith("Prompts"))
    assert flat["key"] == ["all", "too easy", "too hard"]


def test_a_run_from_rows_keeps_its_own_order() -> None:
    """A metric that is called "reward" elsewhere is no reward of answers."""
    titles = [panel["title"] for panel in panels([{"step": 1, "mine": 1.0, "loss": 0.5, "reward": 1.0}])]
    assert titles == ["Loss", "Mine", "Reward"]


def test_first_and_last_are_means_of_a_tenth() -> None:
    """Of 20 steps two: (0.1 + 0.2)/2 and (1.9 + 2.0)/2; infinity is left out; one value has no beginning."""
    told = {one["name"]: one for one in summary([row(i) for i in range(1, 21)])}
    assert told["Reward"] == {"name": "Reward", "first": "0.15", "last": "1.95"}
    assert told["… term “length”"]["last"] == "2.00"
    assert "Loss" not in told  # of a clipped surrogate: only its gradient counts
    assert summary([{"step": 1, "loss": 0.5}, {"step": 2, "loss": math.inf}]) == [
        {"name": "Loss", "first": "–", "last": "0.50"}
    ]
    assert summary([]) == []


def test_the_page_tells_what_the_guard_did_and_what_was_set(tmp_path: Path) -> None:
    """P6: every action is on the page."""
    made = Training(
        "grpo", [row(1), row(2)], notes=["2 of 9 answers have no reward"], actions=["iteration 2: KL <script>. Cooled down."],
        settings=[("online.lr", "0.1")], next=[Next("Talk with it:", "thumbwheel chat")],
    )  # fmt: skip
    html = write(made, tmp_path).read_text(encoding="utf-8")
    for said in (
        "2 of 9 answers have no reward",
        "KL &lt;script&gt;. Cooled down.",
        "<code>online.lr</code>",
        "thumbwheel chat",
    ):
        assert said in html, said
    assert "<script" not in html
    quiet = write(Training("grpo", [row(1)]), tmp_path).read_text(encoding="utf-8")
    assert "Nothing: no alarm was raised." in quiet
    assert "None: every setting has its default." in quiet


def test_a_run_that_logged_nothing_and_one_without_a_guard(tmp_path: Path) -> None:
    assert "Nothing was logged." in write(Training("sft", []), tmp_path).read_text(encoding="utf-8")
    html = write(Training("dpo", [{"step": 1, "loss": math.nan, "chosen_logp_change": -2.0}]), tmp_path).read_text(
        "utf-8"
    )
    assert "What the guard did" not in html
    assert "became less likely during training, by 2.00 nats" in html
    assert "gate above" not in html
