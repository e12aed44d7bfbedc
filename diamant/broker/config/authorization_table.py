"""The table of the authorization configurations: the authorizer, its super users, and ACLs to add at the start.

Source: KafkaConfig and StandardAuthorizer of Kafka 4.3.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping

from diamant.broker.acl import Acl, parse_acls, parse_all
from diamant.storage.config_key import ConfigError, ConfigKey, ConfigType, InvalidValue, Validator, Value

AUTHORIZER, SUPER_USERS = "authorizer.class.name", "super.users"
ALLOW_EVERYONE = "allow.everyone.if.no.acl.found"
ACLS = "diamant.acls"

STANDARD_AUTHORIZER = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
_KNOWN = ("", STANDARD_AUTHORIZER, STANDARD_AUTHORIZER.rpartition(".")[2])


def super_users_of(text: str) -> frozenset[str]:
    """Return the principals in `User:alice;User:bob`. Raises ValueError if an entry is not a principal."""
    names = frozenset(one.strip() for one in text.split(";")) - {""}
    for name in names:
        kind, _, rest = name.partition(":")
        if not (kind and rest):
            raise ValueError(f"{name!r} is not a principal: expected TYPE:NAME, for instance User:alice")
    return names


def _check_authorizer(name: str, value: Value) -> None:
    if value not in _KNOWN:
        raise InvalidValue(name, value, f"Diamant supports only Kafka's {STANDARD_AUTHORIZER}, not classes of your own")


def _check_super_users(name: str, value: Value) -> None:
    try:
        super_users_of(str(value))
    except ValueError as error:
        raise InvalidValue(name, value, str(error)) from error


def put_acls(static: dict[str, str], acls: Iterable[str | Acl] | None) -> None:
    """Add ACLs (`Acl` objects, or strings in the short form) and the authorizer to the settings. Raises ConfigError."""
    if acls is None:
        return
    try:
        static[ACLS] = json.dumps(list(map(str, parse_all(acls))), ensure_ascii=False)
    except ValueError as error:
        raise ConfigError(f"{ACLS}: {error}") from None
    static.setdefault(AUTHORIZER, STANDARD_AUTHORIZER)


def acls_of(text: str) -> list[Acl]:
    """Parse a value of `diamant.acls`. Raises ValueError."""
    if not text.strip():
        return []
    found = json.loads(text)
    if not isinstance(found, list) or not all(isinstance(one, str) for one in found):
        raise ValueError('expected a JSON array of strings, such as ["User:alice READ topic users"]')
    return [acl for one in found for acl in parse_acls(one)]


def _check_acls(name: str, value: Value) -> None:
    try:
        acls_of(str(value))
    except json.JSONDecodeError:
        expected = 'expected a JSON array of strings, such as ["User:alice READ topic users"]'
        raise InvalidValue(name, value, expected) from None
    except ValueError as error:
        raise InvalidValue(name, value, str(error)) from error


AUTHORIZATION_CONFIGS = (
    ConfigKey(
        ACLS,
        ConfigType.STRING,
        "",
        'ACLs as a JSON array, `["User:alice READ topic users", "User:* DENY ALL group g from 10.0.0.7"]`; from '
        "`metadata.version` 32 on also `from 10.0.0.0/8`. At the start, missing ACLs are added to the metadata log. Needs "
        "`authorizer.class.name`; `BrokerConfig(acls=[...])` and `diamant start --acl` set both.",
        Validator("JSON array of ACLs", _check_acls),
    ),
    ConfigKey(
        AUTHORIZER,
        ConfigType.STRING,
        "",
        f"`{STANDARD_AUTHORIZER}` (or `StandardAuthorizer`): ACLs decide what clients may do. Empty: everything is allowed.",
        Validator(f"empty, StandardAuthorizer, {STANDARD_AUTHORIZER}", _check_authorizer),
    ),
    ConfigKey(
        SUPER_USERS,
        ConfigType.STRING,
        "",
        "Principals that may do everything, regardless of ACLs: `User:alice;User:bob`. Needs `authorizer.class.name`.",
        Validator("principals, separated by semicolons", _check_super_users),
        is_internal=True,
    ),
    ConfigKey(
        ALLOW_EVERYONE,
        ConfigType.BOOLEAN,
        False,
        "Allow all operations on resources without ACLs. Needs `authorizer.class.name`.",
        is_internal=True,
    ),
)
"""The last two belong to the authorizer. As in Kafka, DescribeConfigs shows them only if they are set."""


def check_authorization(static: Mapping[str, str]) -> None:
    """Raise ConfigError if the authorizer's settings are set but the authorizer is not, since everything would be allowed."""
    if static.get(AUTHORIZER, "").strip():
        return
    asked = [SUPER_USERS] if static.get(SUPER_USERS, "").strip() else []
    asked += [ACLS] if acls_of(static.get(ACLS, "")) else []
    asked += [ALLOW_EVERYONE] if static.get(ALLOW_EVERYONE, "").strip().lower() == "false" else []
    if asked:
        raise ConfigError(
            f"{' and '.join(asked)} would have no effect: without an authorizer, everything is allowed. "
            f"Set {AUTHORIZER}={STANDARD_AUTHORIZER}, or remove {'it' if len(asked) == 1 else 'them'}"
        )
