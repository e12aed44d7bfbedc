"""A cluster for the tests of erasures from outside: topics, records, configurations, and what each replica holds."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self

import pytest

from diamant.broker.broker import Broker
from diamant.broker.client.kafka_client import EARLIEST, LATEST, KafkaClient, KafkaRefusal
from diamant.broker.client.producing import TopicWriter
from diamant.broker.clusters import cluster_waiting, lowered_configs, rolling
from diamant.broker.clusters.cluster_look import ConfigValue, configs_of
from diamant.broker.clusters.fetching import Stretch, read_stretches
from diamant.broker.clusters.register import ClusterWork, Register
from diamant.broker.config.broker_config import BrokerConfig
from diamant.protocol.batches.batch import iter_headers
from diamant.protocol.batches.batch_records import iter_records
from diamant.protocol.batches.header import Record
from diamant.protocol.wire.apis import METADATA
from tests.waiting import PATIENCE_S

CREATE_TOPICS = 19
OLD_MS = 1_700_000_000_000
SEGMENT_MS = 50
"""The `segment.ms` that an erasure of a Diamant sets in these tests, in place of a second."""


USERS = ("reads", "writes", "alters", "may-all", "may-roll", "may-nothing")
PASSWORD = "secret"
_MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule required"
PLAIN_LOGINS = {
    "sasl.enabled.mechanisms": "PLAIN",
    "listener.name.sasl_plaintext.plain.sasl.jaas.config": " ".join(
        [_MODULE, *(f'user_{name}="{PASSWORD}"' for name in USERS)]
    )
    + ";",
}
"""Settings of a listener where `USERS` log in by PLAIN."""


IMPATIENT = (
    (cluster_waiting, "POLL_S", 0.01),
    (lowered_configs, "SEGMENT_MS", SEGMENT_MS),
    (lowered_configs, "ROLLING", {"segment.ms": str(SEGMENT_MS)}),
    (rolling, "SEGMENT_MS", SEGMENT_MS),
    (rolling, "FIRST_PAUSE_S", SEGMENT_MS / 1000),
)
"""What an erasure of a Diamant waits for in this process: a second for the age of each segment, and half for each look."""

SECURED = ("SASL_PLAINTEXT", "SASL_SSL", "SSL")


class AnyCluster:
    """A running cluster."""

    def __init__(self, bootstrap: str, addresses: Mapping[str, str] = MappingProxyType({})) -> None:
        self.bootstrap = bootstrap
        self.addresses = addresses
        """The secured listeners of one broker, by their protocols. At SASL_PLAINTEXT, `USERS` log in by PLAIN."""
        self.client = KafkaClient(bootstrap, timeout_s=PATIENCE_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.client.close()

    def create(self, name: str, *, partitions: int = 1, replication: int = -1, **configs: str) -> str:
        """Create a compacted topic, and return its name."""
        fields = {
            "topics": [
                {
                    "name": name,
                    "num_partitions": partitions,
                    "replication_factor": replication,
                    "assignments": [],
                    "configs": [
                        {"name": config.replace("_", "."), "value": value}
                        for config, value in {"cleanup_policy": "compact", **configs}.items()
                    ],
                }
            ],
            "timeout_ms": 30_000,
            "validate_only": False,
        }
        answer = self.client.controller().ask(CREATE_TOPICS, fields)["topics"][0]
        assert not answer["error_code"], answer
        self.wait_known(name)
        self.client.led(name, range(partitions))
        return name

    def wait_known(self, topic: str) -> None:
        """Wait until each broker knows a topic."""
        deadline = time.monotonic() + PATIENCE_S
        fields = {"topics": [{"name": topic}], "allow_auto_topic_creation": False}
        for broker in self.client.broker_ids():
            while self.client.broker(broker).ask(METADATA, fields)["topics"][0]["error_code"]:
                assert time.monotonic() < deadline, "the topic is not known"
                time.sleep(0.01)

    def produce(
        self,
        topic: str,
        pairs: Sequence[tuple[bytes, bytes | None]],
        *,
        timestamp_ms: int | None = None,
        partition: int = 0,
        codec: int = 0,
    ) -> None:
        """Write records one after the other to one partition."""
        writer = TopicWriter(self.client, topic, codec=codec)
        present_ms = round(time.time() * 1000) if timestamp_ms is None else timestamp_ms
        for line, (key, value) in enumerate(pairs):
            writer.add(line, Record(0, present_ms, key, value), partition)
        writer.flush()

    def wait_gone(self, topic: str) -> None:
        """Wait until no broker knows a topic."""
        deadline = time.monotonic() + PATIENCE_S
        with suppress(KafkaRefusal):
            while self.client.topic(topic):
                assert time.monotonic() < deadline, "the topic is still there"
                time.sleep(0.01)

    def configs(self, topic: str) -> Mapping[str, ConfigValue]:
        """Return the topic's configurations, and whether each is set on it; without the figures that Diamant shows among them."""
        found = configs_of(self.client, topic)
        return {name: value for name, value in found.items() if not name.startswith("diamant.")}

    def held(self, topic: str, partition: int = 0, broker: int | None = None) -> list[Record]:
        """Return all records that one replica answers, by a walk of its own over what it sends. Default: the leader."""
        (led,) = [one for one in self.client.topic(topic).partitions if one.number == partition]
        start = self.client.offsets(topic, [partition], EARLIEST)[partition]
        end = self.client.offsets(topic, [partition], LATEST)[partition]
        stretch = Stretch(topic, partition, led.leader if broker is None else broker, start, end)
        found: list[Record] = []

        def take(_: Stretch, data: memoryview) -> None:
            for at, header in iter_headers(bytes(data)):
                if not header.is_control:
                    found.extend(iter_records(bytes(data), at))

        read_stretches(self.client, [stretch], take)
        assert not stretch.problem, stretch.problem
        return found


def open_works(register: Register) -> list[ClusterWork]:
    """Return the works of a register that are not closed; others wait for the horizon of their tombstones."""
    return [work for work in register.all() if work.is_open]


@contextmanager
def diamant(
    path: Path,
    secured: Sequence[str] = SECURED[:1],
    properties: Mapping[str, str] = MappingProxyType({}),
    **settings: Any,
) -> Iterator[AnyCluster]:
    """A Diamant that is asked nothing but Kafka's protocol, with these secured listeners."""
    quick: dict[str, Any] = {"log_cleaner_backoff_ms": 20, "diamant_cleaner_mode": "kafka"}
    known = {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
        **PLAIN_LOGINS,
        **properties,
    }
    listen = [f"{name}://127.0.0.1:0" for name in ("PLAINTEXT", *secured)]
    with (
        pytest.MonkeyPatch.context() as patch,
        Broker(BrokerConfig(listen=listen, data_dir=path, properties=known, **{**quick, **settings})) as broker,
    ):
        for module, name, value in IMPATIENT:
            patch.setattr(module, name, value)
        bootstrap, *addresses = broker.bootstrap_servers.split(",")
        with AnyCluster(bootstrap, dict(zip(secured, addresses, strict=True))) as cluster:
            yield cluster
