"""The table of the broker's configurations: name, type, default, limits and documentation of each.

Names and meanings are Kafka's; the documentation mentions defaults that differ from Kafka's. `BrokerConfig` is the typed view.

Names that only Kafka uses are in `kafka_table.py`. Dynamic configurations with such names or with unknown names are stored for a
Kafka broker that opens the directory later.

Source: the read-only configurations in Kafka 4.3.1's response to DescribeConfigs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from diamant.broker.config.authorization_table import AUTHORIZATION_CONFIGS
from diamant.broker.config.coordinator_table import CoordinatorSettings
from diamant.broker.config.sasl_table import SASL_CONFIGS
from diamant.broker.config.ssl_table import SSL_CONFIGS
from diamant.broker.config.topic_table import TOPIC_CONFIGS
from diamant.cleaner.rules.modes import KAFKA, KAFKA_4_4, KAFKA_VERSIONS, PROMPT
from diamant.storage.config_key import (
    DOUBLE_MAX,
    INT_MAX,
    LONG_MAX,
    ConfigKey,
    ConfigType,
    InvalidValue,
    Validator,
    Value,
    any_of,
    at_least,
    between,
    list_of,
    setting,
    settings_of,
)
from diamant.storage.kraft.features import DEFAULT_RELEASE, RELEASES

_BOOLEAN, _STRING, _INT, _LONG = ConfigType.BOOLEAN, ConfigType.STRING, ConfigType.INT, ConfigType.LONG
_DOUBLE, _LIST = ConfigType.DOUBLE, ConfigType.LIST


SYSTEM_CLOCK, MANUAL_CLOCK = "system", "manual"
"""The values of `diamant.clock`."""

CREATE_ANSWER, READY = "diamant.auto.create.topics.answer", "ready"
"""The configuration that sets how requests that create a topic are answered; its value for waiting until the topic is ready."""
REPLICA_SELECTOR, RACK_AWARE = "replica.selector.class", "org.apache.kafka.common.replica.RackAwareReplicaSelector"
BROKERS, MAX_BROKERS = "diamant.brokers", 1000
FACTOR_MAX = "diamant.replication.factor.max"
OUR_PREFIX = "diamant."
SPARK_CONF_PREFIX = "diamant.cleaner.spark.conf."
"""The prefix of configurations that are passed on to Spark."""

DEFAULT_LISTENER = "PLAINTEXT://127.0.0.1:9092"

DEFAULT_HTTP_LISTEN = "127.0.0.1:9644"
"""The default of `diamant start` for `diamant.http.listen`."""


def _check_retention(name: str, value: Value) -> None:
    if value == 0:
        raise InvalidValue(name, 0, "must be unlimited (-1) or, greater than or equal to 1")


def ip_overrides_of(text: str) -> dict[str, int]:
    """Parse `max.connections.per.ip.overrides` to connection limits by host. Raises ValueError if `text` is invalid."""
    found = {}
    for entry in filter(None, (one.strip() for one in text.split(","))):
        host, _, count = entry.rpartition(":")
        if not host.strip() or not count.strip().isdecimal():
            raise ValueError(f"{entry!r} is not HOST:NUMBER, for instance 10.0.0.7:100")
        found[host.strip()] = int(count)
    return found


def _check_ip_overrides(name: str, value: Value) -> None:
    try:
        ip_overrides_of(str(value))
    except ValueError as error:
        raise InvalidValue(name, value, str(error)) from error


def _check_no_class(name: str, value: Value) -> None:
    if value:
        raise InvalidValue(name, value, "Diamant runs no Java classes; set quotas with AlterClientQuotas")


_RETENTION = Validator("at least 1; -1: no limit", _check_retention)


def _check_registry(name: str, value: Value) -> None:
    if isinstance(value, str):
        from diamant.cleaner.values.registry import RegistryAddress

        try:
            RegistryAddress(value)
        except ValueError as error:
            # The error must not show the user and the password that a URL may contain before the @.
            raise InvalidValue(name, value.rpartition("@")[2], str(error)) from None


class NetworkSettings:
    """The configurations of the broker's identity, addresses, connections, quotas and topics."""

    # Identity and addresses
    node_id: int = setting(_INT, 1, "Number of this broker. Kafka has no default.", at_least(0))
    broker_id: int | None = setting(
        _INT, None, "Older name of `node.id`; if both are set they must agree.", at_least(0)
    )
    broker_rack: str | None = setting(_STRING, None, "Rack reported to clients.")
    process_roles: list[str] = setting(
        _LIST,
        ["broker", "controller"],
        "Roles of this process: broker, controller or both. A Diamant node is both; `broker` must be among them.",
        list_of("broker", "controller"),
    )
    listeners: list[str] = setting(
        _LIST,
        [DEFAULT_LISTENER],
        "Addresses to listen on, as `NAME://host:port`; an empty host is every interface, port 0 a free port. Kafka's "
        "default is every interface, Diamant's is this machine only. "
        "Listeners named in `controller.listener.names` are not opened.",
    )
    advertised_listeners: list[str] | None = setting(
        _LIST,
        None,
        "Addresses that clients connect to, per listener name. Default: `listeners`; for a listener on every interface, the "
        "address that the client has connected to. Needed behind NAT or in a container.",
    )
    listener_security_protocol_map: str = setting(
        _STRING,
        "PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT,SASL_SSL:SASL_SSL",
        "Security protocol of each listener name; unused entries are allowed.",
    )
    controller_listener_names: list[str] = setting(
        _LIST,
        [],
        "Listeners of a Kafka controller. Diamant does not open them, since a single node does not need them.",
    )
    log_dir: list[str] = setting(
        _LIST,
        ["data"],
        "Data directory, if `log.dirs` is not set. Kafka's default is in the temporary directory, where data may be "
        "deleted.",
    )
    log_dirs: list[str] | None = setting(_LIST, None, "Data directory. Exactly one; several are refused.")
    # Requests and connections
    socket_request_max_bytes: int = setting(
        _INT, 104_857_600, "Largest request; a connection that announces a larger one is closed.", at_least(1)
    )
    queued_max_request_bytes: int = setting(
        _LONG,
        -1,
        "Memory for the requests of all connections together; when it is exceeded, by one request at most, connections are not "
        "read. -1: no limit, so each connection may hold a request of `socket.request.max.bytes`.",
    )
    max_connections: int = setting(
        _INT,
        INT_MAX,
        "Maximum number of open connections; further ones wait. For one listener: `listener.name.NAME.max.connections`.",
        at_least(0),
        is_dynamic=True,
    )
    max_connections_per_ip: int = setting(
        _INT,
        INT_MAX,
        "Maximum number of open connections from one address; further ones are closed. 0: only hosts in the overrides.",
        at_least(0),
        is_dynamic=True,
    )
    max_connections_per_ip_overrides: str = setting(
        _STRING,
        "",
        "`max.connections.per.ip` of single hosts, by name or address: `10.0.0.7:100,build:20`.",
        Validator("HOST:NUMBER, separated by commas", _check_ip_overrides),
        is_dynamic=True,
    )
    max_connection_creation_rate: int = setting(
        _INT,
        INT_MAX,
        "Maximum number of connections accepted per second; further ones wait. For one listener: "
        "`listener.name.NAME.max.connection.creation.rate`. For single addresses: the quota `connection_creation_rate`.",
        at_least(1),
        is_dynamic=True,
    )
    # Quotas
    quota_window_num: int = setting(
        _INT,
        11,
        "Number of windows over which a client's rate is measured. The largest burst is the quota for all windows but one.",
        at_least(1),
    )
    quota_window_size_seconds: int = setting(
        _INT,
        1,
        "Length of a window. Also the longest throttle time of `request_percentage`, and the longest delay of a new connection.",
        at_least(1),
    )
    controller_quota_window_num: int = setting(
        _INT,
        11,
        "Number of windows of `controller_mutation_rate`. The largest burst is the quota for all windows.",
        at_least(1),
    )
    controller_quota_window_size_seconds: int = setting(_INT, 1, "Length of a window.", at_least(1))
    client_quota_callback_class: str | None = setting(
        ConfigType.CLASS, None, "Must be empty: Diamant runs no Java classes.", Validator("empty", _check_no_class)
    )
    connections_max_idle_ms: int = setting(_LONG, 600_000, "Idle time after which a connection is closed; -1: never.")
    socket_send_buffer_bytes: int = setting(
        _INT, 102_400, "Send buffer of each connection (SO_SNDBUF); -1: the system's default.", at_least(-1)
    )
    socket_receive_buffer_bytes: int = setting(
        _INT, 102_400, "Receive buffer of each connection (SO_RCVBUF); -1: the system's default.", at_least(-1)
    )
    socket_listen_backlog_size: int = setting(
        _INT,
        50,
        "Connections that may wait to be accepted. Raised to at least 1024, or a burst of connections would wait for seconds.",
        at_least(1),
    )
    fetch_max_bytes: int = setting(
        _INT, 57_671_680, "Largest response to a fetch, regardless of the client's limit.", at_least(1024)
    )
    max_request_partition_size_limit: int = setting(
        _INT, 2000, "Maximum number of partitions in one response to DescribeTopicPartitions.", at_least(1)
    )
    # Topics
    auto_create_topics_enable: bool = setting(
        _BOOLEAN, True, "Create a missing topic when a client requests its metadata and allows creation."
    )
    delete_topic_enable: bool = setting(_BOOLEAN, True, "Whether topics may be deleted.")
    num_partitions: int = setting(_INT, 1, "Default number of partitions of a new topic.", at_least(1))
    default_replication_factor: int = setting(
        _INT, 1, "Default number of replicas of a new topic. Above 1, see `diamant.replication.factor.max`."
    )


