"""Certificates that a broker has issued, and checks of them by a scanner that shares no code with the broker."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from diamant.broker.broker import Broker
from diamant.cleaner.erasure_state.intent import Intent, intent_files
from diamant.cleaner.evidence.certificates.certificate import parse_certificate, sign_certificate
from diamant.cleaner.evidence.certificates.signing_key import SigningKey
from diamant.cleaner.evidence.certificates.verification import Verification
from diamant.storage import names
from tests.broker.checked_certificate import check_certificate
from tests.broker.erasure.brokers import data_of, move_to
from tests.broker.erasure.constants import KEY
from tests.broker.erasure.erasing import intents_of
from tests.cleaner.evidence.scan.naive_scanner import records_of_key
from tests.waiting import wait_until


def certificates_in(directory: Path, state: str) -> list[Path]:
    """Return the certificates with a state."""
    return sorted(directory.glob(f"diamant-erasure-*.{state}.json"))


def certificates_of(broker: Broker, state: str) -> list[Path]:
    """Return the certificates with a state that a broker has issued."""
    return certificates_in(data_of(broker), state)


def only_certificate(broker: Broker, state: str) -> dict[str, Any]:
    """Return the content of the single certificate with a state."""
    (path,) = certificates_of(broker, state)
    return parse_certificate(path.read_bytes())


async def wait_certified(broker: Broker, state: str) -> None:
    """Wait until a certificate with a state exists."""
    await wait_until(lambda: certificates_of(broker, state) != [])


async def certified_at(broker: Broker, now_ms: int, state: str) -> dict[str, Any]:
    """Move the clock to the next step of an erasure, and wait; return the content of its certificate with that state."""
    move_to(broker, now_ms)
    await wait_certified(broker, state)
    return only_certificate(broker, state)


def pinned(certificate: dict[str, Any]) -> bytes:
    """Return the public key, as if pinned before."""
    return bytes.fromhex(certificate["signature"]["public_key"])


async def verify(broker: Broker, certificate: dict[str, Any], key: bytes | None = KEY) -> Verification:
    """Verify a certificate with the broker; its public key was pinned before."""
    return await check_certificate(broker, certificate, public_key=pinned(certificate), key=key)


def key_of(broker: Broker) -> SigningKey:
    """Return the key that the broker signs with."""
    return SigningKey.load(str(broker.config["diamant.certificate.key.file"]))


def intent_of(broker: Broker) -> Intent:
    """Return the intent of the only unfinished erasure, decrypted."""
    (path,) = intents_of(broker)
    job_id = path.name.removeprefix(names.ERASURE_PREFIX).removesuffix(".intent")
    return intent_files(broker.env, str(data_of(broker))).read(job_id, key_of(broker))


def signed(certificate: dict[str, Any], key: SigningKey, **changes: Any) -> dict[str, Any]:
    """Return the certificate with other fields, signed by a key."""
    fields = {name: value for name, value in certificate.items() if name != "signature"}
    return sign_certificate({**fields, **changes}, key)


def check_claims(directory: Path, certificate: dict[str, Any], key: bytes) -> None:
    """Check that the tests' scanner finds no data that a certificate claims to be gone."""
    for claim in certificate["claims"]:
        partition = f"{claim['topic']}-{claim['partition']}"
        for one in records_of_key(directory, claim["topic"], key):
            if one.path.parent.name == partition and one.offset < claim["below_offset"]:
                assert one.value is None, f"a value at offset {one.offset} in {one.path.name}"
                assert claim["state"] == "values-gone"
