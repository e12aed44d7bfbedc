"""Compaction by Kafka's own protocol: `diamant.compact=now`, and a topic's figures in DescribeConfigs."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from diamant.broker.broker import Broker
from diamant.broker.config.broker_config import BrokerConfig
from diamant.broker.config.virtual_topic_table import READ_ONLY, ROWS
from diamant.broker.operations.compactions.compact_by_config import Allowance, CompactByConfig
from diamant.protocol.errors import ErrorCode
from diamant.storage.env.clocks import SettableClock
from diamant.storage.kraft.metadata_log import MetadataLog
from tests.broker.compacted import produce, read
from tests.broker.configurations import BROKER, TOPIC, alter, describe
from tests.broker.held_rounds import Gate, gate
from tests.broker.operations.compacting import DAY_MS, START_MS, broker, clock, fill
from tests.broker.real_clients import TIMEOUT_S, ConfluentKafka, Message
from tests.broker.request_fields import APPEND, DELETE, SET, SUBTRACT
from tests.broker.wire import ALTER_CONFIGS, DELETE_TOPICS, INCREMENTAL_ALTER_CONFIGS, WireClient
from tests.waiting import wait_until

__all__ = ["broker", "clock", "gate"]

COMPACT = ("diamant.compact", SET, "now")


async def figures(wire: WireClient, topic: str = "t") -> dict[str, str]:
    """Return Diamant's entries, by name."""
    result = await describe(wire, TOPIC, topic)
    return {config.name: config.value for config in result.configs if config.name.startswith("diamant.")}


# -- the command -------------------------------------------------------------------------------------------------------


async def test_the_answer_comes_when_it_is_done(broker: Broker, wire: WireClient) -> None:
    """After the answer a consumer reads the last values only, and the command is not stored."""
    await fill(wire)
    result = await alter(wire, TOPIC, "t", COMPACT)
    assert (result.error_code, result.error_message) == (ErrorCode.NONE, None)
    assert await read(wire, "t") == [(2, "a", "3")]
    assert "diamant.compact" not in broker.node.topics.configs_of("t")


async def test_validate_only_does_nothing(broker: Broker, wire: WireClient) -> None:
    """With validate_only nothing is compacted, but refusals are reported."""
    await fill(wire)
    await wire.create("d")
    assert (await alter(wire, TOPIC, "t", COMPACT, validate_only=True)).error_code == ErrorCode.NONE
    assert (await alter(wire, TOPIC, "d", COMPACT, validate_only=True)).error_code == ErrorCode.INVALID_CONFIG
    assert len(await read(wire, "t")) == 3
    assert len(broker.node.topics.log("t", 0).segments) == 1


async def test_invalid_compactions_by_config_are_refused(broker: Broker, wire: WireClient) -> None:
    """A delete-only topic, other values and operations, read-only entries, unknown topics: each with its code."""
    await fill(wire)
    await wire.create("d")
    result = await alter(wire, TOPIC, "d", COMPACT)
    assert result.error_code == ErrorCode.INVALID_CONFIG
    assert result.error_message == (
        "d is not compacted: its cleanup.policy is delete. Set cleanup.policy=compact or compact,delete to compact it"
    )
    for operation, value in ((SET, "later"), (SET, ""), (APPEND, "now"), (SUBTRACT, "now")):
        result = await alter(wire, TOPIC, "t", ("diamant.compact", operation, value))
        assert result.error_code == ErrorCode.INVALID_CONFIG
        assert "only SET to now is possible" in result.error_message
    for name in READ_ONLY:
        result = await alter(wire, TOPIC, "t", (name, SET, "1"))
        assert (result.error_code, result.error_message) == (ErrorCode.INVALID_CONFIG, f"{name} can only be read")
    assert (await alter(wire, TOPIC, "absent", COMPACT)).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    result = await alter(wire, TOPIC, "t", COMPACT, ("retention.ms", SET, "nonsense"))
    assert result.error_code == ErrorCode.INVALID_CONFIG
    assert len(await read(wire, "t")) == 3
    assert (await alter(wire, TOPIC, "t", ("diamant.compact", DELETE, None))).error_code == ErrorCode.NONE
    assert len(await read(wire, "t")) == 3


