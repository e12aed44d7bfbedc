"""Counts of answered requests, their latencies and errors; bytes and connections (Kafka's RequestMetrics).

Plain numbers that only grow, added to on the loop thread and read by `metrics.take`. An answer costs a clock reading, a
search in 16 bounds and three additions, about a microsecond. Error codes are read from the encoded answer, except those of
Produce and Fetch: their handlers count them where a partition fails (`BrokerTopicMetrics.errors`), and their answers, which are
the many and the large ones, are not looked at.

Bounds: one row of numbers for each API and version that was asked for, and in it a number for each error code seen,
`MAX_ANSWERS_ASIDE` answers of `MAX_ASIDE_BYTES` and `MAX_CLEAN_ANSWERS` of `MAX_CLEAN_BYTES`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from typing import Any

from diamant.protocol.wire import apis
from diamant.protocol.wire.error_codes import error_code_finder

LATENCY_BOUNDS_MS = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 50, 100, 250, 500, 1000, 2500, 5000, 10000)
"""Upper ends (inclusive) of the histogram's buckets; the last bucket has none."""

MAX_ANSWERS_ASIDE = 8
MAX_ASIDE_BYTES = 4096
"""Of one answer."""

MAX_CLEAN_ANSWERS = 64
MAX_CLEAN_BYTES = 1024
"""Of one answer without errors that is remembered: many requests get the same bytes, and looking them up takes less than reading
them.
"""

_BOUNDS_S = tuple(bound / 1000 for bound in LATENCY_BOUNDS_MS)
_COUNTED_BY_THEIR_HANDLERS = (apis.PRODUCE, apis.FETCH)


class VersionCounts:
    """One API version's."""

    __slots__ = ("api_key", "buckets", "codes", "errors", "sent_bytes", "total_s", "version")

    def __init__(self, api_key: int, version: int, *, reads_codes: bool) -> None:
        self.api_key = api_key
        self.version = version
        self.buckets = [0] * (len(LATENCY_BOUNDS_MS) + 1)
        """Answers by latency, each in one bucket (not cumulative)."""
        self.total_s = 0.0
        self.sent_bytes = 0
        self.errors: dict[int, int] = {}
        """Error codes other than NONE in answers: as many as there were partitions, topics or groups with one."""
        self.codes = _CodeReader(self.errors, api_key, version) if reads_codes else None


class RequestMetrics:
    """All APIs', and the connections'. `reads_codes` False: for servers whose answers are none of Kafka's."""

    def __init__(self, *, reads_codes: bool = True) -> None:
        self.received_bytes = 0
        self.connections_created = 0
        self.connections_closed = 0
        self._rows: dict[int, VersionCounts] = {}
        self._reads_codes = reads_codes

    def answered(self, api_key: int, version: int, latency_s: float, body: Any, size: int) -> None:
        """Count a request that was answered by a frame of `size` bytes with `body` (its buffers; None: not to be read)."""
        try:
            row = self._rows[api_key << 16 | version]
        except KeyError:
            row = self._row(api_key, version)
        row.buckets[bisect_left(_BOUNDS_S, latency_s)] += 1
        row.total_s += latency_s
        row.sent_bytes += size
        if row.codes is not None:
            row.codes.read(body)

    def rows(self) -> list[VersionCounts]:
        """All counts, by API key and version, with every error code."""
        for row in self._rows.values():
            if row.codes is not None:
                row.codes.settle()
        return [self._rows[position] for position in sorted(self._rows)]

    def _row(self, api_key: int, version: int) -> VersionCounts:
        if not apis.is_served(api_key, version):
            version = 0  # an ApiVersions request of the future; Kafka, too, counts it as the version that it answers
        row = self._rows.get(api_key << 16 | version)
        if row is None:
            reads = self._reads_codes and api_key not in _COUNTED_BY_THEIR_HANDLERS and apis.is_served(api_key, version)
            row = self._rows[api_key << 16 | version] = VersionCounts(api_key, version, reads_codes=reads)
        return row


class _CodeReader:
    """Counts the error codes of one version's answers.

    The first answers are put aside: reading them takes the version's schema, which is 5 ms of imports where the answer
    itself is encoded by hand. With more of them, a large one or a scrape it is worth that.
    """

    __slots__ = ("_api_key", "_aside", "_clean", "_errors", "_find", "_last", "_version")

    def __init__(self, errors: dict[int, int], api_key: int, version: int) -> None:
        self._errors = errors
        self._api_key = api_key
        self._version = version
        self._aside: list[bytes] = []
        self._last: bytes | None = None  # the last answer without errors: some come from a cache, again and again
        self._clean: set[bytes] = set()
        self._find: Callable[[bytes], list[int]] | None = None

    def read(self, body: Any) -> None:
        """Count the codes of an answer, or put it aside. Only Fetch, which is not read, answers by anything but bytes."""
        if body is self._last or type(body) is not bytes or body in self._clean:
            return
        if self._find is None:
            self._aside.append(body)
            if len(self._aside) > MAX_ANSWERS_ASIDE or len(body) > MAX_ASIDE_BYTES:
                self.settle()
            return
        codes = self._find(body)
        if not codes:
            self._last = body
            if len(body) <= MAX_CLEAN_BYTES:
                if len(self._clean) == MAX_CLEAN_ANSWERS:
                    self._clean.clear()
                self._clean.add(body)
        for code in codes:
            self._errors[code] = self._errors.get(code, 0) + 1

    def settle(self) -> None:
        """Count the codes of what was put aside."""
        aside, self._aside = self._aside, []
        if aside and self._find is None:
            self._find = error_code_finder(self._api_key, self._version)
        for body in aside:
            self.read(body)
