"""A small data directory with something of everything, written by any version of Diamant, and what clients see of it.

    python -m tests.interop.golden_directory DIAMANT OUT.tar.xz [--kill] [--kind KIND] [--set NAME=VALUE ...]

DIAMANT is the command of the version that writes. The archive has `data`, its snapshots, `keys` (they sign certificates), and
`seen.json`, what `look` saw before the broker was stopped, or killed. Its clock is manual, and stands. KIND is
what is in progress: `erasure`, `redaction`, or `snapshot`, while which nothing can be erased.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import json
import re
import signal
import subprocess
import tarfile
import tempfile
import time
import urllib.request
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ConfigResource,
    ConfigSource,
    NewTopic,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from tests.broker.wire import INCREMENTAL_ALTER_CONFIGS, WireClient

DESCRIBE_QUOTAS, ALTER_QUOTAS, LIST_TRANSACTIONS = 48, 49, 66
PARTITIONS = {"codecs": 2, "users": 2, "both": 1, "orders": 1, "payments": 1, "mails": 1}
COMPACTED = ("users", "both", "orders", "payments")
FOREVER = {"retention.ms": "-1"}
CONFIGS = {
    "users": {"cleanup.policy": "compact"},
    "both": {"cleanup.policy": "compact,delete", "message.timestamp.type": "LogAppendTime"},
    "orders": {"cleanup.policy": "compact", "max.message.bytes": "2000000"},
    "payments": {"cleanup.policy": "compact"},
}
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
GROUPS = ("by-hand", "in-transactions", "modern", "modern-left", "readers", "static")
REDACTIONS = {"mails": 'value.customer == "7"', "orders": 'key == "never-ended-orders-1"'}
PASSWORD = b"secret"
AFTER_SNAPSHOT = "written after the snapshot"
DONE_S = 60
_ACLS = (("User:alice", ResourceType.TOPIC, "users"), ("User:bob", ResourceType.GROUP, "readers"))


class Running(NamedTuple):
    """The addresses of a broker."""

    kafka: str
    http: str

    @property
    def servers(self) -> dict[str, Any]:
        """A client's configuration."""
        return {"bootstrap.servers": self.kafka, "log_level": 0}

    def call(self, method: str, path: str, fields: dict[str, Any] | None = None) -> Any:
        """Return a request over HTTP; HTTPError."""
        body = None if fields is None else json.dumps(fields).encode()
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(f"{self.http}{path}", method=method, data=body, headers=headers)
        with urllib.request.urlopen(request, timeout=DONE_S) as answer:
            return json.loads(answer.read())

    def wire(self, api_key: int, version: int, fields: dict[str, Any]) -> Any:
        """Return a request of Kafka's that no client library of Python has."""

        async def ask() -> Any:
            async with WireClient(self.kafka) as client:
                return await client.call(api_key, version, fields)

        return asyncio.run(ask())


class Row(NamedTuple):
    """One record to send."""

    key: str | None
    value: str | None
    partition: int = 0
    headers: tuple[tuple[str, bytes | None], ...] = ()


def send(broker: Running, topic: str, rows: Iterable[Row], **conf: Any) -> None:
    """Write records as one batch or a few."""
    producer = Producer({**broker.servers, "linger.ms": 50, **conf})
    for key, value, partition, headers in rows:
        producer.produce(topic, key=key, value=value, partition=partition, headers=[*headers])
    assert producer.flush(DONE_S) == 0


def customers(version: str, numbers: Iterable[int]) -> Iterator[Row]:
    """Records of users, in both partitions."""
    for number in numbers:
        yield Row(f"customer-{number}", json.dumps({"email": f"{number}@example.com", "is": version}), number % 2)


def write_topics(broker: Running, admin: AdminClient) -> None:
    """Every codec, rounds of the cleaner, an unclean end, deleted records, a deleted topic, and new partitions."""
    new = [NewTopic(name, count, 1, config=FOREVER | CONFIGS.get(name, {})) for name, count in PARTITIONS.items()]
    wait(admin.create_topics([*new, NewTopic("deleted", 1, 1)]))
    for codec in CODECS:
        rows = [
            Row(f"{codec}-{n}", f"{codec} {n} {'x' * 50}", n % 2, (("codec", codec.encode()), ("none", None)))
            for n in range(10)
        ]
        send(broker, "codecs", rows, **{"compression.type": codec, "enable.idempotence": True})
    for codec in ("none", "zstd", "lz4"):
        send(broker, "users", customers(codec, range(50)), **{"compression.type": codec})
    compact(broker, "users")
    send(
        broker, "users", [*customers("later", range(10)), Row("customer-3", None, 1)], **{"compression.type": "snappy"}
    )
    send(broker, "both", [Row(f"k{n % 7}", f"v{n}") for n in range(40)], **{"compression.type": "gzip"})
    compact(broker, "both")
    send(broker, "mails", [Row(None, json.dumps({"customer": str(n % 8), "n": n})) for n in range(40)])
    wait(admin.delete_records([TopicPartition("codecs", 0, 3)]))
    wait(admin.delete_topics(["deleted"]))