async def test_other_changes_of_the_same_request_apply_first(broker: Broker, wire: WireClient) -> None:
    """One request may make a topic compacted and compact it, but not compact one that it makes delete-only."""
    await fill(wire, cleanup_policy="delete")
    result = await alter(wire, TOPIC, "t", COMPACT, ("cleanup.policy", SET, "compact,delete"))
    assert result.error_code == ErrorCode.NONE
    assert broker.node.topics.configs_of("t") == {"cleanup.policy": "compact,delete"}
    assert await read(wire, "t") == [(2, "a", "3")]
    result = await alter(wire, TOPIC, "t", COMPACT, ("cleanup.policy", SET, "delete"))
    assert result.error_code == ErrorCode.INVALID_CONFIG
    assert broker.node.topics.configs_of("t") == {"cleanup.policy": "compact,delete"}


async def test_several_topics_at_once(broker: Broker, wire: WireClient) -> None:
    """Each resource has its own answer."""
    for topic in ("a", "b"):
        await fill(wire, topic)
    await wire.create("d")
    configs = [{"name": "diamant.compact", "config_operation": SET, "value": "now"}]
    resources = [{"resource_type": TOPIC, "resource_name": topic, "configs": configs} for topic in ("a", "d", "b")]
    answer = await wire.call(INCREMENTAL_ALTER_CONFIGS, 1, {"resources": resources, "validate_only": False})
    assert [one.error_code for one in answer.responses] == [0, ErrorCode.INVALID_CONFIG, 0]
    for topic in ("a", "b"):
        assert len(await read(wire, topic)) == 1


@pytest.mark.parametrize("is_retry", [True, False])
async def test_the_wait_is_bounded_and_a_retry_joins(
    broker: Broker, wire: WireClient, gate: Gate, *, is_retry: bool
) -> None:
    """After diamant.compact.wait.max.ms the answer is REQUEST_TIMED_OUT; a retry waits for the same compaction.

    A request on another connection is none: it covers all earlier writes, although a compaction is in progress.
    """
    assert (await alter(wire, BROKER, "1", ("diamant.compact.wait.max.ms", SET, "500"))).error_code == ErrorCode.NONE
    await fill(wire)
    result = await alter(wire, TOPIC, "t", COMPACT)
    assert result.error_code == ErrorCode.REQUEST_TIMED_OUT
    assert "was not compacted within 500 ms (diamant.compact.wait.max.ms)" in result.error_message
    await produce(wire, "t", "a=4", timestamp=START_MS)
    await alter(wire, BROKER, "1", ("diamant.compact.wait.max.ms", DELETE, None))
    async with WireClient(broker.bootstrap_servers) as other:
        call = asyncio.ensure_future(alter(wire if is_retry else other, TOPIC, "t", COMPACT))
        gate.opened.set()
        assert (await call).error_code == ErrorCode.NONE
    # The first request came before the last value.
    assert [offset for offset, _, _ in await read(wire, "t")] == ([2, 3] if is_retry else [3])
    assert (await alter(wire, TOPIC, "t", COMPACT)).error_code == ErrorCode.NONE
    assert [offset for offset, _, _ in await read(wire, "t")] == [3]


async def test_other_connections_continue_meanwhile(broker: Broker, wire: WireClient, gate: Gate) -> None:
    """While one connection waits for a compaction, others produce, read and describe."""
    await fill(wire)
    call = asyncio.ensure_future(alter(wire, TOPIC, "t", COMPACT))
    await wait_until(gate.begun.is_set)
    async with WireClient(broker.bootstrap_servers) as other:
        await produce(other, "t", "b=1", timestamp=START_MS)
        assert len(await read(other, "t")) == 4
        assert (await describe(other, TOPIC, "t")).error_code == ErrorCode.NONE
    assert not call.done()
    gate.opened.set()
    assert (await call).error_code == ErrorCode.NONE


