"""The number of records in a topic, over HTTP: `POST /v1/count`.

{"topic": "users"}                      bounds, at once
{"topic": "users", "exact": true}       the numbers, or the job that will have them
"""

from __future__ import annotations

from diamant.broker.http.serving.route import Call, Param, Route
from diamant.broker.operations.count import TopicRecords


async def count(call: Call) -> TopicRecords:
    """Count the records of a topic, or of one partition."""
    fields = call.fields
    return await call.services.count().count(
        fields["topic"], fields["partition"], is_exact=fields["exact"], progress=call.progress
    )


ROUTES = (
    Route(
        "POST",
        "/v1/count",
        count,
        "How many records are in a topic: live, superseded, tombstones, others; and markers of transactions.",
        is_job=True,
        can_be_ended=True,
        fields=(
            Param("topic", "string", "The topic.", is_required=True),
            Param("partition", "integer", "One partition; all without it.", most=(1 << 31) - 1),
            Param(
                "exact",
                "boolean",
                "Read every record; without it the answer is bounds at once, from headers.",
                default=False,
            ),
        ),
        answer="`is_exact`, and of each kind, in all and by partition, `least` and `most`, which are the same where it is known.",
    ),
)
