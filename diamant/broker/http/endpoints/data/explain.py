"""Explanations over HTTP: `POST /v1/explain`, and `POST /v1/ghosts`. docs/how-to/explain.md has the fields and examples.

The key is in the body and not in the path, where access logs of proxies would keep it; and in no job.
"""

from __future__ import annotations

from diamant.broker.ghosts.ledger import GhostReport
from diamant.broker.http.serving.json_body import MAX_KEYED_BODY_BYTES
from diamant.broker.http.serving.route import Call, Param, Route
from diamant.broker.operations.records.explain import ExplainRequest, Explanation


async def explain(call: Call) -> Explanation:
    """Explain a topic, a partition, a key or a record."""
    fields = call.fields
    request = ExplainRequest(
        fields["topic"], fields["partition"], fields["key"], fields["offset"], is_tombstones=fields["tombstones"]
    )
    return await call.services.explain().explain(request, call.progress)


async def ghosts(call: Call) -> GhostReport:
    """List the deletions that groups have missed."""
    return await call.services.ghosts().of(call.fields["topic"], call.fields["group"])


ROUTES = (
    Route(
        "POST",
        "/v1/explain",
        explain,
        "Why records are still on the disk, when they go, and what removes them now.",
        is_job=True,
        can_be_ended=True,
        not_kept=("key",),
        max_body_bytes=MAX_KEYED_BODY_BYTES,
        fields=(
            Param("topic", "string", "The topic.", is_required=True),
            Param("partition", "integer", "One partition; all without it.", most=(1 << 31) - 1),
            Param("key", "key", "Every record of this key."),
            Param("offset", "integer", "The record at this offset, which needs a partition, and all of its key."),
            Param("tombstones", "boolean", "Every tombstone, and the groups that have not passed it.", default=False),
        ),
        answer="Partition by partition: how clean it is, and each record with its gates and the time at which it goes.",
    ),
    Route(
        "POST",
        "/v1/ghosts",
        ghosts,
        "Keys that groups may still hold although they were deleted: the tombstone was removed before they had passed it.",
        changes_data=True,  # it hands out keys
        fields=(
            Param("topic", "string", "The topic.", is_required=True),
            Param("group", "string", "One group; all without it."),
        ),
        answer="`ghosts`: each with `partition`, `key`, `offset` of its tombstone, `removed_ms` and `groups`. `left_out` are "
        "only counted. Known since the broker's start.",
    ),
)
