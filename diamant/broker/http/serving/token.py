"""The bearer token for requests that change data: needed if one is configured, or if HTTP listens beyond loopback.

It is the first line of a file (`diamant.http.token.file`), without the white space around it, `MIN_TOKEN_BYTES` to
`MAX_TOKEN_BYTES` long. The file is read at the start and should be its owner's alone (mode 0600). With a faulty file
such requests are refused, and the broker runs: a mistake here must not open anything.
"""

from __future__ import annotations

import hmac
import logging

from diamant.broker.config.listeners import Listener
from diamant.storage.input_file import read_input_mode

logger = logging.getLogger(__name__)

MIN_TOKEN_BYTES = 16
MAX_TOKEN_BYTES = 4096
MAX_FILE_BYTES = 64 * 1024
_SCHEME = "bearer"
COOKIE = "diamant-token"
"""Keeps the token for a browser."""


class TokenCheck:
    """Checks that a request may change data."""

    def __init__(self, *, is_needed: bool, token: bytes | None, problem: str | None) -> None:
        """`problem`: why there is no token although one is needed, for the refusal."""
        self.is_needed = is_needed
        self._token = token
        self.problem = problem

    def refusal(self, authorization: str | None, cookie: str | None = None) -> tuple[int, str] | None:
        """Return the status and text that refuse a request with this Authorization header or `COOKIE`; None if allowed."""
        if not self.is_needed:
            return None
        if self._token is None:
            return 403, self.problem or "there is no token"
        if authorization is None and cookie:
            authorization = f"Bearer {cookie}"
        scheme, _, given = (authorization or "").partition(" ")
        if scheme.lower() != _SCHEME or not given.strip():
            return 401, "this changes data and needs the broker's token: Authorization: Bearer <token>"
        # In constant time for what is given; the length of the token may show, which helps no attacker.
        if not hmac.compare_digest(given.strip().encode(errors="replace"), self._token):
            return 401, "the token is not the one in the broker's diamant.http.token.file"
        return None


def load_token_check(listener: Listener, path: str | None) -> TokenCheck:
    """Return the check for requests to `listener`; `path` is the token's file. Blocks for one small file."""
    if not path:
        if listener.is_loopback:
            return TokenCheck(is_needed=False, token=None, problem=None)
        logger.warning(
            "HTTP is open to every client that reaches %s: without a token it reads metrics, status, certificates and what "
            "there is of a key (explain, count); what changes data or hands out records is refused to all, until "
            "diamant.http.token.file names a file with a token (head -c 32 /dev/urandom | base64 > FILE && chmod 600 FILE). "
            "diamant.http.listen=127.0.0.1:%d is for this machine only",
            listener.address if listener.host else f"{listener.address} (every interface)",
            listener.port,
        )
        problem = (
            f"HTTP is answered at {listener.host or 'every interface'}, which is not loopback only, and there is no token: set "
            "diamant.http.token.file for verbs that change data"
        )
        return TokenCheck(is_needed=True, token=None, problem=problem)
    try:
        token = _read(path)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        logger.warning(
            "no token, verbs that change data are refused over HTTP: %s: %s (diamant.http.token.file)", path, reason
        )
        problem = f"the broker cannot read its token: {reason} (diamant.http.token.file); see its log"
        return TokenCheck(is_needed=True, token=None, problem=problem)
    return TokenCheck(is_needed=True, token=token, problem=None)


def _read(path: str) -> bytes:
    text, mode = read_input_mode(path, MAX_FILE_BYTES)
    if mode & 0o077:
        logger.warning("%s has mode %04o: others can read the token, chmod 600 it", path, mode)
    token = (text.splitlines() or [b""])[0].strip()
    if not MIN_TOKEN_BYTES <= len(token) <= MAX_TOKEN_BYTES:
        raise ValueError(f"the token has {len(token)} bytes, expected {MIN_TOKEN_BYTES} to {MAX_TOKEN_BYTES}")
    if any(byte < 0x21 or byte > 0x7E for byte in token):
        raise ValueError("the token has characters other than visible ASCII ones")
    return token
