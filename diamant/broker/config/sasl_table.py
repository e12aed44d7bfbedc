"""The table of the SASL configurations, with Kafka's names. They can also be set for one listener or one of its mechanisms:
`listener.name.inside.plain.sasl.jaas.config` applies to PLAIN on the listener INSIDE.

Source: SaslConfigs, BrokerSecurityConfigs of Kafka 4.3.
"""

from __future__ import annotations

import json

from diamant.storage.config_key import ConfigError, ConfigKey, ConfigType, Validator, Value, at_least

_STRING, _INT, _LONG, _LIST = ConfigType.STRING, ConfigType.INT, ConfigType.LONG, ConfigType.LIST
_PASSWORD, _CLASS = ConfigType.PASSWORD, ConfigType.CLASS

USERS = "diamant.users"


def parse_users(name: str, text: str) -> dict[str, str]:
    """Parse a JSON object of users and passwords. Raises ConfigError if it is invalid; the message contains no password."""
    expected = f'{name}: expected a JSON object of users and passwords, such as {{"alice": "secret"}}'
    try:
        users = json.loads(text)
    except ValueError as error:
        where = f" at character {error.pos}" if isinstance(error, json.JSONDecodeError) else ""
        raise ConfigError(f"{expected}; got invalid JSON{where}") from None
    if not isinstance(users, dict):
        raise ConfigError(expected)
    for user, password in users.items():
        if not user or "\0" in user:
            raise ConfigError(f"{name}: the user {user!r}: expected a non-empty name without NUL")
        if not isinstance(password, str) or not password or "\0" in password:
            raise ConfigError(f"{name}: the password of {user!r}: expected a non-empty string without NUL")
    return users


def _check_users(name: str, value: Value) -> None:
    if isinstance(value, str) and value:
        parse_users(name, value)


SASL_CONFIGS = (
    ConfigKey(
        USERS,
        _PASSWORD,
        None,
        'Users and passwords as a JSON object, `{"alice": "secret"}`. At the start, their SCRAM credentials are written to the '
        "metadata log; listeners with PLAIN accept them too. Listeners without `sasl.enabled.mechanisms` then offer PLAIN, "
        "SCRAM-SHA-256 and SCRAM-SHA-512. `diamant start --user` and `BrokerConfig(users=...)` set it.",
        Validator("JSON object", _check_users),
    ),
    ConfigKey(
        "sasl.enabled.mechanisms",
        _LIST,
        ["GSSAPI"],
        "Mechanisms of listeners with SASL: PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, OAUTHBEARER. GSSAPI, Kafka's default, is "
        "refused when such a listener is opened. A change takes effect at the next start.",
        is_dynamic=True,
    ),
    ConfigKey(
        "sasl.jaas.config",
        _PASSWORD,
        None,
        "The login module of a mechanism and its options. Only for a listener and a mechanism, as in Kafka "
        '(`listener.name.NAME.plain.sasl.jaas.config`). PLAIN: `PlainLoginModule required user_alice="secret";` lists the '
        "users and their passwords.",
        is_dynamic=True,
    ),
    ConfigKey(
        "sasl.server.callback.handler.class",
        _CLASS,
        None,
        "Kafka's own classes only. OAUTHBEARER accepts `OAuthBearerValidatorCallbackHandler` (signed tokens) or "
        "`OAuthBearerUnsecuredValidatorCallbackHandler` (unsigned tokens, for tests), with their packages.",
    ),
    ConfigKey(
        "sasl.server.max.receive.size",
        _INT,
        8192,
        "Largest frame from a client that is not authenticated yet. Kafka's default is 524288; OAUTHBEARER tokens of more "
        "than 8 KiB need a larger value.",
        at_least(0),
    ),
    ConfigKey(
        "connections.max.reauth.ms",
        _LONG,
        0,
        "Time after which a client must re-authenticate, or its connection is closed; 0: never. Can be set for a "
        "listener, and for one of its mechanisms.",
        at_least(0),
    ),
    ConfigKey(
        "connection.failed.authentication.delay.ms",
        _INT,
        100,
        "Delay of the response to a failed authentication, and of the closing of its connection.",
        at_least(0),
    ),
    ConfigKey(
        "sasl.oauthbearer.jwks.endpoint.url",
        _STRING,
        None,
        "File with the issuer's public keys for tokens, a JSON Web Key Set, as `file:///path`. It is reloaded when it "
        "changes. Kafka also accepts https.",
    ),
    ConfigKey(
        "sasl.oauthbearer.expected.audience",
        _LIST,
        [],
        "Accepted audiences of a token. Empty: any audience.",
    ),
    ConfigKey("sasl.oauthbearer.expected.issuer", _STRING, None, "Required issuer of a token. Not set: any."),
    ConfigKey(
        "sasl.oauthbearer.clock.skew.seconds",
        _INT,
        30,
        "Allowed difference between the clocks of a token's issuer and of the broker.",
        at_least(0),
    ),
    ConfigKey("sasl.oauthbearer.sub.claim.name", _STRING, "sub", "The claim that names the user of a token."),
    ConfigKey("sasl.oauthbearer.scope.claim.name", _STRING, "scope", "The claim with the scopes of a token."),
)
