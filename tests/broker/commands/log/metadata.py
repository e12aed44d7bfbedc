"""A metadata log beside partitions that tests write."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from diamant.protocol.kraft.records import TOPIC_RESOURCE, ConfigRecord, Endpoint, TopicRecord
from diamant.storage.env.env import RealEnv
from diamant.storage.kraft.opening import open_metadata_log
from diamant.storage.uuid_text import random_id


def write_metadata(directory: Path, topics: Mapping[str, Mapping[str, str]]) -> None:
    """Write a metadata log with these topics and their configurations (underscores for dots)."""
    endpoints = [Endpoint("PLAINTEXT", "127.0.0.1", 1, 0)]
    metadata = open_metadata_log(RealEnv(), str(directory), node_id=1, endpoints=endpoints)
    for topic, configs in topics.items():
        records: list[Any] = [TopicRecord(name=topic, topic_id=random_id())]
        for name, value in configs.items():
            key = name.replace("_", ".")
            records.append(ConfigRecord(resource_type=TOPIC_RESOURCE, resource_name=topic, name=key, value=value))
        metadata.append(records)
    metadata.close()
