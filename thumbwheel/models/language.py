"""A causal language model as the trainers and the sampler see it: packed batches in, log-probabilities out.

Axes: N packed token, M trained token, R row, D hidden width.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from thumbwheel.batches import Ints, PackedBatch
from thumbwheel.config import ModelSettings
from thumbwheel.errors import ModelError
from thumbwheel.models import adapters, folders, logps, sources
from thumbwheel.models.decoder import Decoder
from thumbwheel.models.packed import ATTENTION_NAME, AttentionPlan, DoesNotFit, no_mask, register_attention
from thumbwheel.models.padded import hidden_padded
from thumbwheel.models.shapes import check_head, follows_plans, shortest_window
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
        base: sources.BaseModel | None = None,
    ) -> None:
        super().__init__()
        self.base = base
        self.network: Any = network
        self.tokenizer = tokenizer
        self.template = template or ChatTemplate(tokenizer)
        self.compute_dtype = compute_dtype
        check_head(network)
        self.decoder = Decoder.of(network)
        self.follows_plans = follows_plans(network)
        if self.follows_plans:
            self.config._attn_implementation = ATTENTION_NAME
        _switch_dropout_off(network)

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        device: torch.device = next(self.network.parameters()).device
        return device

    @property
    def config(self) -> Any:
        """The network's transformers configuration."""
        return self.network.config

    @property
    def trunk(self) -> nn.Module:
        """The network without its head."""
        trunk: nn.Module = self.network.base_model
        return trunk

    @property
    def width(self) -> int:
        """D."""
        return int(self.config.get_text_config().hidden_size)

    def autocast(self) -> AbstractContextManager[Any]:
        """What transformers' own modules run in: nothing where the weights are in the compute dtype already."""
        if self.network.dtype == self.compute_dtype:
            return nullcontext()
        return torch.autocast(self.device.type, self.compute_dtype)

    def hidden(self, batch: PackedBatch, *, at: Ints | None = None) -> Tensor:
        """(N, D) final normed hidden states, each token having seen its own row only; at places `at`, (len(at), D).

        Raises ModelError where a token id is none of the model's.
        """
        known = self.network.get_input_embeddings().num_embeddings
        if int(batch.ids.max()) >= known:
            raise ModelError(
                f"Token id {int(batch.ids.max())} is outside the model's vocabulary of {known}: the rows were made with "
                "another tokenizer. Encode them with this model's template."
            )
        plan = AttentionPlan.of(batch, self.device)
        places = None if at is None else self._long(at)
        if self.decoder is not None and self.decoder.fits(plan):
            return self.decoder.hidden(
                self._long(batch.ids), self._long(batch.positions), plan, self.compute_dtype, places
            )
        h = self._hidden_by_modules(batch, plan)
        return h if places is None else h[places]

    def _hidden_by_modules(self, batch: PackedBatch, plan: AttentionPlan) -> Tensor:
        if self.follows_plans and plan.longest <= shortest_window(self.config):
            try:
                with self.autocast():
                    out = self.trunk(
                        input_ids=self._long(batch.ids)[None],
                        position_ids=self._long(batch.positions)[None],
                        attention_mask=no_mask(self.device),
                        use_cache=False,
                        plan=plan,
                    )
                hidden: Tensor = out.last_hidden_state[0]
                return hidden
            except DoesNotFit:
                self.follows_plans = False
        with self.autocast():
            return hidden_padded(self.trunk, batch, pad_id=self.template.end_id, device=self.device)

    def _long(self, values: Any) -> Tensor:
        return torch.from_numpy(values).to(self.device)

    def token_logps(self, batch: PackedBatch, *, temperature: float = 1.0) -> Tensor:
        """(M,) float32 log-probability in nats of every trained token, logits divided by `temperature`."""
        h = self.hidden(batch, at=batch.source).to(self.compute_dtype)
        weight, bias = self.head(h.dtype)
        return logps.token_logps(h, weight, self._long(batch.target), bias=bias, temperature=temperature)

    @torch.no_grad()
    def token_entropies(self, batch: PackedBatch, *, temperature: float = 1.0) -> Tensor:
        """(M,) float32 entropy in nats of the distribution that each trained token came from; no gradient."""
        h = self.hidden(batch, at=batch.source).to(self.compute_dtype)
        weight, bias = self.head(h.dtype)
        return logps.token_entropies(h, weight, bias=bias, temperature=temperature)

    def head(self, dtype: torch.dtype) -> tuple[Tensor, Tensor | None]:
        """Weight (V, D) and bias (V,) or None of the language-model head, in `dtype`."""
        head = self.network.get_output_embeddings()
        bias = getattr(head, "bias", None)
        return head.weight.to(dtype), None if bias is None else bias.to(dtype)

    def row_logps(self, batch: PackedBatch, *, temperature: float = 1.0) -> Tensor:
        """(R,) float32 sums of `token_logps` by row."""
        return sum_rows(self.token_logps(batch, temperature=temperature), self._long(batch.row), batch.n_rows)

    @contextmanager
    def reference(self) -> Iterator[LanguageModel]:
        """Inside, the model is its own reference: adapters as they were when training began. No second copy exists.

        Raises ModelError when all weights are trained: there the reference is computed before the first step
        (`thumbwheel.models.reference`).
        """
        if not self.adapted() and any(parameter.requires_grad for parameter in self.network.parameters()):
            raise ModelError(
                "The reference of a model whose weights are all trained is gone after the first step. "
                "Use 'reference_logps' before training, or set model.adapter='lora'."
            )
        found = [adapter for _, adapter in adapters.adapters_of(self.network)]
        for adapter in found:
            adapter.use_reference = True
        try:
            yield self
        finally:
            for adapter in found:
                adapter.use_reference = False

    def adapted(self) -> bool:
        """Whether adapters are there."""
        return any(True for _ in adapters.adapters_of(self.network))

    def make_trainable(self, settings: ModelSettings, *, seed: int) -> list[nn.Parameter]:
        """Say which weights learn, and return them: fresh or continued adapters (`lora`), or everything (`full`).

        After this `reference()` is the model as it is now.
        """
        self.network.requires_grad_(False)
        if settings.adapter == "full":
            if self.adapted():
                raise ModelError(
                    "This version is an adapter on a base model; all weights cannot be trained on top of it. "
                    "Set model.adapter='lora', or merge the adapter first ('merge_adapters')."
                )
            self.network.float().requires_grad_(True)
        elif self.adapted():
            adapters.continue_adapters(self.network, r=settings.lora_r, seed=seed)
        else:
            targets = adapters.target_names(self.network, settings.lora_targets)
            adapters.add_adapters(self.network, targets, r=settings.lora_r, alpha=settings.lora_alpha, seed=seed)
        self.checkpoint_gradients(on=settings.gradient_checkpointing)
        return self.trainable()

    def checkpoint_gradients(self, *, on: bool) -> None:
        """Keep activations between layers only, and compute those inside again in the backward pass; or do not."""
        if self.decoder is not None:
            self.decoder.checkpointing = on
        if on:
            self.network.activation_checkpointing_enable({"use_reentrant": False})
        else:
            self.network.activation_checkpointing_disable()
        self.network.train(on)  # transformers checkpoints in training mode only; dropout is off in either

    def trainable(self) -> list[nn.Parameter]:
        """Parameters that learn, in a fixed order."""
        return [parameter for parameter in self.parameters() if parameter.requires_grad]

    def save(self, folder: Path, **notes: Any) -> None:
        """Write the model: the adapter alone where there is one, else all weights; tokenizer and template with it.

        The folder appears whole or not at all. `notes` (JSON values) are kept in its description.
        Raises ModelError if an adapter's base is not known, StoreError if the disk is full.
        """
        with folders.quiet(), folders.new_folder(folder) as target:
            self.write(target, notes)

    def base_must_be(self, wanted: str | None, adapter: Path) -> None:
        """Raises ModelError if the base model's weights are not those that the adapter was trained on."""
        if wanted is not None and self.base is not None and self.base.hash != wanted:
            raise ModelError(
                f"The adapter in '{adapter}' was trained on other weights than '{self.base.name}' holds now. "
                f"Allowed: weights with the hash {wanted}. Got: {self.base.hash}. Bring the old weights back."
            )

    def merge_adapters(self) -> None:
        """Fold the adapters into the weights, so that the model can be saved whole. The base is another one then."""
        adapters.merge(self.network)
        self.base = None

    def write(self, target: Path, notes: dict[str, Any]) -> None:
        adapted = self.adapted()
        if adapted and self.base is None:
            raise ModelError("An adapter is saved without its base model, and this model does not know where that is.")
        if adapted and self.base is not None:
            adapters.save_adapters(self.network, target, base=self.base.name)
        else:
            self.network.save_pretrained(target)
        self.tokenizer.save_pretrained(target)
        folders.describe(
            target,
            {
                **notes,
                "kind": "adapter" if adapted else "full",
                "base": None if self.base is None else self.base.name,
                "base_hash": None if self.base is None else self.base.hash,
                "template": self.template.text,
                "template_hash": self.template.hash,
                "tokenizer_hash": self.template.tokenizer_hash,
            },
        )


