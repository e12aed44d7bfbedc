"""The table of the broker's configurations: name, type, default, limits and documentation of each.

Names and meaning are Kafka's; where the default is not, the documentation says so. `BrokerConfig` is its typed view.

There are also the names that Kafka 4.3 cannot change while it runs, and that mean nothing here. Setting one of them
over the wire is refused as by Kafka. What Kafka can change, and unknown names, are kept: a Kafka that opens the
directory takes them over.

Source: what Kafka 4.3.1 answers to DescribeConfigs with `read_only`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from diamant.broker.config.authorization_table import AUTHORIZATION_CONFIGS
from diamant.broker.config.config_key import (
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
    list_of,
)
from diamant.broker.config.coordinator_table import COORDINATOR_CONFIGS
from diamant.broker.config.sasl_table import SASL_CONFIGS
from diamant.broker.config.ssl_table import SSL_CONFIGS
from diamant.broker.config.topic_table import TOPIC_CONFIGS
from diamant.cleaner.rules.modes import KAFKA, PROMPT

_BOOLEAN, _STRING, _INT, _LONG = ConfigType.BOOLEAN, ConfigType.STRING, ConfigType.INT, ConfigType.LONG
_DOUBLE, _LIST = ConfigType.DOUBLE, ConfigType.LIST


SYSTEM_CLOCK, MANUAL_CLOCK = "system", "manual"
"""The values of `diamant.clock`."""

SPARK_CONF_PREFIX = "diamant.cleaner.spark.conf."
"""Begins the names of what is passed on to Spark."""

DEFAULT_LISTENER = "PLAINTEXT://127.0.0.1:9092"

DEFAULT_HTTP_LISTEN = "127.0.0.1:9644"
"""The default of `diamant start` for `diamant.http.listen`."""

NO_EFFECT_YET = " No effect yet."
"""Ends the documentation of what is read, checked and shown, but not followed."""


def _check_retention(name: str, value: Value) -> None:
    if value == 0:
        raise InvalidValue(name, 0, "must be unlimited (-1) or, greater than or equal to 1")


def ip_overrides_of(text: str) -> dict[str, int]:
    """The numbers of connections by host in `max.connections.per.ip.overrides`. ValueError if it is none such."""
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
        raise InvalidValue(name, value, "classes cannot be plugged in; limits are those of AlterClientQuotas")


_RETENTION = Validator("at least 1; -1: no limit", _check_retention)

_KEYS = (
    # Who and where
    ConfigKey("node.id", _INT, 1, "Number of this broker. Kafka has no default.", at_least(0)),
    ConfigKey("broker.id", _INT, None, "Older name of `node.id`; if both are set they must agree.", at_least(0)),
    ConfigKey("broker.rack", _STRING, None, "Rack that is reported to clients."),
    ConfigKey(
        "process.roles",
        _LIST,
        ["broker", "controller"],
        "Roles of this process: broker, controller or both. A Diamant node is both; `broker` must be among them.",
        list_of("broker", "controller"),
    ),
    ConfigKey(
        "listeners",
        _LIST,
        [DEFAULT_LISTENER],
        "Where to listen, as `NAME://host:port`; an empty host is every interface, port 0 a free port. Kafka's "
        "default is every interface; Diamant stays on this machine by default. "
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
        "Security protocol of each listener name; entries that no listener uses do no harm.",
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
        "max.connections",
        _INT,
        INT_MAX,
        "Connections at once; further ones wait. One listener: `listener.name.NAME.max.connections`.",
        at_least(0),
        is_dynamic=True,
    ),
    ConfigKey(
        "max.connections.per.ip",
        _INT,
        INT_MAX,
        "Connections at once from one address; further ones are closed. 0: none but those in the overrides.",
        at_least(0),
        is_dynamic=True,
    ),
    ConfigKey(
        "max.connections.per.ip.overrides",
        _STRING,
        "",
        "The same for single addresses, by name or number: `10.0.0.7:100,build:20`.",
        Validator("HOST:NUMBER, separated by commas", _check_ip_overrides),
        is_dynamic=True,
    ),
    ConfigKey(
        "max.connection.creation.rate",
        _INT,
        INT_MAX,
        "Connections that are accepted per second; further ones wait. One listener: "
        "`listener.name.NAME.max.connection.creation.rate`. Single addresses: the quota `connection_creation_rate`.",
        at_least(1),
        is_dynamic=True,
    ),
    # Quotas
    ConfigKey(
        "quota.window.num",
        _INT,
        11,
        "Windows that a client's rate is measured in. What it may take at once is its limit times all windows but one.",
        at_least(1),
    ),
    ConfigKey(
        "quota.window.size.seconds",
        _INT,
        1,
        "Length of each. Also the longest wait of a client for `request_percentage`, and of a connection for being accepted.",
        at_least(1),
    ),
    ConfigKey(
        "controller.quota.window.num",
        _INT,
        11,
        "Windows of `controller_mutation_rate`: the limit times all of them is what a client may change at once.",
        at_least(1),
    ),
    ConfigKey("controller.quota.window.size.seconds", _INT, 1, "Length of each.", at_least(1)),
    ConfigKey(
        "client.quota.callback.class",
        ConfigType.CLASS,
        None,
        "Must be empty: classes cannot be plugged in.",
        Validator("empty", _check_no_class),
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
        "Age in minutes at which the `delete` policy removes a segment, if `log.retention.ms` is not set.",
        _RETENTION,
    ),
    ConfigKey(
        "log.retention.hours",
        _INT,
        168,
        "Age in hours at which the `delete` policy removes a segment, if neither `log.retention.ms` nor "
        "`log.retention.minutes` is set.",
        _RETENTION,
    ),
    ConfigKey(
        "log.roll.hours",
        _INT,
        168,
        "Age in hours at which a segment is closed even if it is not full, if `log.roll.ms` is not set.",
        at_least(1),
    ),
    ConfigKey(
        "log.roll.jitter.hours",
        _INT,
        0,
        "A random part of so many hours is taken off the age at which a segment is closed, if `log.roll.jitter.ms` is not set.",
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
        "Partitions that are cleaned at once. A large one that is cleaned alone may take as many processors. May be changed to "
        "half or twice as many at a time.",
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
        "diamant.cleaner.spark.driver.max.idle.ms",
        _LONG,
        0,
        "How long the Spark driver of a round that ended well is kept, with its session and what it holds of a cluster, for a "
        "next round: it spares the start of Spark. 0: not at all.",
        at_least(0),
    ),
    ConfigKey(
        "diamant.cleaner.spark.executor.timeout.ms",
        _LONG,
        120_000,
        "How long a job on Spark waits for executors, at its start and whenever it has lost all of them, before it is ended and "
        "a local runner takes over.",
        at_least(1000),
    ),
    ConfigKey(
        "diamant.cleaner.spark.master",
        _STRING,
        "local[*]",
        "Where partitions are cleaned that are too large for this machine: a master of Apache Spark, as `spark.master`. Each "
        "`diamant.cleaner.spark.conf.NAME` is passed on to Spark as NAME. See docs/how-to/spark-clean.md.",
    ),
    ConfigKey(
        "diamant.cleaner.spark.min.bytes",
        _LONG,
        68_719_476_736,
        "From this size on a partition is cleaned on Spark if PySpark is installed and an estimate says that it will be quicker; "
        "-1: only on request.",
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
        f"free port, an empty text is off. `diamant start` sets `{DEFAULT_HTTP_LISTEN}` by default; in "
        "a program or a test it is off. If the address is in use the broker runs without.",
    ),
    ConfigKey(
        "diamant.http.token.file",
        _STRING,
        None,
        "File with the bearer token for requests over HTTP that change data, or with `name:token` lines: each of the principal "
        "`User:name`. Without it they need none on loopback, and are refused where HTTP is answered elsewhere. Should have mode "
        "0600; read at the start.",
    ),
    ConfigKey(
        "diamant.audit.file",
        _STRING,
        None,
        "File to which each request that changes something but records and committed offsets, and each over HTTP that hands out "
        "records, adds a line: who, from where, what, outcome; never a key or value. 10 MiB, and as much of before in a file "
        "with `.1`. The logger `diamant.audit` has the same. Best outside of the data directory.",
    ),
    ConfigKey(
        "diamant.certificate.key.ephemeral",
        _BOOLEAN,
        False,
        "Whether the key of certificates may be made where it vanishes and the data stays: in a container's own layer "
        "(outside of its volumes), or in memory. Without its secret digests cannot be compared, and an "
        "unfinished erasure cannot continue.",
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
        "Which time counts for everything that is stored. `manual`: a clock that follows the system's until it is moved or "
        "frozen (`diamant clock`), for tests and demonstrations. Its position is kept in the data directory.",
        any_of(SYSTEM_CLOCK, MANUAL_CLOCK),
    ),
    ConfigKey(
        "diamant.compact.wait.max.ms",
        _INT,
        20_000,
        "How long IncrementalAlterConfigs with `diamant.compact=now` waits for the end of the compaction before it answers "
        "REQUEST_TIMED_OUT; the compaction continues, and the same request joins it. Less than the timeout of clients.",
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


def _first_sentence(text: str) -> str:
    return f"{text.partition('. ')[0].removesuffix('.')}."


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
                        f"{_first_sentence(topic_key.documentation)} The default of topics without `{topic_key.name}`.",
                        _RETENTION if synonym == "log.retention.ms" else topic_key.validator,
                        is_dynamic=True,
                    )
                )
    return keys


BROKER_CONFIGS: Mapping[str, ConfigKey] = {
    key.name: key
    for key in (
        *_KEYS,
        *AUTHORIZATION_CONFIGS,
        *SASL_CONFIGS,
        *SSL_CONFIGS,
        *COORDINATOR_CONFIGS,
        *_topic_defaults([key.name for key in _KEYS]),
    )
}
"""The table, by name: first what is the broker's own, then the defaults of topics."""


