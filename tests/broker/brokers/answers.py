"""Answers of brokers in brief: what differs from run to run is left out, and what says nothing."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple
from uuid import UUID

from diamant.broker.client.kafka_client import error_name

LEFT_OUT = frozenset(
    {
        *(
            "throttle_time_ms",
            "cluster_id",
            "controller_id",
            "host",
            "port",
            "error_message",
            "session_id",
            "timestamp",
        ),
        *(
            "log_append_time_ms",
            "topic_authorized_operations",
            "cluster_authorized_operations",
            "authorized_operations",
        ),
        *("producer_id", "last_timestamp", "transaction_start_time_ms", "endpoint_type", "log_start_offset"),
        *("log_dir", "total_bytes", "usable_bytes", "partition_size", "is_future_key", "is_internal", "documentation"),
    }
)
SETS = frozenset({"isr_nodes", "offline_replicas", "eligible_leader_replicas", "last_known_elr"})
"""Lists of brokers without an order."""


class Topics(NamedTuple):
    """Names and addresses of this run."""

    names: Mapping[UUID, str]
    addresses: Mapping[int, tuple[str, int]]


def brief(value: Any, topics: Topics) -> Any:
    """Return a response's fields in brief: error codes by name, without zero codes, -1 (but a leader's), and empty values."""
    if isinstance(value, Mapping):
        shown = {}
        if "port" in value and "node_id" in value:
            expected = topics.addresses.get(value["node_id"])
            if value["node_id"] >= 0 and expected != (value["host"], value["port"]):
                shown["address"] = "of another broker"
        for name, one in value.items():
            says_nothing = one is None or one is False or one in ("", -1, [])
            if name in LEFT_OUT or (name.endswith("error_code") and not one) or (says_nothing and name != "leader_id"):
                continue
            found = _one(name, one, topics)
            if found not in (None, [], {}):
                shown[name.replace("error_code", "error")] = found
        return shown
    return value


def _one(name: str, value: Any, topics: Topics) -> Any:
    if name.endswith("error_code"):
        return error_name(value)
    if name == "topic_id":
        return topics.names.get(value) if isinstance(value, UUID) else None
    if name == "current_leader" and value["leader_id"] == -1:
        return None
    if isinstance(value, bytes):
        return [*_batches(value)] if name == "records" else value.hex()
    if isinstance(value, list):
        found = [brief(one, topics) for one in value]
        if name in SETS or (found and isinstance(found[0], dict)):
            return sorted(found, key=json.dumps)
        return found
    return brief(value, topics)


def _batches(records: bytes) -> Iterator[str]:
    """Yield each batch of fetched records as `first-last@leader epoch`."""
    position = 0
    while position + 61 <= len(records):
        base, length, epoch = struct.unpack_from(">qii", records, position)
        (delta,) = struct.unpack_from(">i", records, position + 23)
        yield f"{base}-{base + delta}@{epoch}"
        position += 12 + length