def wait(futures: dict[Any, Any]) -> None:
    """Wait for requests of the admin client."""
    for future in futures.values():
        future.result(DONE_S)


def compact(broker: Running, topic: str) -> None:
    """Compact a topic and wait."""
    broker.call("POST", "/v1/compact?wait_ms=60000", {"topic": topic})


def transact(broker: Running, transactional_id: str, topic: str, end: str, group: Consumer | None = None) -> Producer:
    """Return a transaction that commits, aborts, or stays open as long as the producer."""
    producer = Producer({**broker.servers, "transactional.id": transactional_id, "transaction.timeout.ms": 900_000})
    producer.init_transactions(DONE_S)
    producer.begin_transaction()
    for number in range(3):
        producer.produce(topic, key=f"{transactional_id}-{number}", value=end)
    producer.flush(DONE_S)
    if group is not None:
        offsets = [TopicPartition("codecs", 1, 11)]
        producer.send_offsets_to_transaction(offsets, group.consumer_group_metadata(), DONE_S)
    if end == "commit":
        producer.commit_transaction(DONE_S)
    elif end == "abort":
        producer.abort_transaction(DONE_S)
    return producer


def read_in_group(broker: Running, topic: str, count: int, **conf: Any) -> Consumer:
    """Return a member of a group that has read and committed so many records."""
    defaults = {"auto.offset.reset": "earliest", "enable.auto.commit": False}
    member = Consumer({**broker.servers, **defaults, **{name.replace("_", "."): value for name, value in conf.items()}})
    member.subscribe([topic])
    deadline_s = time.monotonic() + DONE_S
    while count and time.monotonic() < deadline_s:
        message = member.poll(1)
        count -= message is not None and message.error() is None
    assert count == 0
    member.commit(asynchronous=False)
    return member


def write_groups(broker: Running) -> list[Consumer | Producer]:
    """Groups of both protocols, with members and without; the clients that have to live on."""
    read_in_group(broker, "codecs", 20, group_id="readers").close()
    read_in_group(broker, "mails", 40, group_id="modern-left", group_protocol="consumer").close()
    by_hand = Consumer({**broker.servers, "group.id": "by-hand"})
    by_hand.commit(offsets=[TopicPartition("codecs", 0, 7, "some metadata")], asynchronous=False)
    by_hand.close()
    member = read_in_group(broker, "codecs", 40, group_id="in-transactions")
    transact(broker, "offsets", "orders", "commit", member)
    member.close()
    return [
        read_in_group(broker, "codecs", 40, group_id="static", group_instance_id="one", session_timeout_ms=300_000),
        read_in_group(broker, "users", 20, group_id="modern", group_protocol="consumer"),
    ]


def write_settings(broker: Running, admin: AdminClient) -> None:
    """Users, ACLs if the broker has an authorizer, quotas, and dynamic configurations."""
    mechanisms = {"alice": ScramMechanism.SCRAM_SHA_256, "bob": ScramMechanism.SCRAM_SHA_512}
    wait(
        admin.alter_user_scram_credentials(
            [
                UserScramCredentialUpsertion(name, ScramCredentialInfo(mechanism, 4096), PASSWORD)
                for name, mechanism in mechanisms.items()
            ]
        )
    )
    bindings = [
        AclBinding(kind, name, ResourcePatternType.LITERAL, who, "*", AclOperation.READ, AclPermissionType.ALLOW)
        for who, kind, name in _ACLS
    ]
    with contextlib.suppress(KafkaException):  # no authorizer
        wait(admin.create_acls(bindings))
    quotas = (("user", "alice", "producer_byte_rate", 12345.0), ("client-id", None, "request_percentage", 150.0))
    entries = [
        {"entity": [{"entity_type": kind, "entity_name": name}], "ops": [{"key": key, "value": value, "remove": False}]}
        for kind, name, key, value in quotas
    ]
    answer = broker.wire(ALTER_QUOTAS, 1, {"entries": entries, "validate_only": False})
    assert [int(entry.error_code) for entry in answer.entries] == [0, 0]
    settings = (
        (4, "", "log.cleaner.threads", "2"),
        (4, "1", "max.connections", "500"),
        (2, "both", "segment.ms", "100000000"),
    )
    resources = [
        {
            "resource_type": kind,
            "resource_name": name,
            "configs": [{"name": key, "config_operation": 0, "value": value}],
        }
        for kind, name, key, value in settings
    ]
    answer = broker.wire(INCREMENTAL_ALTER_CONFIGS, 1, {"resources": resources, "validate_only": False})
    assert [int(entry.error_code) for entry in answer.responses] == [0, 0, 0]


