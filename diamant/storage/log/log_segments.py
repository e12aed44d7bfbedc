"""The segments of a log in ascending order; the last one takes appends."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from diamant.storage import names
from diamant.storage.env.env import Env
from diamant.storage.segments.log_config import LogConfig
from diamant.storage.segments.segment import Segment


class LogSegments:
    """The list `items`, which only these methods may change. A parallel list of base offsets makes lookups fast."""

    __slots__ = ("_bases", "items")

    def __init__(self, items: list[Segment]) -> None:
        self.items = items
        self._bases = [segment.base_offset for segment in items]

    def floor(self, offset: int) -> int:
        """Return the index of the segment with the largest base offset <= `offset`; -1 if there is none."""
        return bisect_right(self._bases, offset) - 1

    def since(self, offset: int) -> list[Segment]:
        """Return the segment whose range contains `offset`, and all later ones."""
        return self.items[max(0, self.floor(offset)) :]

    def following_base(self, segment: Segment) -> int:
        """Return the base offset of the segment after `segment`, which must not be the last."""
        return self._bases[self.floor(segment.base_offset) + 1]

    def append(self, segment: Segment) -> None:
        """Add a segment at the end."""
        self.items.append(segment)
        self._bases.append(segment.base_offset)

    def replace(self, old: Sequence[Segment], new: Segment) -> None:
        """Replace the adjacent segments `old` with `new`."""
        first = self.items.index(old[0])
        self.items[first : first + len(old)] = [new]
        self._bases[first : first + len(old)] = [new.base_offset]

    def drop_oldest(self, count: int) -> None:
        """Remove the `count` oldest segments from the list."""
        del self.items[:count]
        del self._bases[:count]


def new_segment(env: Env, path: str, base_offset: int, config: LogConfig) -> Segment:
    """Create an empty segment in the directory `path`, after removing files of the same names that a crash left behind."""
    for file in names.segment_paths(path, base_offset):
        if env.exists(file):
            env.remove(file)
    jitter_limit = min(config.segment_jitter_ms, config.segment_ms)
    jitter_ms = 0
    if jitter_limit > 0:
        import random  # imported here because few logs use a jitter

        jitter_ms = random.randrange(jitter_limit)
    return Segment(env, path, base_offset, config, jitter_ms=jitter_ms, create=True)
