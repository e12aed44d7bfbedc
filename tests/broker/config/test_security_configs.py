"""A broker that cannot provide configured security gives an error and does not start."""

from __future__ import annotations

import logging
import uuid
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from diamant.broker.acl import parse_acls, parse_all
from diamant.broker.broker import Broker
from diamant.broker.cli import main
from diamant.broker.config.authorization_table import STANDARD_AUTHORIZER, acls_of, super_users_of
from diamant.broker.config.broker_config import BrokerConfig
from diamant.broker.config.listeners import Listener
from diamant.broker.config.security_table import unprotected_ports
from diamant.broker.handlers.configs.described_broker import describe_broker
from diamant.protocol.kraft.records import AccessControlEntryRecord
from diamant.storage.config_key import ConfigError
from tests.broker.security.altering import alter


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("security.inter.broker.protocol", "SASL_SSL"),
        ("sasl.enabled.mechanisms", "PLAIN"),
        ("sasl.jaas.config", "module required password=hush;"),
        ("ssl.client.auth", "required"),
        ("ssl.keystore.location", "/etc/kafka/key.jks"),
        ("ssl.a.setting.of.a.later.kafka", "1"),
        ("principal.builder.class", "org.example.Builder"),
        ("connections.max.reauth.ms", "3600000"),
        ("delegation.token.secret.key", "hush"),
        ("listener.name.plaintext.ssl.client.auth", "required"),
        ("listener.name.plaintext.plain.sasl.jaas.config", "module required password=hush;"),
    ],
)
def test_a_setting_that_asks_for_security_is_refused(name: str, value: str) -> None:
    """The error names the setting, never its value, and has the reason and the remedy in one line."""
    with pytest.raises(ConfigError) as caught:
        BrokerConfig(properties={name: value})
    assert str(caught.value) == (
        f"{name} asks for security that Diamant does not provide, at least not on these listeners: any client could connect. "
        "Remove it, or open a listener that uses it (SSL, SASL_PLAINTEXT, SASL_SSL)"
    )


def test_settings_of_tls_pass_with_a_listener_that_has_it() -> None:
    """The broker's and that listener's settings pass. Those of other listeners and unsupported ones are refused."""
    settings = {"ssl.keystore.location": "k", "listener.name.inside.ssl.client.auth": "required", "ssl.protocol": "TLS"}
    inside = {
        "listeners": "INSIDE://:1,PLAINTEXT://:2",
        "listener.security.protocol.map": "INSIDE:SSL,PLAINTEXT:PLAINTEXT",
    }
    config = BrokerConfig(properties={**settings, **inside, "security.inter.broker.protocol": "SSL"})
    assert config.of_listener("INSIDE", "ssl.client.auth") == ("listener.name.inside.ssl.client.auth", "required")
    assert config.of_listener("PLAINTEXT", "ssl.client.auth") == ("ssl.client.auth", "none")
    for other in ("listener.name.plaintext.ssl.client.auth", "ssl.provider", "ssl.engine.factory.class"):
        with pytest.raises(ConfigError, match=f"^{other} asks for security"):
            BrokerConfig(properties={**settings, **inside, other: "required"})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("authorizer.class.name", ""),
        ("super.users", " "),
        ("allow.everyone.if.no.acl.found", "True"),
        ("security.inter.broker.protocol", "PLAINTEXT"),
        ("sasl.enabled.mechanisms", "GSSAPI"),
        ("sasl.login.refresh.window.factor", "0.8"),
        ("ssl.client.auth", "none"),
        ("ssl.enabled.protocols", "TLSv1.2, TLSv1.3"),
        ("ssl.endpoint.identification.algorithm", ""),
        ("connections.max.reauth.ms", "0"),
        ("listener.name.plaintext.max.connections", "10"),
        ("listener.name.controller.ssl.client.auth", "required"),
        ("controller.listener.names", "CONTROLLER"),
    ],
)
def test_harmless_security_settings_pass(name: str, value: str) -> None:
    """Kafka's defaults, empty values, and settings of listeners that are not opened are accepted."""
    BrokerConfig(properties={name: value})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("sasl.enabled.mechanisms", "PLAIN"),
        ("sasl.mechanism.inter.broker.protocol", "PLAIN"),
        ("security.inter.broker.protocol", "SASL_PLAINTEXT"),
        ("connections.max.reauth.ms", "3600000"),
        ("listener.name.sasl_plaintext.plain.sasl.jaas.config", "module required password=hush;"),
        ("listener.name.sasl_plaintext.plain.connections.max.reauth.ms", "3600000"),
    ],
)
def test_settings_of_sasl_pass_with_a_listener_that_has_it(name: str, value: str) -> None:
    """Settings of the other listener are refused."""
    listeners = "SASL_PLAINTEXT://:9092,PLAINTEXT://:9094"
    BrokerConfig(properties={"listeners": listeners, name: value})
    other = name.replace("sasl_plaintext", "plaintext")
    if other != name:
        with pytest.raises(ConfigError, match=f"^{other} asks for security"):
            BrokerConfig(properties={"listeners": listeners, other: value})


