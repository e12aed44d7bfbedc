"""Pure functions that return an audit's findings about the configurations, the replicas and the keys of one topic."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from diamant.broker.client.kafka_client import LedTopic
from diamant.cleaner.explain.explanation import KNOWN
from diamant.duration import duration_text
from diamant.protocol.murmur2 import default_partitions
from diamant.storage.config_key import LONG_MAX
from diamant.words import counted


@dataclass(frozen=True, slots=True)
class AuditFinding:
    """A cause of kept values or hidden deletions, in a partition, a topic (`partition` None) or the cluster (`topic` empty)."""

    kind: str
    topic: str
    text: str
    partition: int | None = None
    visibility: str = KNOWN
    """`KNOWN` or `BOUNDED`, with the same meaning as for gates in `cleaner.explain.explanation`."""
    configs: Mapping[str, str] = field(default_factory=dict)
    """The topic configurations to set in order to resolve the finding."""


def number(configs: Mapping[str, str], name: str, unknown: int = LONG_MAX) -> int:
    """Return the value of a numeric configuration, or `unknown` if it is missing."""
    return int(configs.get(name) or unknown)


def topic_findings(topic: str, configs: Mapping[str, str], deadline_ms: int) -> Iterator[AuditFinding]:
    """Yield findings for configurations of a topic that may keep values beyond the deadline."""
    policy, retention_ms = configs["cleanup.policy"].split(","), number(configs, "retention.ms", -1)
    if configs.get("remote.storage.enable") == "true":
        text = "tiered storage: what lies in remote storage is not compacted"
        yield AuditFinding("remote-storage", topic, text)
    if "delete" in policy and 0 <= retention_ms <= deadline_ms:
        return
    deadline = f"the deadline is {duration_text(deadline_ms)}"
    if "compact" in policy:
        yield from _compaction_findings(topic, configs, deadline_ms, deadline)
    else:
        removed = f"after {duration_text(retention_ms)}" if retention_ms >= 0 else "never"
        text = f"records are removed by their age only, {removed} (retention.ms={retention_ms}); {deadline}"
        yield AuditFinding("retention-beyond-deadline", topic, text, configs={"retention.ms": str(deadline_ms)})


def _compaction_findings(
    topic: str, configs: Mapping[str, str], deadline_ms: int, deadline: str
) -> Iterator[AuditFinding]:
    most_ms, least_ms = number(configs, "max.compaction.lag.ms"), number(configs, "min.compaction.lag.ms", 0)
    if most_ms > deadline_ms:
        text = f"a deleted value may stay for {duration_text(most_ms)} (max.compaction.lag.ms); {deadline}"
        if most_ms >= LONG_MAX:
            text = f"a deleted value may stay for ever: no max.compaction.lag.ms; {deadline}"
        change = {"max.compaction.lag.ms": str(deadline_ms)}
        yield AuditFinding("no-compaction-deadline", topic, text, configs=change)
        if float(configs.get("min.cleanable.dirty.ratio") or 0.5) >= 1:
            text = "min.cleanable.dirty.ratio=1: no amount of superseded values starts a round"
            yield AuditFinding("ratio-one", topic, text, configs={"min.cleanable.dirty.ratio": "0.5"})
    if least_ms > deadline_ms:
        text = f"no record goes before {duration_text(least_ms)} (min.compaction.lag.ms); {deadline}"
        yield AuditFinding("min-compaction-lag", topic, text, configs={"min.compaction.lag.ms": "0"})


def replica_findings(topic: LedTopic) -> Iterator[AuditFinding]:
    """Yield findings for partitions without a leader, and for partitions with replicas out of sync."""
    for one in topic.partitions:
        behind = sorted({*one.replicas} - {*one.in_sync})
        if one.leader < 0:
            yield AuditFinding("no-leader", topic.name, "no leader: nothing can be read or erased", one.number)
        elif behind:
            named = ", ".join(map(str, behind))
            text = f"out of sync on broker {named}: values that are erased now come back if it leads"
            yield AuditFinding("out-of-sync", topic.name, text, one.number)


def stranded_text(partition: int, keys: set[bytes], count: int) -> str:
    """Return a finding's text if sampled keys belonged here before partitions were added, but now belong elsewhere; else ""."""
    strangers = [key for key in keys if partition not in default_partitions(key, count)]
    for before in range(count - 1, partition, -1) if strangers else ():
        if all(partition in default_partitions(key, before) for key in strangers):
            return (
                f"{len(strangers):,} of {counted(len(keys), 'sampled key')} belong elsewhere since partitions were added to "
                f"{before}, unless producers choose otherwise: no later record supersedes their values here"
            )
    return ""
