"""The tombstones of an erasure: the groups that have not read up to them, and their removal once their horizon has passed."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from diamant.broker.client.kafka_client import LATEST, KafkaClient, KafkaRefusal
from diamant.broker.client.kafka_connection import ConnectionFailed
from diamant.broker.client.kafka_group import KafkaGroup, list_groups
from diamant.broker.clusters.cluster_look import Cluster
from diamant.broker.clusters.cluster_waiting import CleanerWait
from diamant.broker.clusters.rolling import Replica, Roller
from diamant.broker.clusters.work_progress import WorkProgress


def groups_behind(client: KafkaClient, ends: Mapping[tuple[str, int], int]) -> tuple[dict[str, list[str]], list[str]]:
    """Return the groups that have not read partitions up to their ends, by partition, and why others are not known."""
    behind: dict[str, list[str]] = {}
    unknown: list[str] = []
    try:
        groups = list_groups(client)
    except (KafkaRefusal, ConnectionFailed) as error:
        return {}, [str(error)]
    for listed in groups:
        try:
            committed = KafkaGroup(client, listed.name).committed()
        except (KafkaRefusal, ConnectionFailed) as error:
            unknown.append(str(error))
            continue
        for (topic, partition), offset in committed.items():
            if offset < ends.get((topic, partition), 0):
                behind.setdefault(f"{topic}-{partition}", []).append(listed.name)
    return behind, unknown


def wait_for_removal(
    client: KafkaClient,
    roller: Roller,
    cluster: Cluster,
    progress: WorkProgress,
    tombstones: Mapping[Replica, int],
    on_rolled: Callable[[], object],
) -> dict[str, str]:
    """Have the cleaner come once more, and wait until these tombstones are gone; return why not, by replica. TimeIsUp.

    Tombstones go with the first clean after their horizon, and the cleaner comes only where something is dirty: what has been
    appended since the last clean, at least a marker. Without the right to append one, the tombstones stay until others write.
    """
    for topic in {one.topic for one in tombstones}:
        numbers = {one.partition for one in tombstones if one.topic == topic}
        for number, end in client.offsets(topic, numbers, LATEST).items():
            roller.close_after((topic, number), end - 1)
    wait = CleanerWait(client, cluster, progress, dict(tombstones), roller)
    if roller.lacks:
        return wait.held()
    return wait.until_clean(on_rolled)
