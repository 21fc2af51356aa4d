"""Names, imports by "module:attr", and did-you-mean."""

from __future__ import annotations

import math

import pytest

from thumbwheel.errors import RegistryError
from thumbwheel.registry import Registry


@pytest.fixture
def losses() -> Registry[object]:
    registry: Registry[object] = Registry("loss")
    registry.add("sigmoid", math.exp)
    registry.add("hinge", max)
    return registry


def test_by_name_and_by_import(losses: Registry[object]) -> None:
    assert losses.get("sigmoid") is math.exp
    assert losses.get("math:sqrt") is math.sqrt
    assert list(losses) == ["hinge", "sigmoid"]
    assert "hinge" in losses


def test_an_unknown_name_lists_the_known(losses: Registry[object]) -> None:
    with pytest.raises(RegistryError, match=r"no loss 'sigmod'\. Did you mean 'sigmoid'\?.*hinge, sigmoid"):
        losses.get("sigmod")


@pytest.mark.parametrize("name", ["math:nothing", "no_such_module:thing", ":x", "math:"])
def test_an_import_that_fails_says_why(losses: Registry[object], name: str) -> None:
    with pytest.raises(RegistryError, match="cannot be imported"):
        losses.get(name)


def test_a_name_is_taken_once(losses: Registry[object]) -> None:
    losses.add("hinge", max)
    with pytest.raises(RegistryError, match="taken"):
        losses.add("hinge", min)
    with pytest.raises(RegistryError, match="colon"):
        losses.add("a:b", min)
