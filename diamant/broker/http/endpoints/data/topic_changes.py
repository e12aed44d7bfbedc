"""Changes of a topic over HTTP: its configurations (`POST /v1/configs`), and a new active segment (`POST /v1/roll`).

{"topic": "users", "set": {"retention.ms": "60000", "segment.ms": null}}      null: the broker's default
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from diamant.broker.errors import NotPossible
from diamant.broker.http.serving.route import Call, Param, Route
from diamant.broker.http.serving.topic_configs import change_topic_configs
from diamant.storage.errors import StorageError


async def configs(call: Call) -> Mapping[str, Any]:
    """Change configurations of a topic, all or none. BadArgument, NotFound."""
    node, topic, is_tried = call.services.node, call.fields["topic"], call.fields["validate_only"]
    await node.topics.settled([topic])
    call.services.explain().logs(topic, None)
    is_changed = change_topic_configs(node, topic, call.fields["set"], is_tried=is_tried)
    if is_changed:
        await node.topics.sync()
    return {"topic": topic, "set": call.fields["set"], "is_changed": is_changed}


async def roll(call: Call) -> Mapping[str, Any]:
    """Close the active segment of each partition, as `segment.ms` would. NotFound, NotPossible."""
    rolled = []
    for log in call.services.explain().logs(call.fields["topic"], call.fields["partition"]):
        if log.active.size and not log.is_deleted:
            try:
                base_offset = log.roll().base_offset
            except (StorageError, OSError) as error:
                raise NotPossible(f"{log.topic}-{log.partition}: the segment cannot be closed: {error}") from None
            rolled.append({"partition": log.partition, "active_segment": base_offset})
    return {"topic": call.fields["topic"], "rolled": rolled}


ROUTES = (
    Route(
        "POST",
        "/v1/configs",
        configs,
        "Change configurations of a topic, all or none.",
        changes_data=True,
        fields=(
            Param("topic", "string", "The topic.", is_required=True),
            Param("set", "object", "Values by name; null for the broker's default.", is_required=True),
            Param("validate_only", "boolean", "Validate the changes without applying them.", default=False),
        ),
        answer="`set`, and `is_changed`.",
    ),
    Route(
        "POST",
        "/v1/roll",
        roll,
        "Close the active segment of each partition of a topic, so that it can be cleaned, or removed by retention.",
        changes_data=True,
        fields=(
            Param("topic", "string", "The topic.", is_required=True),
            Param("partition", "integer", "One partition. Default: all.", most=(1 << 31) - 1),
        ),
        answer="`rolled`: partitions with the base offset of their new active segment, without those that were empty.",
    ),
)