def test_a_setting_of_a_listener_and_a_mechanism_wins() -> None:
    """Next come the listener's and the broker's. Names of listeners are case-insensitive."""
    setting = "connections.max.reauth.ms"
    config = BrokerConfig(
        properties={
            "listeners": "SASL_PLAINTEXT://:9092",
            setting: "1",
            f"listener.name.SASL_PLAINTEXT.{setting}": "2",
            f"listener.name.sasl_plaintext.plain.{setting}": "3",
        }
    ).with_dynamic({}, {})
    found = [
        config.of_listener("SASL_PLAINTEXT", setting, mechanism)[1] for mechanism in ("PLAIN", "SCRAM-SHA-256", "")
    ]
    assert found == [3, 2, 2]
    assert config.of_listener("OTHER", setting) == (setting, 1)
    assert config.warnings == ()


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[]", "expected a JSON object"),
        ("{", "invalid JSON at character 1"),
        ('{"": "secret"}', "expected a non-empty name"),
        ('{"a\\u0000": "secret"}', "without NUL"),
        ('{"a": ""}', "non-empty"),
        ('{"a": 1}', "expected a non-empty string"),
    ],
)
def test_users_that_cannot_be_are_refused(text: str, reason: str) -> None:
    """The message holds no password."""
    with pytest.raises(ConfigError, match=reason) as caught:
        BrokerConfig(properties={"diamant.users": text})
    assert "secret" not in str(caught.value).replace('{"alice": "secret"}', "")


@pytest.mark.parametrize(
    ("settings", "listeners"),
    [
        ({"listen": "127.0.0.1:1", "tls": True}, ["SSL://127.0.0.1:1"]),
        ({"tls": True}, ["SSL://127.0.0.1:9092"]),
        ({"users": {"alice": "hush"}}, ["SASL_PLAINTEXT://127.0.0.1:9092"]),
        (
            {"listen": ["127.0.0.1:1", "PLAINTEXT://127.0.0.1:2"], "users": {"alice": "hush"}, "tls": True},
            ["SASL_SSL://127.0.0.1:1", "PLAINTEXT://127.0.0.1:2"],
        ),
    ],
)
def test_addresses_are_those_of_secured_listeners(settings: dict[str, Any], listeners: list[str]) -> None:
    """Addresses are secured with TLS, users or both; named listeners are unchanged, and passwords are never shown."""
    config = BrokerConfig(**settings)
    assert [str(one) for one in config.listeners] == listeners
    assert "hush" not in f"{config}{describe_broker(config, {}, '')}"


def test_the_command_names_all_of_them_in_one_line(tmp_path: Path) -> None:
    """The command names all wrong settings in one line and exits with 2; the data directory is not created."""
    asked = ["ssl.provider=SunJSSE", "sasl.enabled.mechanisms=PLAIN"]
    settings = [word for setting in asked for word in ("--set", setting)]
    result = CliRunner().invoke(main, ["start", "--data", str(tmp_path / "data"), "--listen", "SSL://:0", *settings])
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == (
        "diamant: ssl.provider, sasl.enabled.mechanisms ask for security that Diamant does not provide, at least not on these "
        "listeners: any client could connect. Remove them, or open a listener that uses them (SSL, SASL_PLAINTEXT, SASL_SSL)\n"
    )
    assert not (tmp_path / "data").exists()


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return the warnings so far, which are then cleared."""
    found = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    caplog.clear()
    return found


async def test_stored_security_settings_without_effect_are_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As in Kafka, the setting is stored and does not change a PLAINTEXT listener. Each start logs a warning."""
    said = (
        ": stored for a Kafka broker that opens the directory, without effect here. Open listeners do not change: "
        "any client can connect to one that has neither TLS nor SASL"
    )
    names = ["ssl.client.auth", "listener.name.plaintext.ssl.keystore.location"]
    config = BrokerConfig(listen="127.0.0.1:0", data_dir=tmp_path)
    acl = AccessControlEntryRecord(
        id=uuid.uuid4(),
        resource_type=2,
        resource_name="t",
        pattern_type=3,
        principal="User:a",
        host="*",
        operation=3,
        permission_type=3,
    )
    async with Broker(config) as broker:
        assert warnings_of(caplog) == []
        for name in names:
            await alter(broker.bootstrap_servers, name, "required")
            assert warnings_of(caplog) == [name + said]
        broker.node.metadata.append([acl])
    async with Broker(config):
        assert warnings_of(caplog) == [f"{', '.join(names)}, 1 ACLs{said}"]


