"""Options for a key: as text, in hexadecimal, in base64, as JSON, or as the bytes of a file; and for identifiers of a person."""

from __future__ import annotations

import base64
import binascii
import codecs
import functools
import json
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import click

from diamant.broker.commands.terminal.failures import fail
from diamant.storage.input_file import read_input

F = TypeVar("F", bound=Callable[..., Any])

MAX_KEY_BYTES = 6 * 1024 * 1024
"""The longest key whose base64 form fits into a request (`json_body.MAX_KEYED_BODY_BYTES`). max.message.bytes may be lower."""
MAX_PEOPLE_BYTES = 2 * 1024 * 1024


def key_options(what: str) -> Callable[[F], F]:
    """Add the key options to a command, which gets `key`: bytes, or None if no option is given. `what`: the key's purpose."""

    def decorate(command: F) -> F:
        @functools.wraps(command)
        def run(
            *args: Any,
            key: str | None,
            key_hex: str | None,
            key_base64: str | None,
            key_json: str | None,
            key_file: str | None,
            **options: Any,
        ) -> Any:
            return command(*args, key=_key(key, key_hex, key_base64, key_json, key_file), **options)

        for option in reversed(
            (
                click.option("--key", "-k", help=f"{what}: the key as text."),
                click.option("--key-hex", metavar="HEX", help="The key in hexadecimal."),
                click.option("--key-base64", metavar="BASE64", help="The key in base64."),
                click.option(
                    "--key-json",
                    metavar="JSON",
                    help="The key as JSON; like a serializer, the command encodes it without whitespace.",
                ),
                click.option(
                    "--key-file",
                    type=click.Path(exists=True, dir_okay=False),
                    help="A file with the key: all of its bytes, including a newline at the end.",
                ),
            )
        ):
            run = option(run)
        return run  # type: ignore[return-value]

    return decorate


def required(key: bytes | None) -> bytes:
    """Return the key of a command that requires one. Without a key, the command fails."""
    if key is None:
        fail("expected one of --key, --key-hex, --key-base64, --key-json, --key-file", "bad-argument")
    return key


def _key(
    text: str | None, in_hex: str | None, in_base64: str | None, in_json: str | None, file: str | None
) -> bytes | None:
    """Return the key. Refuses an empty string, because that is what a shell passes for an unset variable."""
    given = [one for one in (text, in_hex, in_base64, in_json, file) if one is not None]
    if len(given) > 1:
        fail("expected only one of --key, --key-hex, --key-base64, --key-json and --key-file", "bad-argument")
    if text is not None:
        if not text:
            fail('--key is empty: is a variable not set? For the key without bytes, use --key-hex ""', "bad-argument")
        # An argument from the shell may not be valid UTF-8.
        return text.encode(errors="surrogateescape")
    try:
        if in_hex is not None:
            return bytes.fromhex(in_hex.removeprefix("0x").removeprefix("0X"))
        if in_base64 is not None:
            return base64.b64decode(in_base64, validate=True)
        if in_json is not None:
            return json.dumps(json.loads(in_json), separators=(",", ":"), ensure_ascii=False).encode()
    except (ValueError, binascii.Error):
        # The message omits the key, because error messages end up in logs.
        form = "JSON" if in_json is not None else "base64" if in_hex is None else "hexadecimal"
        option = "--key-json" if in_json is not None else "--key-base64" if in_hex is None else "--key-hex"
        fail(f"{option}: this is not {form}", "bad-argument")
    if file is None:
        return None
    try:
        return read_input(file, MAX_KEY_BYTES)
    except OSError as error:
        fail(f"--key-file {file}: {error.strerror}", "bad-argument")


class IdentifierOption(click.ParamType["tuple[str, str]"]):
    """NAME=VALUE, converted to a pair."""

    name = "NAME=VALUE"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, str]:
        name, equals, found = str(value).partition("=")
        if not equals or not name or not found:
            # The value may be a name or an address, so it is not repeated.
            self.fail("expected NAME=VALUE, such as customer_id=42", param, ctx)
        return name, found


class PeopleFile(click.ParamType["list[dict[str, list[str]]]"]):
    """The path of a file with one line NAME=VALUE per person, converted to a list of each person's identifiers."""

    name = "FILE"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> list[dict[str, list[str]]]:
        try:
            lines = read_input(value, MAX_PEOPLE_BYTES).removeprefix(codecs.BOM_UTF8).splitlines()
        except OSError as error:
            self.fail(f"{value}: {error.strerror or error}", param, ctx)
        numbers: dict[tuple[str, str], int] = {}
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                found = IdentifierOption().convert(line.decode().strip(), param, ctx)
            except (UnicodeDecodeError, click.BadParameter):
                # The line may have a name or an address, so it is not repeated.
                self.fail(f"{value}, line {number}: expected NAME=VALUE in UTF-8, such as customer_id=42", param, ctx)
            if numbers.setdefault(found, number) != number:
                self.fail(
                    f"{value}: lines {numbers[found]} and {number} are the same: give each person once", param, ctx
                )
        if not numbers:
            self.fail(f"{value}: it names no person: expected a line NAME=VALUE for each person", param, ctx)
        return [{name: [text]} for name, text in numbers]


def by_name(identifiers: Sequence[tuple[str, str]]) -> dict[str, list[str]]:
    """Convert the identifiers from the command line to the form that a request takes."""
    found: dict[str, list[str]] = {}
    for name, value in identifiers:
        found.setdefault(name, []).append(value)
    return found
