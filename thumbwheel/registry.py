"""Name -> thing. A name is registered here, or is "package.module:attr" and imported when asked for.

    kl_controllers = Registry("KL controller")

    @kl_controllers.register("fixed")
    class Fixed: ...

    kl_controllers.get("fixed")             # the class
    kl_controllers.get("my_pkg.mod:Mine")   # imported; nothing to install or announce

A name that is not there is answered with the nearest one that is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Generic, TypeVar

from thumbwheel.errors import RegistryError, did_you_mean, explain

T = TypeVar("T")


class Registry(Generic[T]):
    """A named table of one kind of thing. `noun` is used in error messages."""

    def __init__(self, noun: str) -> None:
        self.noun = noun
        self._things: dict[str, T] = {}

    def add(self, name: str, thing: T) -> T:
        """Register `thing`. Raises RegistryError if the name is taken by another thing or holds a colon."""
        if ":" in name:
            raise RegistryError(f"The {self.noun} name '{name}' may not hold a colon; that form means 'module:attr'.")
        if self._things.get(name, thing) is not thing:
            raise RegistryError(f"The {self.noun} name '{name}' is taken. Choose another name for {thing!r}.")
        self._things[name] = thing
        return thing

    def register(self, name: str) -> Callable[[T], T]:
        """Decorator form of `add`."""
        return lambda thing: self.add(name, thing)

    def get(self, name: str) -> T:
        """The thing of that name, or the attribute that "module:attr" names. Raises RegistryError."""
        if name in self._things:
            return self._things[name]
        if ":" in name:
            return self._imported(name)
        raise RegistryError(
            explain(
                f"There is no {self.noun} '{name}'.{did_you_mean(name, self._things)}",
                allowed=", ".join(self.names()) + ", or 'module:attr'",
            )
        )

    def _imported(self, name: str) -> T:
        module, _, attr = name.partition(":")
        try:
            thing: T = getattr(import_module(module), attr)
        except (ImportError, AttributeError, ValueError) as error:
            raise RegistryError(
                f"The {self.noun} '{name}' cannot be imported: {error}. "
                "The form is 'package.module:attribute', importable from where the command runs."
            ) from error
        return thing

    def names(self) -> list[str]:
        """Registered names, sorted."""
        return sorted(self._things)

    def __iter__(self) -> Iterator[str]:
        return iter(self.names())

    def __contains__(self, name: object) -> bool:
        return name in self._things