def test_ports_that_others_reach_are_reported() -> None:
    """Each unprotected port has a line with the remedy; ports on loopback or with TLS or SASL have none."""
    listeners = [
        Listener("PLAINTEXT", "127.0.0.1", 1),
        Listener("OPEN", "0.0.0.0", 2),
        Listener("SSL", "", 3, "SSL"),
        Listener("SASL_PLAINTEXT", "10.0.0.1", 4, "SASL_PLAINTEXT"),
    ]
    (told,) = unprotected_ports(listeners, Listener("HTTP", "127.0.0.1", 5), has_token=True)
    assert told.startswith("OPEN://0.0.0.0:2 is open to any client: it has neither TLS nor SASL. Make it ")
    (told,) = unprotected_ports([], Listener("HTTP", "10.0.0.1", 5), has_token=True)
    assert told.startswith("HTTP at 10.0.0.1:5 has no TLS: its token can be intercepted. Set diamant.http.ssl.")
    assert unprotected_ports([], Listener("HTTP", "10.0.0.1", 5, "SSL"), has_token=True) == []
    assert (
        unprotected_ports([], Listener("HTTP", "10.0.0.1", 5), has_token=False) == []
    )  # told of where the token is read


@pytest.mark.parametrize("name", ["", "StandardAuthorizer", STANDARD_AUTHORIZER])
def test_kafkas_authorizer_goes_by_its_name(name: str) -> None:
    """Kafka's full class name and its last part are accepted. A broker that cannot run a class must not start without it."""
    assert BrokerConfig(authorizer_class_name=name)["authorizer.class.name"] == name
    with pytest.raises(ConfigError, match=r"org\.example\.Mine for configuration authorizer\.class\.name"):
        BrokerConfig(authorizer_class_name="org.example.Mine")


def test_super_users_are_parted_by_semicolons() -> None:
    """Distinguished names contain commas, equal signs and colons."""
    assert super_users_of(" User:CN=a,O=b ; User:bob;; Group:x:y") == {"User:CN=a,O=b", "User:bob", "Group:x:y"}
    with pytest.raises(ConfigError, match="'alice' is not a principal: expected TYPE:NAME"):
        BrokerConfig(authorizer_class_name="StandardAuthorizer", super_users="alice")


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"super.users": "User:admin"}, f"without an authorizer.*Set authorizer.class.name={STANDARD_AUTHORIZER}"),
        (
            {"allow.everyone.if.no.acl.found": "false"},
            f"without an authorizer.*Set authorizer.class.name={STANDARD_AUTHORIZER}",
        ),
        ({"diamant.acls": '["User:alice READ topic users"]'}, r"diamant\.acls would have no effect"),
    ],
    ids=str,
)
def test_settings_of_an_authorizer_that_there_is_not_are_refused(settings: dict[str, str], reason: str) -> None:
    """Everything would be allowed by mistake. The message names the setting to add."""
    with pytest.raises(ConfigError, match=reason):
        BrokerConfig(properties=settings)


def test_acls_of_a_configuration_imply_the_authorizer() -> None:
    """ACLs as text or as values set the authorizer. A copy of the broker, such as a fork, has them, too."""
    config = BrokerConfig(acls=["User:alice READ topic users", *parse_acls("User:bob ALL topic *")])
    assert config["authorizer.class.name"] == STANDARD_AUTHORIZER
    assert acls_of(str(config["diamant.acls"])) == parse_all(["User:alice READ topic users", "User:bob ALL topic *"])
    assert config.elsewhere("elsewhere")["diamant.acls"] == config["diamant.acls"]


@pytest.mark.parametrize("text", ["{}", "[1]", "User:alice READ topic users", '["User:alice LOOK topic users"]'])
def test_a_text_that_holds_no_acls_is_refused(text: str) -> None:
    """The error has the expected form, and the broker does not start. ACLs given as values are checked at once."""
    with pytest.raises(ConfigError, match=r"diamant\.acls: .*expected"):
        BrokerConfig(properties={"diamant.acls": text, "authorizer.class.name": "StandardAuthorizer"})
    with pytest.raises(ConfigError, match=r"diamant\.acls: 'LOOK' is not a known operation"):
        BrokerConfig(acls=["User:alice LOOK topic users"])
