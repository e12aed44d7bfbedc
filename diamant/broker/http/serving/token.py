"""The bearer tokens of HTTP: they identify the caller, and requests that change data may require one.

The tokens are read at startup from a file (`diamant.http.token.file`) that only its owner should be able to read (mode 0600):

    a line without a name       one token that allows everything over HTTP
    name:token lines            tokens of principals User:name, subject to the authorizer; a name may have two lines while its
                                token is being replaced; # starts a comment

A token has `MIN_TOKEN_BYTES` to `MAX_TOKEN_BYTES`. If the file is invalid, the broker runs but refuses requests that change
data, since a mistake must not grant access. Bound: `MAX_FILE_BYTES` of tokens.
"""

from __future__ import annotations

import hmac
import logging
from collections.abc import Sequence
from typing import NamedTuple

from diamant.broker.config.listeners import Listener
from diamant.broker.security.identity.principal import ANONYMOUS, USER, Principal
from diamant.storage.input_file import read_input_mode

logger = logging.getLogger(__name__)

MIN_TOKEN_BYTES = 16
MAX_TOKEN_BYTES = 4096
MAX_FILE_BYTES = 64 * 1024
_SCHEME = "bearer"
COOKIE = "diamant-token"
"""The name of the cookie that holds a browser's token."""

WRONG = "the token is not the one in the broker's diamant.http.token.file"


class Token(NamedTuple):
    """A token and its principal. Without a principal, everything is allowed."""

    secret: bytes
    principal: Principal | None = None


class Caller(NamedTuple):
    """The client of a request."""

    principal: Principal
    may_everything: bool = False
    """True if the caller sent the token without a name, which allows everything."""
    has_token: bool = False


NO_ONE = Caller(ANONYMOUS)
"""A client without a token."""


class TokenCheck:
    """Identifies callers by their tokens, and checks that a request may change data."""

    def __init__(self, *, is_needed: bool, tokens: Sequence[Token] = (), problem: str | None = None) -> None:
        """`problem`: why there is no token although one is needed. It is given as the reason for refusing requests."""
        self.is_needed = is_needed
        self._tokens = tokens
        self.problem = problem

    @property
    def has_tokens(self) -> bool:
        """True if a client can log in."""
        return bool(self._tokens)

    def caller(self, authorization: str | None, cookie: str | None = None) -> Caller | None:
        """Return the client with this Authorization header or `COOKIE`; None if its token is wrong."""
        given = _given(authorization, cookie)
        if given is None:
            return NO_ONE
        found = None
        for token in self._tokens:
            # Each token is compared in constant time. The lengths may leak, which helps no attacker. A client may also send the
            # whole line of the file.
            line = token.secret if token.principal is None else token.principal.name.encode() + b":" + token.secret
            if hmac.compare_digest(given, line) or (line != token.secret and hmac.compare_digest(given, token.secret)):
                found = token
        if found is None:
            return None
        return Caller(found.principal or ANONYMOUS, may_everything=found.principal is None, has_token=True)

    def refusal(self, authorization: str | None, cookie: str | None = None) -> tuple[int, str] | None:
        """Return the status and text that refuse a request that changes data; None if it has a valid token or needs none."""
        if not self.is_needed:
            return None
        if not self._tokens:
            return 403, self.problem or "there is no token"
        if _given(authorization, cookie) is None:
            return (
                401,
                "this changes data or shows records, and needs the broker's token",
            )
        return (401, WRONG) if self.caller(authorization, cookie) is None else None


def _given(authorization: str | None, cookie: str | None) -> bytes | None:
    if authorization is None and cookie:
        authorization = f"Bearer {cookie}"
    scheme, _, given = (authorization or "").partition(" ")
    if scheme.lower() != _SCHEME or not given.strip():
        return None
    return given.strip().encode(errors="replace")


def load_token_check(listener: Listener, path: str | None) -> TokenCheck:
    """Return the check for requests to `listener`. `path`: the token file. Blocking while it reads this small file."""
    if not path:
        if listener.is_loopback:
            return TokenCheck(is_needed=False)
        logger.warning(
            "HTTP is open to every client that reaches %s: without a token, clients can read metrics, status, certificates and "
            "the state of a key (explain, count). Requests that change data or return records are refused until "
            "diamant.http.token.file names a file with a token (head -c 32 /dev/urandom | base64 > FILE && chmod 600 FILE). "
            "diamant.http.listen=127.0.0.1:%d restricts HTTP to this machine",
            listener.address if listener.host else f"{listener.address} (every interface)",
            listener.port,
        )
        problem = (
            f"HTTP listens on {listener.host or 'every interface'}, not only on loopback, and there is no token: set "
            "diamant.http.token.file for verbs that change data"
        )
        return TokenCheck(is_needed=True, problem=problem)
    try:
        tokens = _read(path)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        logger.warning(
            "cannot read the HTTP token, so requests that change data are refused: %s: %s (diamant.http.token.file)",
            path,
            reason,
        )
        problem = f"the broker cannot read its token: {reason} (diamant.http.token.file); see its log"
        return TokenCheck(is_needed=True, problem=problem)
    return TokenCheck(is_needed=True, tokens=tokens)


def _read(path: str) -> list[Token]:
    text, mode = read_input_mode(path, MAX_FILE_BYTES)
    if mode & 0o077:
        logger.warning("%s has mode %04o: others can read the token, chmod 600 it", path, mode)
    lines = [line.strip() for line in text.splitlines()]
    content = [(number, line) for number, line in enumerate(lines, start=1) if line and not line.startswith(b"#")]
    if not any(b":" in line for _, line in content):
        return [Token(_checked(content[0][1] if content else b"", "the token"))]
    tokens = []
    for number, line in content:
        name, colon, secret = line.partition(b":")
        if not (name.strip() and colon):
            raise ValueError(f"line {number} is not name:token")
        principal = Principal(USER, name.strip().decode())
        tokens.append(Token(_checked(secret.strip(), f"the token of line {number}"), principal))
    if len({token.secret for token in tokens}) < len(tokens):
        raise ValueError("a token occurs twice")
    return tokens


def _checked(secret: bytes, what: str) -> bytes:
    if not MIN_TOKEN_BYTES <= len(secret) <= MAX_TOKEN_BYTES:
        raise ValueError(f"{what} has {len(secret)} bytes, expected {MIN_TOKEN_BYTES} to {MAX_TOKEN_BYTES}")
    if any(byte < 0x21 or byte > 0x7E for byte in secret):
        raise ValueError(f"{what} has characters other than visible ASCII ones")
    return secret
