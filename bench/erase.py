"""How long it takes to erase keys of a large topic, stage by stage, and how fast the certifying scan reads.

A broker in this process gets one compacted topic of one partition: values of 550 B, every key once, cleaned once, which gives
each segment its filter of keys. Once the files are deleted that this has replaced, some keys are erased one by one.
"""

from __future__ import annotations

import asyncio
import os
import resource
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from figure import Figure
from made_log import AT_ONCE, Batches, key_of

from diamant import Broker
from diamant.broker.topics.creation import create_topics
from diamant.broker.topics.creation_checks import check_new_topic
from diamant.progress import Progress
from diamant.storage.log.log import Log
from diamant.storage.names import DELETED_SUFFIX

TOPIC = "users"
RECORDS, VALUE_BYTES, BATCH_RECORDS = 900_000, 550, 30
SEGMENT_BYTES = 1 << 30
ERASURES = ("first", "second", "third")


class Stages(Progress):
    """When each stage began."""

    def __init__(self) -> None:
        super().__init__()
        self.began: list[tuple[str, float]] = []

    def begin(
        self,
        stage: str,
        total: int | None = None,
        unit: str = "",
        *,
        measure: Callable[[], tuple[int, int]] | None = None,
    ) -> None:
        self.began.append((stage, time.perf_counter()))
        super().begin(stage, total, unit, measure=measure)


def erase(directory: Path, scale: float) -> Iterator[Figure]:
    """Make the topic, and erase keys of it one by one."""
    yield from asyncio.run(_measured(directory, max(1, int(RECORDS * scale / BATCH_RECORDS)) * BATCH_RECORDS))


async def _measured(directory: Path, records: int) -> list[Figure]:
    properties = {
        "diamant.cleaner.mode": "prompt",
        "diamant.certificate.key.file": f"{directory}/keys/certificate.key",
        "log.cleaner.enable": "false",
    }
    async with Broker(listen="127.0.0.1:0", data_dir=str(directory / "data"), properties=properties) as broker:
        configs = {"cleanup.policy": "compact", "segment.bytes": str(SEGMENT_BYTES), "file.delete.delay.ms": "0"}
        await create_topics(broker.node.topics, [check_new_topic(broker.node.topics, TOPIC, 1, 1, None, configs)])
        log = broker.node.topics.log(TOPIC, 0)
        await fill(log, records)
        broker.node.log_events.changed(log)
        await broker.compact(TOPIC)
        while any(name.endswith(DELETED_SUFFIX) for name in os.listdir(log.path)):  # noqa: ASYNC110  (no event tells of it)
            await asyncio.sleep(0.1)
        figures = []
        for number, name in enumerate(ERASURES, 1):
            figures += await erase_one(broker, name, key_of(records * number // (len(ERASURES) + 1)))
    peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return [*figures, Figure("peak memory of broker and client", peak_mib, "MiB")]


async def fill(log: Log, records: int) -> None:
    """Append as many records, each with a key of its own."""
    batches, at_once = Batches(VALUE_BYTES, BATCH_RECORDS, with_keys=True), AT_ONCE * BATCH_RECORDS
    for first in range(0, records, at_once):
        for batch in batches.made(first, np.arange(first, min(first + at_once, records))):
            log.append_internal(batch)
        await asyncio.sleep(0)


async def erase_one(broker: Broker, name: str, key: bytes) -> list[Figure]:
    """Erase a key, and return what it took."""
    stages, began = Stages(), time.perf_counter()
    erasure = await broker.erase(key, [TOPIC], reason="benchmark", progress=stages)
    end = time.perf_counter()
    assert erasure.state == "values-gone", erasure.certificate["not_certified"]
    assert erasure.certificate["found"][0]["values"] == 1
    ends = [*(at for _, at in stages.began[1:]), end]
    took_s = [(stage, until - at) for (stage, at), until in zip(stages.began, ends, strict=True)]
    coverage = erasure.certificate["coverage"]
    return [
        *(Figure(f"{name} key, {stage}", seconds, "s") for stage, seconds in took_s[:2]),
        Figure(f"{name} key, until only the scan is left", stages.began[-1][1] - began, "s"),
        Figure(f"{name} key, scan", coverage["bytes"] / max(1, coverage["duration_ms"]) / 1e6, "GB/s"),
        Figure(f"{name} key, whole call", end - began, "s"),
    ]
