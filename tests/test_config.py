"""Settings: TOML, dotted overrides, unknown keys, ranges."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import BaseModel

from thumbwheel.config import Settings, from_tree, load
from thumbwheel.errors import NotFound, SettingError


def test_a_file_then_overrides_the_later_winning(tmp_path: Path) -> None:
    file = tmp_path / "thumbwheel.toml"
    file.write_text('seed = 3\n[update]\nbeta = 0.3\n[model]\npath = "a/b"\n', encoding="utf-8")
    settings = load(
        file, overrides=["update.beta=0.2", "update.beta=0.25", "sample.stop=['END']", "model.path=org/name"]
    )
    assert (settings.seed, settings.update.beta, settings.model.path) == (3, 0.25, "org/name")
    assert settings.sample.stop == ("END",)


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("update.bta=0.1", "Did you mean 'beta'"),
        ("updat.beta=0.1", "Did you mean 'update'"),
        ("update.beta=-0.1", "greater than 0"),
        ("update.beta=nan", "finite"),
        ("update.epochs=1.5", "integer"),
        ("model.adapter=lorra", "'lora' or 'full'"),
        ("update.beta", "section.key=value"),
        ("=1", "section.key=value"),
        ("seed.x=1", "seed"),
        ("gates.min_win_rate_low=2", "less than or equal to 1"),
    ],
)
def test_a_bad_override_says_what_is_allowed(override: str, says: str) -> None:
    with pytest.raises(SettingError, match=says):
        load(overrides=[override])


def test_a_missing_or_broken_file(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match=r"nowhere\.toml"):
        load(tmp_path / "nowhere.toml")
    broken = tmp_path / "broken.toml"
    broken.write_text("[update\nbeta=1", encoding="utf-8")
    with pytest.raises(SettingError, match=r"broken\.toml"):
        load(broken)
    broken.write_bytes(b"\xff\xfe")
    with pytest.raises(SettingError, match="not valid TOML"):
        load(broken)


def test_settings_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(SettingError, match="float32"):
        from_tree({"model": {"adapter": "full", "dtype": "bfloat16"}})


def test_the_digest_follows_the_values() -> None:
    assert load().digest() == Settings().digest()
    assert load(overrides=["update.beta=0.1"]).digest() == load().digest()
    assert load(overrides=["update.beta=0.11"]).digest() != load().digest()


@pytest.mark.parametrize(
    "override",
    ["update.tokens_per_micro_batch=512", "model.gradient_checkpointing=true", "server.port=1", "round.progress=false"],
)
def test_what_changes_no_result_changes_no_digest(override: str) -> None:
    """X4: a round that ran out of memory goes on with a smaller budget."""
    assert load(overrides=[override]).digest() == load().digest()


def test_settings_are_frozen() -> None:
    with pytest.raises(ValueError, match="frozen"):
        load().update.beta = 1.0  # type: ignore[misc]


def test_a_setting_with_a_number_says_its_unit_or_meaning() -> None:
    for section in (field.annotation for field in Settings.model_fields.values()):
        if isinstance(section, type) and issubclass(section, BaseModel):
            for name, field in section.model_fields.items():
                obvious = {
                    "seed",
                    "epochs",
                    "method",
                    "temperature",
                    "weight_decay",
                    "adam_betas",
                    "adam_eps",
                    "confidence",
                }
                assert field.description or name in obvious | {"bootstrap_samples", "keep_checkpoints"}, name


def test_a_rule_of_several_settings_is_told_in_its_own_words() -> None:
    with pytest.raises(SettingError, match=r"'online\.kl' setting is not valid: there is no 'target'") as told:
        from_tree({"online": {"kl": {"target": 6}}})
    assert "Value error" not in str(told.value)
