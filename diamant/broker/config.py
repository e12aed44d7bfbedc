"""The configurations of the broker: the table, and `BrokerConfig`, its typed view.

A value comes from the first of these that has one: what was set for this broker over the wire, what was set for all
brokers over the wire, the properties it was started with, the default. Names and meaning are Kafka's; where the default
is not, the documentation says so.
"""

from __future__ import annotations

import difflib
import logging
import os
import socket
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NoReturn

from diamant.broker.config_key import (
    DOUBLE_MAX,
    HIDDEN,
    INT_MAX,
    LONG_MAX,
    ConfigError,
    ConfigKey,
    ConfigSource,
    ConfigSynonym,
    ConfigType,
    DescribedConfig,
    InvalidValue,
    Validator,
    Value,
    any_of,
    at_least,
    format_value,
    list_of,
)
from diamant.broker.coordinators.configs import COORDINATOR_CONFIGS
from diamant.broker.listeners import (
    META_ADDRESSES,
    PLAINTEXT,
    Listener,
    listener_text,
    parse_address,
    parse_listeners,
    parse_protocol_map,
)
from diamant.broker.properties import parse_properties
from diamant.broker.topic_config import TOPIC_CONFIGS
from diamant.cleaner.modes import KAFKA, PROMPT
from diamant.protocol.errors import ErrorCode, KafkaError

logger = logging.getLogger("diamant.config")

_BOOLEAN, _STRING, _INT, _LONG = ConfigType.BOOLEAN, ConfigType.STRING, ConfigType.INT, ConfigType.LONG
_DOUBLE, _LIST = ConfigType.DOUBLE, ConfigType.LIST


SYSTEM_CLOCK, MANUAL_CLOCK = "system", "manual"
"""What `diamant.clock` may be."""

SPARK_CONF_PREFIX = "diamant.cleaner.spark.conf."
"""Begins the names of what is passed on to Spark."""

DEFAULT_HTTP_LISTEN = "127.0.0.1:9644"
"""What `diamant start` takes for `diamant.http.listen`."""

NO_EFFECT_YET = " No effect yet."
"""Ends the documentation of what is read, checked and shown, but not followed."""


def _check_retention(name: str, value: Value) -> None:
    if value == 0:
        raise InvalidValue(name, 0, "must be unlimited (-1) or, greater than or equal to 1")


_RETENTION = Validator("at least 1; -1: no limit", _check_retention)

