"""Counts of answered requests, with their latencies and errors, and of bytes and connections (Kafka's RequestMetrics).

All are plain numbers that only grow. The loop thread adds to them, and `metrics.take` reads them. A response costs a clock
reading, a search in 16 bounds and three additions, about a microsecond. Error codes are read from the encoded response, except
for Produce and Fetch, whose responses are frequent and large: their handlers count errors (`BrokerTopicMetrics.errors`).

Bounds: one row for each requested API and version. A row has one number for each error code seen, `MAX_ANSWERS_ASIDE` responses
of `MAX_ASIDE_BYTES`, and `MAX_CLEAN_ANSWERS` responses of `MAX_CLEAN_BYTES`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from typing import Any

from diamant.protocol.wire import apis
from diamant.protocol.wire.error_codes import error_code_finder

LATENCY_BOUNDS_MS = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 50, 100, 250, 500, 1000, 2500, 5000, 10000)
"""The inclusive upper bounds of the histogram's buckets; the last bucket has none."""

MAX_ANSWERS_ASIDE = 8
MAX_ASIDE_BYTES = 4096
"""The largest response that is put aside, to be read later."""

MAX_CLEAN_ANSWERS = 64
MAX_CLEAN_BYTES = 1024
"""The largest response without errors that is cached. Many requests get the same bytes, and a look-up costs less than reading
the codes.
"""

_BOUNDS_S = tuple(bound / 1000 for bound in LATENCY_BOUNDS_MS)
_COUNTED_BY_THEIR_HANDLERS = (apis.PRODUCE, apis.FETCH)


class VersionCounts:
    """The counts of one API version."""

    __slots__ = ("api_key", "buckets", "codes", "errors", "sent_bytes", "total_s", "version")

    def __init__(self, api_key: int, version: int, *, reads_codes: bool) -> None:
        self.api_key = api_key
        self.version = version
        self.buckets = [0] * (len(LATENCY_BOUNDS_MS) + 1)
        """Responses by latency, each in one bucket (not cumulative)."""
        self.total_s = 0.0
        self.sent_bytes = 0
        self.errors: dict[int, int] = {}
        """Error codes other than NONE in responses, counted once per partition, topic or group."""
        self.codes = _CodeReader(self.errors, api_key, version) if reads_codes else None


class RequestMetrics:
    """The counts of all APIs and of connections. `reads_codes`: False for servers whose responses are not Kafka's."""

    def __init__(self, *, reads_codes: bool = True) -> None:
        self.received_bytes = 0
        self.connections_created = 0
        self.connections_closed = 0
        self._rows: dict[int, VersionCounts] = {}
        self._reads_codes = reads_codes

    def answered(self, api_key: int, version: int, latency_s: float, body: Any, size: int) -> None:
        """Count a request answered with a frame of `size` bytes. `body`: the response, or None not to read its error codes."""
        try:
            row = self._rows[api_key << 16 | version]
        except KeyError:
            row = self._row(api_key, version)
        row.buckets[bisect_left(_BOUNDS_S, latency_s)] += 1
        row.total_s += latency_s
        row.sent_bytes += size
        if row.codes is not None:
            row.codes.read(body)

    @property
    def sent_bytes(self) -> int:
        """The bytes of all responses."""
        return sum(row.sent_bytes for row in self._rows.values())

    def rows(self) -> list[VersionCounts]:
        """Return all counts, in order of API key and version, including the codes of responses put aside."""
        for row in self._rows.values():
            if row.codes is not None:
                row.codes.settle()
        return [self._rows[position] for position in sorted(self._rows)]

    def _row(self, api_key: int, version: int) -> VersionCounts:
        if not apis.is_served(api_key, version):
            version = 0  # an unknown version of ApiVersions; as in Kafka, count it under the response's version
        row = self._rows.get(api_key << 16 | version)
        if row is None:
            reads = self._reads_codes and api_key not in _COUNTED_BY_THEIR_HANDLERS and apis.is_served(api_key, version)
            row = self._rows[api_key << 16 | version] = VersionCounts(api_key, version, reads_codes=reads)
        return row


class _CodeReader:
    """Counts the error codes in the responses of one version.

    Reading codes needs the version's schema. If responses are encoded without it, importing it takes 5 ms. So the first responses
    are put aside; the schema is loaded after `MAX_ANSWERS_ASIDE` responses, for a large response, or when metrics are read.
    """

    __slots__ = ("_api_key", "_aside", "_clean", "_errors", "_find", "_last", "_version")

    def __init__(self, errors: dict[int, int], api_key: int, version: int) -> None:
        self._errors = errors
        self._api_key = api_key
        self._version = version
        self._aside: list[bytes] = []
        self._last: bytes | None = None  # the last response without errors: some are sent repeatedly from a cache
        self._clean: set[bytes] = set()
        self._find: Callable[[bytes], list[int]] | None = None

    def read(self, body: Any) -> None:
        """Count a response's codes, or put it aside. Only Fetch, whose codes are not read, has responses other than bytes."""
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
        """Count the codes of responses put aside."""
        aside, self._aside = self._aside, []
        if aside and self._find is None:
            try:
                self._find = error_code_finder(self._api_key, self._version)
            except (OSError, ImportError):  # out of file descriptors: these codes remain uncounted
                return
        for body in aside:
            self.read(body)
