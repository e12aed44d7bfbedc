"""The configurations of groups are those of Kafka 4.4.0, and its answers to each value."""

from __future__ import annotations

import pytest

from diamant.broker.config.broker_config import BrokerConfig
from diamant.broker.config.group_table import describe_group_configs, validate_group_configs
from diamant.protocol.errors import ErrorCode, KafkaError
from diamant.storage.config_key import ConfigSource
from tests.broker.configurations import NEW_IN_4_4


def test_all_of_kafkas_group_configs_are_described() -> None:
    """Each with Kafka's type and default, and with the broker's configuration from which a group takes it."""
    described = {
        one.name: [one.type.name, one.value, one.synonyms[0].name] for one in describe_group_configs({}, BrokerConfig())
    }
    assert described == NEW_IN_4_4["group"]


def test_a_value_of_the_group_comes_first() -> None:
    """The group's value comes first, then the broker's."""
    [found] = [
        one
        for one in describe_group_configs({"streams.assignor.name": "sticky"}, BrokerConfig())
        if one.name == "streams.assignor.name"
    ]
    assert (found.source, len(found.synonyms)) == (ConfigSource.GROUP_CONFIG, 2)


@pytest.mark.parametrize(("name", "value", "message"), NEW_IN_4_4["group_values"])
def test_values_are_accepted_and_refused_as_by_kafka(name: str, value: str, message: str | None) -> None:
    """Values are accepted, or refused with Kafka's text."""
    if message is None:
        validate_group_configs({name: value}, BrokerConfig())
        return
    with pytest.raises(KafkaError) as caught:
        validate_group_configs({name: value}, BrokerConfig())
    assert (caught.value.code, caught.value.detail) == (ErrorCode.INVALID_CONFIG, message)
