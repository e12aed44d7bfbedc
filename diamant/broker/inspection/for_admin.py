"""`explain` of `diamant.Admin` for Kafka clusters other than Diamant: converts its arguments and errors."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from diamant.broker.client.admin import Admin, AdminError
from diamant.broker.clusters.for_admin import connected
from diamant.broker.inspection import cluster_explanation
from diamant.broker.record_json import parse_key
from diamant.duration import Duration, seconds_of

if TYPE_CHECKING:
    from diamant.json_types import JsonObject, Key, OnProgress


def explain(
    admin: Admin,
    *,
    topic: str,
    key: Key | None = None,
    partition: int | None = None,
    offset: int | None = None,
    tombstones: bool | None = None,
    timeout: Duration | None = None,
    on_progress: OnProgress | None = None,
) -> JsonObject:
    """Explain a topic with `inspection.cluster_explanation.explain`. Raises AdminError for tombstones and after `timeout`."""
    if tombstones:
        raise AdminError("only a Diamant lists tombstones: explain a key instead", status=400, code="bad-argument")
    deadline_s = time.monotonic() + (admin.timeout_s if timeout is None else seconds_of(timeout))

    def check() -> None:
        if time.monotonic() > deadline_s:
            raise AdminError("explain did not end in time", status=504, code="timed-out")

    if key is not None and not isinstance(key, bytes):
        key = parse_key({"text": key} if isinstance(key, str) else key)
    with connected(admin) as client:
        return cluster_explanation.explain(client, topic, key=key, partition=partition, offset=offset, check=check)