def erase(broker: Running, key: str, topic: str, wait_ms: int = DONE_S * 1000) -> None:
    """Begin an erasure."""
    broker.call("POST", f"/v1/erase?wait_ms={wait_ms}", {"key": key, "topics": [topic], "reason": "a request"})


def redact(broker: Running, topic: str, wait_ms: int) -> None:
    """Begin a redaction."""
    fields = {"topic": topic, "where": REDACTIONS[topic], "reason": "a request"}
    broker.call("POST", f"/v1/redact?wait_ms={wait_ms}", fields)


def write_erasures(broker: Running, *, is_redacting: bool) -> list[Consumer | Producer]:
    """Return an erasure and a redaction that are over, an erasure that waits for its tombstone, and what a transaction holds up.

    That is an erasure or a redaction, as one waits for the other.
    """
    erase(broker, "customer-42", "users")
    broker.call("POST", "/v1/clock/advance?wait_ms=60000", {"by": "2d"})
    deadline_s = time.monotonic() + DONE_S
    while "key-gone" not in json.dumps(broker.call("GET", "/v1/certificates")):
        assert time.monotonic() < deadline_s
    redact(broker, "mails", wait_ms=60_000)
    send(broker, "users", customers("once more", [7]))
    erase(broker, "customer-7", "users")
    send(broker, "payments", [Row(f"customer-{number}", f"paid {number}") for number in range(12)])
    never_ended = [transact(broker, f"never-ended-{topic}", topic, "open") for topic in ("payments", "orders")]
    if is_redacting:
        redact(broker, "orders", wait_ms=1000)
    else:
        erase(broker, "customer-9", "payments", wait_ms=1000)
    return never_ended


def write(broker: Running, kind: str) -> list[Consumer | Producer]:
    """Something of everything. Returns the clients that have to live as long as the broker."""
    admin = AdminClient(broker.servers)
    write_topics(broker, admin)
    transact(broker, "committer", "orders", "commit")
    transact(broker, "aborter", "orders", "abort")
    send(broker, "orders", [Row("plain", "between")])
    compact(broker, "orders")
    alive = write_groups(broker)
    write_settings(broker, admin)
    if kind == "snapshot":
        alive.append(transact(broker, "never-ended", "orders", "open"))
    else:
        alive += write_erasures(broker, is_redacting=kind == "redaction")
    send(broker, "users", customers("at the end", range(5)))
    send(broker, "orders", [Row("plain", "after")])
    if kind == "snapshot":
        broker.call("POST", "/v1/snapshots", {})
        send(broker, "mails", [Row(None, AFTER_SNAPSHOT)])
    broker.call("POST", "/v1/clock/freeze", {})
    return alive


def look(broker: Running) -> dict[str, Any]:
    """What clients see: records, offsets of groups, users, ACLs, quotas, configurations, transactions."""
    admin = AdminClient(broker.servers)
    groups = {
        group: admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])[group].result(DONE_S)
        for group in GROUPS
    }
    users = admin.describe_user_scram_credentials().result(DONE_S)
    resources = [*((ConfigResource.Type.TOPIC, name) for name in PARTITIONS), (ConfigResource.Type.BROKER, "1")]
    transactions = broker.wire(LIST_TRANSACTIONS, 0, {"state_filters": [], "producer_id_filters": []})
    quotas = broker.wire(DESCRIBE_QUOTAS, 1, {"components": [], "strict": False})
    return {
        "committed": records(broker, "read_committed"),
        "uncommitted": records(broker, "read_uncommitted"),
        "groups": {
            group: sorted([at.topic, at.partition, at.offset, at.metadata] for at in found.topic_partitions)
            for group, found in groups.items()
        },
        "protocols": {found.group_id: found.type.name for found in admin.list_consumer_groups().result(DONE_S).valid},
        "users": {name: [info.mechanism.name for info in user.scram_credential_infos] for name, user in users.items()},
        "acls": acls(admin),
        "quotas": sorted(
            [entry.entity[0].entity_type, entry.entity[0].entity_name or "", value.key, value.value]
            for entry in quotas.entries
            for value in entry.values
        ),
        "configs": {f"{kind.name} {name}": changed_configs(admin, kind, name) for kind, name in resources},
        "transactions": {one.transactional_id: one.transaction_state for one in transactions.transaction_states},
    }


