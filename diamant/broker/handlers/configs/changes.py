"""Configurations over Kafka's protocol: the resources, the values that they accept, and the effects of changes.

| resource | name | defined in |
|---|---|---|
| topic | an existing topic | `topic_values.py` |
| broker | the broker's id, or "" for all brokers | `broker_config.py` |
| broker logger | the broker's id | `logger_levels.py`; changes last until the broker stops |
| client metrics | any | `client_metrics_table.py` |
| group | any | `group_table.py` |

All configurations except those of loggers are stored in the metadata log. In Kafka, broker and controller both check a change,
with slightly different messages; here both checks are made, one after the other.

Source: ConfigAdminManager, ConfigurationControlManager, ControllerConfigurationValidator, ConfigHelper. The checks of a broker's
configuration as a whole are from DynamicBrokerConfig, SocketServer and LogCleaner.validateReconfiguration.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING

from diamant.broker.config.broker_config import (
    BrokerConfig,
    check_addresses,
    check_cleaner_memory,
    validate_dynamic_config,
)
from diamant.broker.config.broker_table import ip_overrides_of
from diamant.broker.config.listeners import META_ADDRESSES
from diamant.broker.config.topic_values import describe_topic_configs, validate_topic_configs
from diamant.broker.handlers.configs import clock_by_config
from diamant.broker.handlers.configs.described_broker import describe_broker, described_in
from diamant.broker.topics.name_checks import check_name
from diamant.protocol.errors import ErrorCode, KafkaError
from diamant.protocol.kraft import records
from diamant.storage.config_key import ConfigError, ConfigSource, ConfigType, DescribedConfig
from diamant.storage.kraft.features import ELIGIBLE_LEADER_REPLICAS_VERSION, MIN_INSYNC_REPLICAS
from diamant.storage.kraft.metadata_text import check_text

if TYPE_CHECKING:
    from diamant.broker.network.api import ConnectionInfo
    from diamant.broker.node.node import Node

logger = logging.getLogger(__name__)

HTTP_ADDRESS = "diamant.http.address"
"""An entry in DescribeConfigs of the broker that is not a configuration."""

MALFORMED = (
    "This most likely occurs because of a request being malformed by the client library or the message was sent to an "
    "incompatible broker. See the broker logs for more details."
)
"""Kafka's message for an INVALID_REQUEST without a specific reason."""

_CLEANER = ("log.cleaner.threads", "log.cleaner.dedupe.buffer.size")
_INTERVAL = "group.consumer.assignment.interval.ms"
_LIMIT, _OVERRIDES = "max.connections.per.ip", "max.connections.per.ip.overrides"
_LOOPBACK = ("127.0.0.1", "::1", "localhost")


def stored_configs(node: Node, resource_type: int, resource_name: str) -> Mapping[str, str]:
    """Return the configurations set on the resource itself."""
    return node.metadata.image.configs.get((resource_type, resource_name), {})


# -- reading -------------------------------------------------------------------------------------------------------------


def describe_configs(
    node: Node, resource_type: int, resource_name: str, connection: ConnectionInfo
) -> list[DescribedConfig]:
    """Return all configurations of a resource. Raises KafkaError if the resource does not exist (`ConfigHelper`)."""
    stored = stored_configs(node, resource_type, resource_name)
    if resource_type == records.TOPIC_RESOURCE:
        check_name(resource_name)
        if resource_name not in node.topics.by_name:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        return describe_topic_configs(stored, node.config)
    if resource_type == records.BROKER_RESOURCE:
        if not resource_name:
            source = ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG
            return [described_in(source, name, value) for name, value in stored.items()]
        _check_described_broker(
            node.broker_id(connection), resource_name, ", expected {} or empty string, but received {}"
        )
        layers = {
            ConfigSource.DYNAMIC_BROKER_CONFIG: stored,
            ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG: stored_configs(node, resource_type, ""),
        }
        config = node.config_of(node.broker_id(connection))
        described = describe_broker(config, layers, _advertised(node, connection))
        return [*described, _http_address(node), *clock_by_config.described(node.env.clock)]
    if resource_type == records.BROKER_LOGGER_RESOURCE:
        from diamant.broker.handlers.configs.logger_levels import describe_loggers

        if not resource_name:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "Broker id must not be empty")
        _check_described_broker(node.broker_id(connection), resource_name, ", expected {} but received {}")
        return describe_loggers()
    if resource_type == records.CLIENT_METRICS_RESOURCE:
        from diamant.broker.config.client_metrics_table import describe_client_metrics_configs

        if not resource_name:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "Client metrics subscription name must not be empty")
        return describe_client_metrics_configs(stored)
    if resource_type == records.GROUP_RESOURCE:
        from diamant.broker.config.group_table import describe_group_configs

        if not resource_name:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "Group name must not be empty")
        return describe_group_configs(stored, node.config)
    raise KafkaError(ErrorCode.INVALID_REQUEST, MALFORMED)


