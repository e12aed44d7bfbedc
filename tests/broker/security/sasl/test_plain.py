"""PLAIN: users, passwords and authorization ids, and the JAAS texts that name them."""

from __future__ import annotations

import pytest

from diamant.broker.security.sasl.jaas import LoginModule, parse_jaas
from diamant.broker.security.sasl.mechanism import AuthenticationFailed, Identity
from diamant.broker.security.sasl.plain import PlainExchange
from diamant.storage.config_key import ConfigError

WRONG = "Authentication failed: Invalid username or password"


@pytest.mark.parametrize(("user", "password"), [("a,b", "x"), ("User:a", "ж"), ("=2C", "=3D"), ("漢", " ")])
@pytest.mark.parametrize("authorization_id", ["", "{user}"])
def test_names_and_passwords_may_have_any_letter(user: str, password: str, authorization_id: str) -> None:
    """Nothing is escaped. The authorization id may be the user."""
    exchange = PlainExchange({user: password})
    assert exchange.respond(f"{authorization_id.format(user=user)}\0{user}\0{password}".encode()) == b""
    assert exchange.identity == Identity(user)


@pytest.mark.parametrize(
    ("token", "told"),
    [
        *(
            (f"\0{user}\0{word}".encode(), WRONG)
            for user in ("alice", "zoe")
            for word in ("secre", "Secret", "secret ")
        ),
        (b"\0zoe\0secret", WRONG),
        (b"\0\xff\xfe\0secret", WRONG),
        (
            b"bob\0alice\0secret",
            "Authentication failed: Client requested an authorization id that is different from username",
        ),
        (b"\0\0secret", "Authentication failed: username not specified"),
        (b"\0alice\0", "Authentication failed: password not specified"),
        (b"alice\0secret", "Invalid SASL/PLAIN response: expected 3 tokens, got 2"),
        (b"\0alice\0secret\0x", "Invalid SASL/PLAIN response: expected 3 tokens, got 4"),
        (b"", "Invalid SASL/PLAIN response: expected 3 tokens, got 1"),
    ],
)
def test_a_bad_token_is_reported_in_kafka_s_words(token: bytes, told: str) -> None:
    """The client gets the same error for a wrong password and an unknown user."""
    exchange = PlainExchange({"alice": "secret"})
    with pytest.raises(AuthenticationFailed) as caught:
        exchange.respond(token)
    assert caught.value.told == told
    assert exchange.identity is None


def test_the_log_names_the_user_and_is_not_flooded() -> None:
    """The name is cut to eighty characters, and control characters are escaped."""
    with pytest.raises(AuthenticationFailed, match="user 'zoe'"):
        PlainExchange({}).respond(b"\0zoe\0y")
    with pytest.raises(AuthenticationFailed) as caught:
        PlainExchange({}).respond(b"\0\n" + b"x" * 5000 + b"\0y")
    assert len(str(caught.value)) < 150
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "options"),
    [
        ("a.B required;", {}),
        ('a.B required user_alice="secret" user_bob=\'b"\';', {"user_alice": "secret", "user_bob": 'b"'}),
        ("a.B REQUISITE a=1 b=$2,x:y;", {"a": "1", "b": "$2,x:y"}),
        ('  a.B\n  sufficient // no word\n  a = "1" /* user_x="2" */\n;\n', {"a": "1"}),
        (r'a.B optional a="x\"y" b="\\" c="\n\141";', {"a": 'x"y', "b": "\\", "c": "\na"}),
        ('a.B required user_жanna="тайна; =" ;', {"user_жanna": "тайна; ="}),
        ('a.B required a="" a="2";', {"a": "2"}),
    ],
)
def test_a_module_and_its_options(text: str, options: dict[str, str]) -> None:
    """Quotes hold any character, comments are ignored, and the last of two options with one name wins."""
    assert parse_jaas("n", text) == LoginModule("a.B", options)


@pytest.mark.parametrize(
    ("text", "where", "reason"),
    [
        ("", "at the end", "expected the class of a login module"),
        ("a.B", "at the end", "expected a control flag"),
        ("a.B needed;", "line 1, column 5", "expected a control flag (required,"),
        ("a.B required", "at the end", "or a semicolon at the end"),
        ('a.B required\n  user_a="hush" x', "at the end", "expected = after the option x"),
        ('a.B required\n  user_a "hush";', "line 2, column 10", "expected = after the option user_a"),
        ("a.B required user_a=;", "line 1, column 21", "expected a value for the option user_a"),
        ("a.B required =;", "line 1, column 14", "expected the name of an option"),
        ('a.B required user_a="hush;', "line 1, column 21", 'the quote " is not closed'),
        ("a.B required user_a='hush\n';", "line 1, column 21", "the quote ' is not closed"),
        ("a.B required user_a=hu/sh;", "line 1, column 23", "a slash starts a comment"),
        ("a.B required /* hush", "line 1, column 14", "the comment /* has no end"),
        ('a.B required; c.D required user_a="hush";', "line 1, column 15", "only one login module is allowed"),
    ],
)
def test_an_error_says_where_it_is(text: str, where: str, reason: str) -> None:
    """The error names the configuration and never shows the password."""
    with pytest.raises(ConfigError) as caught:
        parse_jaas("listener.name.x.plain.sasl.jaas.config", text)
    message = str(caught.value)
    assert message.startswith(f"listener.name.x.plain.sasl.jaas.config: invalid JAAS text ({where}): ")
    assert reason in message
    assert "hush" not in message