_KEYS = (
    # Who and where
    ConfigKey("node.id", _INT, 1, "Number of this broker. Kafka has no default.", at_least(0)),
    ConfigKey("broker.id", _INT, None, "Older name of `node.id`; if both are set they must agree.", at_least(0)),
    ConfigKey("broker.rack", _STRING, None, "Rack that clients are told."),
    ConfigKey(
        "process.roles",
        _LIST,
        ["broker", "controller"],
        "A Diamant node is both; `broker` must be among them.",
        list_of("broker", "controller"),
    ),
    ConfigKey(
        "listeners",
        _LIST,
        ["PLAINTEXT://127.0.0.1:9092"],
        "Where to listen, as `NAME://host:port`; an empty host is every interface, port 0 a free port. Kafka's "
        "default is every interface; Diamant has no security yet and stays on this machine unless told otherwise. "
        "Listeners named in `controller.listener.names` are not opened.",
    ),
    ConfigKey(
        "advertised.listeners",
        _LIST,
        None,
        "What clients are told to connect to, per listener name. Without it, `listeners`; for one on every interface, "
        "the address at which the client arrived. Needed behind NAT or in a container.",
    ),
    ConfigKey(
        "listener.security.protocol.map",
        _STRING,
        "PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT,SASL_SSL:SASL_SSL",
        "Security protocol of each listener name. Only PLAINTEXT listeners can be opened so far.",
    ),
    ConfigKey(
        "controller.listener.names",
        _LIST,
        [],
        "Listeners of a Kafka controller: one node has no use for them, so they are not opened.",
    ),
    ConfigKey(
        "log.dir",
        _LIST,
        ["data"],
        "Data directory, if `log.dirs` is not set. Kafka's default lies in the temporary directory, which is no place "
        "for data.",
    ),
    ConfigKey("log.dirs", _LIST, None, "Data directory, one. Several are refused rather than left out."),
    # Requests and connections
    ConfigKey(
        "socket.request.max.bytes",
        _INT,
        104_857_600,
        "Largest request; a connection that announces a larger one is closed.",
        at_least(1),
    ),
    ConfigKey(
        "queued.max.request.bytes",
        _LONG,
        -1,
        "Memory for the requests of all connections together, and one request more; beyond it connections are not read. "
        "-1: no limit, so each connection may have one of `socket.request.max.bytes`.",
    ),
    ConfigKey(
        "max.connections", _INT, INT_MAX, "Connections at once; further ones are closed.", at_least(0), is_dynamic=True
    ),
    ConfigKey("connections.max.idle.ms", _LONG, 600_000, "A connection silent for so long is closed; -1: never."),
    ConfigKey(
        "socket.send.buffer.bytes",
        _INT,
        102_400,
        "Send buffer of each connection (SO_SNDBUF); -1: as the system has it.",
        at_least(-1),
    ),
    ConfigKey(
        "socket.receive.buffer.bytes",
        _INT,
        102_400,
        "Receive buffer of each connection (SO_RCVBUF); -1: as the system has it.",
        at_least(-1),
    ),
    ConfigKey(
        "socket.listen.backlog.size",
        _INT,
        50,
        "Connections that may wait to be accepted; at least 1024 whatever is set, or a crowd would wait for seconds.",
        at_least(1),
    ),
    ConfigKey(
        "fetch.max.bytes",
        _INT,
        57_671_680,
        "Largest answer to one fetch, whatever the client asks for.",
        at_least(1024),
    ),
    ConfigKey(
        "max.request.partition.size.limit",
        _INT,
        2000,
        "Most partitions in one answer to DescribeTopicPartitions.",
        at_least(1),
    ),
    # Topics
    ConfigKey(
        "auto.create.topics.enable",
        _BOOLEAN,
        True,
        "Create a topic when a client that allows it asks for its metadata.",
    ),
    ConfigKey("delete.topic.enable", _BOOLEAN, True, "Whether topics may be deleted."),
    ConfigKey("num.partitions", _INT, 1, "Partitions of a topic that is created without a number.", at_least(1)),
    ConfigKey(
        "default.replication.factor",
        _INT,
        1,
        "Replicas of a topic that is created without a number. One node can hold one.",
    ),
    # Logs
    ConfigKey(
        "log.retention.minutes",
        _INT,
        None,
        "Default of the topic configuration `retention.ms` if `log.retention.ms` is not set.",
        _RETENTION,
    ),
    ConfigKey(
        "log.retention.hours",
        _INT,
        168,
        "Default of the topic configuration `retention.ms` if neither `log.retention.ms` nor `log.retention.minutes` "
        "is set.",
        _RETENTION,
    ),
    ConfigKey(
        "log.roll.hours",
        _INT,
        168,
        "Default of the topic configuration `segment.ms` if `log.roll.ms` is not set.",
        at_least(1),
    ),
    ConfigKey(
        "log.roll.jitter.hours",
        _INT,
        0,
        "Default of the topic configuration `segment.jitter.ms` if `log.roll.jitter.ms` is not set.",
        at_least(0),
    ),
    ConfigKey(
        "log.flush.scheduler.interval.ms",
        _LONG,
        LONG_MAX,
        "How often logs are looked at for `flush.ms`, and its default if `log.flush.interval.ms` is not set.",
    ),
    ConfigKey(
        "log.flush.offset.checkpoint.interval.ms",
        _INT,
        60_000,
        "How often the recovery points are written, from which a crashed broker reads its logs." + NO_EFFECT_YET,
        at_least(0),
    ),
    ConfigKey(
        "log.flush.start.offset.checkpoint.interval.ms",
        _INT,
        60_000,
        "How often the log start offsets are written." + NO_EFFECT_YET,
        at_least(0),
    ),
    ConfigKey(
        "log.retention.check.interval.ms", _LONG, 300_000, "How often logs are looked at for retention.", at_least(1)
    ),
    ConfigKey(
        "log.initial.task.delay.ms",
        _LONG,
        30_000,
        "Time from the start to the first periodic work on logs.",
        at_least(0),
        is_internal=True,
    ),
    ConfigKey(
        "num.recovery.threads.per.data.dir",
        _INT,
        2,
        "Threads that open logs at the start.",
        at_least(1),
        is_dynamic=True,
    ),
    # Producers
    ConfigKey(
        "producer.id.expiration.ms",
        _INT,
        86_400_000,
        "A producer that wrote nothing for so long is forgotten; a retry after that is no longer recognised.",
        at_least(1),
        is_dynamic=True,
    ),
    ConfigKey(
        "producer.id.expiration.check.interval.ms",
        _INT,
        600_000,
        "How often expired producers are looked for.",
        at_least(1),
        is_internal=True,
    ),
    # Cleaner
    ConfigKey(
        "log.cleaner.enable",
        _BOOLEAN,
        True,
        "Whether compacted topics are cleaned when they are due. If not, they are only on request; with "
        "`diamant.cleaner.mode=kafka` retention does not delete from them either.",
    ),
    ConfigKey(
        "log.cleaner.threads",
        _INT,
        1,
        "Partitions that are cleaned at once. May be changed to half or twice as many at a time.",
        at_least(1),
        is_dynamic=True,
    ),
    ConfigKey(
        "log.cleaner.backoff.ms",
        _LONG,
        15_000,
        "Pause of the cleaner when nothing is due.",
        at_least(0),
        is_dynamic=True,
    ),
    ConfigKey(
        "log.cleaner.dedupe.buffer.size",
        _LONG,
        134_217_728,
        "Memory for the keys of all cleanings at once; more than 1 MiB for each. If it is full the cleaner works on disk, or "
        "with `diamant.cleaner.mode=kafka` cleans the rest later.",
        is_dynamic=True,
    ),
    ConfigKey(
        "log.cleaner.io.buffer.size",
        _INT,
        524_288,
        "Memory for reading and writing, for all cleanings at once. A batch that is larger is read nevertheless.",
        at_least(0),
        is_dynamic=True,
    ),
    ConfigKey(
        "log.cleaner.io.buffer.load.factor",
        _DOUBLE,
        0.9,
        "How full the memory for keys may become with `diamant.cleaner.mode=kafka`.",
        is_dynamic=True,
    ),
    ConfigKey(
        "log.cleaner.io.max.bytes.per.second",
        _DOUBLE,
        DOUBLE_MAX,
        "Most that the cleaner reads and writes in a second, in equal shares for `log.cleaner.threads`.",
        is_dynamic=True,
    ),
    # Of Diamant
    ConfigKey(
        "diamant.cleaner.mode",
        _STRING,
        PROMPT,
        "`kafka`: cleans and deletes when, and as, Kafka does. `prompt`: keeps Kafka's promises and removes sooner what may go: "
        "`max.compaction.lag.ms` holds without traffic, too, and what failed is tried again.",
        any_of(PROMPT, KAFKA),
    ),
    ConfigKey(
        "diamant.cleaner.spark.executor.timeout.ms",
        _LONG,
        120_000,
        "How long a job on Spark waits for executors, at its begin and whenever it has lost all of them, before it is ended and "
        "a local runner takes over.",
        at_least(1000),
    ),
    ConfigKey(
        "diamant.cleaner.spark.master",
        _STRING,
        "local[*]",
        "Where partitions are cleaned that are too large for this machine: a master of Apache Spark, as `spark.master`. Each "
        "`diamant.cleaner.spark.conf.NAME` is passed on to Spark as NAME. docs/spark-clean.md tells more.",
    ),
    ConfigKey(
        "diamant.cleaner.spark.min.bytes",
        _LONG,
        68_719_476_736,
        "From this size on a partition is cleaned on Spark if PySpark is installed and an estimate says that it will be quicker; "
        "-1: only if somebody asks for it.",
        at_least(-1),
    ),
    ConfigKey(
        "diamant.cleaner.spark.staging",
        ConfigType.PASSWORD,
        "",
        "Where executors leave what they have cleaned, until it is verified and swapped in: a directory that they share with "
        "the broker (`file:`), or an object store (`s3:`), to which segments are then copied as well. Empty: beside the "
        "segments. A URI may hold credentials, so it is not shown.",
    ),
    ConfigKey(
        "diamant.erasure.deadline.ms",
        _LONG,
        2_592_000_000,
        "How long a superseded value or a tombstone may be there: `/healthz?erasure` fails and "
        "`diamant_erasure_deadline_days_left` is negative once a topic of users exceeds it. Nothing is removed sooner for it.",
        at_least(1),
    ),
    ConfigKey(
        "diamant.produce.validation",
        _STRING,
        "full",
        "`full` checks each produced record as Kafka does; `header` checks CRC and header only, on topics that are neither "
        "compacted nor LogAppendTime: faster, and malformed records reach consumers.",
        any_of("full", "header"),
    ),
    ConfigKey(
        "diamant.http.listen",
        _STRING,
        None,
        "Where `/metrics` and `/health` are answered over HTTP, as `host:port`; an empty host is every interface, port 0 a "
        f"free port, an empty text is off. `diamant start` sets `{DEFAULT_HTTP_LISTEN}` unless told otherwise; in "
        "a program or a test it is off. If the address is in use the broker runs without.",
    ),
    ConfigKey(
        "diamant.http.token.file",
        _STRING,
        None,
        "File with the bearer token that verbs which change data need over HTTP. Without it they need none on loopback, and "
        "are refused where HTTP is answered elsewhere. Should have mode 0600; read at the start.",
    ),
    ConfigKey(
        "diamant.certificate.key.file",
        _STRING,
        None,
        "File with the Ed25519 key that certificates of erasures are signed with, in PEM; beside it lies the secret of their "
        "digests, with `.secret` appended to the name. Both are made with the first erasure, with mode 0600; inside of the data "
        "directory they are refused. Default: `~/.config/diamant/certificate.key`.",
    ),
    ConfigKey(
        "diamant.clock",
        _STRING,
        SYSTEM_CLOCK,
        "Whose time counts for everything that is stored. `manual`: a clock that follows the system's until somebody moves or "
        "freezes it (`diamant clock`), for tests and demonstrations. Where it is, is kept in the data directory.",
        any_of(SYSTEM_CLOCK, MANUAL_CLOCK),
    ),
    ConfigKey(
        "diamant.compact.wait.max.ms",
        _INT,
        20_000,
        "How long IncrementalAlterConfigs with `diamant.compact=now` waits for the end of the compaction before it answers "
        "REQUEST_TIMED_OUT; it goes on, and the same request joins it. Less than the time after which clients give up.",
        at_least(0),
        is_dynamic=True,
    ),
    ConfigKey(
        "diamant.describe",
        _BOOLEAN,
        True,
        "Whether DescribeConfigs shows what the cleaner knows of compacted topics as read-only configurations `diamant.*`.",
        is_dynamic=True,
    ),
    # Metadata
    ConfigKey("metadata.log.dir", _STRING, None, "Directory of the metadata log; may only be the data directory."),
    ConfigKey(
        "metadata.log.max.record.bytes.between.snapshots",
        _LONG,
        20_971_520,
        "Bytes of metadata records after which a snapshot is written.",
        at_least(1),
    ),
    ConfigKey(
        "metadata.log.max.snapshot.interval.ms",
        _LONG,
        3_600_000,
        "Time after which a snapshot is written if there are new metadata records; 0: never for that reason.",
        at_least(0),
    ),
)


