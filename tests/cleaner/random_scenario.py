"""Random logs made from a seed alone, chapter by chapter, with a round of the cleaner after each.

    scenario = Scenario(17)
    for plan in scenario.rounds():
        ...                             the log as the round finds it: scenario.log.stored()

Between two rounds records are written: plain, idempotent and transactional batches by all codecs, markers of both kinds,
tombstones, records without key, headers, offsets with gaps, LogAppendTime, epochs that are bumped, segments rolled anywhere,
transactions that stay open and bound a round, records behind a round. Time goes by, so that horizons which one round has set are
over in a later one or just not yet. The plain engine carries out every round before the next chapter is written.

A seed means the same log for as long as Python's `random` draws the same numbers.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace

from diamant.cleaner.engines import plain_round
from diamant.cleaner.rules.modes import KAFKA_VERSIONS, MODES
from diamant.cleaner.rules.plan import CleanPlan
from diamant.protocol.batches.batch_records import build_batch
from diamant.protocol.batches.header import Header, Record
from tests.cleaner.cleaner_log import CleanerLog

RETENTION_MS = 50
PLAIN, IDEMPOTENT, TRANSACTIONAL = -1, (1, 2), (11, 12, 13)
PAUSES_MS = (0, 1, 20, RETENTION_MS - 1, RETENTION_MS, RETENTION_MS + 1, 200)
VALUES = (None, None, b"", b"v", b"value" * 20, bytes(300))


class Scenario:
    """`log`: as far as it is written; `batches`: how many were."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.batches = 0
        self._random = rng = random.Random(seed)
        self.mode = rng.choice(MODES)
        self.version = KAFKA_VERSIONS[seed % 2]
        self.has_records_behind = seed // 2 % 2 == 1
        self.segment_bytes = rng.choice((1 << 30, 1 << 30, 30_000, 8_000))
        self.log = CleanerLog(
            delete_retention_ms=RETENTION_MS,
            index_interval_bytes=rng.choice((100, 1000)),
            segment_bytes=self.segment_bytes,
        )
        count = rng.choice((3, 10, 40, 200))
        self._keys = [b"", *(rng.randbytes(rng.choice((1, 2, 16, 16, 40))) for _ in range(count))]
        self._open: set[int] = set()
        self._epochs: dict[int, int] = {}
        self._sequences: dict[int, int] = {}

    def rounds(self) -> Iterator[CleanPlan]:
        """Yield the plan of each round, over `log.env` and not carried out yet."""
        rng, log = self._random, self.log
        chapters = rng.choice((1, 2, 2, 3))
        for chapter in range(1, chapters + 1):
            for _ in range(rng.randint(10, 60)):
                self._step()
            if chapter == chapters or rng.random() < 0.5:
                for producer in sorted(self._open):
                    self._end(producer)
            log.roll()
            if self.has_records_behind:
                log.data("behind")
            bound = self._bound()
            if bound > log.first_dirty:
                plan = replace(
                    log.plan(end=bound, mode=self.mode, version=self.version),
                    io_buffer_bytes=rng.choice((100, 4096, 262_144)),
                    map_memory_bytes=rng.choice((1, 1 << 20)),
                )
                yield plan
                log.first_dirty = plain_round.clean(log.env, plan, on_output=log.swap).end_offset
            log.now_ms += rng.choice(PAUSES_MS)

    def _bound(self) -> int:
        """Where a round must end: a segment's base at or below the last stable offset."""
        stable = self.log.log.last_stable_offset
        return max(one.base_offset for one in self.log.log.segments if one.base_offset <= stable)

    # -- writing ---------------------------------------------------------------------------------------------------------

    def _step(self) -> None:
        rng = self._random
        kind = rng.random()
        if kind < 0.72:
            self._batch(rng.choice((PLAIN, PLAIN, PLAIN, *IDEMPOTENT, *TRANSACTIONAL)))
        elif kind < 0.87:
            self._end(rng.choice(TRANSACTIONAL))
        elif kind < 0.97:
            self.log.roll()
        else:
            self.log.now_ms += rng.choice(PAUSES_MS)

    def _batch(self, producer: int) -> None:
        rng, log = self._random, self.log.log
        count = rng.choice((1, 1, 2, 3, 5, 12, 100 if self.segment_bytes == 1 << 30 else 20))
        lead, step, trail = 0, 1, 0
        if producer == PLAIN and rng.random() < 0.2:
            # As a batch that was compacted elsewhere and came by replication.
            lead, step, trail = rng.choice((0, 3)), rng.choice((1, 2, 130)), rng.choice((0, 1, 100))
        base = log.log_end_offset
        timestamp = self.log.now_ms + rng.choice((0, 0, 0, -5, 1000))
        if rng.random() < 0.03:
            timestamp = -1
        headers = (Header("h", b"x"), Header("", None)) if rng.random() < 0.1 else ()
        records = [
            Record(
                base + lead + index * step,
                timestamp + (index * 7 % 5 if timestamp >= 0 else 0),
                None if rng.random() < 0.02 else rng.choice(self._keys),
                rng.choice(VALUES) if rng.random() < 0.7 else rng.randbytes(rng.randrange(60)),
                headers,
            )
            for index in range(count)
        ]
        if producer != PLAIN:
            sequence = self._sequences.get(producer, 0)
            self._sequences[producer] = sequence + count
            fields = {
                "producer_id": producer,
                "producer_epoch": self._epochs.setdefault(producer, 0),
                "base_sequence": sequence,
                "is_transactional": producer in TRANSACTIONAL,
            }
            if producer in TRANSACTIONAL:
                self._open.add(producer)
        else:
            fields = {}
        batch = build_batch(
            records,
            base_offset=base,
            codec=rng.choice((0, 0, 0, 1, 2, 3, 4)),
            log_append_time_ms=self.log.now_ms if rng.random() < 0.1 else None,
            last_offset_delta=lead + (count - 1) * step + trail,
            **fields,
        )
        log.append_internal(batch)
        self.batches += 1

    def _end(self, producer: int) -> None:
        """End a producer's transaction, which may have nothing in it; now and then it comes back with a new epoch."""
        rng = self._random
        self.log.marker(producer, rng.choice(("commit", "abort")), epoch=self._epochs.setdefault(producer, 0))
        self._open.discard(producer)
        if rng.random() < 0.2:
            self._epochs[producer] += 1
            self._sequences[producer] = 0
