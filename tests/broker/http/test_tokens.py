"""HTTP tokens: one for everything or several with names, and invalid files."""

from __future__ import annotations

from pathlib import Path

import pytest

from diamant.broker.config.listeners import Listener
from diamant.broker.http.serving.token import NO_ONE, TokenCheck, load_token_check
from diamant.broker.security.identity.principal import ANONYMOUS, Principal

ALICE, BOB = Principal("User", "alice"), Principal("User", "bob")
A, B, C = "a" * 20, "b" * 20, "c" * 20


def check(tmp_path: Path, text: str) -> TokenCheck:
    """Return the check of a broker with this file."""
    file = tmp_path / "tokens"
    file.write_text(text)
    file.chmod(0o600)
    return load_token_check(Listener("HTTP", "127.0.0.1", 9644), str(file))


def principal(tokens: TokenCheck, given: str) -> Principal | None:
    """Return the principal of a token; None if it is wrong."""
    caller = tokens.caller(f"Bearer {given}")
    return None if caller is None else caller.principal


def test_lines_with_names_are_principals(tmp_path: Path) -> None:
    """Comments and blanks are skipped, a name may have two tokens, and the whole line works as a token."""
    tokens = check(tmp_path, f"# who may\n\nalice:{A}\nbob: {B}\nalice:{C}\n")
    assert [principal(tokens, given) for given in (A, B, C, f"alice:{A}")] == [ALICE, BOB, ALICE, ALICE]
    assert [principal(tokens, given) for given in ("d" * 20, f"bob:{A}", A[:-1])] == [None, None, None]
    caller = tokens.caller(None, A)
    assert caller is not None
    assert (caller.principal, caller.may_everything) == (ALICE, False), "the cookie of a browser"
    assert tokens.caller(None) == NO_ONE
    assert tokens.refusal(f"Bearer {B}") is None
    assert [(tokens.refusal(given) or (0,))[0] for given in (None, "Bearer " + "d" * 20)] == [401, 401]


def test_one_token_without_a_name_may_everything(tmp_path: Path) -> None:
    """The first line counts and later lines are ignored, unless they have names."""
    caller = check(tmp_path, f"{A}\nmade on Monday\n").caller(f"Bearer {A}")
    assert caller is not None
    assert (caller.principal, caller.may_everything) == (ANONYMOUS, True)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (f"alice:{A}\n{B}\n", "line 2 is not name:token"),
        (f"{A}\nbob:{B}\n", "line 1 is not name:token"),  # a misprint, or a token for everything
        (f"#{A}\n{B} \tx\n", "the token has characters other than visible ASCII ones"),
        (f"alice:{A}\n:{B}\n", "line 2 is not name:token"),
        ("alice:short\n", "the token of line 1 has 5 bytes, expected 16 to 4096"),
        (f"alice:{A}\nbob:{A}\n", "a token occurs twice"),
        (f"alice:{A[:-1]} b\n", "the token of line 1 has characters other than visible ASCII ones"),
        ("", "the token has 0 bytes"),
        ("x" * 5000, "diamant.http.token.file"),
        ("with a space in the middle", "the token has characters other than visible ASCII ones"),
        ("ümläut-ümläut-ümläut", "the token has characters other than visible ASCII ones"),
    ],
)
def test_a_faulty_file_lets_nobody_in(tmp_path: Path, text: str, problem: str) -> None:
    """If the file of tokens is faulty, even its valid ones are refused; the error has the line, and no token."""
    tokens = check(tmp_path, text)
    refusal = tokens.refusal(f"Bearer {A}")
    assert refusal is not None
    assert refusal[0] == 403
    assert problem in refusal[1]
    assert A not in refusal[1]
    assert tokens.caller(f"Bearer {A}") is None
