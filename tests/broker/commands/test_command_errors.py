"""Errors of commands whose broker goes away, requires a token, or uses TLS and SASL."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import pytest
from click.shell_completion import ShellComplete
from click.testing import CliRunner

from diamant.broker.broker import Broker
from diamant.broker.cli import main
from diamant.broker.client import admin as admin_module
from diamant.broker.client.bootstrap import BOOTSTRAP_VARIABLE, CA_VARIABLE, USER_VARIABLE
from tests.broker.one_answer import one_answer
from tests.ports import ReservedPort


@pytest.mark.parametrize(
    "command",
    [
        ["erase", "users", "--key", "customer-42", "--reason", "r"],
        ["erase-now", "0f4c"],
        ["redact", "orders", "--where", 'value.email == "ada@example.com"', "--reason", "r"],
    ],
    ids=lambda one: str(one[0]),
)
def test_a_command_says_that_its_job_survives_the_broker(command: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """If the broker is killed during an erasure or redaction, the command says in a line that the job continues and how to list
    it.
    """
    with one_answer(b"") as address:
        monkeypatch.setattr(admin_module, "_find_http_url", lambda *_: f"http://{address}")
        result = CliRunner().invoke(main, command)
    assert (result.exit_code, result.output.count("\n")) == (1, 1), result.output
    for words in (f"the broker at http://{address} went away", "continues at its next start", "diamant certificates"):
        assert words in result.stderr
    assert "cannot be reached from elsewhere" not in result.stderr


def test_a_token_that_is_missing_or_wrong_is_asked_for_by_its_option(tmp_path: Path) -> None:
    """The error names the command's option, not the HTTP header."""
    files = {}
    for name in ("token", "other"):
        files[name] = tmp_path / name
        files[name].write_text(f"0123456789abcdef-{name}\n")
        files[name].chmod(0o600)
    properties = {"diamant.http.listen": "127.0.0.1:0", "diamant.http.token.file": str(files["token"])}
    with Broker(data_dir=tmp_path / "data", properties=properties) as broker:
        command = ["compact", "users", "-b", broker.bootstrap_servers]
        for options, words in (
            ([], "needs the broker's token. Give"),
            (
                ["--token-file", str(files["other"])],
                "the token is not the one in the broker's diamant.http.token.file. Give",
            ),
        ):
            result = CliRunner(env={"DIAMANT_TOKEN_FILE": None}).invoke(main, [*command, *options])
            assert (result.exit_code, result.output.count("\n"), "Bearer" in result.output) == (2, 1, False), (
                result.output
            )
            assert f"{words} the file with the token by --token-file or $DIAMANT_TOKEN_FILE" in result.stderr
        result = CliRunner().invoke(main, [*command, "--token-file", str(files["token"])])
        assert "token" not in result.output


class Secured(NamedTuple):
    """The address of a broker and its credentials."""

    bootstrap: str
    user: str
    ca: str

    @property
    def options(self) -> list[str]:
        """As options of a command."""
        return ["-b", self.bootstrap, "--user", self.user, "--ca", self.ca]

    @property
    def variables(self) -> Mapping[str, str]:
        """As variables of the environment."""
        return {BOOTSTRAP_VARIABLE: self.bootstrap, USER_VARIABLE: self.user, CA_VARIABLE: self.ca}


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    """A broker with SASL_SSL only, and a topic."""
    path = tmp_path_factory.mktemp("secured")
    with Broker(
        data_dir=path / "data", users={"alice": "secret"}, tls=True, diamant_http_listen="127.0.0.1:0"
    ) as broker:
        broker.create_topic("orders")
        (path / "password").write_text("secret\n")
        (path / "ca.pem").write_text(broker.client_config("alice").ca or "")
        yield Secured(broker.bootstrap_servers, f"alice:{path / 'password'}", str(path / "ca.pem"))


@pytest.mark.parametrize("is_by_variables", [False, True])
def test_commands_work_behind_sasl_and_tls(secured: Secured, is_by_variables: bool) -> None:
    """Options or the environment lead to the Kafka listener, and to the HTTP address."""
    options, variables = ([], secured.variables) if is_by_variables else (secured.options, {})
    result = CliRunner().invoke(main, ["status", "--json", *options], env=variables)
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["topics"]
    assert CliRunner().invoke(main, ["topic", "list", *options], env=variables).output == "orders\n"


def test_a_health_check_needs_no_login(secured: Secured) -> None:
    """`status --ready` prints nothing while the broker answers. It fails in one line where nothing answers, or by TLS alone."""
    ready = ["status", "--ready", "--timeout", "5s"]
    result = CliRunner().invoke(main, [*ready, "-b", secured.bootstrap, "--ca", secured.ca])
    assert (result.exit_code, result.output) == (0, ""), result.output
    with ReservedPort() as port:
        for options, said in ((["-b", port.address], "Connection refused"), (["-b", secured.bootstrap], "TLS")):
            result = CliRunner().invoke(main, [*ready, *options])
            assert (result.exit_code, result.output.count("\n"), said in result.stderr) == (1, 1, True), result.output


@pytest.mark.parametrize("command", [["status"], ["topic", "list"]], ids=" ".join)
def test_the_system_s_certificates_are_not_enough(secured: Secured, command: list[str]) -> None:
    """`--ca system` does not trust a test's throw-away CA, and a file that is missing is a usage error."""
    for ca, said in (("system", "certificate verify failed"), (f"{secured.ca}.missing", "No such file")):
        result = CliRunner().invoke(main, [*command, *secured._replace(ca=ca).options])
        assert (result.exit_code, said in result.stderr) == (2, True), result.output


def completed(words: list[str]) -> list[str]:
    """Return the completions that a shell would offer."""
    shell = ShellComplete(main, {}, "diamant", "_DIAMANT_COMPLETE")
    return [item.value for item in shell.get_completions(words, "")]


@pytest.mark.parametrize("words", [["compact"], ["topic", "describe"], ["explain"]])
def test_names_are_completed_after_a_login(secured: Secured, words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """The login comes from the options typed so far or the environment; without one there are no names."""
    assert completed([*words, *secured.options]) == ["orders"]
    monkeypatch.setenv(BOOTSTRAP_VARIABLE, secured.bootstrap)
    monkeypatch.setenv(CA_VARIABLE, secured.ca)
    assert completed(words) == []
    monkeypatch.setenv(USER_VARIABLE, secured.user)
    assert completed(words) == ["orders"]
    monkeypatch.setenv(USER_VARIABLE, f"{secured.user}.missing")
    assert completed(words) == []
