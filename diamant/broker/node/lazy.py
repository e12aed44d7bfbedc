"""Components that are created on first use, since most brokers never need them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from threading import Lock
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Lazy(Generic[T]):
    """A component created on first use: `lazy()` returns it, on any thread. `lazy.made` is None until it is created."""

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._making = Lock()
        self.made: T | None = None

    def __call__(self) -> T:
        if self.made is None:
            with self._making:
                if self.made is None:
                    self.made = self._make()
        return self.made


class lazily(Generic[T]):
    """A decorator for a method that creates a component. The attribute becomes a `Lazy`, called as in `services.explain()`."""

    def __init__(self, make: Callable[[Any], T]) -> None:
        self._make = make

    def __set_name__(self, _owner: type, name: str) -> None:
        self._name = name

    def __get__(self, owner: object, _: type) -> Lazy[T]:
        found: Lazy[T] = owner.__dict__.setdefault(self._name, Lazy(partial(self._make, owner)))
        return found
