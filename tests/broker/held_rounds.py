"""Rounds that are held before they write."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from diamant.cleaner.engines import plain_round


class Gate:
    """Whether a round has begun, and whether rounds may continue."""

    def __init__(self) -> None:
        self.begun = threading.Event()
        self.opened = threading.Event()


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    """Hold rounds at the beginning of their writes."""
    held = Gate()
    real = plain_round.clean

    def clean(*arguments: Any, check_done: Any, **rest: Any) -> Any:
        held.begun.set()
        while not held.opened.wait(0.002):
            check_done()
        return real(*arguments, check_done=check_done, **rest)

    monkeypatch.setattr(plain_round, "clean", clean)
    yield held
    held.opened.set()
