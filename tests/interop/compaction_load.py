"""Updates of keys in compacted topics, and what a broker may have done with them: for the checks that kill brokers.

A value is the number of its update, so that every record tells when it was sent. `History` knows what was acknowledged, and
judges what a consumer sees of a log that was cleaned, whatever killed the cleaner:

* a record that was acknowledged is at its offset, unchanged, or else a later one of its key was stored, in a segment that may be
  cleaned (below the active one);
* what is newest of a key is there; if it is a tombstone, nothing older of the key is;
* nothing else is there, but updates that were sent and not acknowledged.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from confluent_kafka import KafkaError, Producer

QUEUED = 2000  # waiting in a producer at any time
TOMBSTONES = 20  # one update in so many has no value


class Row(Protocol):
    """What a consumer sees of a record."""

    @property
    def offset(self) -> int: ...
    @property
    def key(self) -> bytes | None: ...
    @property
    def value(self) -> bytes | None: ...


class Update(NamedTuple):
    """One record that was sent."""

    key: int
    has_value: bool


@dataclass(frozen=True, slots=True)
class Topic:
    """How a topic is loaded."""

    keys: int
    value_bytes: int
    is_filled: bool  # the first updates go through the keys, so that all of them live
    producer: Mapping[str, Any]


class History:
    """All updates of a topic's one partition, over all brokers that it had."""

    def __init__(self, topic: str, plan: Topic, seed: int) -> None:
        self.topic = topic
        self.plan = plan
        self.sent: list[Update] = []
        self.stored: dict[int, int] = {}  # offset -> number, of what was acknowledged or seen
        self.faults: list[str] = []
        self._random = random.Random(f"{seed} {topic}")
        self._numbers: set[int] = set()  # those in `stored`

    def next_update(self) -> tuple[int, bytes | None, bytes]:
        """Return number, value and key of one more."""
        number = len(self.sent)
        is_filling = self.plan.is_filled and number < self.plan.keys
        key = number if is_filling else self._random.randrange(self.plan.keys)
        has_value = is_filling or self._random.randrange(TOMBSTONES) > 0
        self.sent.append(Update(key, has_value))
        return number, self.value(number) if has_value else None, b"%d" % key

    def value(self, number: int) -> bytes:
        """Return the value of an update, half of which does not compress."""
        half = random.Random(number).randbytes(self.plan.value_bytes // 2)
        return (b"%d-" % number + half).ljust(self.plan.value_bytes, b"x")

    def store(self, number: int, offset: int) -> None:
        """Note that an update is in the log."""
        if self.stored.setdefault(offset, number) != number:
            self.faults.append(
                f"{self.topic}: update {number} was acknowledged at {offset}, as was {self.stored[offset]}"
            )
        self._numbers.add(number)

    def check(self, rows: Iterable[Row], active_offset: int) -> tuple[list[str], str]:
        """Judge what a consumer saw; faults and a remark.

        `active_offset` is where the active segment began afterwards. The updates that are seen for the first time were not
        acknowledged, but are in the log from now on.
        """
        faults = list(self.faults)
        seen: dict[int, Row] = {}
        unsure = 0
        for row in rows:
            if seen and row.offset <= next(reversed(seen)):
                faults.append(f"offset {row.offset} comes after {next(reversed(seen))}")
            seen[row.offset] = row
            number = self.stored.get(row.offset)
            if number is None:
                number = self._number_of(row)
                if number is None:
                    faults.append(
                        f"offset {row.offset}: key {row.key!r} with {(row.value or b'')[:30]!r} was never sent"
                    )
                    continue
                unsure += 1
                self.store(number, row.offset)
            update = self.sent[number]
            value = self.value(number) if update.has_value else None
            if row.key != b"%d" % update.key or row.value != value:
                faults.append(
                    f"offset {row.offset}: expected update {number}, got {row.key!r} {(row.value or b'')[:30]!r}"
                )
        last: dict[int, int] = {}  # key -> highest offset in the log, and below the active segment
        last_cleanable: dict[int, int] = {}
        for offset in sorted(self.stored):
            key = self.sent[self.stored[offset]].key
            last[key] = offset
            if offset < active_offset:
                last_cleanable[key] = offset
        removed = 0
        for offset, number in self.stored.items():
            if offset in seen:
                continue
            removed += 1
            key, has_value = self.sent[number]
            is_superseded = offset < last_cleanable.get(key, -1)
            is_expired = not has_value and offset < active_offset
            if not is_superseded and not is_expired:
                faults.append(f"offset {offset}: update {number} of key {key} is lost, the last is at {last[key]}")
        for row in seen.values():
            key = int(row.key or b"-1")
            if row.offset < last.get(key, -1) and last[key] not in seen:
                faults.append(f"offset {row.offset} of key {key} has come back, its tombstone at {last[key]} is gone")
        remark = f"{self.topic}: {len(self.stored)} stored, {removed} of them cleaned away, {len(last)} keys, {unsure} unsure"
        return faults, remark

    def _number_of(self, row: Row) -> int | None:
        """Return which update a record is that was not acknowledged."""
        if row.value is not None:
            text = row.value.partition(b"-")[0]
            number = int(text) if text.isdigit() else -1
            return number if 0 <= number < len(self.sent) and number not in self._numbers else None
        # A tombstone has no number: it is the first of its key after the update stored before it.
        before = max((number for offset, number in self.stored.items() if offset < row.offset), default=-1)
        for number in range(before + 1, len(self.sent)):
            key, has_value = self.sent[number]
            if not has_value and row.key == b"%d" % key and number not in self._numbers:
                return number
        return None


class Updates(threading.Thread):
    """Sends updates to all topics until it is told to stop, also while the broker is being killed."""

    def __init__(self, servers: str, histories: Iterable[History]) -> None:
        super().__init__(daemon=True)
        self._loads = [
            (history, Producer({"bootstrap.servers": servers, "linger.ms": 5, "log_level": 0, **history.plan.producer}))
            for history in histories
        ]
        self._is_over = threading.Event()
        self.start()

    def run(self) -> None:
        while not self._is_over.is_set():
            is_idle = True
            for history, producer in self._loads:
                for _ in range(min(200, QUEUED - len(producer))):
                    is_idle = False
                    number, value, key = history.next_update()
                    producer.produce(
                        history.topic,
                        value,
                        key,
                        partition=0,
                        on_delivery=lambda *at, h=history, n=number: _note(h, n, *at),
                    )
                producer.poll(0)
            if is_idle:
                _wait_for_room()

    def end(self, *, is_answered: bool) -> None:
        """Stop sending; wait for the answers, or take what came before the broker was gone."""
        self._is_over.set()
        self.join()
        for history, producer in self._loads:
            if not is_answered:
                producer.purge()
            if producer.flush(60):
                history.faults.append(f"{history.topic}: not all updates were answered")


def _wait_for_room() -> None:
    """Give the producers a moment to send what they hold."""
    time.sleep(0.001)


def _note(history: History, number: int, error: KafkaError | None, message: Any) -> None:
    if error is None:
        history.store(number, message.offset())
