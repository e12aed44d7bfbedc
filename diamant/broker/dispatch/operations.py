"""The table of Diamant's own operations: one row for each. Python's methods, HTTP routes, options of commands, permissions and
pages of the reference are made of it.

Requests and functions are imported with the first call.
"""

from __future__ import annotations

from diamant.broker.dispatch.operation_row import OperationRow
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
)

OPERATIONS = {row.name: row for row in _ROWS}
"""All operations by name."""
