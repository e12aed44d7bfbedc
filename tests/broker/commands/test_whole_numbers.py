"""Whole numbers as arguments of commands: a value that is none gets one sentence with what was expected."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from diamant.broker.cli import main


@pytest.mark.parametrize(
    ("command", "text"),
    [
        ("broker down two", "Invalid value for 'ID': expected a whole number of at least 0, got 'two'"),
        ("broker down -- -1", "Invalid value for 'ID': expected a whole number of at least 0, got -1"),
        ("broker unclean t:0 2 end", "Invalid value for 'OFFSET': expected a whole number of at least 0, got 'end'"),
        ("topic create t -r three", "expected a whole number from 1 to 32767, got 'three'"),
        ("consume t -n 1.5", "expected a whole number of at least 0, got '1.5'"),
    ],
)
def test_what_is_no_such_number_is_named_with_what_was_expected(command: str, text: str) -> None:
    """Whether it is no number or out of bounds."""
    result = CliRunner().invoke(main, command.split())
    assert result.exit_code == 2
    assert text in result.stderr