class LogSettings:
    """The configurations of logs, producers and the cleaner."""

    # Logs
    log_retention_minutes: int | None = setting(
        _INT,
        None,
        "Age in minutes at which the `delete` policy removes a segment, if `log.retention.ms` is not set.",
        _RETENTION,
    )
    log_retention_hours: int = setting(
        _INT,
        168,
        "Age in hours at which the `delete` policy removes a segment, if neither `log.retention.ms` nor "
        "`log.retention.minutes` is set.",
        _RETENTION,
    )
    log_roll_hours: int = setting(
        _INT,
        168,
        "Age in hours at which a segment is closed even if it is not full, if `log.roll.ms` is not set.",
        at_least(1),
    )
    log_roll_jitter_hours: int = setting(
        _INT,
        0,
        "Maximum random reduction, in hours, of the age at which a segment is closed, if `log.roll.jitter.ms` is not set.",
        at_least(0),
    )
    log_flush_scheduler_interval_ms: int = setting(
        _LONG,
        LONG_MAX,
        "Interval of the check for `flush.ms`, and the default of `flush.ms` if `log.flush.interval.ms` is not set.",
    )
    log_retention_check_interval_ms: int = setting(_LONG, 300_000, "Interval of the retention check.", at_least(1))
    log_initial_task_delay_ms: int = setting(
        _LONG, 30_000, "Delay of the first periodic task on logs after the start.", at_least(0), is_internal=True
    )
    num_recovery_threads_per_data_dir: int = setting(
        _INT, 2, "Threads that open logs at the start.", at_least(1), is_dynamic=True
    )
    # Producers
    producer_id_expiration_ms: int = setting(
        _INT,
        86_400_000,
        "Time after which the state of an inactive producer is dropped; later retries are not recognised as duplicates.",
        at_least(1),
        is_dynamic=True,
    )
    producer_id_expiration_check_interval_ms: int = setting(
        _INT, 600_000, "Interval of the check for expired producers.", at_least(1), is_internal=True
    )
    # Cleaner
    log_cleaner_enable: bool = setting(
        _BOOLEAN,
        True,
        "Whether compacted topics are cleaned when they are due. If false, they are cleaned only on request; with "
        "`diamant.cleaner.mode=kafka`, retention does not delete from them either.",
    )
    log_cleaner_threads: int = setting(
        _INT,
        1,
        "Partitions cleaned in parallel. A large partition that is cleaned alone may use as many processors. A dynamic change "
        "may at most halve or double the number.",
        at_least(1),
        is_dynamic=True,
    )
    log_cleaner_backoff_ms: int = setting(
        _LONG, 15_000, "Pause of the cleaner when no partition is due.", at_least(0), is_dynamic=True
    )
    log_cleaner_dedupe_buffer_size: int = setting(
        _LONG,
        134_217_728,
        "Memory for the keys of all cleaner threads together; more than 1 MiB for each. When it is full, the cleaner uses the "
        "disk; with `diamant.cleaner.mode=kafka`, it cleans the rest later.",
        is_dynamic=True,
    )
    log_cleaner_io_buffer_size: int = setting(
        _INT,
        524_288,
        "Memory for reading and writing of all cleaner threads together. Larger batches are still read.",
        at_least(0),
        is_dynamic=True,
    )
    log_cleaner_io_buffer_load_factor: float = setting(
        _DOUBLE,
        0.9,
        "Share of the memory for keys that may be filled with `diamant.cleaner.mode=kafka`.",
        is_dynamic=True,
    )
    log_cleaner_io_max_bytes_per_second: float = setting(
        _DOUBLE,
        DOUBLE_MAX,
        "Maximum bytes that the cleaner reads and writes per second, divided equally among `log.cleaner.threads`.",
        is_dynamic=True,
    )


