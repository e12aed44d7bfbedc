"""The verb of each path. `security/authorization/own_verbs.py` lists the permissions that each verb needs.

A path missing here needs the permissions of the most powerful verbs, so forgetting one opens nothing. `OPEN` needs none: health,
the page's static files, the login.
"""

from __future__ import annotations

from collections.abc import Mapping

from diamant.broker.http.serving.authorization import OPEN, RoutePermission
from diamant.broker.http.serving.route import Route, row_name
from diamant.broker.security.authorization.own_verbs import VERB_NEEDS

VERBS: Mapping[str, str] = {
    # The verbs
    "GET /v1/status": "status",
    "GET /v1/history": "history",
    "POST /v1/configs": "set configs",
    "GET /v1/clock": "clock",
    "POST /v1/clock/advance": "set clock",
    "POST /v1/clock/set": "set clock",
    "POST /v1/clock/freeze": "set clock",
    "POST /v1/clock/resume": "set clock",
    "GET /v1/faults": "faults",
    "POST /v1/faults": "faults",
    "DELETE /v1/faults": "faults",
    "GET /v1/faults/{id}": "faults",
    "DELETE /v1/faults/{id}": "faults",
    "POST /v1/faults/{id}/release": "faults",
    "POST /v1/snapshots": "snapshot",
    "GET /v1/snapshots": "snapshot",
    "DELETE /v1/snapshots/{id}": "snapshot",
    "POST /v1/reset": "reset",
    "POST /v1/segments": "count",
    "POST /v1/latest": "latest",
    "POST /v1/produce": "produce",
    "POST /v1/find": "records",
    "POST /v1/groups/{group}/offsets": "reset offsets",
}
"""Verbs by a row's method and path."""

NOT_LISTED = "cancel"
"""The verb of a path missing from the table."""

WITH = {
    "erase": {"now": "erase now"},
    "redact": {"now": "redact now"},
    "verify": {"key": "verify keys", "where": "verify keys"},
    "explain": {"key": "explain keys", "offset": "explain keys", "tombstones": "explain keys"},
}
"""Verbs that change with a field of the body: the new verb, by verb and field."""

READING = frozenset({"records", "latest", "explain keys", "verify keys"})
"""Verbs that change nothing but are in the audit log, because they return records, or reveal those of a key."""


def verb_of(row: str, fields: Mapping[str, object]) -> str:
    """Return the verb of a row with these fields in its body."""
    verb = VERBS.get(row, NOT_LISTED)
    for name, stronger in WITH.get(verb, {}).items():
        if _is_given(fields.get(name)):
            return stronger
    return verb


def permission_of(row: Route, fields: Mapping[str, object]) -> RoutePermission:
    """Return the permission that a request requires. `fields`: those of its path, query and body."""
    operation = row.operation
    if operation is None:
        if row_name(row) not in VERBS:
            return row.permission
        verb = verb_of(row_name(row), fields)
        return RoutePermission(verb, VERB_NEEDS[verb], verb in READING) if verb else OPEN
    further = (need for name, need in operation.needs_with.items() if _is_given(fields.get(name)))
    is_reading = operation.reads_records or any(_is_given(fields.get(name)) for name in operation.reads_with)
    return RoutePermission(operation.name, (*operation.needs, *further), is_reading)


def _is_given(value: object) -> bool:
    return value is not None and value is not False  # by identity: 0 is an offset, and equals False
