"""The table of Diamant's own operations: one row for each. Python's methods, HTTP routes, options of commands, permissions and
pages of the reference are made of it.

Requests and functions are imported with the first call.
"""

from __future__ import annotations

from diamant.broker.dispatch.operation_row import MAX_KEYED_BODY_BYTES, OperationRow
from diamant.broker.security.authorization import needs

_ROWS = (
    OperationRow(
        "compact",
        "POST /v1/compact",
        "cleaner.on_demand.request:CompactRequest",
        "broker.operations.compactions.compact:Compactions.compact",
        lambda services: (services.compactions(),),
        "Compact a topic now and wait until it is clean.",
        (needs.ALTER_CLUSTER,),
        changes_data=True,
        is_job=True,
        can_be_ended=True,
        section="Compact",
        command="admin.compact:compact",
        answer="is_clean, is_reached, horizon_ms, removed. For each of `partitions`: offsets, bytes and records before and "
        "after, removed and kept by reason, rounds, runners, ranges held back.",
    ),
    OperationRow(
        "roll",
        "POST /v1/roll",
        "broker.operations.records.record_requests:RollRequest",
        "broker.operations.records.roll:roll",
        lambda services: (services.explain(),),
        "Close the active segments of a topic.",
        (needs.ALTER_CLUSTER,),
        changes_data=True,
        section="Compact",
        command="admin.roll:roll",
        answer="Closed segments can be cleaned, or removed by retention. `rolled`: partitions with the base offset of their new "
        "active segment, without those that were empty.",
    ),
    OperationRow(
        "count",
        "POST /v1/count",
        "broker.operations.records.record_requests:CountRequest",
        "broker.operations.records.count:CountOperation.count",
        lambda services: (services.count(),),
        "Count the records of a topic, by kind.",
        (needs.DESCRIBE_TOPIC,),
        is_job=True,
        can_be_ended=True,
        section="Look into a topic",
        command="admin.count:count",
        answer="`is_exact`, `why_not_exact`, and for each kind, in total and by partition, `least` and `most`; equal if the "
        "number is known.",
    ),
    OperationRow(
        "explain",
        "POST /v1/explain",
        "broker.operations.records.record_requests:ExplainRequest",
        "broker.operations.records.explain:ExplainOperation.explain",
        lambda services: (services.explain(),),
        "Explain why records are still stored, and until when.",
        (needs.DESCRIBE_TOPIC,),
        {"key": needs.READ_TOPIC, "offset": needs.READ_TOPIC, "tombstones": needs.READ_TOPIC},
        reads_with=("key", "offset", "tombstones"),
        is_job=True,
        can_be_ended=True,
        not_kept=("key",),
        max_body_bytes=MAX_KEYED_BODY_BYTES,
        section="Look into a topic",
        command="admin.explain:explain",
        answer="For each partition its clean and dirty ranges, and each record with its gates, the time of its removal, and the "
        "way to remove it now.",
    ),
    OperationRow(
        "ghosts",
        "POST /v1/ghosts",
        "broker.operations.records.record_requests:GhostsRequest",
        "broker.ghosts.ghosts:Ghosts.of",
        lambda services: (services.ghosts(),),
        "List deleted keys that consumer groups may still hold.",
        (needs.READ_TOPIC,),
        reads_records=True,
        section="Look into a topic",
        command="admin.ghosts:ghosts",
        answer="The tombstone was removed before the groups had read it. `ghosts`: each with `partition`, `key`, `offset` of its "
        "tombstone, `removed_ms` and `groups`. `left_out` is the number of others. Recorded since the broker's start.",
    ),
)

OPERATIONS = {row.name: row for row in _ROWS}
"""All operations by name."""