class OwnSettings:
    """Diamant's own configurations, and those of the metadata log."""

    # Diamant's own
    diamant_auto_create_topics_answer: str = setting(
        _STRING,
        KAFKA,
        "How a request that creates a topic, Metadata (`auto.create.topics.enable`) or FindCoordinator, is answered. `kafka`: as "
        "by Kafka, with an immediate error that the client retries. `ready`: without an error, once the topic can be used.",
        any_of(KAFKA, READY),
    )
    diamant_brokers: int = setting(
        _INT,
        1,
        "Number of brokers in this process, to test how clients follow leaders that move. Their ids follow `node.id`, each has "
        "listeners of its own, and all share one storage. `broker.rack` is then a list, by default r1, r2, ...",
        between(1, MAX_BROKERS),
    )
    diamant_brokers_ports: list[str] | None = setting(
        _LIST,
        None,
        "Ports of the first of the `listeners`, one for each of `diamant.brokers`. Default: the listener's port and the ports "
        "after it, or free ports if it is 0.",
    )
    replica_selector_class: str | None = setting(
        _STRING,
        None,
        f"With `{RACK_AWARE}`, the leader refers a consumer to a replica in the consumer's rack (`client.rack`), if there are "
        "several `diamant.brokers`. Any other class causes a warning and has no effect.",
    )
    diamant_replication_factor_max: int = setting(
        _INT,
        1,
        "Largest accepted replication factor of a topic, as in a cluster of this many brokers. The topic still has one replica, "
        "which is in sync and satisfies any `min.insync.replicas`.",
        at_least(1),
    )
    diamant_cleaner_kafka_version: str = setting(
        _STRING,
        KAFKA_4_4,
        "The Kafka version that `diamant.cleaner.mode=kafka` follows. If the last batch of a round loses all records, `4.3` "
        "always keeps its header, and `4.4` only at the end of the log. Mode prompt does the same as `4.4`.",
        any_of(*KAFKA_VERSIONS),
    )
    diamant_cleaner_mode: str = setting(
        _STRING,
        PROMPT,
        "`kafka`: cleans and deletes exactly when and as Kafka does. `prompt`: keeps Kafka's guarantees but removes records "
        "sooner: `max.compaction.lag.ms` also holds without traffic, and failed rounds are retried.",
        any_of(PROMPT, KAFKA),
    )
    diamant_cleaner_spark_driver_max_idle_ms: int = setting(
        _LONG,
        0,
        "How long the Spark driver of a successful round is kept, with its session and its cluster resources, so that the next "
        "round need not start Spark. 0: the driver ends with the round.",
        at_least(0),
    )
    diamant_cleaner_spark_executor_timeout_ms: int = setting(
        _LONG,
        120_000,
        "How long a Spark job waits for executors, at its start and after losing all of them. Then it is aborted and the "
        "partition is cleaned locally.",
        at_least(1000),
    )
    diamant_cleaner_spark_master: str = setting(
        _STRING,
        "local[*]",
        "Spark master for cleaning partitions that are too large for this machine, in the form of `spark.master`. Each "
        "`diamant.cleaner.spark.conf.NAME` is passed on to Spark as NAME. See docs/how-to/spark-clean.md.",
    )
    diamant_cleaner_spark_min_bytes: int = setting(
        _LONG,
        68_719_476_736,
        "Size from which a partition is cleaned on Spark, if PySpark is installed and Spark is estimated to be faster; -1: only "
        "on request.",
        at_least(-1),
    )
    diamant_cleaner_spark_staging: str = setting(
        ConfigType.PASSWORD,
        "",
        "Where executors store cleaned segments until they are verified and swapped in: a directory shared with the broker "
        "(`file:`), or an object store (`s3:`), to which the original segments are copied as well. Empty: next to the segments. "
        "A URI may contain credentials, so it is not shown.",
    )
    diamant_erasure_deadline_ms: int = setting(
        _LONG,
        2_592_000_000,
        "Longest time that a superseded value or a tombstone may exist. Once a non-internal topic exceeds it, `/healthz?erasure` "
        "fails and `diamant_erasure_deadline_days_left` is negative. The deadline does not remove records sooner.",
        at_least(1),
    )
    diamant_produce_validation: str = setting(
        _STRING,
        "full",
        "`full` checks each produced record, as Kafka does. `header` checks only CRC and header, on topics that are neither "
        "compacted nor LogAppendTime: this is faster, but malformed records reach consumers.",
        any_of("full", "header"),
    )
    diamant_release_version: str = setting(
        _STRING,
        DEFAULT_RELEASE,
        "Release of Kafka for which a new directory is formatted, with its levels of `metadata.version` and of the other "
        "features; older releases cannot open it. An existing directory keeps its levels until `kafka-features upgrade`.",
        any_of(*RELEASES),
    )
    diamant_schema_directory: str | None = setting(
        _STRING,
        None,
        "Directory with schemas for reading values (`find`, `redact`): `42.avsc`, `42.proto` or `42.desc` for the schema with "
        "the id 42, `orders-value.avsc` for all values of the topic `orders`. `.desc`, `.pb` and `.binpb` files are Protobuf "
        "descriptor sets with imports. Searched after the topic `_schemas` and before the registry.",
    )
    diamant_schema_registry_url: str | None = setting(
        _STRING,
        None,
        "URL of a schema registry with Confluent's REST API, for schemas that are neither in the topic `_schemas` nor in the "
        "directory. Redirects are refused.",
        Validator("URL", _check_registry),
    )
    diamant_schema_registry_basic_auth_user_info: str | None = setting(
        ConfigType.PASSWORD, None, "User and password for the registry, `user:password`."
    )
    diamant_schema_registry_bearer_auth_token: str | None = setting(
        ConfigType.PASSWORD, None, "Token for the registry."
    )
    diamant_schema_registry_ssl_ca_location: str | None = setting(
        _STRING,
        None,
        "PEM file with the certificates to trust in connections to the registry. Default: the system's certificates.",
    )
    diamant_http_listen: str | None = setting(
        _STRING,
        None,
        "Address of the HTTP port (`/metrics`, `/health`), as `host:port`; an empty host is every interface, port 0 a "
        f"free port, an empty string turns HTTP off. `diamant start` sets `{DEFAULT_HTTP_LISTEN}` by default; in "
        "a program or a test, HTTP is off. If the address is in use, the broker runs without HTTP.",
    )
    diamant_http_token_file: str | None = setting(
        _STRING,
        None,
        "File with the bearer token of HTTP requests that change data, or with `name:token` lines, each for the principal "
        "`User:name`. Without the file, such requests need no token on loopback and are refused on other addresses. Should have "
        "mode 0600; read at the start.",
    )
    diamant_audit_file: str | None = setting(
        _STRING,
        None,
        "Audit log file. Each request that changes anything but records and committed offsets, and each HTTP request that "
        "returns records, adds a line: client, address, action, outcome; never a key or value. Rotated at 10 MiB to one older "
        "file, `.1`. The logger `diamant.audit` receives the same lines, with reads at DEBUG. Best kept outside the data "
        "directory.",
    )
    diamant_certificate_key_ephemeral: bool = setting(
        _BOOLEAN,
        False,
        "Whether the key of certificates may be created where it can be lost while the data remains: in a container's own "
        "layer (outside its volumes), or in memory. Without the secret, digests cannot be compared and an "
        "unfinished erasure cannot continue.",
    )
    diamant_certificate_key_file: str | None = setting(
        _STRING,
        None,
        "File with the Ed25519 key that signs certificates of erasure, in PEM. A file with `.secret` appended to the name holds "
        "the secret of their digests. The first erasure creates both, with mode 0600; they may not be in the data directory. "
        "Default: `~/.config/diamant/certificate.key`.",
    )
    diamant_clock: str = setting(
        _STRING,
        SYSTEM_CLOCK,
        "Clock of all stored data. `manual`: a clock that follows the system's until it is moved or frozen (`diamant clock`), "
        "for tests and demonstrations. Its position is kept in the data directory.",
        any_of(SYSTEM_CLOCK, MANUAL_CLOCK),
    )
    diamant_compact_wait_max_ms: int = setting(
        _INT,
        20_000,
        "How long IncrementalAlterConfigs with `diamant.compact=now` waits for the compaction before it returns "
        "REQUEST_TIMED_OUT. The compaction continues, and a repeated request joins it. Should be less than clients' timeouts.",
        at_least(0),
        is_dynamic=True,
    )
    diamant_describe: bool = setting(
        _BOOLEAN,
        True,
        "Whether DescribeConfigs shows the cleaner's state of compacted topics, as read-only configurations `diamant.*`.",
        is_dynamic=True,
    )
    # Metadata
    metadata_log_dir: str | None = setting(_STRING, None, "Directory of the metadata log; must be the data directory.")
    metadata_log_max_record_bytes_between_snapshots: int = setting(
        _LONG, 20_971_520, "Bytes of metadata records after which a snapshot is written.", at_least(1)
    )
    metadata_log_max_snapshot_interval_ms: int = setting(
        _LONG,
        3_600_000,
        "Time after which a snapshot is written if there are new metadata records; 0: no limit.",
        at_least(0),
    )