def load(settings: ModelSettings, *, trainable: bool = False, seed: int = 0) -> LanguageModel:
    """The model that `settings.path` names: a carried model, GGUF file, folder, saved version (adapter or full) or hub id.

    Weights are held in the compute dtype, in float32 where all of them will be trained. `trainable` calls
    `make_trainable(settings, seed=seed)`. Raises ModelError (not found, does not fit), CheckpointError (cut short).
    Warns, with the difference, where the chat template is not the one that the version was trained with.
    """
    source = sources.find(settings.path)
    notes = folders.description(source.folder) if source.folder is not None else {}
    adapter = source.folder if source.folder is not None and sources.is_adapter(source.folder) else None
    config = None if adapter is None else adapters.read_config(adapter)
    base = source if config is None else sources.find(config.base)
    device = sources.device_of(settings)
    compute = sources.compute_dtype_of(settings, device)
    all_learn = trainable and settings.adapter == "full"
    network = sources.read_network(base, settings, dtype=torch.float32 if all_learn else compute)
    tokenizer = sources.read_tokenizer(
        source if settings.tokenizer is None else sources.find(settings.tokenizer), settings
    )
    generation = getattr(network, "generation_config", None)
    stops = getattr(generation, "eos_token_id", None)
    template = ChatTemplate(tokenizer, stop_ids=stops if isinstance(stops, list) else [])
    if notes.get("template_hash") not in (None, template.hash):
        warnings.warn(template.difference(notes.get("template")), stacklevel=2)
    model = LanguageModel(network, tokenizer, template=template, compute_dtype=compute, base=sources.BaseModel(base))
    model.requires_grad_(False)
    if adapter is not None and config is not None:
        model.base_must_be(notes.get("base_hash"), adapter)
        adapters.load_adapters(network, adapter, config)
    model.to(device)
    if trainable:
        model.make_trainable(settings, seed=seed)
    return model


def _switch_dropout_off(network: nn.Module) -> None:
    """The ratio of policy to reference is exactly 1 before the first update only without dropout."""
    for module in network.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        for name in ("attention_dropout", "dropout"):
            if isinstance(getattr(module, name, None), float):
                setattr(module, name, 0.0)


def sum_rows(values: Tensor, row: Tensor, n_rows: int) -> Tensor:
    """(M,) values and their row indices -> (R,) sums; a row without values sums to 0."""
    return values.new_zeros(n_rows).index_add(0, row, values)
