"""The preference loss that the settings choose, with its options checked: none is ignored, none is guessed."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

from thumbwheel.config import UpdateSettings
from thumbwheel.errors import DataError, SettingError, explain
from thumbwheel.formulas.preference import PreferenceLoss, preference_losses
from thumbwheel.records import Record

OPTIONS = ("label_smoothing", "simpo_gamma", "desirable_weight", "undesirable_weight")


def loss_of(settings: UpdateSettings) -> tuple[PreferenceLoss, dict[str, Any]]:
    """The loss named by `settings.loss`, and the options to call it with.

    Raises RegistryError for an unknown name; SettingError for an option that the loss does not have, or lacks.
    """
    spec = preference_losses.get(settings.loss)
    given = {name: getattr(settings, name) for name in OPTIONS if getattr(settings, name) is not None}
    if not spec.paired and settings.nll_weight:
        given["nll_weight"] = settings.nll_weight
    for name in given:
        if name not in spec.options:
            have = [other for other in preference_losses if name in preference_losses.get(other).options]
            raise SettingError(
                explain(
                    f"The loss '{settings.loss}' has no option '{name}'.",
                    allowed=", ".join(sorted(spec.options)) or "none of its own",
                    got=given[name],
                    next=f"Leave 'update.{name}' out, or choose {', '.join(have) or 'a paired loss'}.",
                ),
                field=name,
            )
    parameters = inspect.signature(spec.fn).parameters
    for name in sorted(spec.options - given.keys()):
        if name in parameters and parameters[name].default is inspect.Parameter.empty:
            raise SettingError(f"The loss '{settings.loss}' needs 'update.{name}'. Set it.", field=name)
    return spec, given


def must_be(kind: type[Record], records: Sequence[object], settings: UpdateSettings) -> None:
    """Raises DataError where the records are not what the loss learns from."""
    odd = next((record for record in records if not isinstance(record, kind)), None)
    if odd is not None:
        other = "'kto', which learns from single labelled answers" if kind.__name__ == "Preference" else "a paired loss"
        raise DataError(
            explain(
                f"The loss '{settings.loss}' cannot learn from these records.",
                allowed=kind.__name__,
                got=type(odd).__name__,
                next=f"Give it {kind.__name__} records, or set 'update.loss' to {other}.",
            )
        )