def _http_address(node: Node) -> DescribedConfig:
    """Return the entry with the address of the HTTP port; its value is empty if HTTP is off.

    HTTP serves operations that Kafka's protocol lacks. If the address has no host, clients use the host at which they reached
    the broker.
    """
    bound = node.addresses.http_bound
    value = ""
    if bound is not None:
        value = f":{bound.port}" if bound.host in META_ADDRESSES else bound.address
        if bound.http_scheme == "https":
            value = f"https://{value}"
    return DescribedConfig(
        name=HTTP_ADDRESS,
        value=value,
        source=ConfigSource.STATIC_BROKER_CONFIG,
        type=ConfigType.STRING,
        is_read_only=True,
        documentation="Where Diamant answers HTTP; see docs/reference/http.md.",
    )


def _check_described_broker(broker_id: int, resource_name: str, expectation: str) -> None:
    if _integer(resource_name) is None:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"Broker id must be an integer, but it is: {resource_name}")
    if _integer(resource_name) != broker_id:
        expected = expectation.format(broker_id, resource_name)
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"Unexpected broker id{expected}")


def _advertised(node: Node, connection: ConnectionInfo) -> str:
    """Return the addresses that the client's broker advertises to the client, in the form of `advertised.listeners`."""
    host, number = connection.advertised_host, node.broker_id(connection) - node.config.node_id
    listeners = [one for one in node.config.advertised(node.addresses.kafka) if one.broker == number]
    return ",".join(str(listener if listener.host else listener._replace(host=host)) for listener in listeners)


# -- changing ------------------------------------------------------------------------------------------------------------


def check_resource(node: Node, resource_type: int, resource_name: str, broker_id: int) -> None:
    """Check that a resource exists and that broker `broker_id` may change its configurations. Raises KafkaError."""
    check_text("the name of the resource", resource_name)
    if resource_type == records.TOPIC_RESOURCE:
        check_name(resource_name)
        if resource_name not in node.topics.by_name:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"The topic '{resource_name}' does not exist.")
    elif resource_type == records.BROKER_RESOURCE:
        if resource_name:
            _check_changed_broker(broker_id, resource_name, ", expected {}, but received")
    elif resource_type == records.BROKER_LOGGER_RESOURCE:
        _check_changed_broker(broker_id, resource_name, ". Expected {}, but received")
    elif resource_type == records.CLIENT_METRICS_RESOURCE:
        if not resource_name:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "Subscription name can't be empty")
    elif resource_type == records.GROUP_RESOURCE:
        if not resource_name:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "Default group resources are not allowed.")
    else:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"Unknown resource type {resource_type}")


def _check_changed_broker(broker_id: int, resource_name: str, expectation: str) -> None:
    number = _integer(resource_name)
    if number is None:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"Node id must be an integer, but it is: {resource_name}")
    if number != broker_id:
        kind = "broker" if expectation.startswith(",") else "node"
        raise KafkaError(
            ErrorCode.INVALID_REQUEST, f"Unexpected {kind} id{expectation.format(broker_id)} {resource_name}"
        )


def _integer(text: str) -> int | None:
    digits = text[1:] if text[:1] in ("-", "+") else text
    return int(text) if digits.isascii() and digits.isdecimal() else None


def change_configs(
    node: Node, resource_type: int, resource_name: str, changes: Mapping[str, str | None], *, validate_only: bool
) -> None:
    """Validate the configurations that result from `changes` (None removes one); unless `validate_only`, store and apply them.

    Call `check_resource` first. Changes take effect immediately; call `node.topics.sync()` before sending the response.
    Raises KafkaError.
    """
    if resource_type == records.BROKER_LOGGER_RESOURCE:
        from diamant.broker.handlers.configs.logger_levels import change_loggers, check_logger_changes

        check_logger_changes(changes)
        if not validate_only:
            change_loggers(changes)
        return
    present = stored_configs(node, resource_type, resource_name)
    _validate(node, resource_type, resource_name, present, changes)
    effective = {key: value for key, value in changes.items() if present.get(key) != value}
    if resource_type == records.BROKER_RESOURCE:
        _check_min_insync_replicas(node, resource_name, effective)
    if validate_only or not effective:
        return
    node.metadata.append(
        [
            records.ConfigRecord(resource_type=resource_type, resource_name=resource_name, name=key, value=value)
            for key, value in effective.items()
        ]
    )
    if resource_type == records.TOPIC_RESOURCE:
        node.topics.apply_configs([resource_name])
    elif resource_type == records.BROKER_RESOURCE:
        node.apply_dynamic_config()
        _warn_of_security(node, effective)
    node.scheduler.poke()


def _warn_of_security(node: Node, effective: Mapping[str, str | None]) -> None:
    from diamant.broker.config.security_table import security_settings, setting_of_listener, without_effect
    from diamant.broker.handlers.configs.dynamic_names import is_for_next_start, is_store_of_http
    from diamant.broker.handlers.configs.stores_by_config import has_http_tls

    changed = {name: value for name, value in effective.items() if value is not None}
    if names := security_settings(changed, node.config.listeners):
        logger.warning("%s", without_effect(names))
    late = [
        name
        for name in changed
        if name not in names
        and (
            is_for_next_start(setting_of_listener(name) or name) or (not has_http_tls(node) and is_store_of_http(name))
        )
    ]
    if late:
        logger.warning(
            "%s: takes effect at the next start; as in Kafka, open listeners only reload their key and trust stores",
            ", ".join(late),
        )


