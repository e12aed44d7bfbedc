"""SASL logins with a user and a password, or with a token, for `KafkaConnection`.

Tries the strongest mechanism first: SCRAM-SHA-512, then SCRAM-SHA-256, and PLAIN only if the broker offers neither.

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
"""The mechanism for a login with a token as the password (RFC 7628). Used only if requested."""
MAX_PASSWORD_BYTES = 4096
MAX_ITERATIONS = 1_000_000
"""The maximum number of SCRAM iterations. A broker that demands more is refused, as that would keep the client busy."""


class LoginFailed(Exception):
    """The broker refused the login, or could not prove that it knows the password."""


class Login(NamedTuple):
    """A user and its password."""

    user: str
    password: str
    mechanism: str | None = None
    """The mechanism to use. None: the strongest of `PREFERRED` that the broker offers."""


def read_password(path: str) -> str:
    """Read a password from a file, without the final newline. Raises BadArgument if it is not one line of UTF-8, or OSError."""
    try:
        password = read_input(path, MAX_PASSWORD_BYTES).decode().removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError:
        raise BadArgument(f"{path}: expected a password in UTF-8") from None
    if not password or any(letter in password for letter in "\0\n"):
        raise BadArgument(f"{path}: expected a password on one line")
    return password


def read_login(text: str) -> Login:
    """Parse `NAME:PASSWORD-FILE`, and read the file. Raises BadArgument if the form is wrong or the file is unusable."""
    user, colon, path = text.partition(":")
    if not (user and colon and path):
        raise BadArgument(f"{text!r}: expected NAME:PASSWORD-FILE, with no colon in the name")
    try:
        return Login(user, read_password(path))
    except OSError as error:
        raise BadArgument(f"{path}: {error.strerror or error}") from None


def best_of(offered: Collection[str]) -> str:
    """Return the strongest of the mechanisms that a broker offers. Raises LoginFailed if none of them is supported."""
    for mechanism in PREFERRED:
        if mechanism in offered:
            return mechanism
    raise LoginFailed(
        f"the broker offers {', '.join(offered) or 'no mechanism'}; expected one of {', '.join(PREFERRED)}"
    )


def log_in(mechanism: str, login: Login, exchange: Callable[[bytes], bytes]) -> None:
    """Log in. `exchange` sends a token and returns the reply. Raises LoginFailed if the broker refuses or is an impostor."""
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
    """Return the salt, the iterations and the nonce in the broker's first SCRAM message. Raises LoginFailed."""
    fields = dict(part.partition("=")[::2] for part in message.split(","))
    iterations, both = fields.get("i", ""), fields.get("r", "")
    try:
        salt = base64.b64decode(fields.get("s", ""), validate=True)
    except (binascii.Error, ValueError):
        salt = b""
    is_number = iterations.isascii() and iterations.isdecimal() and len(iterations) <= 7
    if not (salt and is_number and 0 < int(iterations) <= MAX_ITERATIONS and both.startswith(nonce)):
        raise LoginFailed("the broker's answer is not a valid SCRAM message")
    return salt, int(iterations), both
