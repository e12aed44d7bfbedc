"""Subscriptions as clients encode them."""

from __future__ import annotations

from diamant.protocol.internal_topics.consumer_protocol import HIGHEST_VERSION, Subscription, encode_assignment
from diamant.protocol.primitives import INT16, INT32, encode_bytes, encode_string


def encode_subscription(subscription: Subscription, version: int = HIGHEST_VERSION) -> bytes:
    """Return a subscription's bytes."""
    topics = subscription.topics
    parts = [
        INT16.pack(version),
        INT32.pack(len(topics)),
        *map(encode_string, topics),
        encode_bytes(subscription.user_data),
    ]
    if version >= 1:
        parts.append(encode_assignment(subscription.owned_partitions)[INT16.size : -INT32.size])
    if version >= 2:
        parts.append(INT32.pack(subscription.generation_id))
    if version >= 3:
        parts.append(encode_string(subscription.rack_id))
    return b"".join(parts)
