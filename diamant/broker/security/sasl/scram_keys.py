"""SCRAM credentials, which a broker stores in place of passwords: salt, iterations, and two keys.

    salted password = PBKDF2(hash, password, salt, iterations)
    stored key      = hash(HMAC(salted password, "Client Key"))
    server key      = HMAC(salted password, "Server Key")

Deriving a salted password takes about 2 ms for 4096 iterations and up to 10 ms for 16384, so it never runs on the event loop.
Checking a login does not derive one.

Source: RFC 5802; ScramFormatter and ScramMechanism, including their limits on iterations and their format of salts.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Callable, Mapping
from typing import NamedTuple

from diamant.broker.security.sasl.mechanism import SCRAM_SHA_256, SCRAM_SHA_512
from diamant.protocol.kraft.records import UserScramCredentialRecord

MIN_ITERATIONS = 4096
"""The minimum and default number of iterations of a credential, as in `kafka-configs`."""
MAX_ITERATIONS = 16_384

_SALT_BITS = 130


class ScramMechanism(NamedTuple):
    """A mechanism of the SCRAM family."""

    name: str
    number: int
    """The number of the mechanism in requests and in records of the metadata log."""
    hash_name: str


SCRAM_MECHANISMS = {
    SCRAM_SHA_256: ScramMechanism(SCRAM_SHA_256, 1, "sha256"),
    SCRAM_SHA_512: ScramMechanism(SCRAM_SHA_512, 2, "sha512"),
}
"""The mechanisms by name."""

FindCredential = Callable[[int, str], UserScramCredentialRecord | None]
"""Maps the number of a mechanism and a user to the user's credential, or to None."""

FindIterations = Callable[[int], int]
"""Maps the number of a mechanism to the iteration count of a made-up credential."""


def new_salt() -> bytes:
    """Return a new salt in Kafka's form: 130 random bits, as letters and digits."""
    return _letters(secrets.randbits(_SALT_BITS)).encode()


def salted_password(mechanism: ScramMechanism, password: str, salt: bytes, iterations: int) -> bytes:
    """Derive the salted password. Slow: call it off the event loop. As in Kafka, the password's UTF-8 is not normalized."""
    return hashlib.pbkdf2_hmac(mechanism.hash_name, password.encode(), salt, iterations)


def keys_of(hash_name: str, salted: bytes) -> tuple[bytes, bytes]:
    """Return the stored key and the server key of a salted password."""
    client_key = hmac.digest(salted, b"Client Key", hash_name)
    return hashlib.new(hash_name, client_key).digest(), hmac.digest(salted, b"Server Key", hash_name)


def make_credential(
    mechanism: ScramMechanism, user: str, password: str, iterations: int = MIN_ITERATIONS
) -> UserScramCredentialRecord:
    """Create a credential for a password. Slow: call it off the event loop."""
    salt = new_salt()
    stored_key, server_key = keys_of(mechanism.hash_name, salted_password(mechanism, password, salt, iterations))
    return UserScramCredentialRecord(
        name=user,
        mechanism=mechanism.number,
        salt=salt,
        stored_key=stored_key,
        server_key=server_key,
        iterations=iterations,
    )


def is_of(credential: UserScramCredentialRecord, mechanism: ScramMechanism, password: str) -> bool:
    """True if the credential belongs to this password. Slow: call it off the event loop."""
    salted = salted_password(mechanism, password, credential.salt, credential.iterations)
    return hmac.compare_digest(keys_of(mechanism.hash_name, salted)[0], credential.stored_key)


def invented_credential(
    secret: bytes, mechanism: ScramMechanism, user: str, iterations: int = MIN_ITERATIONS
) -> UserScramCredentialRecord:
    """Return a made-up credential for an unknown user. It is the same at each attempt and matches no password."""
    hash_name = mechanism.hash_name
    seed = hmac.digest(secret, f"{mechanism.name},{user}".encode(), "sha512")
    bits = int.from_bytes(seed[:32], "big") >> (256 - _SALT_BITS)
    stored_key = hmac.digest(seed, b"stored", hash_name)
    return UserScramCredentialRecord(
        name=user,
        mechanism=mechanism.number,
        salt=_letters(bits).encode(),
        stored_key=stored_key,
        server_key=stored_key,
        iterations=iterations,
    )


def _letters(number: int) -> str:
    """Return a number in base 36, like Java's `BigInteger.toString(36)`."""
    digits = "0123456789abcdefghijklmnopqrstuvwxyz"
    found = []
    while number:
        number, digit = divmod(number, 36)
        found.append(digits[digit])
    return "".join(reversed(found)) or "0"


def new_nonce() -> str:
    """Return the broker's part of a nonce, in Kafka's form."""
    return _letters(secrets.randbits(_SALT_BITS))


def changed_credentials(users: Mapping[str, str], find: FindCredential) -> list[UserScramCredentialRecord]:
    """Return the credentials with which users log in with these passwords, for both mechanisms. Omits unchanged credentials.

    Takes about 5 ms per user, so call it off the event loop.
    """
    records = []
    for user, password in users.items():
        for mechanism in SCRAM_MECHANISMS.values():
            known = find(mechanism.number, user)
            if known is None or not is_of(known, mechanism, password):
                records.append(make_credential(mechanism, user, password))
    return records
