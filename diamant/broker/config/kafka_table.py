"""Broker configurations that only Kafka uses. DescribeConfigs shows them as read-only, since they have no effect in Diamant.

A row has the name, the type and, after `=`, the value, if there is one. Values are Kafka's defaults except where these would be
wrong: Diamant has one thread for requests, does not copy from other brokers, does not move leaders, and has no remote storage or
metrics reporters. A star after the type marks a configuration that can be changed and is stored for a Kafka broker that opens the
directory.

Source: Kafka 4.4.0's response to DescribeConfigs.
"""

from __future__ import annotations

from diamant.storage.config_key import ConfigKey, ConfigType, at_least, parse_value

_ROWS = """
add.partitions.to.txn.retry.backoff.max.ms INT =100
add.partitions.to.txn.retry.backoff.ms INT =20
alter.config.policy.class.name CLASS
alter.log.dirs.replication.quota.window.num INT =11
alter.log.dirs.replication.quota.window.size.seconds INT =1
auto.leader.rebalance.enable BOOLEAN =false
background.threads INT =10
broker.heartbeat.interval.ms INT =2000
broker.session.timeout.ms INT =9000
config.providers LIST =
controlled.shutdown.enable BOOLEAN =true
controller.quorum.append.linger.ms INT =25
controller.quorum.auto.join.enable BOOLEAN =false
controller.quorum.bootstrap.servers LIST =
controller.quorum.election.backoff.max.ms INT =1000
controller.quorum.election.timeout.ms INT =1000
controller.quorum.fetch.max.bytes INT =1048576
controller.quorum.fetch.snapshot.max.bytes INT =1048576
controller.quorum.fetch.timeout.ms INT =2000
controller.quorum.request.timeout.ms INT =2000
controller.quorum.retry.backoff.ms INT =20
controller.quorum.voters LIST =
controller.socket.timeout.ms INT =30000
cordoned.log.dirs LIST =
create.topic.policy.class.name CLASS
delegation.token.expiry.check.interval.ms LONG =3600000
delegation.token.expiry.time.ms LONG =86400000
delegation.token.max.lifetime.ms LONG =604800000
delegation.token.secret.key PASSWORD
delete.records.purgatory.purge.interval.requests INT =1
early.start.listeners LIST
errors.deadletterqueue.auto.create.topics.enable BOOLEAN* =false
errors.deadletterqueue.topic.name.prefix STRING* =dlq.
fetch.purgatory.purge.interval.requests INT =1000
follower.fetch.last.tiered.offset.enable BOOLEAN =false
group.coordinator.append.linger.ms INT =-1
group.coordinator.background.threads INT =2
group.coordinator.cached.buffer.max.bytes INT =1048588
group.coordinator.threads INT =1
group.share.assignors LIST =simple
group.streams.assignment.interval.ms INT =1000
group.streams.assignors LIST =sticky
group.streams.heartbeat.interval.ms INT =5000
group.streams.initial.rebalance.delay.ms INT =3000
group.streams.max.assignment.interval.ms INT =15000
group.streams.max.heartbeat.interval.ms INT =15000
group.streams.max.session.timeout.ms INT =60000
group.streams.max.size INT =2147483647
group.streams.max.standby.replicas INT =2
group.streams.min.assignment.interval.ms INT =0
group.streams.min.heartbeat.interval.ms INT =5000
group.streams.min.session.timeout.ms INT =45000
group.streams.num.standby.replicas INT =0
group.streams.rack.aware.assignment.tags LIST =
group.streams.session.timeout.ms INT =45000
group.streams.topology.description.plugin.class CLASS
initial.broker.registration.timeout.ms INT =60000
inter.broker.listener.name STRING
kafka.metrics.polling.interval.secs INT =10
kafka.metrics.reporters LIST =
leader.imbalance.check.interval.seconds LONG =300
log.dir.failure.timeout.ms LONG =30000
log.flush.offset.checkpoint.interval.ms INT =60000
log.flush.start.offset.checkpoint.interval.ms INT =60000
metadata.log.segment.bytes INT =1073741824
metadata.log.segment.ms LONG =604800000
metadata.max.idle.interval.ms INT =500
metadata.max.retention.bytes LONG =104857600
metadata.max.retention.ms LONG =604800000
metric.reporters LIST =
metrics.num.samples INT =2
metrics.recording.level STRING =INFO
metrics.sample.window.ms LONG =30000
num.io.threads INT =1
num.network.threads INT =1
num.replica.alter.log.dirs.threads INT
num.replica.fetchers INT =0
offsets.commit.timeout.ms INT =5000
principal.builder.class CLASS* =org.apache.kafka.common.security.authenticator.DefaultKafkaPrincipalBuilder
producer.purgatory.purge.interval.requests INT =1000
queued.max.requests INT =500
remote.fetch.max.wait.ms INT =500
remote.list.offsets.request.timeout.ms LONG =30000
remote.log.index.file.cache.total.size.bytes LONG =1073741824
remote.log.manager.copier.thread.pool.size INT =10
remote.log.manager.copy.max.bytes.per.second LONG =9223372036854775807
remote.log.manager.copy.quota.window.num INT =11
remote.log.manager.copy.quota.window.size.seconds INT =1
remote.log.manager.expiration.thread.pool.size INT =10
remote.log.manager.fetch.max.bytes.per.second LONG =9223372036854775807
remote.log.manager.fetch.quota.window.num INT =11
remote.log.manager.fetch.quota.window.size.seconds INT =1
remote.log.manager.follower.thread.pool.size INT =2
remote.log.manager.task.interval.ms LONG =30000
remote.log.manager.thread.pool.size INT =2
remote.log.metadata.custom.metadata.max.bytes INT =128
remote.log.metadata.manager.class.name STRING
remote.log.metadata.manager.class.path STRING
remote.log.metadata.manager.impl.prefix STRING =rlmm.config.
remote.log.metadata.manager.listener.name STRING
remote.log.reader.max.pending.tasks INT =100
remote.log.reader.threads INT =10
remote.log.storage.manager.class.name STRING
remote.log.storage.manager.class.path STRING
remote.log.storage.manager.impl.prefix STRING =rsm.config.
remote.log.storage.system.enable BOOLEAN =false
replica.fetch.backoff.ms INT =1000
replica.fetch.max.bytes INT =1048576
replica.fetch.min.bytes INT =1
replica.fetch.response.max.bytes INT =10485760
replica.fetch.wait.max.ms INT =500
replica.high.watermark.checkpoint.interval.ms LONG =5000
replica.lag.time.max.ms LONG =30000
replica.socket.receive.buffer.bytes INT =65536
replica.socket.timeout.ms INT =30000
replication.quota.window.num INT =11
replication.quota.window.size.seconds INT =1
request.timeout.ms INT =30000
sasl.client.callback.handler.class CLASS
sasl.kerberos.kinit.cmd STRING* =/usr/bin/kinit
sasl.kerberos.min.time.before.relogin LONG* =60000
sasl.kerberos.principal.to.local.rules LIST* =DEFAULT
sasl.kerberos.service.name STRING*
sasl.kerberos.ticket.renew.jitter DOUBLE* =0.05
sasl.kerberos.ticket.renew.window.factor DOUBLE* =0.8
sasl.login.callback.handler.class CLASS
sasl.login.class CLASS
sasl.login.connect.timeout.ms INT
sasl.login.read.timeout.ms INT
sasl.login.refresh.buffer.seconds SHORT* =300
sasl.login.refresh.min.period.seconds SHORT* =60
sasl.login.refresh.window.factor DOUBLE* =0.8
sasl.login.refresh.window.jitter DOUBLE* =0.05
sasl.login.retry.backoff.max.ms LONG =10000
sasl.login.retry.backoff.ms LONG =100
sasl.mechanism.controller.protocol STRING =GSSAPI
sasl.mechanism.inter.broker.protocol STRING* =GSSAPI
sasl.oauthbearer.allow.unverified.audience BOOLEAN =false
sasl.oauthbearer.allow.unverified.issuer BOOLEAN =false
sasl.oauthbearer.assertion.algorithm STRING =RS256
sasl.oauthbearer.assertion.claim.aud STRING
sasl.oauthbearer.assertion.claim.exp.seconds INT =300
sasl.oauthbearer.assertion.claim.iss STRING
sasl.oauthbearer.assertion.claim.jti.include BOOLEAN =false
sasl.oauthbearer.assertion.claim.nbf.seconds INT =60
sasl.oauthbearer.assertion.claim.sub STRING
sasl.oauthbearer.assertion.file STRING
sasl.oauthbearer.assertion.private.key.file STRING
sasl.oauthbearer.assertion.private.key.passphrase PASSWORD
sasl.oauthbearer.assertion.template.file STRING
sasl.oauthbearer.client.credentials.client.id STRING
sasl.oauthbearer.client.credentials.client.secret PASSWORD
sasl.oauthbearer.jwks.endpoint.refresh.ms LONG =3600000
sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms LONG =10000
sasl.oauthbearer.jwks.endpoint.retry.backoff.ms LONG =100
sasl.oauthbearer.jwt.retriever.class CLASS =org.apache.kafka.common.security.oauthbearer.DefaultJwtRetriever
sasl.oauthbearer.jwt.validator.class CLASS =org.apache.kafka.common.security.oauthbearer.DefaultJwtValidator
sasl.oauthbearer.scope STRING
sasl.oauthbearer.token.endpoint.url STRING
security.inter.broker.protocol STRING =PLAINTEXT
security.providers STRING
share.coordinator.append.linger.ms INT =-1
share.coordinator.cached.buffer.max.bytes INT =1048588
share.coordinator.load.buffer.size INT =5242880
share.coordinator.state.topic.compression.codec INT =0
share.coordinator.state.topic.min.isr SHORT =2
share.coordinator.threads INT =1
share.coordinator.write.timeout.ms INT =5000
share.fetch.purgatory.purge.interval.requests INT =1000
socket.connection.setup.timeout.max.ms LONG =30000
socket.connection.setup.timeout.ms LONG =10000
ssl.endpoint.identification.algorithm STRING* =https
ssl.engine.factory.class CLASS*
ssl.keymanager.algorithm STRING* =SunX509
ssl.protocol STRING* =TLSv1.3
ssl.provider STRING*
ssl.secure.random.implementation STRING*
ssl.trustmanager.algorithm STRING* =PKIX
telemetry.max.bytes INT =1048576
transaction.state.log.load.buffer.size INT =5242880
transaction.two.phase.commit.enable BOOLEAN =false
"""
_THROTTLES = (
    "leader.replication.throttled.rate",
    "follower.replication.throttled.rate",
    "replica.alter.log.dirs.io.max.bytes.per.second",
)


def _key(row: str) -> ConfigKey:
    name, type_name, *given = row.split(maxsplit=2)
    type_ = ConfigType[type_name.removesuffix("*")]
    value = parse_value(name, type_, given[0][1:]) if given else None
    is_kept = type_name.endswith("*")
    return ConfigKey(name, type_, value, "Used by Kafka only; it has no effect in Diamant.", is_dynamic=is_kept)


def _throttle(name: str) -> ConfigKey:
    documentation = (
        "Kafka's limit on copying between brokers and directories. Nothing is copied here, so no limit is exceeded."
    )
    return ConfigKey(name, ConfigType.LONG, None, documentation, at_least(0), is_dynamic=True, is_internal=True)


KAFKA_ONLY = {key.name: key for key in (*map(_key, _ROWS.strip().splitlines()), *map(_throttle, _THROTTLES))}
"""By name. As in Kafka, the throttles are shown only if they are set."""
