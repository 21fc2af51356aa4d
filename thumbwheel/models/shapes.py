"""What a network's configuration says about which forward path fits it."""

from __future__ import annotations

import inspect
import sys
from typing import Any

from thumbwheel.errors import ModelError

PLAIN_LAYERS = ("full_attention", "sliding_attention")
HEAD_TWISTS = ("final_logit_softcapping", "logit_scale", "logits_scaling", "lm_head_multiplier")


def check_head(network: Any) -> None:
    """Raises ModelError where logits are more than `h Wᵀ + b`, which the chunked head would compute wrongly."""
    config = network.config.get_text_config()
    for name in HEAD_TWISTS:
        value = getattr(config, name, None)
        if value not in (None, 1, 1.0):
            raise ModelError(
                f"The model's logits are changed after the head ('{name}' = {value}), which is not supported. "
                "Take a model whose logits are a linear map of the last hidden state."
            )
    if network.get_output_embeddings() is None:
        raise ModelError(f"{type(network).__name__} has no language-model head, so it gives no log-probabilities.")


def follows_plans(network: Any) -> bool:
    """Whether transformers lets this network's attention be replaced, and its positions be given."""
    accepted = inspect.signature(network.base_model.forward).parameters
    layers = getattr(network.config.get_text_config(), "layer_types", None) or ()
    return (
        bool(getattr(network, "_supports_attention_backend", False))
        and "position_ids" in accepted
        and all(kind in PLAIN_LAYERS for kind in layers)
    )


def shortest_window(config: Any) -> int:
    """Tokens that the narrowest attention layer looks back on; rows up to this length are seen whole."""
    text = config.get_text_config()
    layers = getattr(text, "layer_types", None)
    window = getattr(text, "sliding_window", None)
    if window is None or getattr(text, "use_sliding_window", True) is False:
        return sys.maxsize
    if layers and "sliding_attention" not in layers:
        return sys.maxsize
    return int(window)
