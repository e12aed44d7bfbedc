"""Snapshots over HTTP, and resets to them: `/v1/snapshots`, `/v1/reset`. docs/how-to/snapshots.md explains them.

POST   /v1/snapshots
GET    /v1/snapshots
DELETE /v1/snapshots/{id}
POST   /v1/reset                {"snapshot": "1767225600000-0a1b2c", "seamless": false}
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from diamant.broker.http.serving.route import Call, Route
from diamant.broker.operations.calls.parameters import Param

if TYPE_CHECKING:
    from collections.abc import Mapping

    from diamant.broker.snapshots.store import BrokerSnapshot


async def create(call: Call) -> BrokerSnapshot:
    """Create a snapshot."""
    return await call.services.snapshots().create()


async def show(call: Call) -> Mapping[str, object]:
    """List all snapshots."""
    return {"snapshots": [one.to_fields() for one in await call.services.snapshots().list()]}


async def delete(call: Call) -> Mapping[str, object]:
    """Delete a snapshot."""
    await call.services.snapshots().delete(call.path["id"])
    return {"id": call.path["id"]}


async def reset(call: Call) -> Mapping[str, object]:
    """Restore a snapshot."""
    await call.services.reset(call.fields["snapshot"], call.fields["seamless"])
    return {"id": call.fields["snapshot"]}


ROUTES = (
    Route(
        "POST", "/v1/snapshots", create, "Save the current state of the broker, for later resets.", changes_data=True
    ),
    Route("GET", "/v1/snapshots", show, "All snapshots with their sizes, oldest first."),
    Route("DELETE", "/v1/snapshots/{id}", delete, "Delete a snapshot.", changes_data=True),
    Route(
        "POST",
        "/v1/reset",
        reset,
        "Restore topics, records, groups, transactions, configurations and a manual clock from a snapshot.",
        changes_data=True,
        fields=(
            Param("snapshot", "string", "The snapshot's ID.", is_required=True),
            Param("seamless", "boolean", "Keep client connections open. By default they are closed.", default=False),
        ),
    ),
)
