"""The SASL listeners: their mechanisms, built from the configuration, and the sessions of new connections.

Source: SaslChannelBuilder. The class names are Kafka's.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING

from diamant.broker.config.broker_config import BrokerConfig
from diamant.broker.config.listeners import SASL_PROTOCOLS
from diamant.broker.config.sasl_table import USERS, parse_users
from diamant.broker.security.identity.authentication_counts import AuthenticationCounts
from diamant.broker.security.sasl.jaas import LoginModule, parse_jaas
from diamant.broker.security.sasl.mechanism import (
    GSSAPI,
    MECHANISMS,
    OAUTHBEARER,
    PLAIN,
    SCRAM_SHA_256,
    SCRAM_SHA_512,
    Exchange,
)
from diamant.broker.security.sasl.plain import PlainExchange
from diamant.broker.security.sasl.scram import ScramExchange
from diamant.broker.security.sasl.scram_keys import MIN_ITERATIONS, SCRAM_MECHANISMS, FindCredential, FindIterations
from diamant.broker.security.sasl.session import Mechanism, SaslSession
from diamant.storage.config_key import ConfigError

if TYPE_CHECKING:
    from diamant.broker.security.sasl.oauthbearer import TokenValidator
    from diamant.protocol.wire.server_connection import Request

_SECURITY = "org.apache.kafka.common.security"
_LOGIN_MODULES = {
    PLAIN: f"{_SECURITY}.plain.PlainLoginModule",
    SCRAM_SHA_256: f"{_SECURITY}.scram.ScramLoginModule",
    SCRAM_SHA_512: f"{_SECURITY}.scram.ScramLoginModule",
    OAUTHBEARER: f"{_SECURITY}.oauthbearer.OAuthBearerLoginModule",
}
_OWN_HANDLERS = {
    PLAIN: f"{_SECURITY}.plain.internals.PlainServerCallbackHandler",
    SCRAM_SHA_256: f"{_SECURITY}.scram.internals.ScramServerCallbackHandler",
    SCRAM_SHA_512: f"{_SECURITY}.scram.internals.ScramServerCallbackHandler",
}
_SECURED = (
    f"{_SECURITY}.oauthbearer.OAuthBearerValidatorCallbackHandler",
    f"{_SECURITY}.oauthbearer.secured.OAuthBearerValidatorCallbackHandler",  # the name up to Kafka 3
)
_UNSECURED = f"{_SECURITY}.oauthbearer.internals.unsecured.OAuthBearerUnsecuredValidatorCallbackHandler"
_HANDLER = "sasl.server.callback.handler.class"
_USER_OPTION = "user_"


class SaslListeners:
    """The listeners with SASL. Raises ConfigError if the configuration is invalid or not supported.

    `find` looks up SCRAM credentials, `usual_iterations` returns the iteration count for made-up ones, `now_ms` is the clock, and
    `refuse` makes the response to a request sent in place of a token (None: no response). All four may be replaced while sessions
    are open.
    """

    def __init__(self, config: BrokerConfig) -> None:
        self.find: FindCredential = lambda mechanism, user: None
        self.usual_iterations: FindIterations = lambda mechanism: MIN_ITERATIONS
        self.now_ms: Callable[[], int] = lambda: 0
        self.refuse: Callable[[Request], bytes | None] = lambda request: None
        self.receive_max_bytes = int(str(config["sasl.server.max.receive.size"]))
        self.failure_delay_ms = int(str(config["connection.failed.authentication.delay.ms"]))
        self._config = config
        self._users = parse_users(USERS, str(config[USERS])) if config[USERS] else {}
        self._secret = secrets.token_bytes(32)
        self._mechanisms: dict[str, Mapping[str, Mechanism]] = {
            listener.name: self._mechanisms_of(listener.name)
            for listener in config.listeners
            if listener.security_protocol in SASL_PROTOCOLS
        }
        self.counts = {name: AuthenticationCounts() for name in self._mechanisms}

    def session(self, listener: str) -> SaslSession:
        """Create the session of a new connection. Raises KeyError for a listener without SASL."""
        return SaslSession(self._mechanisms[listener], lambda: self.now_ms(), self.counts[listener])

    # -- from the configuration ---------------------------------------------------------------------------------------

    def _mechanisms_of(self, listener: str) -> dict[str, Mechanism]:
        setting, value = self._config.of_listener(listener, "sasl.enabled.mechanisms")
        names = list(map(str, value)) if isinstance(value, list) else []
        if names == [GSSAPI] and not self._config.is_set("sasl.enabled.mechanisms", listener):
            if not self._users:
                raise ConfigError(
                    f"listener {listener} uses SASL, and sasl.enabled.mechanisms is not set. Kafka's default is GSSAPI "
                    f"(Kerberos), which Diamant does not support: set one or more of {', '.join(MECHANISMS)}"
                )
            names = [PLAIN, SCRAM_SHA_256, SCRAM_SHA_512]
        mechanisms = {}
        for name in names:
            if name not in MECHANISMS:
                kerberos = " (Kerberos)" if name == GSSAPI else ""
                raise ConfigError(f"{setting}: Diamant does not support {name}{kerberos}, only {', '.join(MECHANISMS)}")
            _, max_reauth_ms = self._config.of_listener(listener, "connections.max.reauth.ms", name)
            mechanisms[name] = Mechanism(self._begin(listener, name), int(str(max_reauth_ms)))
        if not mechanisms:
            raise ConfigError(f"{setting}: listener {listener} uses SASL and needs one of {', '.join(MECHANISMS)}")
        return mechanisms

    def _begin(self, listener: str, mechanism: str) -> Callable[[], Exchange]:
        """Return the function that starts an exchange."""
        module = self._login_module(listener, mechanism)
        if mechanism == OAUTHBEARER:
            return self._begin_oauthbearer(listener, module)
        setting, handler = self._config.of_listener(listener, _HANDLER, mechanism)
        if handler not in (None, _OWN_HANDLERS[mechanism]):
            raise ConfigError(f"{setting}: Diamant runs no Java: expected {_OWN_HANDLERS[mechanism]} or no value")
        if mechanism != PLAIN:
            return partial(
                ScramExchange,
                SCRAM_MECHANISMS[mechanism],
                lambda number, user: self.find(number, user),
                lambda number: self.usual_iterations(number),
                self._secret,
            )
        options = {} if module is None else module.options
        passwords = {
            option.removeprefix(_USER_OPTION): password
            for option, password in options.items()
            if option.startswith(_USER_OPTION)
        }
        if not passwords and not self._users:
            raise ConfigError(
                f"listener {listener} offers PLAIN, and no users are set. Set listener.name.{listener.lower()}.plain."
                f'sasl.jaas.config={_LOGIN_MODULES[PLAIN]} required user_alice="...";'
            )
        return partial(PlainExchange, {**self._users, **passwords})

    def _login_module(self, listener: str, mechanism: str) -> LoginModule | None:
        setting, text = self._config.of_listener(listener, "sasl.jaas.config", mechanism)
        if text is None:
            return None
        full = f"listener.name.{listener.lower()}.{mechanism.lower()}.sasl.jaas.config"
        if setting != full:
            raise ConfigError(
                f"{setting} is for clients. A broker sets it for each listener and mechanism, as in Kafka: {full}"
            )
        module = parse_jaas(setting, str(text))
        if module.class_name != _LOGIN_MODULES[mechanism]:
            raise ConfigError(
                f"{setting}: the login module of {mechanism} is {_LOGIN_MODULES[mechanism]}, not {module.class_name}"
            )
        return module

    def _begin_oauthbearer(self, listener: str, module: LoginModule | None) -> Callable[[], Exchange]:
        from diamant.broker.security.sasl.oauthbearer import OAuthBearerExchange

        return partial(OAuthBearerExchange, self._validator(listener, module))

    def _validator(self, listener: str, module: LoginModule | None) -> TokenValidator:
        def value(setting: str) -> tuple[str, str | None]:
            name, found = self._config.of_listener(listener, setting, OAUTHBEARER)
            return name, None if found is None else str(found)

        setting, handler = value(_HANDLER)
        url_setting, url = value("sasl.oauthbearer.jwks.endpoint.url")
        if handler == _UNSECURED:
            from diamant.broker.security.sasl.unsecured_tokens import UnsecuredTokens

            return UnsecuredTokens(
                {} if module is None else module.options, lambda: self.now_ms(), f"listener {listener}"
            )
        if handler not in (None, *_SECURED):
            raise ConfigError(f"{setting}: Diamant runs no Java: expected {_SECURED[0]} or {_UNSECURED}")
        if url is None:
            raise ConfigError(
                f"listener {listener} offers OAUTHBEARER: set sasl.oauthbearer.jwks.endpoint.url to the file with the issuer's "
                f"keys. Tokens without a signature, for tests, are accepted with listener.name.{listener.lower()}.oauthbearer."
                f"{_HANDLER}={_UNSECURED}"
            )
        from diamant.broker.security.sasl.signed_tokens import Expectations, SignedTokens

        _, audience = self._config.of_listener(listener, "sasl.oauthbearer.expected.audience", OAUTHBEARER)
        return SignedTokens(
            url_setting,
            url,
            Expectations(
                audiences=tuple(map(str, audience)) if isinstance(audience, list) else (),
                issuer=value("sasl.oauthbearer.expected.issuer")[1],
                clock_skew_ms=1000 * int(value("sasl.oauthbearer.clock.skew.seconds")[1] or 0),
                sub_claim=value("sasl.oauthbearer.sub.claim.name")[1] or "sub",
            ),
            lambda: self.now_ms(),
        )
