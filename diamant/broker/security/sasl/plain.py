"""PLAIN: a user and a password, compared with those of the configuration.

    token = [authorization id] NUL user NUL password          in UTF-8

Behaviour: the authorization id is empty or the user. A user that is not known takes the same path as one that is.

Source: RFC 4616; PlainSaslServer and PlainServerCallbackHandler, whose texts clients get.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Mapping

from diamant.broker.security.sasl.mechanism import AuthenticationFailed, Identity

_NO_PASSWORD = secrets.token_bytes(32)
"""In place of the password of a user that there is not. No client can send it: it is no text."""


class PlainExchange:
    """One attempt. `passwords` by user."""

    def __init__(self, passwords: Mapping[str, str]) -> None:
        self.identity: Identity | None = None
        self._passwords = passwords

    def respond(self, token: bytes) -> bytes:
        """Check the one token that there is."""
        parts = token.decode("utf-8", "replace").split("\0")
        if len(parts) != 3:
            raise _failed(f"Invalid SASL/PLAIN response: expected 3 tokens, got {len(parts)}")
        authorization_id, user, password = parts
        if not user:
            raise _failed("Authentication failed: username not specified")
        if not password:
            raise _failed("Authentication failed: password not specified")
        expected = self._passwords.get(user)
        # Digests are compared, so that the time tells nothing about lengths either.
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
