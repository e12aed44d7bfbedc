"""The table of configurations of SASL, Kafka's names. A listener, and a mechanism of it, may have values of its own:
`listener.name.inside.plain.sasl.jaas.config` is that of PLAIN on the listener INSIDE.

Source: SaslConfigs, BrokerSecurityConfigs of Kafka 4.3.
"""

from __future__ import annotations

import json

from diamant.broker.config.config_key import ConfigError, ConfigKey, ConfigType, Validator, Value, at_least

_STRING, _INT, _LONG, _LIST = ConfigType.STRING, ConfigType.INT, ConfigType.LONG, ConfigType.LIST
_PASSWORD, _CLASS = ConfigType.PASSWORD, ConfigType.CLASS

USERS = "diamant.users"


def parse_users(name: str, text: str) -> dict[str, str]:
    """Users with their passwords from a JSON object; ConfigError, without a password in it, if it is none."""
    expected = f'{name}: expected a JSON object of users and passwords, as {{"alice": "secret"}}'
    try:
        users = json.loads(text)
    except ValueError as error:
        where = f" at character {error.pos}" if isinstance(error, json.JSONDecodeError) else ""
        raise ConfigError(f"{expected}; what is set is no JSON{where}") from None
    if not isinstance(users, dict):
        raise ConfigError(expected)
    for user, password in users.items():
        if not user or "\0" in user:
            raise ConfigError(f"{name}: the user {user!r}: a name has a letter at least, and no NUL")
        if not isinstance(password, str) or not password or "\0" in password:
            raise ConfigError(f"{name}: the password of {user!r}: expected a text that is not empty and has no NUL")
    return users


def _check_users(name: str, value: Value) -> None:
    if isinstance(value, str) and value:
        parse_users(name, value)


SASL_CONFIGS = (
    ConfigKey(
        USERS,
        _PASSWORD,
        None,
        'Users and passwords as a JSON object, `{"alice": "secret"}`. At the start their SCRAM credentials are put into the '
        "metadata log; listeners with PLAIN take them too. Listeners without `sasl.enabled.mechanisms` offer PLAIN, "
        "SCRAM-SHA-256 and SCRAM-SHA-512 then. `diamant start --user` and `BrokerConfig(users=...)` set it.",
        Validator("JSON object", _check_users),
    ),
    ConfigKey(
        "sasl.enabled.mechanisms",
        _LIST,
        ["GSSAPI"],
        "Mechanisms that listeners with SASL offer: PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, OAUTHBEARER. GSSAPI, which is Kafka's "
        "default, is refused when such a listener is opened. Taken over at the start.",
        is_dynamic=True,
    ),
    ConfigKey(
        "sasl.jaas.config",
        _PASSWORD,
        None,
        "The login module of a mechanism and its options. Only for a listener and a mechanism, as in Kafka "
        '(`listener.name.NAME.plain.sasl.jaas.config`). PLAIN: `PlainLoginModule required user_alice="secret";` says who may '
        "come in with which password.",
        is_dynamic=True,
    ),
    ConfigKey(
        "sasl.server.callback.handler.class",
        _CLASS,
        None,
        "Kafka's own classes only. OAUTHBEARER takes `OAuthBearerValidatorCallbackHandler` (signed tokens) or "
        "`OAuthBearerUnsecuredValidatorCallbackHandler` (unsigned ones, for tests), with their packages.",
    ),
    ConfigKey(
        "sasl.server.max.receive.size",
        _INT,
        8192,
        "The largest frame that a client may send before it has authenticated. Kafka's default is 524288; tokens of "
        "OAUTHBEARER that are larger than 8 KiB need more.",
        at_least(0),
    ),
    ConfigKey(
        "connections.max.reauth.ms",
        _LONG,
        0,
        "Time after which a client has to authenticate again on its connection, or is cut off; 0: never. Also for a "
        "listener, and a mechanism of it.",
        at_least(0),
    ),
    ConfigKey(
        "connection.failed.authentication.delay.ms",
        _INT,
        100,
        "How long the answer to a failed authentication, and the end of its connection, are held back.",
        at_least(0),
    ),
    ConfigKey(
        "sasl.oauthbearer.jwks.endpoint.url",
        _STRING,
        None,
        "The file with the keys that tokens are signed with, a JSON Web Key Set, as `file:///path`. It is read again when it "
        "changes. Kafka takes https, too.",
    ),
    ConfigKey(
        "sasl.oauthbearer.expected.audience",
        _LIST,
        [],
        "Audiences of which a token has to name one. Empty: any audience.",
    ),
    ConfigKey("sasl.oauthbearer.expected.issuer", _STRING, None, "The issuer that a token has to name. Not set: any."),
    ConfigKey(
        "sasl.oauthbearer.clock.skew.seconds",
        _INT,
        30,
        "How far the clock of the issuer of a token may differ from the broker's.",
        at_least(0),
    ),
    ConfigKey("sasl.oauthbearer.sub.claim.name", _STRING, "sub", "The claim that names the user of a token."),
    ConfigKey("sasl.oauthbearer.scope.claim.name", _STRING, "scope", "The claim with the scopes of a token."),
)
