"""Waits for each broker's cleaner by polling: reads a replica at one offset until the record there is gone."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import suppress

from diamant.broker.client.kafka_client import KafkaClient
from diamant.broker.client.kafka_connection import ConnectionFailed
from diamant.broker.clusters.cluster_look import Cluster, now_ms
from diamant.broker.clusters.fetching import Stretch, read_stretches
from diamant.broker.clusters.rolling import Replica, Roller
from diamant.broker.clusters.work_progress import WorkProgress
from diamant.protocol.batches.batch import iter_headers
from diamant.protocol.batches.batch_records import iter_records
from diamant.protocol.batches.header import BatchHeader
from diamant.protocol.errors import ErrorCode
from diamant.words import moment

DESCRIBE_PRODUCERS = 61
POLL_S = 0.5
POINT_BYTES = 64 * 1024
NOT_CLOSED = "its active segment could not be closed"
PAUSES = 5
"""A cleaner counts as dead if no replica has made progress for this many of its pauses plus the time to clean the logs."""
LEAST_STALL_S = 60.0
CLEANED_BYTES_PER_S = 5_000_000
"""A rate that every working cleaner exceeds."""


def has_record(data: bytes, offset: int) -> bool:
    """Return True if the batches contain a record at this offset."""
    return any(_batches_with(data, offset))


def has_undecided(data: bytes, offset: int) -> bool:
    """Return True if the record at this offset is in a batch without a delete horizon. The first cleaning of a batch sets it."""
    return any(not header.has_delete_horizon for header in _batches_with(data, offset))


def _batches_with(data: bytes, offset: int) -> Iterator[BatchHeader]:
    for at, header in iter_headers(data):
        is_of_it = header.base_offset <= offset <= header.last_offset and not header.is_control
        if is_of_it and any(record.offset == offset for record in iter_records(data, at)):
            yield header


class CleanerWait:
    """Waits until each replica in `targets` has lost the record at the given offset. Closes active segments if necessary.

    `is_there` takes a replica's batches and the offset, and returns True if the wait for this replica must continue.
    """

    def __init__(
        self,
        client: KafkaClient,
        cluster: Cluster,
        progress: WorkProgress,
        targets: dict[Replica, int],
        roller: Roller,
        is_there: Callable[[bytes, int], bool] = has_record,
    ) -> None:
        self._client = client
        self._progress = progress
        self._pause_s = cluster.backoff_ms / 1000
        self.targets = targets
        self._roller = roller
        self._is_there = is_there
        self._open = set(targets)
        """Replicas whose active segment may still have to be closed."""
        self.log_bytes = 0
        """The approximate number of bytes that the brokers have to clean."""
        self.problems: dict[Replica, str] = {}
        """Replicas that cannot be read or cleaned now, with the reasons."""

    def until_clean(self, on_rolled: Callable[[], object]) -> dict[str, str]:
        """Wait; return why replicas are not clean, by name. Calls `on_rolled` once all segments are closed. Raises TimeIsUp."""
        moved = self._progress.clock()
        stalled_s = max(PAUSES * self._pause_s, LEAST_STALL_S) + self.log_bytes / CLEANED_BYTES_PER_S
        while self.targets:
            self._progress.check()
            if self._open:
                self._roll(on_rolled)
            gone = self._poll()
            for one in gone:
                del self.targets[one]
                moved = self._progress.clock()
            if self.targets and self.targets.keys() <= self.problems.keys() | self._roller.later.keys():
                break
            if self._progress.clock() - moved > stalled_s:
                return self.held(is_stalled=True)
            if self.targets:
                time.sleep(POLL_S)
        self.problems.update({one: reason for one, reason in self._roller.later.items() if one in self.targets})
        return {str(one): reason for one, reason in self.problems.items()}

    def _roll(self, on_rolled: Callable[[], object]) -> None:
        self._progress.stage("closing active segments")
        reasons = self._roller.close_segments(self._open - self.problems.keys() - self._roller.later.keys())
        self._open &= reasons.keys() | self.problems.keys() | self._roller.later.keys()
        if not self._open:
            on_rolled()
        elif self._roller.lacks:
            names = ", ".join(sorted({f"{one.topic}-{one.partition}" for one in self._open}))
            self._progress.note(
                f"the active segment of {names} is open, so no cleaner touches it: {self._roller.lacks}"
            )
        self._progress.stage("waiting for the cleaner of each replica")

    def _poll(self) -> list[Replica]:
        """Read the targets once, and return the replicas whose record is gone."""
        stretches = {
            one: Stretch(*one, offset, offset + 1, fetch_bytes=POINT_BYTES, patience_s=0.0)
            for one, offset in self.targets.items()
        }
        still: set[int] = set()

        def take(one: Stretch, data: memoryview) -> None:
            if len(data) and self._is_there(bytes(data), one.end_offset - 1):
                still.add(id(one))

        read_stretches(self._client, stretches.values(), take, self._progress.check)
        for replica, one in stretches.items():
            if one.problem:
                self.problems[replica] = one.problem
            else:
                self.problems.pop(replica, None)
        return [replica for replica, one in stretches.items() if not one.problem and id(one) not in still]

    def held(self, *, is_stalled: bool = False) -> dict[str, str]:
        """Return why replicas are not clean, by name: an open transaction, an open segment, or the cleaner."""
        for one in self.targets:
            if one in self.problems:
                continue
            held = self._open_transaction(one)
            if held:
                self.problems[one] = held
            elif one in self._open:
                why = self._roller.later.get(one, self._roller.lacks)
                self.problems[one] = ": ".join(filter(None, (NOT_CLOSED, why)))
            elif clean_ms := round(self._roller.delays[one.topic].clean_ms):
                self.problems[one] = (
                    f"the cluster's cleaner may wait for {clean_ms} ms, until {moment(now_ms() + clean_ms)}"
                )
            elif is_stalled:
                self.problems[one] = f"its cleaner has not moved for {PAUSES} pauses: is it dead? See the broker's log"
        return {str(one): reason for one, reason in self.problems.items()}

    def _open_transaction(self, replica: Replica) -> str:
        topics = [{"name": replica.topic, "partition_indexes": [replica.partition]}]
        with suppress(ConnectionFailed):
            answer = self._client.broker(replica.broker).ask(DESCRIBE_PRODUCERS, {"topics": topics})
            found = answer["topics"][0]["partitions"][0]
            if found["error_code"] != ErrorCode.NONE:
                return ""
            for one in found["active_producers"]:
                if one["current_txn_start_offset"] >= 0:
                    return (
                        f"an open transaction of producer {one['producer_id']} blocks the cleaner from offset "
                        f"{one['current_txn_start_offset']} on"
                    )
        return ""
