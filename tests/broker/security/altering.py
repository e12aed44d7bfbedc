"""Dynamic configurations of a broker, set by a real client."""

from __future__ import annotations

import asyncio

from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource  # type: ignore[attr-defined]

SET, APPEND = AlterConfigOpType.SET, AlterConfigOpType.APPEND


async def alter(bootstrap: str, name: str, value: str, operation: AlterConfigOpType = SET, **client: str) -> None:
    """Alter one configuration; `client` are the client's own settings, with underscores for dots. KafkaException: refused."""
    settings = {key.replace("_", "."): text for key, text in client.items()}
    admin = AdminClient({"bootstrap.servers": bootstrap, **settings})
    entry = ConfigEntry(name, value, incremental_operation=operation)
    resource = ConfigResource(ConfigResource.Type.BROKER, "1", incremental_configs=[entry])
    await asyncio.to_thread(admin.incremental_alter_configs([resource])[resource].result, 60)
