"""Formats a log directory: its owner, its initial features, and the voters of its metadata quorum.

    <log dir>/bootstrap.checkpoint                                              up to Kafka 4.3: the features
    <log dir>/__cluster_metadata-0/partition.metadata                           the metadata topic's fixed id
    <log dir>/__cluster_metadata-0/00000000000000000000-0000000000.checkpoint   the one voter (kraft.version 1);
                                                                                from Kafka 4.4 on, also the features
    <log dir>/meta.properties                                                   written last: it marks completion

The result is the same as that of `kafka-storage format --standalone` (Kafka's Formatter, DynamicVoters).
"""

from __future__ import annotations

from collections.abc import Mapping
from uuid import UUID

from diamant.protocol.kraft.control_records import KRaftVoters, Voter, VoterEndpoint
from diamant.protocol.kraft.records import Endpoint
from diamant.storage import names
from diamant.storage.checkpoints.checkpoints import write_partition_metadata
from diamant.storage.checkpoints.meta_properties import MetaProperties, write_meta_properties
from diamant.storage.env.env import Env, parent
from diamant.storage.errors import StorageError
from diamant.storage.kraft.features import DEFAULT_RELEASE, FIRST_OF_4_4, METADATA_VERSION, RELEASES, feature_records
from diamant.storage.kraft.replay import BOOTSTRAP_SNAPSHOT
from diamant.storage.kraft.snapshot import Snapshot, encode_snapshot, write_snapshot
from diamant.storage.uuid_text import METADATA_TOPIC_ID, random_id, uuid_to_text

DEFAULT_CONTROLLER_ENDPOINT = Endpoint("CONTROLLER", "localhost", 9093)
"""The controller address to record for a real Kafka; if Kafka's configuration has another address, it updates the log."""


def metadata_directory(log_directory: str) -> str:
    """Return the path of the metadata log in a log directory."""
    return f"{log_directory}/{names.partition_dir_name(names.METADATA_TOPIC, 0)}"


def format_directory(
    env: Env,
    path: str,
    cluster_id: str | None = None,
    node_id: int = 1,
    *,
    directory_id: UUID | None = None,
    controller_endpoint: Endpoint = DEFAULT_CONTROLLER_ENDPOINT,
    features: Mapping[str, int] = RELEASES[DEFAULT_RELEASE],
) -> MetaProperties:
    """Format `path`, which need not exist, as a log directory; return its properties. Missing ids are generated.

    Blocks on the disk. Raises StorageError if the directory is already formatted, or has a metadata log but no `meta.properties`.
    """
    if env.exists(f"{path}/{names.META_PROPERTIES}"):
        raise StorageError(f"{path}: already formatted, {names.META_PROPERTIES} exists")
    directory = metadata_directory(path)
    if env.is_dir(directory) and any(name.endswith(names.LOG_SUFFIX) for name in env.list_dir(directory)):
        raise StorageError(
            f"{path}: has a metadata log but no {names.META_PROPERTIES}, which names its owner; restore that file"
        )
    properties = MetaProperties(cluster_id or uuid_to_text(random_id()), node_id, directory_id or random_id())
    now_ms = env.clock.now_ms()
    env.make_dirs(directory)
    level = features[METADATA_VERSION]
    records = feature_records(features)
    # A file left by an interrupted formatting for an older release would override the features stored with the voters.
    env.remove(f"{path}/{names.BOOTSTRAP_CHECKPOINT}", missing_ok=True)
    if level < FIRST_OF_4_4:
        bootstrap = Snapshot(0, 0, None, records)
        content = encode_snapshot(bootstrap, epoch=0, metadata_version=level, timestamp_ms=now_ms)
        env.write_atomically(f"{path}/{names.BOOTSTRAP_CHECKPOINT}", content)
        records = []
    voters = KRaftVoters((voter_of(properties, controller_endpoint),))
    content = encode_snapshot(
        Snapshot(now_ms, 1, voters, records), epoch=0, metadata_version=level, timestamp_ms=now_ms
    )
    write_snapshot(env, directory, BOOTSTRAP_SNAPSHOT, content)
    write_partition_metadata(env, directory, METADATA_TOPIC_ID)
    write_meta_properties(env, path, properties)
    env.sync_dir(parent(path))
    return properties


def voter_of(properties: MetaProperties, controller_endpoint: Endpoint) -> Voter:
    """Return the voter that represents the owner of a directory."""
    endpoint = VoterEndpoint(controller_endpoint.name, controller_endpoint.host, controller_endpoint.port)
    return Voter(properties.node_id, properties.directory_id, (endpoint,))
