"""Names of the dynamic broker configurations that Kafka 4.3 can change only with restrictions.

Source: DynamicBrokerConfig.PER_BROKER_CONFIGS and LISTENER_MECHANISM_CONFIGS, and the response of Kafka 4.3.1 for each name.
"""

from __future__ import annotations

import re

from diamant.broker.config.kafka_table import KAFKA_ONLY
from diamant.broker.config.ssl_table import HTTP_PREFIX

_PER_LISTENER = """
ssl.key.password ssl.keystore.certificate.chain ssl.keystore.key ssl.keystore.location ssl.keystore.password
ssl.keystore.type ssl.truststore.certificates ssl.truststore.location ssl.truststore.password ssl.truststore.type
"""
_PER_BROKER = """
sasl.enabled.mechanisms sasl.jaas.config ssl.cipher.suites ssl.client.auth ssl.enabled.protocols
"""

PER_LISTENER_CONFIGS = frozenset(_PER_LISTENER.split())
"""Configurations that can be changed only with a listener's prefix (`listener.name.NAME.`)."""

_KEPT = (key.name for key in KAFKA_ONLY.values() if key.is_dynamic and not key.is_internal)
_PER_BROKER_CONFIGS = frozenset((*_PER_BROKER.split(), *_KEPT))
_OF_A_LISTENER = re.compile(r"listener\.name\.[^.]*\..*")


_OF_ALL_BROKERS = (".max.connections", ".max.connection.creation.rate", ".num.network.threads")
"""The suffixes of a listener's configurations that may be set for all brokers: its limits and threads."""


def is_per_broker(name: str) -> bool:
    """Return whether a configuration, such as one of a listener or of the HTTP port, can be changed only for a single broker."""
    if _OF_A_LISTENER.match(name) is not None:
        return not name.endswith(_OF_ALL_BROKERS)
    return name in _PER_BROKER_CONFIGS or is_store_of_http(name)


def is_for_next_start(setting: str) -> bool:
    """Return whether Kafka accepts a change of this TLS or SASL setting (without a prefix) but applies it at the next start."""
    is_of_security = setting.startswith(("ssl.", "sasl.")) or setting == "connections.max.reauth.ms"
    return is_of_security and setting not in PER_LISTENER_CONFIGS


def is_store_of_http(name: str) -> bool:
    """Return whether a configuration belongs to the key store or the trust store of the HTTP port."""
    return name.startswith(HTTP_PREFIX) and name.removeprefix(HTTP_PREFIX) in PER_LISTENER_CONFIGS
