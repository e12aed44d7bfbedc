"""The data source in Spark: against a consumer of the same topics, and pushed filters and columns as Spark plans them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from diamant.broker.broker import Broker
from diamant.broker.client.admin import Admin
from diamant.broker.config.broker_config import BrokerConfig
from diamant.cleaner.spark.session.session import first_line
from diamant.spark import read_log
from tests.builder import make_batch
from tests.cleaner.spark.big_log import BATCHES, RECORDS, SEGMENTS, write_big_log

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
PARTITIONS = 2
COLUMNS = ("topic", "partition", "offset", "timestamp_ms", "key", "value", "headers")
Row = tuple[Any, ...]


@dataclass
class Shop:
    """A running broker with records of every kind in its topics."""

    bootstrap: str
    data: Path
    topics: tuple[str, ...] = ("plain", "transactions", "compacted")

    def produce(self, topic: str, count: int, **config: Any) -> None:
        """Send records: seven keys and some that come once, some tombstones, headers on every third."""
        producer = Producer({"bootstrap.servers": self.bootstrap, "linger.ms": 5, **config})
        for number in range(count):
            producer.produce(
                topic,
                key=f"once-{config}-{number}" if number % 50 == 3 else f"customer-{number % 7}",
                value=None if number % 11 == 10 else f"{topic}-{number}" * 10,
                headers=[("n", str(number).encode()), ("none", None)] if number % 3 == 0 else None,
            )
        assert producer.flush(30) == 0

    def transact(
        self, transactional_id: str, count: int, *, commit: bool | None, topic: str = "transactions"
    ) -> Producer:
        """Send records in a transaction; leave it open for None."""
        producer = Producer(
            {
                "bootstrap.servers": self.bootstrap,
                "transactional.id": transactional_id,
                "transaction.timeout.ms": 900_000,
            }
        )
        producer.init_transactions(30)
        producer.begin_transaction()
        for number in range(count):
            producer.produce(topic, key=f"t-{number % 5}", value=f"{transactional_id}-{number}")
        producer.flush(30)
        if commit is not None:
            (producer.commit_transaction if commit else producer.abort_transaction)(30)
        return producer

    def consume(self, isolation: str) -> list[Row]:
        """Everything that a consumer gets, by topic, partition and offset."""
        consumer = Consumer(
            {
                "bootstrap.servers": self.bootstrap,
                "group.id": "reader",
                "isolation.level": isolation,
                "enable.partition.eof": True,
                "auto.offset.reset": "earliest",
            }
        )
        waiting = {(topic, partition) for topic in self.topics for partition in range(PARTITIONS)}
        consumer.assign([TopicPartition(*pair, 0) for pair in waiting])
        found = []
        while waiting:
            message = consumer.poll(30)
            assert message is not None, f"nothing came of {waiting}"
            if message.error():
                if message.error().name() != "_PARTITION_EOF":
                    raise KafkaException(message.error())
                waiting.discard((message.topic(), message.partition()))
                continue
            headers = tuple((name, value) for name, value in message.headers() or ())
            found.append(
                (
                    message.topic(),
                    message.partition(),
                    message.offset(),
                    message.timestamp()[1],
                    message.key(),
                    message.value(),
                    headers,
                )
            )
        consumer.close()
        return sorted(found, key=lambda row: row[:3])


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    """Codecs, transactions that committed, aborted and are open, and a topic that was compacted, with all of these in it."""
    data = tmp_path_factory.mktemp("shop")
    properties = {"diamant.http.listen": "127.0.0.1:0"}
    with Broker(BrokerConfig(listen=["127.0.0.1:0"], data_dir=data, properties=properties)) as broker:
        shop = Shop(broker.bootstrap_servers, data)
        topics = [NewTopic(topic, PARTITIONS, config={"internal.segment.bytes": "16384"}) for topic in shop.topics[:2]]
        topics.append(
            NewTopic("compacted", PARTITIONS, config={"cleanup.policy": "compact", "internal.segment.bytes": "16384"})
        )
        admin = AdminClient({"bootstrap.servers": shop.bootstrap})
        for future in admin.create_topics(topics).values():
            future.result(30)
        for codec in CODECS:
            shop.produce("plain", 150, **{"compression.type": codec, "enable.idempotence": codec == "lz4"})
        shop.transact("a", 40, commit=True)
        shop.transact("b", 40, commit=False)
        shop.produce("transactions", 60)
        shop.transact("a", 10, commit=False)
        for codec in CODECS:
            shop.produce("compacted", 200, **{"compression.type": codec})
            shop.transact(f"compacted-{codec}", 20, commit=codec in ("gzip", "lz4"), topic="compacted")
        Admin(shop.bootstrap).compact("compacted")
        shop.produce("compacted", 30)
        shop.transact("compacted-late", 10, commit=False, topic="compacted")
        still_open = shop.transact("c", 5, commit=None)
        shop.produce("transactions", 20)
        yield shop
        still_open.abort_transaction(30)


def spark_rows(spark: SparkSession, shop: Shop, **options: Any) -> list[Row]:
    """Return the data source's rows of the shop's topics, in the form of a consumer's records."""
    rows = read_log(spark, str(shop.data), columns=COLUMNS, topics=",".join(shop.topics), **options).collect()
    found = []
    for row in rows:
        fields = list(row)
        fields[4], fields[5] = (None if field is None else bytes(field) for field in fields[4:6])
        fields[6] = tuple((one.key, None if one.value is None else bytes(one.value)) for one in row.headers)
        found.append(tuple(fields))
    return sorted(found, key=lambda row: row[:3])


