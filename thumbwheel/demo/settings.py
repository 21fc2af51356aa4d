"""What the demo runs with, and what it changes to become reckless."""

from __future__ import annotations

from pathlib import Path

from thumbwheel.config import Settings, from_tree

JUDGE = "thumbwheel.demo.crowd:simulated_taste"


def demo_settings(folder: Path, *, reckless: bool, seed: int) -> Settings:
    """Settings of a demo in `folder`. `reckless` raises the learning rate threefold: it "wins" with broken language."""
    return from_tree(
        {
            "seed": seed,
            "store": {"url": f"sqlite:///{folder / 'thumbwheel.db'}", "folder": folder / "data"},
            "model": {"path": "smollm2-135m-instruct", "lora_r": 16, "lora_alpha": 32},
            "sample": {"temperature": 0.7, "max_new_tokens": 64, "batch_size": 64},
            "reward": {"trunk": "encoder", "encoder": "all-minilm-l6-v2", "seed": seed},
            "update": {
                "method": "dpo",
                "loss": "sigmoid",
                "beta": 0.1,
                "lr": 2e-4 if reckless else 6.5e-5,
                "epochs": 2,
                "batch_size": 8,
                "seed": seed,
            },
            "evals": {
                "judge": JUDGE,
                "judge_origin": "simulated",
                "prompts": 54,
                "holdout_share": 0.3,
                "samples_per_prompt": 3,  # 54 votes alone are too few to tell 65 % from luck
            },
            # These users like answers to be shorter, so shorter is no sign of cheating here; a third is.
            "gates": {"max_length_ratio": 3.0},
        }
    )
