"""What the commands say when the broker goes away, or wants a token."""

from __future__ import annotations

import socket
import threading
from pathlib import Path

import pytest
from click.testing import CliRunner

from diamant.broker.broker import Broker
from diamant.broker.cli import main
from diamant.broker.client import admin as admin_module
from diamant.broker.config.broker_config import BrokerConfig


@pytest.mark.parametrize(
    "command",
    [
        ["erase", "users", "--key", "customer-42", "--reason", "r"],
        ["erase-now", "0f4c"],
        ["redact", "orders", "--where", 'value.email == "ada@example.com"', "--reason", "r"],
    ],
    ids=lambda one: str(one[0]),
)
def test_what_was_begun_goes_on_if_the_broker_goes_away(command: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed in the middle of an erasure or a redaction: one line that says so, and where to look afterwards."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(1000)

        thread = threading.Thread(target=serve)
        thread.start()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        monkeypatch.setattr(admin_module, "_find_http_url", lambda *_: url)
        result = CliRunner().invoke(main, command)
        thread.join()
    assert (result.exit_code, result.output.count("\n")) == (1, 1), result.output
    for words in (f"the broker at {url} went away", "continues at its next start", "diamant certificates"):
        assert words in result.stderr
    assert "cannot be reached from elsewhere" not in result.stderr


def test_a_token_that_is_missing_or_wrong_is_asked_for_by_its_option(tmp_path: Path) -> None:
    """By the names it has on the command line, not by the header of HTTP."""
    files = {}
    for name in ("token", "other"):
        files[name] = tmp_path / name
        files[name].write_text(f"0123456789abcdef-{name}\n")
        files[name].chmod(0o600)
    properties = {"diamant.http.listen": "127.0.0.1:0", "diamant.http.token.file": str(files["token"])}
    with Broker(BrokerConfig(listen="127.0.0.1:0", data_dir=tmp_path / "data", properties=properties)) as broker:
        command = ["compact", "users", "-b", broker.bootstrap_servers]
        for options, words in (
            ([], "needs the broker's token: give"),
            (
                ["--token-file", str(files["other"])],
                "the token is not the one in the broker's diamant.http.token.file: give",
            ),
        ):
            result = CliRunner(env={"DIAMANT_TOKEN_FILE": None}).invoke(main, [*command, *options])
            assert (result.exit_code, result.output.count("\n"), "Bearer" in result.output) == (1, 1, False), (
                result.output
            )
            assert f"{words} the file that holds it, by --token-file or $DIAMANT_TOKEN_FILE" in result.stderr
        result = CliRunner().invoke(main, [*command, "--token-file", str(files["token"])])
        assert "token" not in result.output
