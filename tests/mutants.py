"""Faults put into the product's own code, to see that what holds it to account finds them. The product has no seams for these."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest


class Mutant(NamedTuple):
    """A function, of a module or a class, and the one that takes its place."""

    owner: object
    name: str
    make: Callable[[Any], Any]
    """Makes it of the real one."""


def put_in(monkeypatch: pytest.MonkeyPatch, *mutants: Mutant) -> None:
    """Put mutants in until the test is over."""
    for one in mutants:
        monkeypatch.setattr(one.owner, one.name, one.make(getattr(one.owner, one.name)))


def returns(value: Any) -> Callable[[Any], Any]:
    """Makes a function that returns a value whatever it is called with."""
    return lambda _real: lambda *_, **__: value
