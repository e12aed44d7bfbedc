"""Explains why records are still in the topics of any Kafka cluster, from what a client can see, for `diamant explain`.

Applies Kafka's rules (`cleaner.explain`) to the log that the leader returns. Each gate says whether it is known, bounded or not
visible. The cleaner's checkpoint and its state are not visible, so the dirty ratio is an upper bound, and all times are the
earliest possible.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from diamant.broker.client.kafka_client import EARLIEST, LATEST, KafkaClient
from diamant.broker.clusters.cluster_look import TIERED_CONFIG, configs_of
from diamant.broker.clusters.fetching import Stretch, read_stretches
from diamant.broker.config.broker_config import BrokerConfig
from diamant.broker.config.topic_values import log_config
from diamant.broker.inspection.log_from_outside import OutsideLog
from diamant.broker.inspection.transactions import described, listed_transactions
from diamant.broker.operation_errors import BadArgument, NotFound
from diamant.broker.record_json import key_fields
from diamant.cleaner.explain import explanation
from diamant.cleaner.explain.explainer import Explainer
from diamant.cleaner.explain.explanation import Change, Gate, PartitionExplanation, RecordExplanation
from diamant.cleaner.explain.stranded import with_stranded
from diamant.cleaner.rules.modes import KAFKA
from diamant.cleaner.rules.open_transaction import OpenTransaction
from diamant.cleaner.service.partition_view import CleanerView
from diamant.json_types import JsonObject
from diamant.storage.segments.log_config import LogConfig

_TIERED = (
    f"tiered storage ({TIERED_CONFIG}): records in remote storage are not looked at, and go by their retention alone"
)
_BOUNDED = {explanation.DIRTY_RATIO, explanation.WAITS_FOR_ROUND, explanation.BEHIND}
_NOT_SEEN = Gate(
    explanation.NOT_SEEN,
    "nothing visible: a round is due if the cleaner runs, its pause (log.cleaner.backoff.ms) is over, and enough of it is dirty",
    visibility=explanation.NOT_VISIBLE,
)


def explain(
    client: KafkaClient,
    topic: str,
    *,
    key: bytes | None = None,
    partition: int | None = None,
    offset: int | None = None,
    check: Callable[[], object] = lambda: None,
) -> JsonObject:
    """Explain a topic's partitions, all records of a key, or the records with the same key as the record at an offset.

    Returns the same fields as `Broker.explain`. Reads whole partitions, from their leaders. Raises BadArgument for a wrong
    combination of arguments, NotFound for an unknown partition, KafkaRefusal or ConnectionFailed if a request fails.
    """
    if key is not None and offset is not None:
        raise BadArgument("expected a key or an offset, or neither to explain the partitions as a whole")
    if offset is not None and partition is None:
        raise BadArgument("an offset needs a partition")
    led = client.topic(topic).partitions
    wanted = [one for one in led if partition in (None, one.number)]
    if not wanted:
        raise NotFound(f"topic {topic!r} has no partition {partition}: it has {len(led)}")
    configs = {name: one.value for name, one in configs_of(client, topic).items() if one.value is not None}
    config = log_config(configs, BrokerConfig(diamant_cleaner_mode=KAFKA))
    logs = _read(client, topic, [one.number for one in wanted], key, offset, check)
    if offset is not None:
        key = next((one.key for log in logs for one in log.scan().records if not one.is_control), None)
        if key is not None:
            logs = _read(client, topic, [one.number for one in wanted], key, None, check)
    now_ms = time.time_ns() // 1_000_000
    found = [
        _explained(client, log, config, now_ms, with_records=key is not None or offset is not None) for log in logs
    ]
    if configs.get(TIERED_CONFIG) == "true":
        found = [replace(one, problems=(*one.problems, _TIERED)) for one in found]
    if key is not None:
        found = with_stranded(key, found, len(led))
    return {
        "topic": topic,
        "now_ms": now_ms,
        "key": None if key is None else key_fields(key),
        "offset": offset,
        "visibility": explanation.BOUNDED,
        "partitions": [_seen_from_outside(one).to_fields() for one in found],
    }


def _read(
    client: KafkaClient,
    topic: str,
    numbers: Sequence[int],
    key: bytes | None,
    offset: int | None,
    check: Callable[[], object],
) -> list[OutsideLog]:
    leaders = {number: leader for leader, led in client.led(topic, numbers).items() for number in led}
    starts, ends = (client.offsets(topic, numbers, which) for which in (EARLIEST, LATEST))
    logs = [
        OutsideLog(Stretch(topic, number, leaders[number], starts[number], ends[number]), key, offset)
        for number in numbers
    ]
    by_stretch = {id(log.stretch): log for log in logs}
    read_stretches(client, [log.stretch for log in logs], lambda one, data: by_stretch[id(one)].take(data), check)
    return logs


def _explained(
    client: KafkaClient, log: OutsideLog, config: LogConfig, now_ms: int, *, with_records: bool
) -> PartitionExplanation:
    state = log.state(config, _transactions(client, log.open_since))
    view = CleanerView(mode=KAFKA, checkpoint=max(log.cleaned_to, state.log_start_offset))
    found = Explainer(state, view, now_ms).partition(log.scan() if with_records else None)
    return replace(found, problems=(*found.problems, *([log.stretch.problem] if log.stretch.problem else [])))


def _transactions(client: KafkaClient, open_since: Mapping[int, int]) -> list[OpenTransaction]:
    listed = listed_transactions(client, client.broker_ids())[0] if open_since else {}
    found = []
    for producer_id, first_offset in open_since.items():
        one = OpenTransaction(producer_id, first_offset)
        if producer_id in listed:
            known = described(client, listed[producer_id])
            one = replace(
                one, since_ms=known.since_ms, abort_ms=known.abort_ms, transactional_id=known.transactional_id
            )
        found.append(one)
    return found


def _seen_from_outside(found: PartitionExplanation) -> PartitionExplanation:
    """Add the visibility of each gate to an explanation, and replace its changes with changes that work on any Kafka cluster."""
    return replace(
        found,
        gates=tuple(map(_gate, found.gates)),
        change=_change(found.change),
        records=tuple(map(_record, found.records)),
    )


def _record(found: RecordExplanation) -> RecordExplanation:
    return replace(
        found,
        gates=tuple(map(_gate, found.gates)),
        bound=found.bound if found.goes_ms is None else explanation.EARLIEST,
        change=_change(found.change),
    )


def _gate(gate: Gate) -> Gate:
    if gate.kind == explanation.DUE:
        return replace(_NOT_SEEN, until_ms=gate.until_ms)
    if gate.kind == explanation.DIRTY_RATIO:
        return replace(
            gate, text=gate.text.replace("dirty ratio ", "dirty ratio at most ", 1), visibility=explanation.BOUNDED
        )
    return replace(gate, visibility=explanation.BOUNDED) if gate.kind in _BOUNDED else gate


def _change(change: Change | None) -> Change | None:
    """Replace the command of a change with one that works on any Kafka cluster; None if there is no such command."""
    if change is None or change.command is None:
        return change
    words = change.command.split()
    if words[0] == "compact":
        return replace(change, command=" ".join(words[:2]))
    if words[0] == "erase":
        return replace(change, command=change.command.replace(" --now", " --tombstones now"))
    return replace(change, command=None)
