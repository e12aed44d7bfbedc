"""The table of unfinished jobs: the jobs that must not be resumed now, and what the queue resumes."""

from __future__ import annotations

from diamant.broker.broker import Broker
from diamant.broker.running import next_due_ms, resume_due
from tests.broker.erasure.constants import START_MS
from tests.waiting import wait_until

JOB = "0" * 32
"""A job without an intent: an attempt to resume it forgets it."""


async def test_a_job_that_came_due_while_it_was_held_is_resumed_when_the_hold_ends(broker: Broker) -> None:
    """The end of the hold resumes the job, since its due time alone would wake nothing again."""
    table = broker.services.erasures().table
    table.hold(JOB)
    table.schedule(JOB, START_MS)
    await broker.node.scheduler.settled()
    assert ([*table.due], table.next_due_ms()) == ([JOB], None)
    table.release(JOB)
    await wait_until(lambda: not table.due, 10)


async def test_a_stop_resumes_no_job(broker: Broker) -> None:
    """Due times of jobs wake nothing any more, and a due job of another kind resumes only that kind."""
    queue = broker.services.erasures().queue
    await queue.stop()
    queue.table.schedule(JOB, START_MS)
    assert next_due_ms(broker.services.jobs) is None
    await resume_due(broker.services.jobs)
    assert ([*queue.table.due], [*queue.table.busy]) == ([JOB], [])
