"""The configurations of authorization: which authorizer, who may do everything, and what would keep nobody out."""

from __future__ import annotations

import pytest

from diamant.broker.client.acl_text import parse_acls, parse_all
from diamant.broker.config.authorization_table import STANDARD_AUTHORIZER, acls_of, super_users_of
from diamant.broker.config.broker_config import BrokerConfig
from diamant.broker.config.config_key import ConfigError


@pytest.mark.parametrize("name", ["", "StandardAuthorizer", STANDARD_AUTHORIZER])
def test_kafkas_authorizer_goes_by_its_name(name: str) -> None:
    """Kafka's full name, or its last word."""
    assert BrokerConfig(authorizer_class_name=name)["authorizer.class.name"] == name


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


def test_acls_of_a_configuration_imply_the_authorizer() -> None:
    """Texts and values alike; a broker elsewhere, for instance a fork, has them too."""
    config = BrokerConfig(acls=["User:alice READ topic users", *parse_acls("User:bob ALL topic *")])
    assert config["authorizer.class.name"] == STANDARD_AUTHORIZER
    assert acls_of(str(config["diamant.acls"])) == parse_all(["User:alice READ topic users", "User:bob ALL topic *"])
    assert config.elsewhere("elsewhere")["diamant.acls"] == config["diamant.acls"]


@pytest.mark.parametrize("text", ["{}", "[1]", "User:alice READ topic users", '["User:alice LOOK topic users"]'])
def test_a_text_that_holds_no_acls_is_refused(text: str) -> None:
    """With what was expected; the broker does not start."""
    with pytest.raises(ConfigError, match=r"diamant\.acls: .*expected"):
        BrokerConfig(properties={"diamant.acls": text, "authorizer.class.name": "StandardAuthorizer"})


def test_an_acl_that_cannot_be_is_refused_at_once() -> None:
    """Not first when the broker starts."""
    with pytest.raises(ConfigError, match=r"diamant\.acls: 'LOOK' is no operation"):
        BrokerConfig(acls=["User:alice LOOK topic users"])


def test_acls_without_an_authorizer_are_refused() -> None:
    """They would decide nothing."""
    with pytest.raises(ConfigError, match=r"diamant\.acls would have no effect"):
        BrokerConfig(properties={"diamant.acls": '["User:alice READ topic users"]'})
