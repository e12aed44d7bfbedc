"""Quotas in the form of the metadata log, written in one line each."""

from __future__ import annotations

from diamant.protocol.kraft.records import QuotaEntity


def stored(**limits: float) -> dict[tuple[QuotaEntity, ...], dict[str, float]]:
    """Limits by entity: `user=alice` becomes `user_alice`, any user `user_`; both parts `user_alice_client_app`.

    The name of the limit is `producer_byte_rate`.
    """
    return {entity(text): {"producer_byte_rate": limit} for text, limit in limits.items()}


def entity(text: str) -> tuple[QuotaEntity, ...]:
    """Return an entity: `user_alice_client_app`, `user_`, `client_app`, `ip_127.0.0.1`."""
    words = text.split("_")
    kinds = {"user": "user", "client": "client-id", "ip": "ip"}
    return tuple(QuotaEntity(kinds[kind], name or None) for kind, name in zip(words[::2], words[1::2], strict=True))
