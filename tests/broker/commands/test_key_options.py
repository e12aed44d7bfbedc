"""A key as JSON: the bytes that serializers write for it."""

from __future__ import annotations

import click
import pytest
from click.testing import CliRunner

from diamant.broker.commands.terminal.key_options import key_options


@click.command()
@key_options("To test")
def show(key: bytes | None) -> None:
    """Print the key."""
    click.echo(key)


@pytest.mark.parametrize(
    ("given", "shown"),
    [('{"id": 42, "a": ["ü"]}', b'{"id":42,"a":["\xc3\xbc"]}'), ("42", b"42"), (' "x y" ', b'"x y"')],
)
def test_blanks_go_and_all_else_stays(given: str, shown: bytes) -> None:
    """Names keep their order, and letters their bytes in UTF-8."""
    assert CliRunner().invoke(show, ["--key-json", given]).stdout_bytes == shown + b"\n"


@pytest.mark.parametrize("given", ["{", "", "{'id': 42}"])
def test_other_texts_are_refused_without_being_repeated(given: str) -> None:
    """Errors end up in logs, so they do not show the key."""
    result = CliRunner().invoke(show, ["--key-json", given])
    assert (result.exit_code, result.output) == (2, "diamant: --key-json: this is not JSON\n")
