"""Explanations over HTTP: `POST /v1/explain`, and `POST /v1/ghosts`. docs/how-to/explain.md has the fields and examples.

The key is in the body, not in the path, which proxies write to their access logs. No job shows it.
"""

from __future__ import annotations

from diamant.broker.dispatch.operation_row import MAX_KEYED_BODY_BYTES
from diamant.broker.ghosts.ledger import GhostReport
from diamant.broker.http.serving.route import Call, Route
from diamant.broker.operations.calls.parameters import Param
from diamant.broker.operations.records.explain import ExplainRequest, Explanation


async def explain(call: Call) -> Explanation:
    """Explain a topic, a partition, a key or a record."""
    fields = call.fields
    request = ExplainRequest(
        fields["topic"], fields["partition"], fields["key"], fields["offset"], is_tombstones=fields["tombstones"]
    )
    return await call.services.explain().explain(request, call.progress)


async def ghosts(call: Call) -> GhostReport:
    """List the deletions that groups missed."""
    return await call.services.ghosts().of(call.fields["topic"], call.fields["group"])


ROUTES = (
    Route(
        "POST",
        "/v1/explain",
        explain,
        "Explain why records are still on disk, when they will be removed, and how to remove them now.",
        is_job=True,
        can_be_ended=True,
        not_kept=("key",),
        max_body_bytes=MAX_KEYED_BODY_BYTES,
        fields=(
            Param("topic", "string", "The topic.", is_required=True),
            Param("partition", "integer", "One partition. Default: all.", most=(1 << 31) - 1),
            Param("key", "key", "Every record of this key."),
            Param("offset", "integer", "The record at this offset (needs a partition), and all others with its key."),
            Param("tombstones", "boolean", "Every tombstone, and the groups that have not read it.", default=False),
        ),
        answer="For each partition its clean and dirty ranges, and each record with its gates and the time of its removal.",
    ),
    Route(
        "POST",
        "/v1/ghosts",
        ghosts,
        "List deleted keys that groups may still hold: the tombstone was removed before the groups had read it.",
        changes_data=True,  # it hands out keys
        fields=(
            Param("topic", "string", "The topic.", is_required=True),
            Param("group", "string", "One group. Default: all."),
        ),
        answer="`ghosts`: each with `partition`, `key`, `offset` of its tombstone, `removed_ms` and `groups`. `left_out` is the "
        "number of others. Recorded since the broker's start.",
    ),
)
