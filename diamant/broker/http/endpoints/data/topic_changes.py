"""Changes of a topic over HTTP: its configurations (`POST /v1/configs`), and a new active segment (`POST /v1/roll`).

{"topic": "users", "set": {"retention.ms": "60000", "segment.ms": null}}      null: the broker's default
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from diamant.broker.client.errors import BadArgument, NotPossible
from diamant.broker.config.virtual_topic_table import ROWS
from diamant.broker.handlers.configs.changes import change_configs, check_resource
from diamant.broker.http.serving.route import Call, Param, Route
from diamant.protocol.errors import KafkaError
from diamant.protocol.kraft.records import TOPIC_RESOURCE
from diamant.storage.errors import StorageError


def checked_changes(call: Call, topic: str, changes: Mapping[str, Any], *, is_tried: bool) -> dict[str, str | None]:
    """Apply changes of a topic's configurations, or only validate them. BadArgument, NotFound."""
    call.services.explain().logs(topic, None)
    found: dict[str, str | None] = {}
    for name, value in changes.items():
        if value is not None and not isinstance(value, str):
            raise BadArgument(f"set: {name[:100]}: expected a text or null, got {type(value).__name__}")
        if name in ROWS:
            raise BadArgument(f"{name} is not a stored configuration")
        found[name] = value
    node = call.services.node
    try:
        check_resource(node, TOPIC_RESOURCE, topic)
        change_configs(node, TOPIC_RESOURCE, topic, found, validate_only=is_tried)
    except KafkaError as error:
        raise BadArgument(error.detail or str(error)) from None
    return found


async def configs(call: Call) -> Mapping[str, Any]:
    """Change configurations of a topic, all or none. BadArgument, NotFound."""
    topic, is_tried = call.fields["topic"], call.fields["validate_only"]
    await call.services.node.topics.settled([topic])
    found = checked_changes(call, topic, call.fields["set"], is_tried=is_tried)
    if not is_tried:
        await call.services.node.topics.sync()
    return {"topic": topic, "set": found, "is_changed": not is_tried}


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
