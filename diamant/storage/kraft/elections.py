"""Elections: how a partition changes when its replicas come and go.

The result depends only on the partition and the brokers that may lead. With eligible leader replicas (KIP-966), replicas that
leave an ISR below `min.insync.replicas` stay eligible, and the ISR may become empty; otherwise the last replica stays in it.

Source: PartitionChangeBuilder.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from uuid import UUID

from diamant.protocol.kraft.records import NO_LEADER, NO_LEADER_CHANGE, PartitionChangeRecord
from diamant.storage.kraft.image import PartitionImage


def partition_change(
    topic_id: UUID,
    partition: PartitionImage,
    may_lead: Callable[[int], bool],
    *,
    isr: Sequence[int] | None = None,
    leader: int | None = None,
    min_isr: int = 1,
    has_elr: bool = True,
    is_unclean: bool = False,
) -> PartitionChangeRecord | None:
    """Return the change that makes a live replica the leader, if any is eligible; None if nothing changes.

    `isr`: the new in-sync replicas, by default the present ones. `leader`: a replica to prefer over the present leader, if it may
    lead. `min_isr`: the topic's `min.insync.replicas`. `is_unclean`: if no eligible replica is live, elect any live replica.
    """
    target = partition.isr if isr is None else tuple(isr)
    known_elr, known_last = partition.eligible_leader_replicas or (), partition.last_known_elr or ()
    elr: tuple[int, ...] = ()
    if has_elr and len(target) < min(min_isr, len(partition.replicas)):
        elr = tuple(sorted({*known_elr, *partition.isr}.difference(target)))
    chosen, is_forced = _elect(partition, target + elr, may_lead, leader, is_unclean=is_unclean)
    if is_forced:
        target, elr = (chosen,), ()
    elif chosen != NO_LEADER and chosen not in target:
        target, elr = (chosen,), tuple(replica for replica in elr if replica != chosen)
    last_known = known_last
    if has_elr and chosen == NO_LEADER and not target:
        last_known = (partition.leader,) if partition.leader != NO_LEADER else last_known
    elif chosen != NO_LEADER:
        last_known = ()
    changes_isr = target != partition.isr and (bool(target) or has_elr)
    change = PartitionChangeRecord(
        partition_id=partition.partition_id,
        topic_id=topic_id,
        isr=target if changes_isr else None,
        leader=NO_LEADER_CHANGE if chosen == partition.leader else chosen,
        eligible_leader_replicas=elr if elr != known_elr else None,
        last_known_elr=last_known if last_known != known_last else None,
    )
    nothing = PartitionChangeRecord(partition_id=partition.partition_id, topic_id=topic_id)
    return None if change == nothing else change


def _elect(
    partition: PartitionImage,
    eligible: Sequence[int],
    may_lead: Callable[[int], bool],
    leader: int | None,
    *,
    is_unclean: bool,
) -> tuple[int, bool]:
    """Elect a leader; return it (or NO_LEADER), and whether it may lack records."""
    wanted = (partition.leader if leader is None else leader, partition.leader, *partition.replicas)
    clean = next((replica for replica in wanted if replica in eligible and may_lead(replica)), None)
    if clean is not None:
        return clean, False
    unclean = next((replica for replica in partition.replicas if may_lead(replica)), None) if is_unclean else None
    return (NO_LEADER, False) if unclean is None else (unclean, True)
