"""Jobs: calls that outlast a request, their progress, their bounds, and their end with the broker."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from diamant.broker.broker import Broker
from diamant.broker.http.serving.jobs import DONE, FAILED, RUNNING, Jobs
from diamant.broker.http.serving.limits import JobLimits
from diamant.broker.operation_errors import NotFound, NotPossible, TooMany
from diamant.progress import Progress
from tests.broker.http_asking import ask, limit_http
from tests.broker.settling import run_when_settling
from tests.waiting import wait_until


class Work:
    """Work that ends when the test says so."""

    def __init__(self) -> None:
        self.ended = asyncio.get_running_loop().create_future()

    async def run(self, progress: Progress) -> dict[str, Any]:
        """Report progress and wait."""
        progress.begin("working", 10, "steps")
        progress.advance(3)
        result: dict[str, Any] = await self.ended
        return result


async def done(_progress: Progress) -> dict[str, Any]:
    """Run a job that ends at once."""
    return {"answer": 42}


def failing(error: Exception) -> Callable[[Progress], Awaitable[dict[str, Any]]]:
    """Run a job that fails."""

    async def fail(_progress: Progress) -> dict[str, Any]:
        raise error

    return fail


async def test_a_job_tells_how_far_it_is() -> None:
    """A job is running with progress, then done with its result; a wait ends with the job or its timeout."""
    jobs, work = Jobs(), Work()
    job = jobs.begin("POST /v1/compact", work.run)
    await jobs.wait(job, 1)
    assert (job.state, job.to_fields()["result"]) == (RUNNING, None)
    assert job.progress.to_fields() == {
        "stage": "working", "done": 3, "total": 10, "unit": "steps", "rate_per_s": None, "left_s": None
    }  # fmt: skip
    waiting = asyncio.ensure_future(jobs.wait(job, 60_000))
    work.ended.set_result({"answer": 42})
    await waiting
    assert (job.state, job.to_fields()["result"]) == (DONE, {"answer": 42})
    assert job.ended_ms is not None
    assert jobs.get(job.id) is job


async def test_a_job_that_fails_keeps_its_reason(caplog: pytest.LogCaptureFixture) -> None:
    """A refusal keeps its text; an unexpected failure has none, and the log has the details."""
    jobs = Jobs()
    refused = jobs.begin("POST /v1/a", failing(NotPossible("the topic is not compacted")))
    broken = jobs.begin("POST /v1/b", failing(RuntimeError("customer-42")))
    await jobs.wait(refused, 1000)
    await jobs.wait(broken, 1000)
    assert refused.state == broken.state == FAILED
    assert refused.error == {"error": "the topic is not compacted", "code": "not-possible", "status": 409}
    assert broken.error == {"error": "internal error, see the broker's log", "code": "internal", "status": 500}
    assert "customer-42" not in str(broken.to_fields())
    assert "POST /v1/b, failed" in caplog.text


async def test_jobs_are_bounded_in_number() -> None:
    """The oldest finished jobs are discarded; while all run, a new one is refused."""
    jobs = Jobs(JobLimits(most=3))
    works = [Work() for _ in range(3)]
    running = [jobs.begin("POST /v1/a", work.run) for work in works]
    await asyncio.sleep(0)
    with pytest.raises(TooMany, match="3 jobs"):
        jobs.begin("POST /v1/a", done)
    works[1].ended.set_result({})
    await jobs.wait(running[1], 1000)
    latest = jobs.begin("POST /v1/a", done)
    await jobs.wait(latest, 1000)
    assert [job.id for job in jobs.list()] == [latest.id, running[2].id, running[0].id]
    with pytest.raises(NotFound):
        jobs.get(running[1].id)
    await jobs.close()


async def test_results_are_not_kept_for_long() -> None:
    """A result returned to the POST is dropped at once, others after a while."""
    jobs = Jobs()
    job = jobs.begin("POST /v1/a", done)
    await jobs.wait(job, 1000)
    assert jobs.take_result(job) == {"answer": 42}
    assert (job.state, job.to_fields()["result"], job.to_fields()["is_result_kept"]) == (DONE, None, False)
    await jobs.close()
    jobs = Jobs(JobLimits(keep_result_s=0.001))
    job = jobs.begin("POST /v1/a", done)
    await wait_until(lambda: job.state == DONE and not job.to_fields()["is_result_kept"])
    await jobs.close()


async def test_a_key_is_for_whoever_waits_for_the_answer_itself() -> None:
    """In the job the key is null; it is dropped when the POST's caller stops waiting, before or after the end."""

    async def explain(_progress: Progress) -> dict[str, Any]:
        return {"key": {"text": "customer-42"}, "records": 1}

    jobs = Jobs()
    for is_left_early in (False, True):
        job = jobs.begin("POST /v1/a", explain, ("key", "another"))
        if is_left_early:
            job.leave()
        await jobs.wait(job, 1000)
        assert job.to_fields()["result"] == {"key": None, "records": 1}
        if not is_left_early:
            assert job.result == {"key": {"text": "customer-42"}, "records": 1}
            job.leave()
        assert job.result == {"key": None, "records": 1}
    job = jobs.begin("POST /v1/a", explain, ("key",))
    await jobs.wait(job, 1000)
    assert jobs.take_result(job)["key"] == {"text": "customer-42"}
    await jobs.close()


async def test_results_are_bounded_in_bytes() -> None:
    """Old jobs are discarded with their results; the latest and running jobs stay."""
    jobs, work = Jobs(JobLimits(result_bytes=1000)), Work()
    running = jobs.begin("POST /v1/a", work.run)

    async def large(_progress: Progress) -> dict[str, Any]:
        return {"text": "x" * 600}

    for _ in range(5):
        latest = jobs.begin("POST /v1/a", large)
        await jobs.wait(latest, 1000)
    assert [job.id for job in jobs.list()] == [latest.id, running.id]
    await jobs.close()


