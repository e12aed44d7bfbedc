"""Changes of configurations over the wire, for both AlterConfigs APIs: what a resource has, what it may have, what
happens then.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from diamant.broker.cleaning import check_cleaner_change
from diamant.broker.config import validate_dynamic_config
from diamant.broker.topic_config import validate_topic_configs
from diamant.broker.topics import check_name
from diamant.protocol.errors import ErrorCode, KafkaError
from diamant.protocol.metadata_records import BROKER_RESOURCE, TOPIC_RESOURCE, ConfigRecord

if TYPE_CHECKING:
    from diamant.broker.broker import Broker


def current_configs(broker: Broker, resource_type: int, resource_name: str) -> Mapping[str, str]:
    """What is set on a resource itself; raises KafkaError if there is no such resource."""
    check_resource(broker, resource_type, resource_name)
    return broker.metadata.image.configs.get((resource_type, resource_name), {})


def check_resource(broker: Broker, resource_type: int, resource_name: str) -> None:
    """Whether a resource is one of ours: an existing topic, this broker, or "" for all brokers."""
    if resource_type == TOPIC_RESOURCE:
        check_name(resource_name)
        if resource_name not in broker.topics.by_name:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"The topic '{resource_name}' does not exist.")
    elif resource_type == BROKER_RESOURCE:
        check_broker_name(broker, resource_name)
    else:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"Unsupported resource type {resource_type}")


def check_broker_name(broker: Broker, resource_name: str) -> None:
    """Whether a broker resource is this broker or "" for all."""
    if resource_name in ("", str(broker.config.node_id)):
        return
    if not resource_name.isdecimal():
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"Broker id must be an integer, but it is: {resource_name}")
    raise KafkaError(
        ErrorCode.INVALID_REQUEST,
        f"Unexpected broker id, expected {broker.config.node_id} or empty string, but received {resource_name}",
    )


def change_configs(
    broker: Broker, resource_type: int, resource_name: str, changes: Mapping[str, str | None], *, validate_only: bool
) -> None:
    """Validate what `changes` (None removes) would lead to; unless `validate_only` append and apply it.

    In effect at once; to be followed by `broker.topics.sync()` before it is answered.
    """
    present = current_configs(broker, resource_type, resource_name)
    if resource_type == TOPIC_RESOURCE:
        outcome = {**present, **changes}
        validate_topic_configs({key: value for key, value in outcome.items() if value is not None}, broker.config)
    else:
        for key, value in changes.items():
            validate_dynamic_config(key, value)
        check_cleaner_change(broker.config, changes)
    effective = {key: value for key, value in changes.items() if present.get(key) != value}
    if validate_only or not effective:
        return
    broker.metadata.append(
        [
            ConfigRecord(resource_type=resource_type, resource_name=resource_name, name=key, value=value)
            for key, value in effective.items()
        ]
    )
    if resource_type == TOPIC_RESOURCE:
        broker.topics.apply_configs([resource_name])
    else:
        broker.apply_dynamic_config()
    broker.scheduler.poke()