_NAMES = """
add.partitions.to.txn.retry.backoff.max.ms add.partitions.to.txn.retry.backoff.ms alter.config.policy.class.name
alter.log.dirs.replication.quota.window.num alter.log.dirs.replication.quota.window.size.seconds
auto.leader.rebalance.enable broker.heartbeat.interval.ms broker.session.timeout.ms
controlled.shutdown.enable controller.quorum.append.linger.ms controller.quorum.auto.join.enable
controller.quorum.bootstrap.servers controller.quorum.election.backoff.max.ms
controller.quorum.election.timeout.ms controller.quorum.fetch.max.bytes
controller.quorum.fetch.snapshot.max.bytes controller.quorum.fetch.timeout.ms
controller.quorum.request.timeout.ms controller.quorum.retry.backoff.ms controller.quorum.voters
controller.socket.timeout.ms
create.topic.policy.class.name delegation.token.expiry.check.interval.ms delegation.token.expiry.time.ms
delegation.token.max.lifetime.ms delegation.token.secret.key delete.records.purgatory.purge.interval.requests
early.start.listeners fetch.purgatory.purge.interval.requests group.coordinator.append.linger.ms
group.coordinator.background.threads group.coordinator.threads group.share.assignors
group.share.delivery.count.limit group.share.heartbeat.interval.ms group.share.max.assignment.interval.ms
group.share.max.delivery.count.limit group.share.max.heartbeat.interval.ms
group.share.max.partition.max.record.locks group.share.max.record.lock.duration.ms
group.share.max.session.timeout.ms group.share.max.share.sessions group.share.max.size
group.share.min.assignment.interval.ms group.share.min.delivery.count.limit
group.share.min.heartbeat.interval.ms group.share.min.partition.max.record.locks
group.share.min.record.lock.duration.ms group.share.min.session.timeout.ms
group.share.partition.max.record.locks group.share.record.lock.duration.ms group.share.session.timeout.ms
group.streams.heartbeat.interval.ms group.streams.initial.rebalance.delay.ms
group.streams.max.assignment.interval.ms group.streams.max.heartbeat.interval.ms
group.streams.max.session.timeout.ms group.streams.max.size group.streams.max.standby.replicas
group.streams.min.assignment.interval.ms group.streams.min.heartbeat.interval.ms
group.streams.min.session.timeout.ms group.streams.num.standby.replicas group.streams.session.timeout.ms
initial.broker.registration.timeout.ms inter.broker.listener.name kafka.metrics.polling.interval.secs
kafka.metrics.reporters leader.imbalance.check.interval.seconds log.dir.failure.timeout.ms
metadata.log.segment.bytes metadata.log.segment.ms metadata.max.idle.interval.ms metadata.max.retention.bytes
metadata.max.retention.ms metrics.num.samples metrics.recording.level metrics.sample.window.ms
num.replica.alter.log.dirs.threads offsets.commit.timeout.ms producer.purgatory.purge.interval.requests
queued.max.requests remote.log.manager.copy.quota.window.num
remote.log.manager.copy.quota.window.size.seconds remote.log.manager.fetch.quota.window.num
remote.log.manager.fetch.quota.window.size.seconds remote.log.manager.task.interval.ms
remote.log.manager.thread.pool.size remote.log.metadata.custom.metadata.max.bytes
remote.log.metadata.manager.class.name remote.log.metadata.manager.class.path
remote.log.metadata.manager.impl.prefix remote.log.metadata.manager.listener.name
remote.log.reader.max.pending.tasks remote.log.storage.manager.class.name remote.log.storage.manager.class.path
remote.log.storage.manager.impl.prefix remote.log.storage.system.enable replica.fetch.backoff.ms
replica.fetch.max.bytes replica.fetch.min.bytes replica.fetch.response.max.bytes replica.fetch.wait.max.ms
replica.high.watermark.checkpoint.interval.ms replica.lag.time.max.ms replica.selector.class
replica.socket.receive.buffer.bytes replica.socket.timeout.ms replication.quota.window.num
replication.quota.window.size.seconds request.timeout.ms sasl.client.callback.handler.class
sasl.login.callback.handler.class sasl.login.class sasl.login.connect.timeout.ms sasl.login.read.timeout.ms
sasl.login.retry.backoff.max.ms sasl.login.retry.backoff.ms sasl.mechanism.controller.protocol
sasl.oauthbearer.assertion.algorithm sasl.oauthbearer.assertion.claim.aud
sasl.oauthbearer.assertion.claim.exp.seconds sasl.oauthbearer.assertion.claim.iss
sasl.oauthbearer.assertion.claim.jti.include sasl.oauthbearer.assertion.claim.nbf.seconds
sasl.oauthbearer.assertion.claim.sub sasl.oauthbearer.assertion.file sasl.oauthbearer.assertion.private.key.file
sasl.oauthbearer.assertion.private.key.passphrase sasl.oauthbearer.assertion.template.file
sasl.oauthbearer.client.credentials.client.id sasl.oauthbearer.client.credentials.client.secret
sasl.oauthbearer.jwks.endpoint.refresh.ms sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms
sasl.oauthbearer.jwks.endpoint.retry.backoff.ms
sasl.oauthbearer.jwt.retriever.class sasl.oauthbearer.jwt.validator.class sasl.oauthbearer.scope
sasl.oauthbearer.token.endpoint.url
security.inter.broker.protocol
security.providers share.coordinator.append.linger.ms share.coordinator.load.buffer.size
share.coordinator.snapshot.update.records.per.snapshot share.coordinator.state.topic.compression.codec
share.coordinator.state.topic.min.isr share.coordinator.state.topic.num.partitions
share.coordinator.state.topic.replication.factor share.coordinator.state.topic.segment.bytes
share.coordinator.threads share.coordinator.write.timeout.ms share.fetch.purgatory.purge.interval.requests
socket.connection.setup.timeout.max.ms socket.connection.setup.timeout.ms telemetry.max.bytes
transaction.state.log.load.buffer.size
transaction.two.phase.commit.enable
"""

KAFKA_STATIC_CONFIGS = frozenset(_NAMES.split())