async def test_too_many_who_wait_are_answered_at_once() -> None:
    """Waiting requests cannot take all connections."""
    jobs, work = Jobs(JobLimits(waiting=1)), Work()
    job = jobs.begin("POST /v1/a", work.run)
    first = asyncio.ensure_future(jobs.wait(job, 60_000))
    await asyncio.sleep(0)
    async with asyncio.timeout(30):
        await jobs.wait(job, 60_000)
    assert not first.done()
    work.ended.set_result({})
    await first


async def test_jobs_end_with_the_broker() -> None:
    """Running jobs are cancelled and say so; new ones are refused."""
    jobs, work = Jobs(), Work()
    job = jobs.begin("POST /v1/a", work.run)
    await jobs.close()
    assert (job.state, job.error) == (FAILED, {"error": "the broker stops", "code": "stopping", "status": 503})
    with pytest.raises(asyncio.CancelledError):
        jobs.begin("POST /v1/a", done)


# -- over HTTP -----------------------------------------------------------------------------------------------------------


def hold(broker: Broker) -> asyncio.Event:
    """Make moves of the clock wait for the event."""
    opened = asyncio.Event()
    run_when_settling(broker.node.scheduler, "held", opened.wait)
    return opened


async def test_a_quick_call_is_answered_with_its_result(broker: Broker) -> None:
    """A job that ends in time appears only in the list of jobs."""
    answer = await ask(broker, "POST", "/v1/clock/advance", {"by": "8d"})
    assert answer.status == 200
    assert answer.json["to_ms"] - answer.json["from_ms"] == 8 * 86_400_000
    (job,) = (await ask(broker, "GET", "/v1/jobs")).json["jobs"]
    assert (await ask(broker, "GET", job["href"])).json["is_result_kept"] is False
    assert (job["verb"], job["state"], "result" in job) == ("POST /v1/clock/advance", "done", False)


async def test_a_long_call_continues_as_a_job(broker: Broker) -> None:
    """A long call gets 202 with the job's path; a wait there ends with the job and the call's result."""
    opened = hold(broker)
    answer = await ask(broker, "POST", "/v1/clock/advance?wait_ms=0", {"by": "8d"})
    assert (answer.status, answer.headers["location"]) == (202, answer.json["href"])
    assert (await ask(broker, "GET", answer.json["href"])).json["state"] == "running"
    waiting = asyncio.ensure_future(ask(broker, "GET", f"{answer.json['href']}?wait_ms=60000"))
    await asyncio.sleep(0)
    opened.set()
    job = (await waiting).json
    assert job["state"] == "done"
    assert job["result"]["to_ms"] == job["result"]["from_ms"] + 8 * 86_400_000
    whole = {"stage": "moving the clock", "done": 691_200_000, "total": 691_200_000, "unit": "ms"}
    assert whole.items() <= job["progress"].items()


@pytest.mark.slow
async def test_a_wait_outlasts_the_time_of_a_connection(broker: Broker) -> None:
    """A wait for a job extends the time limit of its connection."""
    await limit_http(broker, timeout_s=1)
    opened = hold(broker)
    asyncio.get_running_loop().call_later(1.5, opened.set)
    answer = await ask(broker, "POST", "/v1/clock/advance?wait_ms=5000", {"by": "8d"})
    assert answer.status == 200


async def test_a_broker_that_stops_answers_who_waits(tmp_path: Path) -> None:
    """Waiting requests get 503 at once."""
    async with Broker(data_dir=tmp_path, diamant_http_listen="127.0.0.1:0", diamant_clock="manual") as broker:
        await ask(broker, "GET", "/v1/clock")
        opened = hold(broker)
        begun = asyncio.ensure_future(ask(broker, "POST", "/v1/clock/advance?wait_ms=60000", {"by": "8d"}))
        while not (await ask(broker, "GET", "/v1/jobs")).json["jobs"]:
            await asyncio.sleep(0)
        stopping = asyncio.ensure_future(broker.stop())
        answer = await begun
        opened.set()
        await stopping
    assert (answer.status, answer.json["code"]) == (503, "stopping")


async def test_a_job_that_begins_during_the_stop_is_told(tmp_path: Path) -> None:
    """A call whose work would begin after the broker began to stop gets 503, too."""
    async with Broker(data_dir=tmp_path, diamant_http_listen="127.0.0.1:0", diamant_clock="manual") as broker:
        await ask(broker, "GET", "/v1/clock")
        broker.node.is_stopping = True
        answer = await ask(broker, "POST", "/v1/clock/advance", {"by": "8d"})
        broker.node.is_stopping = False
    assert (answer.status, answer.json["code"]) == (503, "stopping")


@pytest.mark.parametrize("path", ["/v1/jobs/0", "/v1/jobs/x", "/v1/jobs/99999999999999999999", "/v1/jobs/"])
async def test_an_unknown_job_is_not_found(broker: Broker, path: str) -> None:
    """An unknown job gets 404 with the number of jobs kept."""
    assert (await ask(broker, "GET", path)).status == 404


@pytest.mark.parametrize("wait", ["-1", "60001", "x", "", "1.5", "5&wait_ms=5"])
async def test_a_wait_has_limits(broker: Broker, wait: str) -> None:
    """An invalid or too long wait gets 400; no job starts."""
    answer = await ask(broker, "POST", f"/v1/clock/advance?wait_ms={wait}", {"by": "8d"})
    assert (answer.status, answer.json["code"]) == (400, "bad-argument")
    assert (await ask(broker, "GET", "/v1/jobs")).json["jobs"] == []
