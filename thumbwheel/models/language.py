"""A causal language model as the trainers and the sampler see it: packed batches in, log-probabilities out.

Axes: N packed token, M trained token, R row, D hidden width.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from thumbwheel.batches import PackedBatch
from thumbwheel.config import ModelSettings
from thumbwheel.errors import ModelError
from thumbwheel.models import adapters, logps
from thumbwheel.models.packed import ATTENTION_NAME, AttentionPlan, register_attention
from thumbwheel.models.templates import ChatTemplate

register_attention()


class LanguageModel(nn.Module):
    """`network` is a transformers causal LM, its linear layers possibly wrapped by adapters.

    `compute_dtype` is the dtype of matrix products; log-probabilities and scores are float32 always.
    """

    def __init__(
        self,
        network: nn.Module,
        tokenizer: Any,
        *,
        template: ChatTemplate | None = None,
        compute_dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__()
        self.network = network
        self.tokenizer = tokenizer
        self.template = template or ChatTemplate(tokenizer)
        self.compute_dtype = compute_dtype
        self.eval()  # dropout off: the ratio of policy to reference is exactly 1 before the first update

    def train(self, mode: bool = True) -> LanguageModel:
        """Dropout stays off in training too, so this changes nothing but the flag of gradient checkpointing."""
        del mode
        return super().train(False)

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return next(self.network.parameters()).device

    @property
    def config(self) -> Any:
        """The network's transformers configuration."""
        return self.network.config

    @property
    def trunk(self) -> nn.Module:
        """The network without its head."""
        trunk: nn.Module = self.network.base_model  # type: ignore[assignment]
        return trunk

    @property
    def width(self) -> int:
        """D."""
        return int(self.config.get_text_config().hidden_size)

    def _autocast(self) -> AbstractContextManager[Any]:
        if self.compute_dtype == torch.float32:
            return nullcontext()
        return torch.autocast(self.device.type, self.compute_dtype)

    def hidden(self, batch: PackedBatch) -> Tensor:
        """(N, D) final normed hidden states, each token having seen its own row only."""
        plan = AttentionPlan.of(batch, self.device)
        config = self.config
        usual = config._attn_implementation
        config._attn_implementation = ATTENTION_NAME
        try:
            with self._autocast():
                out = self.trunk(
                    input_ids=self._long(batch.ids)[None],
                    position_ids=self._long(batch.positions)[None],
                    use_cache=False,
                    plan=plan,
                )
        finally:
            config._attn_implementation = usual
        return out.last_hidden_state[0]  # type: ignore[no-any-return]

    def _long(self, values: Any) -> Tensor:
        return torch.from_numpy(values).to(self.device)

    def token_logps(self, batch: PackedBatch, *, temperature: float = 1.0) -> Tensor:
        """(M,) float32 log-probability in nats of every trained token, logits divided by `temperature`."""
        h = self.hidden(batch)[self._long(batch.source)].to(self.compute_dtype)
        head = self.network.get_output_embeddings()  # type: ignore[operator]
        weight = head.weight.to(self.compute_dtype)
        bias = None if head.bias is None else head.bias.to(self.compute_dtype)
        return logps.token_logps(h, weight, self._long(batch.target), bias=bias, temperature=temperature)

    def row_logps(self, batch: PackedBatch, *, temperature: float = 1.0) -> Tensor:
        """(R,) float32 sums of `token_logps` by row."""
        return sum_rows(self.token_logps(batch, temperature=temperature), self._long(batch.row), batch.n_rows)

    @contextmanager
    def reference(self) -> Iterator[LanguageModel]:
        """Inside, the model is its own reference: adapters as they were when training began. No second copy exists.

        Raises ModelError when all weights are trained: there the reference is computed before the first step
        (`thumbwheel.models.reference`).
        """
        found = [adapter for _, adapter in adapters.adapters_of(self.network)]
        if not found and any(parameter.requires_grad for parameter in self.network.parameters()):
            raise ModelError(
                "The reference of a model whose weights are all trained is gone after the first step. "
                "Use 'reference_logps' before training, or set model.adapter='lora'."
            )
        for adapter in found:
            adapter.use_reference = True
        try:
            yield self
        finally:
            for adapter in found:
                adapter.use_reference = False

    def make_trainable(self, settings: ModelSettings, *, seed: int) -> list[nn.Parameter]:
        """Say which weights learn, and return them: fresh or continued adapters (`lora`), or everything (`full`).

        After this `reference()` is the model as it is now.
        """
        self.network.requires_grad_(False)
        if settings.adapter == "full":
            self.network.float().requires_grad_(True)
        else:
            targets = adapters.target_names(self.network, settings.lora_targets)
            adapters.add_adapters(self.network, targets, r=settings.lora_r, alpha=settings.lora_alpha, seed=seed)
        return self.trainable()

    def trainable(self) -> list[nn.Parameter]:
        """Parameters that learn, in a fixed order."""
        return [parameter for parameter in self.parameters() if parameter.requires_grad]


def sum_rows(values: Tensor, row: Tensor, n_rows: int) -> Tensor:
    """(M,) values and their row indices -> (R,) sums; a row without values sums to 0."""
    return values.new_zeros(n_rows).index_add(0, row, values)
