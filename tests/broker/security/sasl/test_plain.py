"""PLAIN: users, passwords and authorization ids. The texts are tried against a broker in `test_answers`."""

from __future__ import annotations

import pytest

from diamant.broker.security.sasl.mechanism import AuthenticationFailed, Identity
from diamant.broker.security.sasl.plain import PlainExchange


@pytest.mark.parametrize(("user", "password"), [("a,b", "x"), ("User:a", "ж"), ("=2C", "=3D"), ("漢", " ")])
def test_names_and_passwords_may_have_any_letter(user: str, password: str) -> None:
    """Nothing is escaped."""
    exchange = PlainExchange({user: password})
    assert exchange.respond(f"\0{user}\0{password}".encode()) == b""
    assert exchange.identity == Identity(user)


@pytest.mark.parametrize("password", ["secre", "secret ", "Secret", "secret2"])
@pytest.mark.parametrize("user", ["alice", "zoe"])
def test_a_wrong_password_and_an_unknown_user_fail_alike(user: str, password: str) -> None:
    """The client is told the same; the log names the user."""
    exchange = PlainExchange({"alice": "secret"})
    with pytest.raises(AuthenticationFailed, match=f"user '{user}'") as caught:
        exchange.respond(f"\0{user}\0{password}".encode())
    assert caught.value.told == "Authentication failed: Invalid username or password"
    assert exchange.identity is None


def test_a_long_name_does_not_flood_the_log() -> None:
    """Eighty letters of it are enough, and control characters are escaped."""
    with pytest.raises(AuthenticationFailed) as caught:
        PlainExchange({}).respond(b"\0\n" + b"x" * 5000 + b"\0y")
    assert len(str(caught.value)) < 150
    assert "\n" not in str(caught.value)
