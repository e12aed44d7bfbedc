"""The operations on snapshots. `Broker.reset` is written by hand, since it also takes a snapshot object."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from diamant.broker.operations.broker_state.running_requests import NoArguments, ResetRequest, SnapshotRequest
from diamant.broker.snapshots.snapshot_store import BrokerSnapshot, Snapshots
from diamant.progress import Progress


async def snapshot(snapshots: Snapshots, _request: NoArguments, _: Progress) -> BrokerSnapshot:
    """Create a snapshot and return its description. Raises NotPossible, TooMany."""
    return await snapshots.create()


async def list_snapshots(snapshots: Snapshots, _request: NoArguments, _: Progress) -> Mapping[str, Any]:
    """List all snapshots, oldest first."""
    return {"snapshots": [one.to_fields() for one in await snapshots.list()]}


async def delete_snapshot(snapshots: Snapshots, request: SnapshotRequest, _: Progress) -> Mapping[str, Any]:
    """Delete a snapshot. Raises NotFound, NotPossible."""
    await snapshots.delete(request.id)
    return {"id": request.id}


async def reset(
    reset_to: Callable[[str, bool], Awaitable[None]], request: ResetRequest, _: Progress
) -> Mapping[str, Any]:
    """Restore a snapshot. Raises NotFound, NotPossible."""
    await reset_to(request.snapshot, request.seamless)
    return {"id": request.snapshot}
