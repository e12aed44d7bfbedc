"""Changes of a topic's configurations over HTTP: `POST /v1/configs`.

{"topic": "users", "set": {"retention.ms": "60000", "segment.ms": null}}      null: the broker's default
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from diamant.broker.http.serving.route import Call, Route
from diamant.broker.http.serving.topic_configs import change_topic_configs
from diamant.broker.operations.calls.parameters import Param


async def configs(call: Call) -> Mapping[str, Any]:
    """Change configurations of a topic, all or none. BadArgument, NotFound."""
    node, topic, is_tried = call.services.node, call.fields["topic"], call.fields["validate_only"]
    await node.topics.settled([topic])
    call.services.explain().logs(topic, None)
    is_changed = change_topic_configs(node, topic, call.fields["set"], is_tried=is_tried)
    if is_changed:
        await node.topics.sync()
    return {"topic": topic, "set": call.fields["set"], "is_changed": is_changed}


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
)
