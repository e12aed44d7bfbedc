"""Checks security settings: a broker whose settings request protection that it cannot provide must not start.

TLS and SASL settings apply to listeners with TLS or SASL, and are refused if no such listener uses them.

A setting requests nothing if it is empty, has Kafka's default value, or is for a listener that is not opened.

Source: Kafka 4.3.1's response to DescribeConfigs.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence

from diamant.broker.config.listeners import PLAINTEXT, SASL_PROTOCOLS, TLS_PROTOCOLS, Listener
from diamant.broker.config.ssl_table import SSL_CONFIGS
from diamant.protocol.kraft.records import BROKER_RESOURCE
from diamant.storage.config_key import ConfigError
from diamant.storage.kraft.image import MetadataImage

_KAFKA_DEFAULTS = """
connections.max.reauth.ms=0
principal.builder.class=org.apache.kafka.common.security.authenticator.DefaultKafkaPrincipalBuilder
sasl.enabled.mechanisms=GSSAPI
sasl.kerberos.kinit.cmd=/usr/bin/kinit
sasl.kerberos.min.time.before.relogin=60000
sasl.kerberos.principal.to.local.rules=DEFAULT
sasl.kerberos.ticket.renew.jitter=0.05
sasl.kerberos.ticket.renew.window.factor=0.8
sasl.login.refresh.buffer.seconds=300
sasl.login.refresh.min.period.seconds=60
sasl.login.refresh.window.factor=0.8
sasl.login.refresh.window.jitter=0.05
sasl.login.retry.backoff.max.ms=10000
sasl.login.retry.backoff.ms=100
sasl.mechanism.controller.protocol=GSSAPI
sasl.mechanism.inter.broker.protocol=GSSAPI
sasl.oauthbearer.assertion.algorithm=RS256
sasl.oauthbearer.assertion.claim.exp.seconds=300
sasl.oauthbearer.assertion.claim.jti.include=false
sasl.oauthbearer.assertion.claim.nbf.seconds=60
sasl.oauthbearer.clock.skew.seconds=30
sasl.oauthbearer.jwks.endpoint.refresh.ms=3600000
sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms=10000
sasl.oauthbearer.jwks.endpoint.retry.backoff.ms=100
sasl.oauthbearer.jwt.retriever.class=org.apache.kafka.common.security.oauthbearer.DefaultJwtRetriever
sasl.oauthbearer.jwt.validator.class=org.apache.kafka.common.security.oauthbearer.DefaultJwtValidator
sasl.oauthbearer.scope.claim.name=scope
sasl.oauthbearer.sub.claim.name=sub
sasl.server.max.receive.size=524288
security.inter.broker.protocol=PLAINTEXT
ssl.allow.dn.changes=false
ssl.allow.san.changes=false
ssl.client.auth=none
ssl.enabled.protocols=TLSv1.2,TLSv1.3
ssl.endpoint.identification.algorithm=https
ssl.keymanager.algorithm=SunX509
ssl.keystore.type=JKS
ssl.principal.mapping.rules=DEFAULT
ssl.protocol=TLSv1.3
ssl.trustmanager.algorithm=PKIX
ssl.truststore.type=JKS
"""
_DEFAULTS = dict(line.lower().partition("=")[::2] for line in _KAFKA_DEFAULTS.split())
_WITHOUT_DEFAULT = frozenset(["delegation.token.secret.key"])
_PREFIXES = ("sasl.", "ssl.")
_OF_A_LISTENER = re.compile(r"listener\.name\.([^.]+)\.(.+)")
_MECHANISMS = ("plain", "scram-sha-256", "scram-sha-512", "oauthbearer", "gssapi")
"""The lower-case names of mechanisms that occur in the names of settings."""
_OF_TLS = frozenset(key.name for key in SSL_CONFIGS) | {"ssl.protocol", "ssl.endpoint.identification.algorithm"}
"""The settings that a listener with TLS uses. The last two have no effect on a server."""


def check_security(properties: Mapping[str, str], listeners: Sequence[Listener]) -> None:
    """Raise ConfigError if a setting requests security that a broker with these `listeners` does not provide. The message is one
    line that names the settings but not their values.
    """
    asked = security_settings(properties, listeners)
    if asked:
        verb, them = ("asks", "it") if len(asked) == 1 else ("ask", "them")
        raise ConfigError(
            f"{', '.join(asked)} {verb} for security that Diamant does not provide, at least not on these listeners: any client "
            f"could connect. Remove {them}, or open a listener that uses {them} (SSL, SASL_PLAINTEXT, SASL_SSL)"
        )


def _is_for_sasl(name: str, value: str, with_sasl: Collection[str]) -> bool:
    """Return True if a listener with SASL implements the setting."""
    if name == "security.inter.broker.protocol":
        return value.strip() in SASL_PROTOCOLS and bool(with_sasl)
    of_listener = _OF_A_LISTENER.fullmatch(name)
    listeners = with_sasl if of_listener is None else {of_listener[1].upper()} & set(with_sasl)
    return bool(listeners) and any(
        meant == "connections.max.reauth.ms" or meant.startswith("sasl.") for meant in _meant(name, listeners)
    )


def _is_for_tls(name: str, value: str, with_tls: Collection[str]) -> bool:
    """Return True if a listener with TLS implements the setting."""
    if name == "security.inter.broker.protocol":
        return value.strip() in TLS_PROTOCOLS and bool(with_tls)
    of_listener = _OF_A_LISTENER.fullmatch(name)
    setting, listener = (name, None) if of_listener is None else (of_listener[2], of_listener[1].upper())
    return setting in _OF_TLS and (bool(with_tls) if listener is None else listener in with_tls)


def setting_of_listener(name: str) -> str:
    """Return the setting in `listener.name.NAME.SETTING` or `listener.name.NAME.MECHANISM.SETTING`; empty for other names."""
    of_listener = _OF_A_LISTENER.fullmatch(name)
    if of_listener is None:
        return ""
    mechanism, _, setting = of_listener[2].partition(".")
    return setting if mechanism in _MECHANISMS else of_listener[2]


def names_of_setting(listener: str, setting: str, mechanism: str = "") -> Iterable[str]:
    """Yield the names under which a setting can be set for this listener alone, most specific first."""
    prefix = f"listener.name.{listener.lower()}."
    if mechanism:
        yield f"{prefix}{mechanism.lower()}.{setting}"
    yield f"{prefix}{setting}"


def security_settings(properties: Mapping[str, str], listeners: Sequence[Listener]) -> list[str]:
    """Return the names in `properties` that request security that none of these listeners provides."""
    names = [listener.name for listener in listeners]
    with_sasl = {listener.name for listener in listeners if listener.security_protocol in SASL_PROTOCOLS}
    with_tls = {listener.name for listener in listeners if listener.security_protocol in TLS_PROTOCOLS}
    return [
        name
        for name, value in properties.items()
        if any(_asks(one, value) for one in _meant(name, names))
        and not _is_for_sasl(name, value, with_sasl)
        and not _is_for_tls(name, value, with_tls)
    ]


def kept_for_kafka(
    image: MetadataImage, node_id: int, listeners: Sequence[Listener], *, has_authorizer: bool
) -> list[str]:
    """Return at most one log line, which names the security settings and ACLs in the metadata log that have no effect here."""
    kept = []
    for resource in ("", str(node_id)):
        kept += security_settings(image.configs.get((BROKER_RESOURCE, resource), {}), listeners)
    if image.acls and not has_authorizer:
        kept.append(f"{len(image.acls)} ACLs")
    return [without_effect(kept)] if kept else []


def without_effect(names: Iterable[str]) -> str:
    """Return the log line about dynamic settings without effect. As in Kafka, they do not secure a listener that is open."""
    return (
        f"{', '.join(names)}: stored for a Kafka broker that opens the directory, without effect here. Open listeners do not "
        "change: any client can connect to one that has neither TLS nor SASL"
    )


def unprotected_ports(listeners: Sequence[Listener], http: Listener | None, *, has_token: bool) -> list[str]:
    """Return the log lines about unprotected ports that other machines can reach, one per port."""
    told = [
        f"{listener} is open to any client: it has neither TLS nor SASL. Make it SASL_SSL or SSL, or listen on "
        "127.0.0.1: docs/how-to/secure-a-broker.md"
        for listener in listeners
        if listener.security_protocol == PLAINTEXT and not listener.is_loopback
    ]
    if http is not None and has_token and http.security_protocol == PLAINTEXT and not http.is_loopback:
        told.append(
            f"HTTP at {http.address} has no TLS: its token can be intercepted. Set diamant.http.ssl.keystore.location, or "
            "listen on 127.0.0.1: docs/how-to/secure-a-broker.md"
        )
    return told


def _meant(name: str, listeners: Collection[str]) -> Iterable[str]:
    """Return the settings that a name may mean. A listener's setting may begin with a mechanism (`plain.sasl.jaas.config`)."""
    of_listener = _OF_A_LISTENER.fullmatch(name)
    if of_listener is None:
        return (name,)
    listener, setting = of_listener.groups()
    return (setting, setting.partition(".")[2]) if listener.upper() in listeners else ()


def _asks(name: str, value: str) -> bool:
    text = "".join(value.split()).lower()
    if not text:
        return False
    if name in _DEFAULTS:
        return text != _DEFAULTS[name]
    return name in _WITHOUT_DEFAULT or name.startswith(_PREFIXES)
