"""What happens to a log, as one line of text: `a b a= | t1: c | commit 1 | roll`.

Parts are separated by bars. A batch is its words, as `tests.builder.make_record` takes them; `p1: a` is one of an idempotent
producer, `t1: a` one in a transaction. `commit 1` and `abort 1` are markers, `roll` starts a new segment.
"""

from __future__ import annotations

from typing import Protocol


class Written(Protocol):
    """A log that can be told to."""

    def add_batch(self, words: list[str], producer: int | None, is_transactional: bool) -> object:
        """Append a batch, of a producer if there is one."""

    def add_marker(self, producer: int, is_commit: bool) -> object:
        """Append a marker."""

    def roll(self) -> object:
        """Begin a segment."""


def write(log: Written, text: str) -> None:
    """Have it happen, part by part."""
    for part in filter(None, text.split(" | ")):
        first, *words = part.split()
        if part == "roll":
            log.roll()
        elif first in ("commit", "abort"):
            log.add_marker(int(*words), first == "commit")
        elif first.endswith(":"):
            log.add_batch(words, int(first[1:-1]), first[0] == "t")
        else:
            log.add_batch([first, *words], None, False)