# Their default is not the topic's: it comes from hours or from a scheduler's interval when these are not set.
_WITHOUT_DEFAULT = ("log.retention.ms", "log.roll.ms", "log.roll.jitter.ms", "log.flush.interval.ms")


def _topic_defaults(explained: Iterable[str]) -> list[ConfigKey]:
    """The rows that the table of topics implies: each synonym has its topic config's type, limits and default."""
    keys = []
    for topic_key in TOPIC_CONFIGS.values():
        for synonym in topic_key.synonyms:
            if synonym not in explained:
                keys.append(
                    ConfigKey(
                        synonym,
                        topic_key.type,
                        None if synonym in _WITHOUT_DEFAULT else topic_key.default,
                        f"Default of the topic configuration `{topic_key.name}`.",
                        _RETENTION if synonym == "log.retention.ms" else topic_key.validator,
                        is_dynamic=True,
                    )
                )
    return keys


BROKER_CONFIGS: Mapping[str, ConfigKey] = {
    key.name: key for key in (*_KEYS, *COORDINATOR_CONFIGS, *_topic_defaults([key.name for key in _KEYS]))
}
"""The table, by name: first what is the broker's own, then the defaults of topics."""


class BrokerConfig:
    """What a broker runs with. Immutable; raises ConfigError for what cannot be.

    ``listen``: ``host:port`` or ``NAME://host:port``, one or several; port 0 takes a free port. ``data_dir``: the data
    directory. ``properties``: texts by Kafka's names. Further keywords are Kafka's names with underscores and may be
    Python values. Of two ways to say the same the more specific wins: ``listen`` and ``data_dir``, then keywords, then
    properties.

        BrokerConfig(listen="127.0.0.1:0", data_dir=tmp_path, num_partitions=4, properties={"log.segment.bytes":
        "1048576"})

    Every row of `BROKER_CONFIGS` can be read as `config["log.segment.bytes"]`; what the broker itself uses has an
    attribute.
    """

    node_id: int
    broker_rack: str | None
    socket_request_max_bytes: int
    queued_max_request_bytes: int
    max_connections: int
    connections_max_idle_ms: int
    socket_listen_backlog_size: int
    socket_send_buffer_bytes: int
    socket_receive_buffer_bytes: int
    fetch_max_bytes: int
    max_request_partition_size_limit: int
    auto_create_topics_enable: bool
    delete_topic_enable: bool
    num_partitions: int
    default_replication_factor: int
    message_max_bytes: int
    log_flush_scheduler_interval_ms: int
    log_flush_offset_checkpoint_interval_ms: int
    log_flush_start_offset_checkpoint_interval_ms: int
    log_retention_check_interval_ms: int
    log_initial_task_delay_ms: int
    num_recovery_threads_per_data_dir: int
    producer_id_expiration_ms: int
    producer_id_expiration_check_interval_ms: int
    log_cleaner_enable: bool
    log_cleaner_threads: int
    log_cleaner_backoff_ms: int
    log_cleaner_dedupe_buffer_size: int
    log_cleaner_io_buffer_size: int
    log_cleaner_io_buffer_load_factor: float
    log_cleaner_io_max_bytes_per_second: float
    metadata_log_max_record_bytes_between_snapshots: int
    metadata_log_max_snapshot_interval_ms: int
    diamant_produce_validation: str
    diamant_cleaner_mode: str
    diamant_cleaner_spark_executor_timeout_ms: int
    diamant_cleaner_spark_master: str
    diamant_cleaner_spark_min_bytes: int
    diamant_cleaner_spark_staging: str
    diamant_erasure_deadline_ms: int
    diamant_http_token_file: str | None
    diamant_certificate_key_file: str | None
    diamant_compact_wait_max_ms: int
    diamant_describe: bool
    group_min_session_timeout_ms: int
    group_max_session_timeout_ms: int
    group_initial_rebalance_delay_ms: int
    group_max_size: int
    group_coordinator_rebalance_protocols: list[str]
    group_consumer_session_timeout_ms: int
    group_consumer_min_session_timeout_ms: int
    group_consumer_max_session_timeout_ms: int
    group_consumer_heartbeat_interval_ms: int
    group_consumer_min_heartbeat_interval_ms: int
    group_consumer_max_heartbeat_interval_ms: int
    group_consumer_assignment_interval_ms: int
    group_consumer_min_assignment_interval_ms: int
    group_consumer_max_assignment_interval_ms: int
    group_consumer_max_size: int
    group_consumer_assignors: list[str]
    group_consumer_migration_policy: str
    group_consumer_regex_refresh_interval_ms: int
    offset_metadata_max_bytes: int
    offsets_retention_minutes: int
    offsets_retention_check_interval_ms: int
    offsets_topic_num_partitions: int
    offsets_topic_segment_bytes: int
    offsets_topic_compression_codec: int
    offsets_load_buffer_size: int
    transactional_id_expiration_ms: int
    transaction_max_timeout_ms: int
    transaction_state_log_num_partitions: int
    transaction_state_log_segment_bytes: int
    transaction_abort_timed_out_transaction_cleanup_interval_ms: int
    transaction_remove_expired_transaction_cleanup_interval_ms: int
    transaction_partition_verification_enable: bool
    max_incremental_fetch_session_cache_slots: int

    # Not rows but what rows amount to.
    data_dir: str
    listeners: list[Listener]
    advertised_listeners: list[Listener]
    """In the order of `listeners`. A port of 0 stands for the port that its listener gets."""
    http_listener: Listener | None
    """Where HTTP is answered; None if it is off."""
    warnings: tuple[str, ...]
    """What was accepted but is not as it seems, one line each; logged once when the configuration is made."""
    clock: str
    """Whose time counts: "system" or "manual" (`diamant.clock`)."""
    spark_conf: Mapping[str, str]
    """What is passed on to Spark: `diamant.cleaner.spark.conf.*` without the prefix. May hold secrets."""

    def __init__(
        self,
        listen: str | Sequence[str] | None = None,
        data_dir: str | os.PathLike[str] | None = None,
        properties: Mapping[str, str] | None = None,
        **kafka_names: Any,
    ) -> None:
        static = dict(properties or {})
        for keyword, value in kafka_names.items():
            static[_name_of(keyword)] = _text(keyword, value)
        if listen is not None:
            addresses = [listen] if isinstance(listen, str) else list(listen)
            static["listeners"] = ",".join(map(listener_text, addresses))
        if data_dir is not None:
            static["log.dirs"] = os.fspath(data_dir)
        self._resolve(static, {}, {})
        _check_compaction_lags(self._topic_defaults)
        check_cleaner_memory(self._values)
        for warning in self.warnings:
            logger.warning(warning)

    @classmethod
    def from_properties(cls, properties: Mapping[str, str]) -> BrokerConfig:
        """A configuration from texts by Kafka's names."""
        return cls(properties=properties)

    @classmethod
    def from_file(cls, path: str | os.PathLike[str]) -> BrokerConfig:
        """A configuration from a server.properties file. Raises OSError if it cannot be read."""
        with open(path, encoding="utf-8") as file:
            return cls(properties=parse_properties(file.read()))

    def with_dynamic(self, defaults: Mapping[str, str], own: Mapping[str, str]) -> BrokerConfig:
        """This configuration with what was set over the wire for all brokers (``defaults``) and for this one (``own``).

        Both replace what an earlier call set. What does not parse, or is not dynamic, has no effect.
        """
        changed = BrokerConfig.__new__(BrokerConfig)
        passed_on = {SPARK_CONF_PREFIX + name: text for name, text in self.spark_conf.items()}
        changed._resolve(self._layers[ConfigSource.STATIC_BROKER_CONFIG] | passed_on, defaults, own)
        return changed

    def __getitem__(self, name: str) -> Value:
        """The value of a row of `BROKER_CONFIGS`; KeyError for other names."""
        return self._values[name]

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"BrokerConfig is immutable: {name}")

    def __repr__(self) -> str:
        static = self._layers[ConfigSource.STATIC_BROKER_CONFIG]
        shown = (
            f"{name}={HIDDEN if BROKER_CONFIGS[name].is_sensitive else value}" for name, value in sorted(static.items())
        )
        return f"BrokerConfig({', '.join(shown)})"

    @property
    def num_recovery_threads(self) -> int:
        """Short for `num_recovery_threads_per_data_dir`."""
        return self.num_recovery_threads_per_data_dir

    def topic_default(self, name: str) -> Value:
        """The value of a topic configuration for topics that do not set it. KeyError for other names."""
        return self._topic_defaults[name]

    def sources(self, name: str) -> list[ConfigSynonym]:
        """Where a broker configuration could get its value from, the winner first. KeyError for other names."""
        key = BROKER_CONFIGS[name]
        found = []
        for source, layer in self._layers.items():
            if name in layer:
                found.append(ConfigSynonym(name, key.shown(key.parse(layer[name])), source))
        if key.default is not None:
            found.append(ConfigSynonym(name, key.shown(key.default), ConfigSource.DEFAULT_CONFIG))
        return found

    def describe(self) -> list[DescribedConfig]:
        """Every row of the table with its value and where that comes from, by name, as DescribeConfigs wants it.

        Kafka's order is that of a hash map; kafkajs counts on `default.replication.factor` before `num.partitions`.
        """
        described = []
        for key in sorted(BROKER_CONFIGS.values(), key=lambda key: key.name):
            synonyms = tuple(self.sources(key.name))
            source = synonyms[0].source if synonyms else ConfigSource.DEFAULT_CONFIG
            if key.is_internal and source is ConfigSource.DEFAULT_CONFIG:
                continue
            described.append(
                DescribedConfig(
                    name=key.name,
                    value=key.shown(self._values[key.name]),
                    source=source,
                    type=key.type,
                    is_read_only=not key.is_dynamic,
                    is_sensitive=key.is_sensitive,
                    synonyms=synonyms,
                    documentation=key.documentation,
                )
            )
        return described

    def _resolve(
        self, static: Mapping[str, str], dynamic_defaults: Mapping[str, str], dynamic: Mapping[str, str]
    ) -> None:
        """Fill in everything from the three layers of texts."""
        warnings: list[str] = []
        known = {name: text for name, text in static.items() if name in BROKER_CONFIGS}
        for name in static:
            if name not in BROKER_CONFIGS and not name.startswith(SPARK_CONF_PREFIX):
                warnings.append(_unknown(name))
        for name, text in known.items():
            BROKER_CONFIGS[name].parse(text)
        layers = {
            ConfigSource.DYNAMIC_BROKER_CONFIG: _usable(dynamic),
            ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG: _usable(dynamic_defaults),
            ConfigSource.STATIC_BROKER_CONFIG: known,
        }
        values = {name: key.default for name, key in BROKER_CONFIGS.items()}
        for layer in reversed(layers.values()):
            values.update((name, BROKER_CONFIGS[name].parse(text)) for name, text in layer.items())
        values["node.id"] = values["broker.id"] = _node_id(known, values)
        _check_request_memory(values)
        listeners, advertised = _listeners(values, is_map_set="listener.security.protocol.map" in known)
        resolved: dict[str, Any] = {name.replace(".", "_"): value for name, value in values.items()}
        resolved = {name: resolved[name] for name in self.__annotations__ if name in resolved}
        resolved.update(
            data_dir=_data_dir(values),
            listeners=listeners,
            advertised_listeners=advertised,
            http_listener=_http_listener(values),
            warnings=tuple(warnings),
            clock=values["diamant.clock"],
            spark_conf={
                name.removeprefix(SPARK_CONF_PREFIX): text
                for name, text in static.items()
                if name.startswith(SPARK_CONF_PREFIX)
            },
            _layers=layers,
            _values=values,
            _topic_defaults=_resolve_topic_defaults(values),
        )
        self.__dict__.update(resolved)

    _layers: dict[ConfigSource, dict[str, str]]
    _values: dict[str, Value]
    _topic_defaults: dict[str, Value]


