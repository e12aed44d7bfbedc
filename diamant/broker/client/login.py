"""SASL logins with a user and a password, or with a token, for `KafkaConnection`.

The strongest mechanism is tried first: SCRAM-SHA-512, SCRAM-SHA-256, and PLAIN only if the broker offers no SCRAM.

Source: RFC 5802. The broker's side is `security/sasl/scram.py`.
"""

from __future__ import annotations

import base64
import binascii
import os
from collections.abc import Callable, Collection
from typing import NamedTuple

from diamant.broker.operation_errors import BadArgument
from diamant.storage.input_file import read_input

HASHES = {"SCRAM-SHA-512": "sha512", "SCRAM-SHA-256": "sha256"}
"""The hash of each SCRAM mechanism."""
PREFERRED = (*HASHES, "PLAIN")
OAUTHBEARER = "OAUTHBEARER"
"""A login with a token as the password (RFC 7628). Used only if requested."""
MAX_PASSWORD_BYTES = 4096
MAX_ITERATIONS = 1_000_000
"""A broker that requires more iterations is refused, because it would keep the client computing."""


class LoginFailed(Exception):
    """The broker refused the login, or could not prove that it knows the password."""


class Login(NamedTuple):
    """A user and its password."""

    user: str
    password: str
    mechanism: str | None = None
    """The mechanism. None: the strongest that the broker offers."""


def read_password(path: str) -> str:
    """Read a password from a file, without its newline. Raises BadArgument unless it is one line of UTF-8, and OSError."""
    try:
        password = read_input(path, MAX_PASSWORD_BYTES).decode().removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError:
        raise BadArgument(f"{path}: expected a password in UTF-8") from None
    if not password or any(letter in password for letter in "\0\n"):
        raise BadArgument(f"{path}: expected a password on one line")
    return password


def read_login(text: str) -> Login:
    """Parse `NAME:PASSWORD-FILE`. Raises BadArgument if it has another form, or the file cannot be read."""
    user, colon, path = text.partition(":")
    if not (user and colon and path):
        raise BadArgument(f"{text!r}: expected NAME:PASSWORD-FILE, the name without a colon")
    try:
        return Login(user, read_password(path))
    except OSError as error:
        raise BadArgument(f"{path}: {error.strerror or error}") from None


def best_of(offered: Collection[str]) -> str:
    """Return the strongest of the mechanisms that a broker offers. Raises LoginFailed if none is known."""
    for mechanism in PREFERRED:
        if mechanism in offered:
            return mechanism
    raise LoginFailed(
        f"the broker offers {', '.join(offered) or 'no mechanism'}; expected one of {', '.join(PREFERRED)}"
    )


def log_in(mechanism: str, login: Login, exchange: Callable[[bytes], bytes]) -> None:
    """Log in. `exchange` sends a token and returns the reply. Raises LoginFailed for a refusal or an impostor."""
    if mechanism == OAUTHBEARER:
        if refusal := exchange(f"n,,\1auth=Bearer {login.password}\1\1".encode()):
            raise LoginFailed(f"the broker refuses the token: {refusal.decode('utf-8', 'replace')}")
        return
    if mechanism == "PLAIN":
        exchange(f"\0{login.user}\0{login.password}".encode())
        return
    import hashlib  # loads OpenSSL, needed only for a login
    import hmac

    hash_name, nonce = HASHES[mechanism], os.urandom(16).hex()
    first = f"n={login.user.replace('=', '=3D').replace(',', '=2C')},r={nonce}"
    server_first = exchange(f"n,,{first}".encode()).decode("utf-8", "replace")
    salt, iterations, both = _parameters(server_first, nonce)
    salted = hashlib.pbkdf2_hmac(hash_name, login.password.encode(), salt, iterations)
    client_key = hmac.digest(salted, b"Client Key", hash_name)
    signed = f"{first},{server_first},c=biws,r={both}".encode()
    signature = hmac.digest(hashlib.new(hash_name, client_key).digest(), signed, hash_name)
    proof = base64.b64encode(bytes(a ^ b for a, b in zip(client_key, signature, strict=True))).decode()
    final = exchange(f"c=biws,r={both},p={proof}".encode())
    server_signature = hmac.digest(hmac.digest(salted, b"Server Key", hash_name), signed, hash_name)
    if not hmac.compare_digest(final, b"v=" + base64.b64encode(server_signature)):
        raise LoginFailed("the broker does not know the password: it may be an impostor")


def _parameters(message: str, nonce: str) -> tuple[bytes, int, str]:
    """Return salt, iterations and nonce from the broker's first message."""
    fields = dict(part.partition("=")[::2] for part in message.split(","))
    iterations, both = fields.get("i", ""), fields.get("r", "")
    try:
        salt = base64.b64decode(fields.get("s", ""), validate=True)
    except (binascii.Error, ValueError):
        salt = b""
    is_number = iterations.isascii() and iterations.isdecimal() and len(iterations) <= 7
    if not (salt and is_number and 0 < int(iterations) <= MAX_ITERATIONS and both.startswith(nonce)):
        raise LoginFailed("the broker's answer is not SCRAM's")
    return salt, int(iterations), both
