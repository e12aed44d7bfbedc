"""Client configurations for a running broker: a suitable listener, an enabled mechanism and the user's password."""

from __future__ import annotations

from diamant.broker.client.client_config import ClientConfig
from diamant.broker.client.login import PREFERRED
from diamant.broker.config.broker_config import BrokerConfig
from diamant.broker.config.listeners import SASL_PROTOCOLS, Addresses, Listener
from diamant.broker.config.sasl_table import USERS, parse_users


def client_of_broker(
    config: BrokerConfig, addresses: Addresses, user: str | None, password: str | None, mechanism: str | None
) -> ClientConfig:
    """Return a client configuration without TLS settings; no login if `user` is None. Raises ValueError if no listener fits."""
    if user is None:
        listener = addresses.kafka[0]
        return ClientConfig(listener.address, listener.security_protocol)
    with_sasl = [one for one in addresses.kafka if one.security_protocol in SASL_PROTOCOLS]
    if not with_sasl:
        raise ValueError("no listener requires a login: BrokerConfig(users={...}) opens one that does")
    listener = with_sasl[0]
    if password is None:
        users = parse_users(USERS, str(config[USERS])) if config[USERS] else {}
        if user not in users:
            raise ValueError(f"{user!r} is not among the broker's users ({', '.join(users)}): pass the password")
        password = users[user]
    return ClientConfig(
        bootstrap_servers=listener.address,
        security_protocol=listener.security_protocol,
        mechanism=mechanism or _strongest(config, listener),
        user=user,
        password=password,
    )


def _strongest(config: BrokerConfig, listener: Listener) -> str:
    """Return the strongest password mechanism that the listener enables, or the preferred one if its mechanisms are not set."""
    _, offered = config.of_listener(listener.name, "sasl.enabled.mechanisms")
    if not config.is_set("sasl.enabled.mechanisms", listener.name):
        return PREFERRED[0]
    for mechanism in PREFERRED:
        if isinstance(offered, list) and mechanism in offered:
            return mechanism
    raise ValueError(f"the listener {listener.name} offers no password mechanism")