def validate_dynamic_config(name: str, value: str | None) -> None:
    """Check a configuration that is to be set over the wire; raises KafkaError.

    Everything is INVALID_REQUEST here, not INVALID_CONFIG as for topics, as in Kafka
    (``DynamicBrokerConfig.validate``). Names that no table has are kept, since Kafka keeps them for its plug-ins.
    """
    key = BROKER_CONFIGS.get(name)
    if key is None or value is None:
        return
    if not key.is_dynamic:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"Cannot update these configs dynamically: [{name}]")
    try:
        key.parse(value)
    except ConfigError as error:
        raise KafkaError(ErrorCode.INVALID_REQUEST, str(error)) from None


def _usable(texts: Mapping[str, str]) -> dict[str, str]:
    """The dynamic texts that have an effect: they were checked when set, perhaps by another broker."""
    usable = {}
    for name, text in texts.items():
        try:
            validate_dynamic_config(name, text)
        except KafkaError:
            continue
        if name in BROKER_CONFIGS:
            usable[name] = text
    return usable


def _text(name: str, value: object) -> str:
    """A Python value as the text that the table parses."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool | int | float):
        return format_value(value) or ""
    if isinstance(value, list | tuple):
        return ",".join(map(str, value))
    if isinstance(value, os.PathLike):
        return str(os.fspath(value))
    raise ConfigError(f"{name}: {type(value).__name__} is not a bool, number, text, list or path")


def _name_of(keyword: str) -> str:
    """The configuration that a keyword stands for; TypeError for none, since only files may have names that others use."""
    name = keyword.replace("_", ".")
    if name in BROKER_CONFIGS or name.startswith(SPARK_CONF_PREFIX):
        return name
    keywords = ["listen", "data_dir", "properties", *(known.replace(".", "_") for known in BROKER_CONFIGS)]
    similar = difflib.get_close_matches(keyword, keywords, n=1, cutoff=0.6)
    hint = f", did you mean {similar[0]}?" if similar else ""
    raise TypeError(f"{keyword}: there is no such configuration{hint} (properties= takes names that others use)")


def _unknown(name: str) -> str:
    similar = difflib.get_close_matches(name, BROKER_CONFIGS, n=1, cutoff=0.85)
    hint = f" Did you mean {similar[0]}?" if similar else ""
    return f"{name} has no effect: it is not a configuration that Diamant uses.{hint}"


def _node_id(known: Mapping[str, str], values: Mapping[str, Value]) -> Value:
    if "broker.id" not in known:
        return values["node.id"]
    if "node.id" in known and values["node.id"] != values["broker.id"]:
        raise ConfigError(f"node.id is {values['node.id']} and broker.id is {values['broker.id']}: they must agree")
    return values["broker.id"]


def _check_request_memory(values: Mapping[str, Value]) -> None:
    queued, largest = values["queued.max.request.bytes"], values["socket.request.max.bytes"]
    assert isinstance(queued, int)
    assert isinstance(largest, int)
    if 0 < queued < largest:
        raise ConfigError(
            f"queued.max.request.bytes is {queued}, less than one request may have (socket.request.max.bytes, "
            f"{largest})"
        )


def _strings(value: Value) -> list[str]:
    return value if isinstance(value, list) else []


def _data_dir(values: Mapping[str, Value]) -> str:
    name = "log.dirs" if values["log.dirs"] is not None else "log.dir"
    directories = _strings(values[name])
    if len(directories) != 1:
        raise ConfigError(f"{name}: expected one directory, got {len(directories)}: {','.join(directories)}")
    if values["metadata.log.dir"] not in (None, directories[0]):
        raise ConfigError(
            f"metadata.log.dir is {values['metadata.log.dir']}, but may only be {directories[0]} ({name})"
        )
    return directories[0]


def _listeners(values: Mapping[str, Value], *, is_map_set: bool) -> tuple[list[Listener], list[Listener]]:
    """What to bind and what to tell clients, in the same order."""
    if "broker" not in _strings(values["process.roles"]):
        raise ConfigError("process.roles: broker must be among them")
    controllers = {name.upper() for name in _strings(values["controller.listener.names"])}
    protocols = parse_protocol_map(str(values["listener.security.protocol.map"]))
    if not is_map_set:
        for name in controllers:  # KafkaConfig.effectiveListenerSecurityProtocolMap
            protocols.setdefault(name, PLAINTEXT)
    bound = parse_listeners("listeners", _strings(values["listeners"]), protocols)
    bound = [listener for listener in bound if listener.name not in controllers]
    if not bound:
        raise ConfigError("listeners: there is none for clients")
    for listener in bound:
        if listener.security_protocol != PLAINTEXT:
            raise ConfigError(
                f"listeners: {listener} uses {listener.security_protocol}, only PLAINTEXT is supported so far"
            )
    if values["advertised.listeners"] is None:
        return bound, [_advertised_by_default(listener) for listener in bound]
    advertised = parse_listeners(
        "advertised.listeners", _strings(values["advertised.listeners"]), protocols, names_may_share_ports=True
    )
    by_name = {listener.name: listener for listener in advertised if listener.name not in controllers}
    if by_name.keys() != {listener.name for listener in bound}:
        raise ConfigError(
            f"advertised.listeners: expected the names of listeners ({_names(bound)}), got {_names(by_name.values())}"
        )
    for listener in by_name.values():
        if listener.host in META_ADDRESSES:
            raise ConfigError(f"advertised.listeners: {listener} has no host that a client could connect to")
    return bound, [by_name[listener.name] for listener in bound]


def _http_listener(values: Mapping[str, Value]) -> Listener | None:
    text = values["diamant.http.listen"]
    return parse_address("diamant.http.listen", str(text), "HTTP") if text else None


def _names(listeners: Iterable[Listener]) -> str:
    return ", ".join(listener.name for listener in listeners) or "none"


def _advertised_by_default(listener: Listener) -> Listener:
    """A host that means every interface becomes this machine's name, for whoever has no connection to look at."""
    return listener._replace(host=socket.gethostname()) if listener.host in META_ADDRESSES else listener


