"""A broker's check of a certificate."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from diamant.broker.broker import Broker
from diamant.cleaner.evidence.certificates.verification import Verification


async def check_certificate(
    broker: Broker, certificate: Mapping[str, Any], *, public_key: bytes | None = None, **subject: Any
) -> Verification:
    """Verify a certificate against the broker's data; `subject`: the `key` or the `where`."""
    pinned = None if public_key is None else public_key.hex()
    return await broker.verify(certificate, public_key=pinned, **subject)