async def test_a_topic_deleted_meanwhile(broker: Broker, wire: WireClient, gate: Gate) -> None:
    """The compaction of a topic that is deleted ends with UNKNOWN_TOPIC_OR_PARTITION."""
    await fill(wire)
    call = asyncio.ensure_future(alter(wire, TOPIC, "t", COMPACT))
    await wait_until(gate.begun.is_set)
    async with WireClient(broker.bootstrap_servers) as other:
        await other.call(DELETE_TOPICS, 5, {"topic_names": ["t"], "timeout_ms": 1000})
    result = await call
    assert (result.error_code, result.error_message) == (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "t-0 was deleted")
    gate.opened.set()


async def test_a_broker_that_stops_answers(tmp_path: Path, gate: Gate) -> None:
    """Waiting clients are told to retry, and the stop does not wait for the round."""
    async with Broker(BrokerConfig(listen="127.0.0.1:0", data_dir=tmp_path)) as broker:
        async with WireClient(broker.bootstrap_servers) as wire:
            await fill(wire)
            call = asyncio.ensure_future(alter(wire, TOPIC, "t", COMPACT))
            await wait_until(gate.begun.is_set)
            stopping = asyncio.ensure_future(broker.stop())
            result = await call
            assert result.error_code == ErrorCode.REQUEST_TIMED_OUT
            assert "stopping" in result.error_message
            gate.opened.set()
            await stopping