def check_cleaner_memory(values: Mapping[str, Value]) -> None:
    """Whether each of the cleaner's threads has enough memory for keys (``KafkaConfig.validateValues``)."""
    size, threads = values["log.cleaner.dedupe.buffer.size"], values["log.cleaner.threads"]
    assert isinstance(size, int)
    assert isinstance(threads, int)
    if size // threads <= 1 << 20:
        raise ConfigError(
            f"log.cleaner.dedupe.buffer.size is {size} for {threads} log.cleaner.threads: it must be more than 1048576 for each"
        )


def _resolve_topic_defaults(values: Mapping[str, Value]) -> dict[str, Value]:
    """Topic configuration → broker's value, with Kafka's precedence among ms, minutes and hours
    (``AbstractKafkaConfig``).
    """
    defaults = {key.name: values[key.synonyms[0]] if key.synonyms else key.default for key in TOPIC_CONFIGS.values()}
    defaults["retention.ms"] = _retention_ms(values)
    defaults["segment.ms"] = _first_ms(values, ("log.roll.ms", 1), ("log.roll.hours", 3_600_000))
    defaults["segment.jitter.ms"] = _first_ms(values, ("log.roll.jitter.ms", 1), ("log.roll.jitter.hours", 3_600_000))
    defaults["flush.ms"] = _first_ms(values, ("log.flush.interval.ms", 1), ("log.flush.scheduler.interval.ms", 1))
    return defaults


def _check_compaction_lags(defaults: Mapping[str, Value]) -> None:
    shortest, longest = defaults["min.compaction.lag.ms"], defaults["max.compaction.lag.ms"]
    if isinstance(shortest, int) and isinstance(longest, int) and shortest > longest:
        raise ConfigError(
            f"log.cleaner.min.compaction.lag.ms ({shortest}) is more than log.cleaner.max.compaction.lag.ms ({longest})"
        )


def _retention_ms(values: Mapping[str, Value]) -> int:
    retention_ms = _first_ms(
        values, ("log.retention.ms", 1), ("log.retention.minutes", 60_000), ("log.retention.hours", 3_600_000)
    )
    return max(retention_ms, -1)


def _first_ms(values: Mapping[str, Value], *candidates: tuple[str, int]) -> int:
    """The first of (name, milliseconds per unit) that is set, in milliseconds, no more than a long holds."""
    for name, unit_ms in candidates:
        value = values[name]
        if isinstance(value, int):
            return min(value * unit_ms, LONG_MAX)
    raise AssertionError(f"the last of {candidates} has a default")
