"""Watch on the real clock whether a broker keeps the promise of `max.compaction.lag.ms` (KIP-354) when traffic stops.

Run by hand; pytest does not collect it. It needs this project with its test tools installed, and a running broker whose data
directory can be read, Diamant or Apache Kafka:

    diamant start --listen 127.0.0.1:9092 --data data &
    python tests/interop/kip354.py 127.0.0.1:9092 --data data

It makes a topic whose segments only the lag can close (`segment.ms` is a day), writes two values of one key, and sends
nothing more. Then it looks for the bytes of the first in the files of the partition, and says when they left: the log's files,
and all files, those with the suffix `.deleted` included. `--midway COMMAND` runs a shell command at half of the lag, for
example one that restarts the broker.

The exit code is 0 if the first value left the log in time: within the lag, one loop of the cleaner and a second for the round.
"""

from __future__ import annotations

import argparse
import secrets
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

DAY_MS = 86_400_000
FILE_DELETE_DELAY_MS = 1000
ROUND_S = 1.0
POLL_S = 0.05


def make_topic(servers: str, topic: str, lag_ms: int) -> None:
    """Create a compacted topic in which nothing but the lag makes anything happen: nor a segment's age, nor the dirty ratio."""
    config = {
        "cleanup.policy": "compact",
        "max.compaction.lag.ms": str(lag_ms),
        "segment.ms": str(DAY_MS),
        "min.cleanable.dirty.ratio": "1",
        "file.delete.delay.ms": str(FILE_DELETE_DELAY_MS),
    }
    admin = AdminClient({"bootstrap.servers": servers})
    for future in admin.create_topics([NewTopic(topic, 1, 1, config=config)]).values():
        future.result(30)


def write(servers: str, topic: str, values: Sequence[bytes]) -> None:
    """Write the values of one key, each acknowledged before the next is sent."""
    producer = Producer({"bootstrap.servers": servers, "acks": "all"})
    for value in values:
        producer.produce(topic, value, b"key")
        if producer.flush(30):
            raise RuntimeError("the broker did not acknowledge")


def read(servers: str, topic: str) -> list[bytes | None]:
    """Return all values that a consumer is given."""
    consumer = Consumer(
        {"bootstrap.servers": servers, "group.id": "kip354", "enable.auto.commit": False, "enable.partition.eof": True}
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    values: list[bytes | None] = []
    while message := consumer.poll(30):
        if message.error() is not None:
            consumer.close()
            return values
        values.append(message.value())
    raise RuntimeError("the broker does not answer")


def files_with(directory: Path, value: bytes) -> list[str]:
    """Return the names of the partition's files that hold the bytes."""
    found = []
    for path in sorted(directory.iterdir()):
        try:
            if value in path.read_bytes():
                found.append(path.name)
        except FileNotFoundError:
            pass  # Renamed or removed meanwhile.
    return found


def wait_until_gone(
    directory: Path, old: bytes, *, since_s: float, until_s: float, midway: tuple[float, str]
) -> dict[str, float]:
    """Return when the value left the log and the disk, in seconds after `since_s`; missing if it did not."""
    left: dict[str, float] = {}
    command_s, command = midway
    names: list[str] = []
    while time.monotonic() < until_s:
        if command and time.monotonic() >= command_s:
            print(f"{time.monotonic() - since_s:7.2f} s  $ {command}", flush=True)
            subprocess.run(command, shell=True, check=True)
            command = ""
        found = files_with(directory, old)
        now_s = time.monotonic() - since_s
        if found != names:
            print(f"{now_s:7.2f} s  the first value is in {', '.join(found) or 'no file'}", flush=True)
            names = found
        if not any(name.endswith(".log") for name in found):
            left.setdefault("log", now_s)
        if not found:
            left["disk"] = now_s
            break
        time.sleep(POLL_S)
    return left


def main() -> int:
    """Run the check; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("servers", metavar="HOST:PORT", help="the broker")
    parser.add_argument("--data", type=Path, required=True, metavar="DIR", help="its data directory")
    parser.add_argument("--topic", default=f"kip354-{int(time.time())}", help="a new topic (default: kip354-SECONDS)")
    parser.add_argument("--lag-ms", type=int, default=10_000, help="max.compaction.lag.ms (default: 10000)")
    parser.add_argument(
        "--backoff-ms", type=int, default=15_000, help="the broker's log.cleaner.backoff.ms (default: Kafka's, 15000)"
    )
    parser.add_argument("--midway", default="", metavar="COMMAND", help="shell command to run at half of the lag")
    options = parser.parse_args()
    old, new = (b"kip354-" + secrets.token_hex(24).encode() for _ in range(2))
    allowed_s = (options.lag_ms + options.backoff_ms) / 1000
    make_topic(options.servers, options.topic, options.lag_ms)
    write(options.servers, options.topic, [old, new])
    since_s = time.monotonic()
    left = wait_until_gone(
        options.data / f"{options.topic}-0",
        old,
        since_s=since_s,
        until_s=since_s + 3 * allowed_s,
        midway=(since_s + options.lag_ms / 2000, options.midway),
    )
    values = read(options.servers, options.topic)
    if new not in values or not files_with(options.data / f"{options.topic}-0", new):
        print("FAILED   the last value is gone")
        return 1
    if (old in values) != ("log" not in left):
        print(f"FAILED   the files and the consumer differ: the consumer gets {len(values)} values")
        return 1
    if "log" not in left:
        print(
            f"kept     the first value is still there after {3 * allowed_s:.0f} s; consumers get {len(values)} values"
        )
        return 1
    delay = f"of {allowed_s:.2f} s (lag and one loop)"
    disk = f", the disk after {left['disk']:.2f} s" if "disk" in left else ""
    is_late = left["log"] > allowed_s + ROUND_S
    print(
        f"{'LATE' if is_late else 'ok':8} the first value left the log after {left['log']:.2f} s {delay}{disk}; the last is there"
    )
    return int(is_late)


if __name__ == "__main__":
    sys.exit(main())