async def test_a_failed_round_is_an_error_of_storage(
    broker: Broker, wire: WireClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The message contains no path; DescribeConfigs counts the partition."""
    from diamant.cleaner.engines import plain_round

    def fails(*_arguments: object, **_options: object) -> None:
        raise OSError(28, "No space left on device", "/secret/place")

    await fill(wire)
    with monkeypatch.context() as patched:
        patched.setattr(plain_round, "clean", fails)
        result = await alter(wire, TOPIC, "t", COMPACT)
    assert result.error_code == ErrorCode.KAFKA_STORAGE_ERROR
    assert result.error_message == "t could not be compacted (uncleanable), see the broker's log"
    assert (await figures(wire))["diamant.uncleanable.partitions"] == "1: partition 0: see the broker's log"
    assert (await alter(wire, TOPIC, "t", COMPACT)).error_code == ErrorCode.NONE
    assert (await figures(wire))["diamant.uncleanable.partitions"] == "0"


async def test_the_rate_is_limited(broker: Broker, wire: WireClient) -> None:
    """Requests beyond the burst wait; those that would wait too long are told to retry later."""
    services = broker.services
    services.compact_by_config.made = CompactByConfig(broker.node, services.compactions, Allowance(0.001, 2))
    await alter(wire, BROKER, "1", ("diamant.compact.wait.max.ms", SET, "5000"))
    await fill(wire)
    for _ in range(2):
        assert (await alter(wire, TOPIC, "t", COMPACT)).error_code == ErrorCode.NONE
    result = await alter(wire, TOPIC, "t", COMPACT)
    assert result.error_code == ErrorCode.THROTTLING_QUOTA_EXCEEDED
    assert "too many such requests" in result.error_message


def test_tokens_come_back_with_time() -> None:
    """A burst passes at once, then each waits for its token; nothing is taken if the wait is too long."""
    allowance = Allowance(10.0, 3)
    assert [allowance.take(100.0, 1.0) for _ in range(3)] == [0.0, 0.0, 0.0]
    assert allowance.take(100.0, 1.0) == pytest.approx(0.1)
    assert allowance.take(100.0, 0.15) is None
    assert allowance.take(100.0, 1.0) == pytest.approx(0.2)
    assert allowance.take(200.0, 0.0) == 0.0


# -- what is shown -----------------------------------------------------------------------------------------------------


async def test_describe_configs_shows_the_figures_of_the_topic(
    broker: Broker, wire: WireClient, clock: SettableClock
) -> None:
    """The topic's figures before and after, as read-only entries with types, documentation and the default's source."""
    await fill(wire, delete_retention_ms=str(DAY_MS))
    await produce(wire, "t", "b=1", timestamp=START_MS)
    await produce(wire, "t", "b=", timestamp=START_MS)
    before = {
        "diamant.compact": "",
        "diamant.dirty.ratio": "0",
        "diamant.dirty.records": "5",
        "diamant.held.back": "",
        "diamant.last.cleaned": "never",
        "diamant.live.records": "0",
        "diamant.markers": "0",
        "diamant.oldest.superseded": "2023-11-14T22:13:20.000Z",
        "diamant.removed.records": "0",
        "diamant.tombstones": "0",
        "diamant.uncleanable.partitions": "0",
    }
    assert await figures(wire) == before
    broker.node.topics.log("t", 0).roll()
    assert (await figures(wire))["diamant.dirty.ratio"] == "1"
    clock.advance_ms(1_500)
    await alter(wire, TOPIC, "t", COMPACT)
    await produce(wire, "t", "a=4", timestamp=START_MS)
    assert await figures(wire) == before | {
        "diamant.dirty.records": "1",
        "diamant.last.cleaned": "2023-11-14T22:13:21.500Z",
        "diamant.live.records": "1",
        "diamant.oldest.superseded": "2023-11-14T22:13:21.500Z",
        "diamant.removed.records": "3",
        "diamant.tombstones": "1",
    }
    found = {config.name: config for config in (await describe(wire, TOPIC, "t")).configs}
    for name, row in ROWS.items():
        entry = found[name]
        assert (entry.read_only, entry.config_source, entry.is_sensitive) == (name in READ_ONLY, 5, False)
        assert (entry.config_type, entry.documentation) == (row.type, row.documentation)
    only = await describe(wire, TOPIC, "t", ["diamant.tombstones"])
    assert [config.name for config in only.configs] == ["diamant.tombstones"]


async def test_an_open_transaction_is_shown(broker: Broker, wire: WireClient) -> None:
    """An open transaction is shown with the partition and the offset from which nothing is cleaned."""
    from diamant.protocol.batches.batch_records import build_batch
    from diamant.protocol.batches.header import Record

    await fill(wire)
    batch = build_batch(
        [Record(0, START_MS, b"a", b"x")],
        base_offset=0, producer_id=5, producer_epoch=0, base_sequence=0, is_transactional=True,
    )  # fmt: skip
    broker.node.topics.log("t", 0).append_internal(batch)
    assert (await figures(wire))["diamant.held.back"] == "partition 0 from offset 3"


async def test_describe_configs_omits_figures_where_they_do_not_apply(broker: Broker, wire: WireClient) -> None:
    """Figures are omitted for topics that are not compacted, for requests without them, and with diamant.describe=false."""
    await fill(wire)
    await wire.create("d")
    assert await figures(wire, "d") == {}
    assert [one.name for one in (await describe(wire, TOPIC, "t", ["retention.ms"])).configs] == ["retention.ms"]
    await alter(wire, BROKER, "1", ("diamant.describe", SET, "false"))
    assert await figures(wire) == {}
    assert (await alter(wire, TOPIC, "t", COMPACT)).error_code == ErrorCode.NONE


async def test_echoes_are_passed_over(broker: Broker, wire: WireClient) -> None:
    """AlterConfigs and CreateTopics with all described entries store none of them and compact nothing."""
    await fill(wire)
    shown = {config.name: config.value for config in (await describe(wire, TOPIC, "t")).configs}
    resource = {
        "resource_type": TOPIC,
        "resource_name": "t",
        "configs": [{"name": name, "value": value} for name, value in shown.items()],
    }
    answer = await wire.call(ALTER_CONFIGS, 2, {"resources": [resource], "validate_only": False})
    assert answer.responses[0].error_code == ErrorCode.NONE
    assert len(await read(wire, "t")) == 3
    result = await wire.create("copy", **{name.replace(".", "_"): value for name, value in shown.items()})
    assert result.error_code == ErrorCode.NONE
    for topic in ("t", "copy"):
        assert not [name for name in broker.node.topics.configs_of(topic) if name.startswith("diamant.")]
    assert isinstance(broker.node.metadata, MetadataLog)


# -- with real clients -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A broker in its own thread."""
    with Broker(BrokerConfig(listen="127.0.0.1:0", data_dir=tmp_path_factory.mktemp("data"))) as running:
        yield running


def produced(broker: Broker, topic: str) -> None:
    """Produce ten values of two keys."""
    messages = [Message(b"k%d" % (value % 2), b"v%d" % value) for value in range(10)]
    ConfluentKafka().produce(broker.bootstrap_servers, topic, messages)


def consumed(broker: Broker, topic: str) -> list[tuple[bytes | None, bytes | None]]:
    """Keys and values of a topic of one partition."""
    return [(one.key, one.value) for one in ConfluentKafka().consume(broker.bootstrap_servers, topic)]


@pytest.mark.slow
def test_with_confluent_kafka(served: Broker) -> None:
    """AdminClient.incremental_alter_configs compacts; describe_configs shows the result; errors are Kafka's."""
    from confluent_kafka import KafkaError, KafkaException
    from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic

    admin = AdminClient({"bootstrap.servers": served.bootstrap_servers})
    topics = [NewTopic("cc", 1, 1, config={"cleanup.policy": "compact"}), NewTopic("cd", 1, 1)]
    for future in admin.create_topics(topics).values():
        future.result(TIMEOUT_S)
    produced(served, "cc")

    def compact(topic: str) -> None:
        resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
        resource.incremental_configs = [
            ConfigEntry("diamant.compact", "now", incremental_operation=AlterConfigOpType.SET)
        ]
        admin.incremental_alter_configs([resource])[resource].result(TIMEOUT_S)

    compact("cc")
    assert consumed(served, "cc") == [(b"k0", b"v8"), (b"k1", b"v9")]
    resource = ConfigResource(ConfigResource.Type.TOPIC, "cc")
    configs = admin.describe_configs([resource])[resource].result(TIMEOUT_S)
    assert configs["diamant.live.records"].value == "2"
    assert configs["diamant.live.records"].is_read_only
    with pytest.raises(KafkaException) as caught:
        compact("cd")
    assert caught.value.args[0].code() == KafkaError.INVALID_CONFIG
    assert "cleanup.policy is delete" in caught.value.args[0].str()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.slow
def test_with_kafka_python(served: Broker) -> None:
    """KafkaAdminClient does the same, and its alter_configs with all described entries is harmless."""
    from kafka.admin import ConfigResource, ConfigResourceType, KafkaAdminClient, NewTopic

    client = KafkaAdminClient(bootstrap_servers=served.bootstrap_servers)
    try:
        client.create_topics([NewTopic("kp", 1, 1, topic_configs={"cleanup.policy": "compact"})])
        produced(served, "kp")
        resource = ConfigResource(ConfigResourceType.TOPIC, "kp", {"diamant.compact": "now"})
        client.alter_configs([resource], incremental=False)
        assert len(consumed(served, "kp")) == 10
        client.alter_configs([resource], validate_only=True)
        assert len(consumed(served, "kp")) == 10
        assert client.alter_configs([resource]) == {"topic": {"kp": "OK"}}
        assert consumed(served, "kp") == [(b"k0", b"v8"), (b"k1", b"v9")]
        asked = [ConfigResource(ConfigResourceType.TOPIC, "kp")]
        shown = client.describe_configs(asked, config_filter="all")["topic"]["kp"]
        assert shown["diamant.live.records"]["value"] == "2"
        assert "diamant.compact" not in served.node.topics.configs_of("kp")
    finally:
        client.close()
