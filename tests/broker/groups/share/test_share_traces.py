"""Random schedules of a share partition, beside the answers that Apache Kafka's own class gave."""

from __future__ import annotations

import gzip
import json

import pytest

from tests.broker.clusters.real_kafka import class_path
from tests.broker.groups.share.share_traces import GOLDEN, Schedule, difference, kafkas, ours, schedule

TRACES: list[list[str]] = json.loads(gzip.decompress(GOLDEN.read_bytes()))
"""Schedules of the seeds from 0 on, and Kafka's answers (`share_traces --write`)."""


async def differences(schedules: list[Schedule], theirs: list[str]) -> list[str]:
    """What differs, a text for each schedule."""
    own = await ours(schedules)
    found = (difference(*one) for one in zip(schedules, theirs, own, strict=True))
    return [one for one in found if one is not None]


@pytest.mark.parametrize("count", [20, pytest.param(len(TRACES), marks=pytest.mark.slow)])
async def test_share_partitions_answer_as_kafkas(count: int) -> None:
    """Ranges given, delivery counts, error codes, start offsets and the records in flight are those of Kafka 4.3.1."""
    schedules = [Schedule.parse(line) for line, _ in TRACES[:count]]
    assert await differences(schedules, [answers for _, answers in TRACES[:count]]) == []


@pytest.mark.long
async def test_share_partitions_answer_as_kafkas_in_ten_thousand_schedules() -> None:
    """The schedules are those above, and a real Kafka answers them now."""
    class_path()
    schedules = [schedule(seed) for seed in range(10_000)]
    assert await differences(schedules, kafkas(schedules)) == []