def _check_min_insync_replicas(node: Node, resource_name: str, effective: Mapping[str, str | None]) -> None:
    """Refuse to change a broker's min.insync.replicas, or to remove the cluster's, if eligible leader replicas are enabled.

    Kafka 4.1 and later enable them in new directories. Raises KafkaError, with the message and code of Kafka 4.3.1. Source:
    ConfigurationControlManager.validateAlterConfig.
    """
    if MIN_INSYNC_REPLICAS not in effective or not node.metadata.image.features.get(ELIGIBLE_LEADER_REPLICAS_VERSION):
        return
    if resource_name:
        raise KafkaError(
            ErrorCode.INVALID_CONFIG, f"Broker-level {MIN_INSYNC_REPLICAS} cannot be altered while ELR is enabled."
        )
    if effective[MIN_INSYNC_REPLICAS] is None:
        raise KafkaError(
            ErrorCode.INVALID_CONFIG, f"Cluster-level {MIN_INSYNC_REPLICAS} cannot be removed while ELR is enabled."
        )


def _validate(
    node: Node,
    resource_type: int,
    resource_name: str,
    present: Mapping[str, str],
    changes: Mapping[str, str | None],
) -> None:
    for key, value in changes.items():
        check_text("the name of a configuration", key)
        check_text(f"the value of {key}", value)
    outcome = {key: value for key, value in {**present, **changes}.items() if value is not None}
    if resource_type == records.BROKER_RESOURCE:
        for key, value in changes.items():
            if value is not None:
                _check_place(resource_name, key)
            validate_dynamic_config(key, value)
        try:
            now = node.config_of(int(resource_name)) if resource_name else node.config
            _check_outcome(now, node.config_with(resource_name, outcome))
        except ConfigError as error:
            raise KafkaError(ErrorCode.INVALID_REQUEST, str(error)) from None
        return
    if resource_type == records.TOPIC_RESOURCE:
        validate_topic_configs(outcome, node.config)
    elif resource_type == records.GROUP_RESOURCE:
        from diamant.broker.config.group_table import validate_group_configs

        validate_group_configs(outcome, node.config)
    else:
        from diamant.broker.config.client_metrics_table import validate_client_metrics_configs

        validate_client_metrics_configs(outcome)


def _check_place(resource_name: str, key: str) -> None:
    """Refuse a configuration that can be set only for a listener, or only for a single broker. Raises KafkaError."""
    from diamant.broker.handlers.configs.dynamic_names import PER_LISTENER_CONFIGS, is_per_broker

    reason = ""
    if key in PER_LISTENER_CONFIGS:
        reason = "These security configs can be dynamically updated only per-listener using the listener prefix"
    elif not resource_name and is_per_broker(key):
        reason = "Cannot update these configs at default cluster level, broker id must be specified"
    if reason:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"{reason}: [{key}]")


def _check_outcome(present: BrokerConfig, outcome: BrokerConfig) -> None:
    """Refuse a change that Kafka refuses, or that locks out all clients, so that none could undo it. Raises ConfigError."""
    if any(present[name] != outcome[name] for name in _CLEANER):
        _check_cleaner(present.log_cleaner_threads, outcome)
    if present[_INTERVAL] != outcome[_INTERVAL]:
        _check_interval(outcome)
    check_addresses({name: outcome[name] for name in (_LIMIT, _OVERRIDES)})
    _check_this_machine(outcome)


def _check_cleaner(threads: int, outcome: BrokerConfig) -> None:
    wanted = outcome.log_cleaner_threads
    if not threads // 2 <= wanted <= threads * 2:
        raise ConfigError(
            f"log.cleaner.threads cannot be changed from {threads} to {wanted} in one step, only to between "
            f"{max(1, threads // 2)} and {threads * 2}"
        )
    check_cleaner_memory({name: outcome[name] for name in _CLEANER})


def _check_interval(outcome: BrokerConfig) -> None:
    interval_ms = outcome.group_consumer_assignment_interval_ms
    if interval_ms < outcome.group_consumer_min_assignment_interval_ms:
        raise ConfigError(f"{_INTERVAL} must be greater than or equal to group.consumer.min.assignment.interval.ms")
    if interval_ms > outcome.group_consumer_max_assignment_interval_ms:
        raise ConfigError(f"{_INTERVAL} must be less than or equal to group.consumer.max.assignment.interval.ms")


def _check_this_machine(outcome: BrokerConfig) -> None:
    """Check that a broker with only loopback listeners still admits clients from this machine. Raises ConfigError."""
    if all(listener.is_loopback for listener in outcome.listeners):
        for host, count in ip_overrides_of(str(outcome[_OVERRIDES])).items():
            if not count and host in _LOOPBACK:
                raise ConfigError(f"{_OVERRIDES}: no client could connect with {host}:0, not even to undo this")
