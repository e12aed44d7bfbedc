"""Files named on a command line: pipes, devices and files that are too large are refused before they are read."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from diamant.broker.cli import main
from diamant.cleaner.evidence.certificates.certificate import MAX_BYTES
from diamant.cleaner.evidence.certificates.signing_key import SigningKey, load_secret, read_public_key
from diamant.storage.input_file import read_input

COMMANDS = {
    "a certificate": ["verify", "{}", "--offline"],
    "a token": ["status", "--token-file", "{}"],
    "a configuration": ["start", "--config", "{}"],
}


def places(path: Path) -> dict[str, str]:
    """One path of each unusable kind, with its error."""
    os.mkfifo(path / "pipe")
    with (path / "large").open("wb") as file:
        file.truncate(3_000_000_000)
    return {
        str(path / "pipe"): "it is a pipe, expected a file",
        "/dev/zero": "it is a device, expected a file",
        str(path / "large"): "it has 3,000,000,000 bytes or more, the limit is",
    }


@pytest.mark.parametrize("what", COMMANDS)
def test_an_unusable_input_file_is_refused(tmp_path: Path, what: str) -> None:
    """The error is one line with the file and the reason; nothing blocks and nothing is read."""
    for path, reason in places(tmp_path).items():
        arguments = [one.format(path) for one in COMMANDS[what]]
        result = CliRunner().invoke(main, arguments)
        assert (result.exit_code, result.output.count("\n")) == (2, 1), result.output
        assert result.stderr.startswith(f"diamant: {path}: {reason}"), result.output


@pytest.mark.parametrize("read", [read_public_key, load_secret, SigningKey.load])
def test_files_of_keys_are_read_in_the_same_way(tmp_path: Path, read: Callable[[str], object]) -> None:
    """Key files of the command line and of the broker follow the same rules."""
    for path, reason in places(tmp_path).items():
        with pytest.raises(OSError, match=reason):
            read(path)


def test_a_certificate_may_be_as_large_as_is_read(tmp_path: Path) -> None:
    """The limit of a certificate file is that of the parser."""
    path = tmp_path / "file"
    path.write_bytes(bytes(MAX_BYTES))
    assert len(read_input(path, MAX_BYTES)) == MAX_BYTES
    with pytest.raises(OSError, match="or more, the limit is"):
        read_input(path, MAX_BYTES - 1)
