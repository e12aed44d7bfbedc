"""The operations of a broker for programs: functions that `Broker` has as methods.

They may be awaited in any event loop, and raise VerbError (`broker/errors.py`).
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING

from diamant.broker.operations.calls.cross_loop import on_loop
from diamant.broker.perform import AnyBroker

if TYPE_CHECKING:
    from diamant.broker.operations.records.produce import Data, Headers, Produced
    from diamant.broker.schedules.history import History
    from diamant.broker.schedules.schedule import Schedule
    from diamant.broker.snapshots.store import BrokerSnapshot
    from diamant.protocol.batches.header import Record


async def create_topic(
    broker: AnyBroker, topic: str, /, partitions: int | None = None, *, compact: bool = False, **configs: object
) -> None:
    """Create a topic: `create_topic("users", 3, compact=True, segment_ms=60_000)`.

    `configs` are Kafka's topic configurations with underscores; `compact` is `cleanup_policy="compact"`. KafkaError.
    """
    if compact:
        configs["cleanup_policy"] = "compact"
    await on_loop(broker.loop, broker.services.produce().create_topic(topic, partitions, configs))


async def produce(
    broker: AnyBroker,
    topic: str,
    value: Data,
    key: Data = None,
    *,
    partition: int | None = None,
    headers: Headers = (),
    timestamp_ms: int | None = None,
) -> Produced:
    """Write one record, and return where it is; `ProduceOperation` says what the arguments mean. None is a tombstone."""
    return await on_loop(
        broker.loop,
        broker.services.produce().produce(topic, value, key, partition, headers, timestamp_ms),
    )


def records(broker: AnyBroker, topic: str, partition: int | None = None) -> AsyncGenerator[tuple[int, Record], None]:
    """Yield each committed record that a consumer would read now, with its partition; as `latest`."""
    operation = broker.services.records()
    return operation.records(operation.pages(topic, partition))


def latest(
    broker: AnyBroker, topic: str, partition: int | None = None, *, with_tombstones: bool = False
) -> AsyncGenerator[tuple[int, Record], None]:
    """Yield the latest committed record of each key, with its partition: what a log has that is compacted to its end.

    As of one moment for each partition, read page by page. A caller that may stop early closes it (`contextlib.aclosing`).
    """
    operation = broker.services.records()
    return operation.records(operation.latest_pages(topic, partition, with_tombstones=with_tombstones))


async def snapshot(broker: AnyBroker) -> BrokerSnapshot:
    """Keep the present state, for `reset`, beside the data directory until it is deleted. NotPossible, TooMany."""
    return await on_loop(broker.loop, broker.services.snapshots().create())


async def reset(broker: AnyBroker, snapshot: BrokerSnapshot | str, *, seamless: bool = False) -> None:
    """Put everything back to a snapshot, given itself or its id; to clients it looks like a restart.

    With `seamless` their connections stay. NotFound, NotPossible.
    """
    snapshot_id = snapshot if isinstance(snapshot, str) else snapshot.id
    await on_loop(broker.loop, broker.running.reset(snapshot_id, seamless))


async def play(broker: AnyBroker, schedule: Schedule) -> History:
    """Run the cleaner between clients' fetches as a schedule says (`diamant.schedules`); return the history, which grows."""
    from diamant.broker.schedules.play import play

    return await on_loop(broker.loop, play(broker.node, schedule))
