"""Incarnation ids of Diamant brokers. The id in a broker's registration shows which program registered the broker last.

At each start, a broker (Kafka's or this one) registers itself in the metadata log with a new id (`BrokerLifecycleManager`).
Kafka's ids are random UUIDs of version 4. Ours begin with a name, and have version 8, which RFC 9562 leaves to applications.
"""

from __future__ import annotations

import os
from uuid import UUID

from diamant.storage.checkpoints.meta_properties import read_meta_properties
from diamant.storage.env.env import Env
from diamant.storage.kraft.format import metadata_directory
from diamant.storage.kraft.replay import load_metadata

_NAME = b"Diaman"
_VERSION = 8


def new_incarnation_id() -> UUID:
    """Return a new id with which this program can register a broker."""
    made = bytearray(_NAME + os.urandom(10))
    made[6] = made[6] & 0x0F | _VERSION << 4
    made[8] = made[8] & 0x3F | 0x80
    return UUID(bytes=bytes(made))


def is_of_diamant(incarnation_id: UUID) -> bool:
    """Return whether Diamant created the id."""
    return incarnation_id.bytes.startswith(_NAME) and incarnation_id.version == _VERSION


def was_last_broker(env: Env, log_directory: str) -> bool:
    """Return whether the last broker started on a log directory was Diamant's, according to the metadata log.

    False if there is no metadata log. Raises StorageError or OSError if the log cannot be read.
    """
    path = metadata_directory(log_directory)
    properties = read_meta_properties(env, log_directory)
    if properties is None or not env.exists(path):
        return False
    broker = load_metadata(env, path).image.brokers.get(properties.node_id)
    return broker is not None and is_of_diamant(broker.incarnation_id)
