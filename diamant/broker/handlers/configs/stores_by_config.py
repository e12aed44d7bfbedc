"""Changes of key stores and trust stores while the broker runs. New stores are read and checked before a change takes effect.

Setting a listener's store reads its files again, even if the setting stays the same; this is how to renew a certificate. The
stores of the HTTP port are changed in the same way.

Other settings of TLS and SASL take effect at the next start. Values that would keep the next start from opening a listener are
refused here; Kafka accepts them and fails at that start.

Source: DynamicListenerConfig, SslFactory.validateReconfiguration.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

from diamant.broker.config.listeners import SASL_PROTOCOLS
from diamant.broker.config.security_table import setting_of_listener
from diamant.broker.config.ssl_table import HTTP_STORES
from diamant.broker.handlers.configs.dynamic_names import PER_LISTENER_CONFIGS, is_for_next_start, is_store_of_http
from diamant.protocol.errors import ErrorCode, KafkaError
from diamant.protocol.kraft.records import BROKER_RESOURCE
from diamant.storage.config_key import ConfigError

if TYPE_CHECKING:
    from diamant.broker.config.broker_config import BrokerConfig
    from diamant.broker.node.node import Node
    from diamant.broker.security.tls.listener_tls import NewStores
    from diamant.broker.security.tls.tls_listeners import TlsListeners


async def read_stores(
    node: Node, resource_type: int, resource_name: str, names: Collection[str], outcome: Mapping[str, str]
) -> list[NewStores]:
    """Read in a thread the stores that a change of the configurations `names` affects. `outcome`: all values after the change.

    Raises KafkaError if a store is unusable, if its certificate is not this broker's, or if the next start would fail.
    """
    if resource_type != BROKER_RESOURCE:
        return []
    listeners = {name.split(".")[2].upper() for name in names if setting_of_listener(name) in PER_LISTENER_CONFIGS}
    with_http = any(map(is_store_of_http, names))
    if not (listeners or with_http or any(is_for_next_start(setting_of_listener(name) or name) for name in names)):
        return []
    config = node.config_with(resource_name, outcome)
    try:
        await asyncio.to_thread(_check_next_start, node.tls, config)
        if with_http and not has_http_tls(node) and any(config[name] for name in HTTP_STORES):
            await asyncio.to_thread(_check_tls_of_http, config)
        if node.tls is None:
            return []
        return await asyncio.to_thread(node.tls.read_stores, config, listeners, with_http=with_http)
    except ConfigError as error:
        raise KafkaError(ErrorCode.INVALID_REQUEST, str(error)) from error


def has_http_tls(node: Node) -> bool:
    """Return whether the HTTP port is open with TLS; if not, changed stores of HTTP take effect at the next start."""
    return node.tls is not None and node.tls.http is not None


def _check_next_start(tls: TlsListeners | None, config: BrokerConfig) -> None:
    if tls is not None:
        tls.check(config)
    if any(listener.security_protocol in SASL_PROTOCOLS for listener in config.listeners):
        from diamant.broker.security.sasl.sasl_listeners import SaslListeners

        SaslListeners(config)


def _check_tls_of_http(config: BrokerConfig) -> None:
    from diamant.broker.security.tls.context import server_context
    from diamant.broker.security.tls.key_material import key_material
    from diamant.broker.security.tls.tls_settings import TlsSettings

    settings = TlsSettings.of_http(config)
    server_context(settings, key_material(settings.key_store))
