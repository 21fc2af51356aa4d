"""Settings that every weight update has. `thumbwheel.config` shows them all."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from thumbwheel.section import Count, Positive, Section, Share

# They change how a run is carried out and not what comes out of it, so a run may go on with others.
FREE_SETTINGS = frozenset({"tokens_per_micro_batch", "checkpoint_every_steps", "keep_checkpoints", "tensorboard"})


class TrainSettings(Section):
    """Shared by every update."""

    lr: Positive = Field(5e-5, description="peak learning rate")
    schedule: Literal["constant", "linear", "cosine"] = Field("constant", description="after warm-up")
    warmup_share: Share = Field(0.0, description="share of steps that warm up")
    weight_decay: float = Field(0.0, ge=0)
    adam_betas: tuple[float, float] = (0.9, 0.999)
    adam_eps: Positive = 1e-8
    max_grad_norm: Positive = Field(1.0, description="clip the gradient's norm")
    epochs: Count = 1
    batch_size: Count = Field(8, description="rows (pairs, answers) a weight update")
    tokens_per_micro_batch: Count = Field(4096, description="token budget of one forward; never changes the gradient")
    seed: int = Field(0, ge=0, description="of everything random")
    checkpoint_every_steps: Count = Field(50, description="atomic checkpoints for resuming")
    keep_checkpoints: Count = 2
    eval_share: Share = Field(0.1, description="rows held out by prompt")
    eval_every_steps: int = Field(0, ge=0, description="held-out evaluation after this many steps; 0: every epoch")
    patience: int = Field(0, ge=0, description="evaluations without gain before stopping early; 0 never stops")
    max_unusable_share: Share = Field(0.2, description="fail when more rows than this cannot be used")
    tensorboard: bool = Field(False, description="also write TensorBoard event files")
