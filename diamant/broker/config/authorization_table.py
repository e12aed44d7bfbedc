"""The table of the configurations of authorization: whether there is an authorizer, and who may do everything.

Source: KafkaConfig and StandardAuthorizer of Kafka 4.3.
"""

from __future__ import annotations

from collections.abc import Mapping

from diamant.broker.config.config_key import ConfigError, ConfigKey, ConfigType, InvalidValue, Validator, Value

AUTHORIZER, SUPER_USERS = "authorizer.class.name", "super.users"
ALLOW_EVERYONE = "allow.everyone.if.no.acl.found"

STANDARD_AUTHORIZER = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
_KNOWN = ("", STANDARD_AUTHORIZER, STANDARD_AUTHORIZER.rpartition(".")[2])


def super_users_of(text: str) -> frozenset[str]:
    """The principals in `User:alice;User:bob`. ValueError if one is none."""
    names = frozenset(one.strip() for one in text.split(";")) - {""}
    for name in names:
        kind, _, rest = name.partition(":")
        if not (kind and rest):
            raise ValueError(f"{name!r} is no principal: expected TYPE:NAME, for instance User:alice")
    return names


def _check_authorizer(name: str, value: Value) -> None:
    if value not in _KNOWN:
        raise InvalidValue(name, value, f"Diamant has Kafka's {STANDARD_AUTHORIZER} only; classes cannot be plugged in")


def _check_super_users(name: str, value: Value) -> None:
    try:
        super_users_of(str(value))
    except ValueError as error:
        raise InvalidValue(name, value, str(error)) from error


AUTHORIZATION_CONFIGS = (
    ConfigKey(
        AUTHORIZER,
        ConfigType.STRING,
        "",
        f"`{STANDARD_AUTHORIZER}` (or `StandardAuthorizer`): clients may do what ACLs allow. Empty: everybody may do everything.",
        Validator(f"empty, StandardAuthorizer, {STANDARD_AUTHORIZER}", _check_authorizer),
    ),
    ConfigKey(
        SUPER_USERS,
        ConfigType.STRING,
        "",
        "Principals that may do everything, whatever the ACLs say: `User:alice;User:bob`. Needs `authorizer.class.name`.",
        Validator("principals, separated by semicolons", _check_super_users),
        is_internal=True,
    ),
    ConfigKey(
        ALLOW_EVERYONE,
        ConfigType.BOOLEAN,
        False,
        "Everybody may do everything with a resource that no ACL is about. Needs `authorizer.class.name`.",
        is_internal=True,
    ),
)
"""Two of them are the authorizer's own: as in Kafka, DescribeConfigs shows them only where they are set."""


def check_authorization(static: Mapping[str, str]) -> None:
    """Raise ConfigError if the settings of an authorizer are there, and the authorizer is not: everybody would come in."""
    if static.get(AUTHORIZER, "").strip():
        return
    asked = [SUPER_USERS] if static.get(SUPER_USERS, "").strip() else []
    asked += [ALLOW_EVERYONE] if static.get(ALLOW_EVERYONE, "").strip().lower() == "false" else []
    if asked:
        raise ConfigError(
            f"{' and '.join(asked)} would have no effect: there is no authorizer, everybody may do everything. "
            f"Set {AUTHORIZER}={STANDARD_AUTHORIZER}, or remove {'it' if len(asked) == 1 else 'them'}"
        )
