"""PLAIN: a user and a password, compared with the configured ones.

    token = [authorization id] NUL user NUL password          in UTF-8

Behaviour: the authorization id is empty or equals the user. Known and unknown users take the same code path.

Source: RFC 4616; PlainSaslServer and PlainServerCallbackHandler, whose error texts are sent to clients.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Mapping

from diamant.broker.security.sasl.mechanism import AuthenticationFailed, Identity

_NO_PASSWORD = secrets.token_bytes(32)
"""The password of unknown users: random bytes, which no client can guess."""


class PlainExchange:
    """One attempt to authenticate. `passwords` maps users to their passwords."""

    def __init__(self, passwords: Mapping[str, str]) -> None:
        self.identity: Identity | None = None
        self._passwords = passwords

    def respond(self, token: bytes) -> bytes:
        """Check the only token of the exchange."""
        parts = token.decode("utf-8", "replace").split("\0")
        if len(parts) != 3:
            raise _failed(f"Invalid SASL/PLAIN response: expected 3 tokens, got {len(parts)}")
        authorization_id, user, password = parts
        if not user:
            raise _failed("Authentication failed: username not specified")
        if not password:
            raise _failed("Authentication failed: password not specified")
        expected = self._passwords.get(user)
        # Digests have one size, so the time of the comparison does not reveal the lengths.
        wanted = _NO_PASSWORD if expected is None else expected.encode()
        is_right = hmac.compare_digest(_digest(password.encode()), _digest(wanted))
        if not is_right:
            raise AuthenticationFailed(
                f"PLAIN: wrong user or password, user {user!r:.80}",
                "Authentication failed: Invalid username or password",
            )
        if authorization_id not in ("", user):
            raise _failed("Authentication failed: Client requested an authorization id that is different from username")
        self.identity = Identity(user)
        return b""


def _digest(password: bytes) -> bytes:
    return hmac.digest(_NO_PASSWORD, password, "sha256")


def _failed(text: str) -> AuthenticationFailed:
    return AuthenticationFailed(text, text)
