"""Snapshots over HTTP, and the reset to one: `/v1/snapshots`, `/v1/reset`. docs/how-to/snapshots.md says what they mean.

POST   /v1/snapshots
GET    /v1/snapshots
DELETE /v1/snapshots/{id}
POST   /v1/reset                {"snapshot": "1767225600000-0a1b2c", "seamless": false}
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from diamant.broker.http.serving.route import Call, Param, Route

if TYPE_CHECKING:
    from collections.abc import Mapping

    from diamant.broker.snapshots.store import BrokerSnapshot


async def create(call: Call) -> BrokerSnapshot:
    """Make one."""
    return await call.services.snapshots().create()


async def show(call: Call) -> Mapping[str, object]:
    """List all."""
    return {"snapshots": [one.to_fields() for one in await call.services.snapshots().list()]}


async def delete(call: Call) -> Mapping[str, object]:
    """Delete one."""
    await call.services.snapshots().delete(call.path["id"])
    return {"id": call.path["id"]}


async def reset(call: Call) -> Mapping[str, object]:
    """Put the broker back to one."""
    await call.services.reset(call.fields["snapshot"], call.fields["seamless"])
    return {"id": call.fields["snapshot"]}


ROUTES = (
    Route(
        "POST", "/v1/snapshots", create, "Keep the present state of the broker, for resets to it.", changes_data=True
    ),
    Route("GET", "/v1/snapshots", show, "The snapshots there are, and their size; the oldest first."),
    Route("DELETE", "/v1/snapshots/{id}", delete, "Delete a snapshot.", changes_data=True),
    Route(
        "POST",
        "/v1/reset",
        reset,
        "Put topics, records, groups, transactions, configurations and a manual clock back to a snapshot.",
        changes_data=True,
        fields=(
            Param("snapshot", "string", "Its id.", is_required=True),
            Param("seamless", "boolean", "Keep the connections of clients, which are closed otherwise.", default=False),
        ),
    ),
)
