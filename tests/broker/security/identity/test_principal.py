"""Principals."""

from __future__ import annotations

import pytest

from diamant.broker.security.identity.principal import Principal, parse_principal


@pytest.mark.parametrize("name", ["alice", "CN=a:b,O=c", "Ж", "a b"])
def test_a_principal_s_text_is_read_back(name: str) -> None:
    """Only the first colon parts the type from the name."""
    principal = Principal("User", name)
    assert parse_principal(str(principal)) == principal


@pytest.mark.parametrize("text", ["", "alice", ":alice", "User:"])
def test_a_text_that_is_no_principal_is_refused(text: str) -> None:
    """The error shows the text and the form."""
    with pytest.raises(ValueError, match="expected TYPE:NAME"):
        parse_principal(text)
