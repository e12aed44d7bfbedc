"""A part created on first use, since most brokers never need it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from threading import Lock
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Lazy(Generic[T]):
    """`part()` returns the part; the first call creates it, from any thread. `part.made` is None until then."""

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

    async def loaded(self) -> T:
        """Return the part. A thread creates it: the imports of a large part would block the loop for 0.1 s and more."""
        return await asyncio.to_thread(self) if self.made is None else self.made


class lazily(Generic[T]):
    """Decorates the method that creates a part: the attribute of an object is the part's `Lazy`, as in `services.explain()`."""

    def __init__(self, make: Callable[[Any], T]) -> None:
        self._make = make

    def __set_name__(self, _owner: type, name: str) -> None:
        self._name = name

    def __get__(self, owner: object, _: type) -> Lazy[T]:
        found: Lazy[T] = owner.__dict__.setdefault(self._name, Lazy(partial(self._make, owner)))
        return found
