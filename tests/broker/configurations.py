"""Configurations of topics and of the broker, described and altered on the wire."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.broker.request_fields import alteration
from tests.broker.wire import DESCRIBE_CONFIGS, INCREMENTAL_ALTER_CONFIGS, WireClient

TOPIC, BROKER = 2, 4
GOLDEN = Path(__file__).parent / "golden"
NEW_IN_4_4: dict[str, Any] = json.loads((GOLDEN / "new_configs_4.4.0.json").read_text(encoding="utf-8"))
"""What Kafka 4.4.0 answers beyond 4.3.1."""
REAL: dict[str, Any] = (
    json.loads((GOLDEN / "broker_configs_4.3.1.json").read_text(encoding="utf-8"))["configs"] | NEW_IN_4_4["broker"]
)
"""Type, default and read-only flag of a real broker's configurations, by name."""
NOTHING_TO_DO = {
    "num.io.threads": "1",
    "num.network.threads": "1",
    "num.replica.fetchers": "0",
    "group.coordinator.threads": "1",
    "auto.leader.rebalance.enable": "false",
    "metric.reporters": "",
    "remote.log.metadata.manager.class.name": None,
}
"""Values that are true here, where Kafka's defaults would not be."""


async def describe(wire: WireClient, resource_type: int, name: str, keys: list[str] | None = None) -> Any:
    """Return DescribeConfigs of one resource."""
    resource = {"resource_type": resource_type, "resource_name": name, "configuration_keys": keys}
    fields = {"resources": [resource], "include_synonyms": True, "include_documentation": True}
    return (await wire.call(DESCRIBE_CONFIGS, 4, fields)).results[0]


async def alter(
    wire: WireClient, resource_type: int, name: str, *changes: tuple[str, int, str | None], validate_only: bool = False
) -> Any:
    """Send IncrementalAlterConfigs of one resource."""
    fields = alteration(resource_type, name, *changes, validate_only=validate_only)
    return (await wire.call(INCREMENTAL_ALTER_CONFIGS, 1, fields)).responses[0]
