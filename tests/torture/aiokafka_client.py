"""A client on aiokafka, in a process of its own, as `librdkafka_client` is one.

python -m tests.torture.aiokafka_client BOOTSTRAP PAUSE_S produce|consume TOPIC NAME [MOST]
"""

from __future__ import annotations

import asyncio
import faulthandler
import itertools
import logging
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.errors import KafkaError

from tests.torture.librdkafka_client import BURST, PARTITIONS, SESSION_MS, tell

RETRY_MS = 100
Started = TypeVar("Started", AIOKafkaConsumer, AIOKafkaProducer)


async def produce(bootstrap: str, pause_s: float, topic: str, name: str, most: str, is_ended: asyncio.Event) -> None:
    """Send as an idempotent producer, burst after burst, each until it is acknowledged."""
    producer = await started(
        lambda: AIOKafkaProducer(
            bootstrap_servers=bootstrap, enable_idempotence=True, retry_backoff_ms=RETRY_MS, request_timeout_ms=600_000
        ),
        is_ended,
    )
    for number in itertools.count():
        if number * BURST >= int(most):
            await is_ended.wait()
        if is_ended.is_set():
            break
        values, partition = [f"{name}.{number * BURST + index}" for index in range(BURST)], number % PARTITIONS
        for value in values:
            tell("sent", topic=topic, partition=partition, value=value)
        sent = [await producer.send(topic, value.encode(), partition=partition) for value in values]
        for value, future in zip(values, sent, strict=True):
            at = await future
            tell("producer_send_success", partition=at.partition, offset=at.offset, value=value)
        await pause(is_ended, pause_s)
    await producer.stop()


async def consume(bootstrap: str, pause_s: float, topic: str, name: str, is_ended: asyncio.Event) -> None:
    """Read, tell, commit."""
    consumer = await started(
        lambda: AIOKafkaConsumer(
            topic,
            bootstrap_servers=bootstrap,
            group_id=name,
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            isolation_level="read_committed",
            session_timeout_ms=SESSION_MS,
            heartbeat_interval_ms=500,
            retry_backoff_ms=RETRY_MS,
            fetch_max_wait_ms=int(pause_s * 1000),
        ),
        is_ended,
    )
    committed: dict[TopicPartition, int] = {}
    while not is_ended.is_set():
        with suppress(KafkaError):  # a rebalance, or the broker is gone: then it is read or committed again
            for at, found in (await consumer.getmany(timeout_ms=int(pause_s * 1000))).items():
                for one in found:
                    value = (one.value or b"").decode()
                    tell("record_data", topic=topic, partition=at.partition, offset=one.offset, value=value)
            # Where it has read nothing, too: the member before it may have been killed between its commit and the answer.
            ends = {at: await consumer.position(at) for at in consumer.assignment()}
            if ends != committed:
                await consumer.commit(ends)
                offsets = [{"topic": topic, "partition": at.partition, "offset": end} for at, end in ends.items()]
                tell("offsets_committed", offsets=offsets)
                committed = ends
    await consumer.stop()


async def pause(is_ended: asyncio.Event, pause_s: float) -> None:
    """A moment, or until the end."""
    with suppress(TimeoutError):
        await asyncio.wait_for(is_ended.wait(), pause_s)


async def started(new: Callable[[], Started], is_ended: asyncio.Event) -> Started:
    """Return a started client, as soon as the broker is there: a new one for each attempt."""
    while True:
        client = new()
        try:
            await client.start()
            return client
        except KafkaError:
            await client.stop()
            await pause(is_ended, RETRY_MS / 1000)


async def run() -> None:
    """Run one client until SIGTERM."""
    logging.disable()
    bootstrap, pause_s, role, *arguments = sys.argv[1:]
    is_ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, is_ended.set)
    await {"produce": produce, "consume": consume}[role](bootstrap, float(pause_s), *arguments, is_ended)


def main() -> None:
    """Run a loop for it."""
    faulthandler.register(signal.SIGUSR1)
    asyncio.run(run())


if __name__ == "__main__":
    main()