# If these are not set, the default comes from hours or from a scheduler's interval, not from the table of topics.
_WITHOUT_DEFAULT = ("log.retention.ms", "log.roll.ms", "log.roll.jitter.ms", "log.flush.interval.ms")


def _first_sentence(text: str) -> str:
    return f"{text.partition('. ')[0].removesuffix('.')}."


def _topic_defaults(explained: Iterable[str]) -> list[ConfigKey]:
    """Return a row for each synonym in the table of topics, with the type, limits and default of its topic configuration."""
    keys = []
    for topic_key in TOPIC_CONFIGS.values():
        for synonym in topic_key.synonyms:
            if synonym not in explained:
                keys.append(
                    ConfigKey(
                        synonym,
                        topic_key.type,
                        None if synonym in _WITHOUT_DEFAULT else topic_key.default,
                        f"{_first_sentence(topic_key.documentation)} The default of topics without `{topic_key.name}`.",
                        _RETENTION if synonym == "log.retention.ms" else topic_key.validator,
                        is_dynamic=True,
                    )
                )
    return keys


_OWN = [*settings_of(NetworkSettings), *settings_of(LogSettings), *settings_of(OwnSettings)]

BROKER_CONFIGS: Mapping[str, ConfigKey] = {
    key.name: key
    for key in (
        *_OWN,
        *AUTHORIZATION_CONFIGS,
        *SASL_CONFIGS,
        *SSL_CONFIGS,
        *settings_of(CoordinatorSettings),
        *_topic_defaults([key.name for key in _OWN]),
    )
}
"""The table, by name: first the broker's own configurations, then the defaults of topics."""
