"""Parses positions in a partition: `start`, `end`, an offset, `-10`, `+10`."""

from __future__ import annotations

_START = ("start", "beginning", "earliest")
_END = ("end", "latest")


def offset_at(where: str, start: int, end: int, *, committed: int | None = None, name: str | None = None) -> int:
    """Return the offset of the position `where` in a partition whose offsets range from `start` to `end`.

    `where` is `start`, `end`, an offset, or `-N`, which means N before the end. If the `name` of the partition is given, `+N`
    means N after its `committed` offset; None means that nothing is committed. An offset out of range becomes the nearer bound.
    The caller handles `@TIME`. Raises ValueError for any other string.
    """
    if where in _START:
        return start
    if where in _END:
        return end
    digits = where[1:] if where[:1] in ("-", "+") else where
    is_moved = where.startswith("+")
    if not (digits.isascii() and digits.isdigit()) or (is_moved and name is None):
        moved = "" if name is None else ", +N"
        raise ValueError(f"{where}: expected start, end, an offset, -N{moved} or @TIME")
    if is_moved and committed is None:
        raise ValueError(f"{where}: nothing is committed for {name}, so +N has no starting point")
    begin = committed if is_moved else end if where.startswith("-") else 0
    return min(max((begin or 0) + int(where), start), end)