@pytest.mark.slow
@pytest.mark.parametrize("isolation", ["read_uncommitted", "read_committed"])
def test_a_live_directory_gives_what_a_consumer_reads(spark: SparkSession, shop: Shop, isolation: str) -> None:
    """Records and fields are those that a consumer reads, in every codec, up to the last stable offset, with the gaps of
    compaction.
    """
    expected = shop.consume(isolation)
    assert {row[0] for row in expected} == set(shop.topics)
    assert spark_rows(spark, shop, isolation=isolation) == expected
    offsets = [row[2] for row in expected if row[:2] == ("compacted", 0)]
    assert offsets != list(range(offsets[0], offsets[-1] + 1))


@pytest.mark.slow
def test_markers_are_reported_when_they_are_asked_for(spark: SparkSession, shop: Shop) -> None:
    """They fill the gaps between the records of a topic that is not compacted, except for the open transaction's."""
    rows = read_log(
        spark,
        str(shop.data),
        columns=["partition", "offset", "is_control"],
        topics="transactions",
        include_control=True,
    ).collect()
    assert {row.is_control for row in rows} == {True, False}
    for partition in range(PARTITIONS):
        offsets = sorted(row.offset for row in rows if row.partition == partition)
        assert offsets == list(range(len(offsets)))


@pytest.mark.slow
def test_the_compacted_view_is_what_a_consumer_ends_up_with(spark: SparkSession, shop: Shop) -> None:
    """A consumer's table of committed records by key equals the records of latest_per_key."""
    table = {(row[0], row[1], row[4]): row for row in shop.consume("read_committed")}
    expected = sorted(table.values(), key=lambda row: row[:3])
    assert spark_rows(spark, shop, latest_per_key=True) == expected


@pytest.fixture(scope="module")
def big_log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A partition with rolled segments."""
    root = tmp_path_factory.mktemp("big-log")
    write_big_log(root / "t-0")
    return root


@pytest.mark.slow
def test_spark_hands_filters_and_columns_down(spark: SparkSession, big_log: Path, tmp_path: Path) -> None:
    """The counters of a query's tasks show that one of four segments is read, and no value is copied."""
    per_segment = BATCHES * RECORDS
    frame = read_log(spark, str(big_log), columns=["offset", "key"], counters=str(tmp_path / "counters"))
    assert frame.where(f"offset >= {per_segment} and offset < {2 * per_segment}").count() == per_segment
    [found] = [json.loads(path.read_text()) for path in (tmp_path / "counters").iterdir()]
    size = sum(path.stat().st_size for path in (big_log / "t-0").glob("*.log"))
    assert found["bytes_read"] < size / SEGMENTS * 1.05
    assert found["bytes_copied"] < per_segment * 10
    assert found["records"] == per_segment


@pytest.mark.slow
def test_times_are_compared_as_spark_has_them(spark: SparkSession, big_log: Path) -> None:
    """A filter on the timestamp in SQL finds the records, to the ms."""
    frame = read_log(spark, str(big_log), columns=["offset", "timestamp"])
    found = frame.where("timestamp >= timestamp'2023-11-14 22:13:21.500' and timestamp < '2023-11-14 22:13:21.510'")
    assert sorted(row.offset for row in found.collect()) == list(range(1500, 1510))


@pytest.mark.slow
def test_a_schema_chooses_columns_too(spark: SparkSession, big_log: Path) -> None:
    """The schema chooses columns and their order; another type than the column's is refused."""
    reader = spark.read.format("kafka-log")
    assert reader.schema("key binary, offset bigint").load(str(big_log)).columns == ["key", "offset"]
    assert reader.schema("key binary, offset bigint").load(str(big_log)).count() == SEGMENTS * BATCHES * RECORDS
    with pytest.raises(Exception, match="column key is of type binary, the schema has string"):
        reader.schema("key string").load(str(big_log)).count()


@pytest.mark.slow
def test_a_query_for_nothing_that_is_there_gives_no_rows(spark: SparkSession, big_log: Path) -> None:
    """Spark makes a task of its own when a plan has none."""
    assert read_log(spark, str(big_log), columns=["topic"]).where("topic = 'other'").collect() == []


@pytest.mark.slow
def test_damage_ends_a_job_with_its_place(spark: SparkSession, tmp_path: Path) -> None:
    """One line of Spark's error has the file and the position."""
    (tmp_path / "t-0").mkdir()
    batch = bytearray(make_batch("a=1"))
    batch[-1] ^= 1
    path = tmp_path / "t-0" / f"{0:020d}.log"
    path.write_bytes(batch)
    with pytest.raises(Exception, match="CRC is wrong") as raised:
        read_log(spark, str(tmp_path), columns=["offset"]).collect()
    assert first_line(raised.value) == f"{path} at 0: the batch's CRC is wrong"
    [row] = read_log(spark, str(tmp_path), mode="PERMISSIVE").collect()
    assert row["_corrupt"] == f"{path} at 0: the batch's CRC is wrong"
