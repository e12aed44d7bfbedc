"""The configurations of authorization: which authorizer, who may do everything, and what would keep nobody out."""

from __future__ import annotations

import pytest

from diamant.broker.config.authorization_table import STANDARD_AUTHORIZER, super_users_of
from diamant.broker.config.broker_config import BrokerConfig
from diamant.broker.config.config_key import ConfigError


@pytest.mark.parametrize("name", ["", "StandardAuthorizer", STANDARD_AUTHORIZER])
def test_kafkas_authorizer_goes_by_its_name(name: str) -> None:
    """Kafka's full name, or its last word."""
    assert BrokerConfig(authorizer_class_name=name).authorizer_class_name == name


def test_other_authorizers_are_refused_by_name() -> None:
    """A broker that cannot run a class must not start as if it did."""
    with pytest.raises(ConfigError, match=r"org\.example\.Mine for configuration authorizer\.class\.name"):
        BrokerConfig(authorizer_class_name="org.example.Mine")


def test_super_users_are_parted_by_semicolons() -> None:
    """A name may have commas, equals signs and colons: it is a distinguished name often enough."""
    assert super_users_of(" User:CN=a,O=b ; User:bob;; Group:x:y") == {"User:CN=a,O=b", "User:bob", "Group:x:y"}
    with pytest.raises(ConfigError, match="'alice' is no principal: expected TYPE:NAME"):
        BrokerConfig(authorizer_class_name="StandardAuthorizer", super_users="alice")


@pytest.mark.parametrize(
    "settings", [{"super.users": "User:admin"}, {"allow.everyone.if.no.acl.found": "false"}], ids=str
)
def test_settings_of_an_authorizer_that_there_is_not_are_refused(settings: dict[str, str]) -> None:
    """Everybody would come in, which is not what was meant; the message says what to set."""
    with pytest.raises(ConfigError, match=f"there is no authorizer.*Set authorizer.class.name={STANDARD_AUTHORIZER}"):
        BrokerConfig(properties=settings)


def test_empty_settings_ask_for_nothing() -> None:
    """`--set super.users=` empties what a file sets."""
    BrokerConfig(properties={"super.users": " ", "allow.everyone.if.no.acl.found": "True"})
