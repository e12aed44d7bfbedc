"""A client on librdkafka, in a process of its own: what it does is told line by line, in the words of Kafka's verifiable clients.

    python -m tests.torture.librdkafka_client BOOTSTRAP PAUSE_S produce|copy|consume TOPIC NAME MOST|SERIAL|PROTOCOL

SIGTERM ends it well. `produce` sends unique values, at most so many, with a pause between two bursts; as long the others wait for
more to read. `copy` reads them in a group and sends each to `TOPIC-copy`, exactly once; its serial number tells its values from
those of the copier before it, whose transaction may be aborted.
"""

from __future__ import annotations

import faulthandler
import itertools
import json
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from confluent_kafka import Consumer, KafkaException, Message, Producer, TopicPartition

PARTITIONS = 2
BURST = 10
PENDING = 1000
"""Records that a producer has in flight or queued at most: it must not outrun a busy machine, since its end waits for all."""
DONE_S = 45.0
SESSION_MS = 20_000
COPIES_AT_ONCE = 500
BATCHES = {"linger.ms": 2, "batch.size": 20_000}
"""Smaller than a segment."""
TIMEOUT_MS = 20_000
is_ended = False


def tell(name: str, **fields: Any) -> None:
    """Print an event."""
    print(json.dumps({"name": name, **fields}), flush=True)


def connection(bootstrap: str) -> dict[str, Any]:
    """Settings of every client: it tries again soon, and says nothing of it.

    When librdkafka 2.16 bootstraps again, it may keep the terminated handle of a coordinator, and wait for it without end.
    """
    again = {"reconnect.backoff.max.ms": 200, "retry.backoff.max.ms": 200, "metadata.recovery.strategy": "none"}
    return {"bootstrap.servers": bootstrap, "log_level": 0, **again}


def produce(bootstrap: str, pause_s: float, topic: str, name: str, most: str) -> None:
    """Send as an idempotent producer, until the end; then wait for what is not acknowledged."""
    several = {"batch.num.messages": 4}  # in flight from one burst
    own = {"enable.idempotence": True, "message.timeout.ms": 0, **BATCHES, **several}
    producer = Producer({**connection(bootstrap), **own})

    def acknowledged(error: Any, message: Message) -> None:
        value = (message.value() or b"").decode()
        if error is not None:
            raise KafkaException(error)
        tell("producer_send_success", partition=message.partition(), offset=message.offset(), value=value)

    for number in itertools.count():
        while number >= int(most) and not is_ended:
            producer.poll(pause_s)
        if is_ended:
            break
        value, partition = f"{name}.{number}", number // BURST % PARTITIONS
        tell("sent", topic=topic, partition=partition, value=value)
        producer.produce(topic, value, partition=partition, on_delivery=acknowledged)
        until_s = time.monotonic() + (pause_s if number % BURST == 0 else 0)
        while producer.poll(max(0, until_s - time.monotonic())):  # returns with each acknowledgment
            pass
        while len(producer) >= PENDING:
            producer.poll(pause_s)
    left = producer.flush(DONE_S)
    if left:
        raise SystemExit(f"{left} records are not acknowledged")


def messages(consumer: Consumer, timeout_s: float, count: int) -> list[Message]:
    """Poll; errors after which a client tries again are none."""
    return [one for one in consumer.consume(count, timeout_s) if one.error() is None]


def member(bootstrap: str, topic: str, group: str, protocol: str) -> Consumer:
    """A member of a group that commits by itself."""
    session = {"session.timeout.ms": SESSION_MS, "heartbeat.interval.ms": 500} if protocol == "classic" else {}
    own = {"group.id": group, "group.protocol": protocol, "enable.auto.commit": False, "auto.offset.reset": "earliest"}
    consumer = Consumer({**connection(bootstrap), **own, **session, "isolation.level": "read_committed"})
    consumer.subscribe([topic])
    return consumer


def consume(bootstrap: str, pause_s: float, topic: str, group: str, protocol: str) -> None:
    """Read, tell, commit."""
    consumer = member(bootstrap, topic, group, protocol)
    while not is_ended:
        found = messages(consumer, pause_s, 100)
        for one in found:
            value = (one.value() or b"").decode()
            tell("record_data", topic=topic, partition=one.partition(), offset=one.offset(), value=value)
        with suppress(KafkaException):  # a rebalance, or the broker is gone: then it is read again
            for at in consumer.commit(asynchronous=False) if found else ():
                if at.error is None and at.offset >= 0:  # not of a partition that it has read nothing of
                    tell(
                        "offsets_committed", offsets=[{"topic": topic, "partition": at.partition, "offset": at.offset}]
                    )
    consumer.close()


def copy(bootstrap: str, pause_s: float, topic: str, name: str, serial: str) -> None:
    """Read, process, write in transactions. After any error it begins where it has committed, with new clients."""
    attempt = itertools.count()
    while not is_ended:
        consumer = member(bootstrap, topic, name, "classic")
        own = {"transactional.id": name, "transaction.timeout.ms": TIMEOUT_MS, **BATCHES}
        producer = Producer({**connection(bootstrap), **own})
        try:
            producer.init_transactions(DONE_S)
            for rows in transactions(consumer, producer, topic, pause_s):
                for one in rows:
                    value = f"{(one.value() or b'').decode()}/{serial}.{next(attempt)}"
                    tell("sent", topic=f"{topic}-copy", partition=one.partition(), value=value)
                    producer.produce(f"{topic}-copy", value, partition=one.partition())
        except KafkaException as error:
            tell("tries_again", error=str(error))
        finally:
            producer.purge()
            consumer.close()


def transactions(consumer: Consumer, producer: Producer, topic: str, pause_s: float) -> Iterator[list[Message]]:
    """What is to be sent in each transaction, which is committed with the offsets that follow."""
    while not is_ended:
        found = messages(consumer, pause_s, COPIES_AT_ONCE)
        if not found:
            continue
        producer.begin_transaction()
        yield found
        ends = {one.partition(): (one.offset() or 0) + 1 for one in found}
        offsets = [TopicPartition(topic, partition, offset) for partition, offset in ends.items()]
        producer.send_offsets_to_transaction(offsets, consumer.consumer_group_metadata(), DONE_S)
        producer.commit_transaction(DONE_S)
        for at in offsets:
            tell("copied", partition=at.partition, offset=at.offset)


def end(_: int, __: object) -> None:
    """Of the signal."""
    global is_ended
    is_ended = True


def main() -> None:
    """Run one client until SIGTERM."""
    signal.signal(signal.SIGTERM, end)
    faulthandler.register(signal.SIGUSR1)
    bootstrap, pause_s, role, *arguments = sys.argv[1:]
    {"produce": produce, "copy": copy, "consume": consume}[role](bootstrap, float(pause_s), *arguments)


if __name__ == "__main__":
    main()