def acls(admin: AdminClient) -> list[str]:
    """Return all ACLs as text; none where there is no authorizer."""
    anything = AclBindingFilter(
        ResourceType.ANY, None, ResourcePatternType.ANY, None, None, AclOperation.ANY, AclPermissionType.ANY
    )
    try:
        return sorted(
            f"{one.principal} {one.restype.name} {one.name}" for one in admin.describe_acls(anything).result()
        )
    except KafkaException:
        return []


def changed_configs(admin: AdminClient, kind: ConfigResource.Type, name: str) -> dict[str, str]:
    """Return the configurations that were set while the broker ran."""
    dynamic = {
        source.value
        for source in (
            ConfigSource.DYNAMIC_TOPIC_CONFIG,
            ConfigSource.DYNAMIC_BROKER_CONFIG,
            ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG,
        )
    }
    (found,) = admin.describe_configs([ConfigResource(kind, name)]).values()
    return {key: entry.value for key, entry in found.result(DONE_S).items() if entry.source in dynamic}


def records(broker: Running, isolation: str) -> dict[str, list[Any]]:
    """Every record of each partition: offset, timestamp, key, value, headers."""
    conf = {"group.id": "nobody", "enable.auto.commit": False, "auto.offset.reset": "earliest"}
    conf |= {"isolation.level": isolation, "enable.partition.eof": True, "fetch.wait.max.ms": 10}
    consumer = Consumer({**broker.servers, **conf})
    left = [TopicPartition(name, number, 0) for name, count in PARTITIONS.items() for number in range(count)]
    found: dict[str, list[Any]] = {f"{at.topic}-{at.partition}": [] for at in left}
    consumer.assign(left)
    ends = 0
    while ends < len(left):
        message = consumer.poll(DONE_S)
        assert message is not None
        if message.error():
            ends += 1
            continue
        headers = [[name, text(value)] for name, value in message.headers() or []]
        row = [message.offset(), message.timestamp()[1], text(message.key()), text(message.value()), headers]
        found[f"{message.topic()}-{message.partition()}"].append(row)
    consumer.close()
    return found


def text(value: bytes | None) -> str | None:
    """Bytes as JSON has them."""
    return None if value is None else value.decode()


def start(command: str, place: Path, settings: Iterable[str]) -> tuple[subprocess.Popen[str], Running]:
    """Start a version of Diamant on an empty directory."""
    own = (
        "diamant.http.listen=127.0.0.1:0", f"diamant.certificate.key.file={place}/keys/certificate.key",
        "diamant.certificate.key.ephemeral=true", "offsets.topic.num.partitions=2",
        "transaction.state.log.num.partitions=2", "group.initial.rebalance.delay.ms=0",
    )  # fmt: skip
    options = itertools.chain.from_iterable(("--set", setting) for setting in (*own, *settings))
    log = place / "broker.log"
    with log.open("w") as output:
        process = subprocess.Popen(
            [command, "start", "--listen", "127.0.0.1:0", "--data", place / "data", "--clock", "manual", *options],
            stdout=subprocess.PIPE, stderr=output, text=True,
        )  # fmt: skip
    assert process.stdout
    line = process.stdout.readline()
    told = log.read_text() + line
    (kafka, *_), (http, *_) = re.findall(r"on (127.0.0.1:\d+)", line), re.findall(r"http://127.0.0.1:\d+", told)
    return process, Running(kafka, http)


def main() -> None:
    """Write an archive."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("command")
    parser.add_argument("archive", type=Path)
    parser.add_argument("--kill", action="store_true")
    parser.add_argument("--kind", choices=("erasure", "redaction", "snapshot"), default="erasure")
    parser.add_argument("--set", action="append", default=[])
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        place = Path(directory)
        (place / "keys").mkdir(mode=0o700)
        process, broker = start(given.command, place, given.set)
        try:
            alive = write(broker, given.kind)
            (place / "seen.json").write_text(json.dumps(look(broker), indent=0))
        finally:
            process.send_signal(signal.SIGKILL if given.kill else signal.SIGTERM)
            process.communicate(timeout=DONE_S)
        assert alive
        with tarfile.open(given.archive, "w:xz") as archive:
            for path in sorted(place.glob("[!b]*")):  # not the broker's log
                archive.add(path, path.name)


if __name__ == "__main__":
    main()
