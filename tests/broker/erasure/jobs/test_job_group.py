"""Jobs of one request work one after the other and share their scans."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from diamant.broker.erasure.certification.evidence import ScanRequest
from diamant.broker.erasure.jobs.job_group import JobGroup
from diamant.cleaner.evidence.scan.report import ScanReport
from diamant.cleaner.evidence.search.needles import Needles
from diamant.cleaner.evidence.search.record_search import Subject
from diamant.progress import Progress


def asked(name: str) -> ScanRequest:
    """What a job asks for."""
    return ScanRequest(Subject(name.encode(), frozenset({name}), Needles(b"s" * 32)), lambda _: False)


class Scans:
    """Counts scans; each can fail, or last until it is released."""

    def __init__(self, failure: Exception | None = None, *, is_held: bool = False) -> None:
        self.subjects: list[list[bytes | None]] = []
        self.failure = failure
        self.released = asyncio.Event()
        if not is_held:
            self.released.set()

    async def __call__(self, some: Sequence[ScanRequest], _: Progress) -> list[ScanReport]:
        self.subjects.append(sorted(one.subject.key or b"" for one in some))
        await self.released.wait()
        if self.failure is not None:
            raise self.failure
        return [ScanReport(seconds=float(one.subject.key or b"0")) for one in some]


def group_of(scans: Scans, *names: str) -> JobGroup:
    return JobGroup(scans, dict.fromkeys(names, "a job"), Progress(), {})


async def member(group: JobGroup, name: str, scans: int, log: list[str]) -> list[float]:
    """Return a job that asks for some scans."""
    found = []
    try:
        async with group.turn(name):
            for _ in range(scans):
                log.append(f"{name} begins")
                await asyncio.sleep(0)
                log.append(f"{name} ends")
                found.append((await group.scan(name, asked(name))).seconds)
    finally:
        group.leave(name)
    return found


async def test_one_scan_serves_all_who_ask() -> None:
    """Each gets the report about its own subject; one that asks twice shares the second scan with those that do, too."""
    scans, log = Scans(), []
    group = group_of(scans, "1", "2", "3", "4")
    counts: dict[str, int] = {"1": 1, "2": 2, "3": 0, "4": 2}
    found = await asyncio.gather(*(member(group, name, count, log) for name, count in counts.items()))
    assert found == [[1.0], [2.0, 2.0], [], [4.0, 4.0]]
    assert scans.subjects == [[b"1", b"2", b"4"], [b"2", b"4"]]
    assert all(one.split()[0] == two.split()[0] for one, two in zip(log[::2], log[1::2], strict=True))


async def test_a_failed_scan_fails_for_each() -> None:
    """No member waits for ever."""
    group = group_of(Scans(OSError("the disk is gone")), "1", "2")
    found: list[Any] = await asyncio.gather(*(member(group, name, 1, []) for name in "12"), return_exceptions=True)
    assert [str(one) for one in found] == ["the disk is gone"] * 2


@pytest.mark.parametrize("when", ["before the scan", "during the scan"])
async def test_a_cancelled_member_holds_up_no_other(when: str) -> None:
    """It leaves; the others are scanned for, and its turn is free."""
    scans = Scans(is_held=True)
    group = group_of(scans, "1", "2", "3")
    first, second = (asyncio.create_task(member(group, name, 1, [])) for name in "12")
    third = asyncio.create_task(member(group, "3", 1, [])) if when == "during the scan" else None
    for _ in range(20):
        await asyncio.sleep(0)
    assert len(scans.subjects) == (third is not None)
    first.cancel()
    for _ in range(5):
        await asyncio.sleep(0)
    third = third or asyncio.create_task(member(group, "3", 1, []))
    scans.released.set()
    assert [await second, await third] == [[2.0], [3.0]]
    assert first.cancelled()


async def test_the_end_of_a_group_ends_its_scan() -> None:
    """As when the broker stops."""
    scans = Scans(is_held=True)
    group = group_of(scans, "1")
    only = asyncio.create_task(member(group, "1", 1, []))
    while not scans.subjects:
        await asyncio.sleep(0)
    only.cancel()
    await asyncio.wait([only])
    await group.end()
    assert only.cancelled()
