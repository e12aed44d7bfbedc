"""A full or failing disk: the request gets the error, acknowledged records stay, no partial write is served."""

from __future__ import annotations

import asyncio
import errno
import logging
import resource
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from diamant.broker.config.broker_config import BrokerConfig
from diamant.broker.config.listeners import Addresses, Listener
from diamant.broker.node import cleaner
from diamant.broker.node.housekeeping import CHECKPOINT_INTERVAL_MS, Housekeeping
from diamant.broker.node.node import Node, open_metadata
from diamant.broker.operation_errors import OperationError
from diamant.broker.topics.creation import create_topics
from diamant.broker.topics.creation_checks import check_new_topic
from diamant.broker.topics.deletion import delete_topics
from diamant.protocol.batches.batch import iter_headers
from diamant.protocol.errors import ErrorCode
from diamant.storage.checkpoints.checkpoints import read_offset_checkpoint
from diamant.storage.directory.log_directory import LogDirectory
from diamant.storage.env.clocks import SettableClock
from tests.broker.broker_process import broker_process
from tests.broker.node.test_sigkill import read_all
from tests.broker.running import running
from tests.broker.wire import DELETE_TOPICS, WireClient
from tests.injected_faults import InjectedFault, Operation
from tests.memory_env import MemoryEnv
from tests.storage.conftest import START_MS
from tests.storage.logs import batch
from tests.waiting import wait_until

LOG_00 = "/00000000000000000000.log"
TIMEOUT_S = 60
FULL = (
    "/full"  # a directory of its own for the test of what is logged: the same message is not logged twice in a minute
)


def fill_disk(env: MemoryEnv, free_bytes: int = 0) -> None:
    """Leave this much space."""
    env.capacity_bytes = None
    total, free = env.disk_usage("/")
    env.capacity_bytes = total - free + free_bytes


def stored(env: MemoryEnv, path: str) -> int:
    """Return the size of a `.log` file, which must end with its last batch."""
    data = env.read_bytes(path)
    end = 0
    for position, header in iter_headers(data):
        end = position + header.size
    assert end == len(data), f"{len(data) - end} bytes after the last batch of {path}"
    return end


async def test_one_partition_fails_the_others_continue() -> None:
    """A partial write is answered KAFKA_STORAGE_ERROR and leaves no trace, for readers or on disk. Other partitions take
    records; the partition takes them again as soon as the disk does, with no gap in offsets.
    """
    env = MemoryEnv()
    async with running(env) as (_, client):
        await client.create("t", 2)
        assert (await client.produce("t", [b"a", b"b"])).error_code == ErrorCode.NONE
        fault = env.fail("append", f"/data/t-0{LOG_00}", errno.ENOSPC, partial_bytes=50)
        for _ in range(3):
            refused = await client.produce("t", [b"lost"])
            assert (refused.error_code, refused.base_offset) == (ErrorCode.KAFKA_STORAGE_ERROR, -1)
            assert await read_all(client, "t") == [b"a", b"b"]
            stored(env, f"/data/t-0{LOG_00}")
        assert (await client.produce("t", [b"other"], partition=1)).error_code == ErrorCode.NONE
        fault.clear()
        assert (await client.produce("t", [b"c"])).base_offset == 2
        assert await read_all(client, "t") == [b"a", b"b", b"c"]
    async with running(env) as (_, client):
        assert await read_all(client, "t") == [b"a", b"b", b"c"]


async def test_a_failed_truncation_closes_the_partition_to_writes(caplog: pytest.LogCaptureFixture) -> None:
    """If the truncation of a partial batch fails, too, the partition is read-only until the broker's next start, which
    truncates it. The broker's log says so once.
    """
    env = MemoryEnv()
    async with running(env) as (_, client):
        await client.create("t", 2)
        await client.produce("t", [b"a"])
        faults = [
            env.fail("append", f"/data/t-0{LOG_00}", errno.EIO, times=1, partial_bytes=70),
            env.fail("truncate", f"/data/t-0{LOG_00}", errno.EIO, times=1),
        ]
        for _ in range(2):
            assert (await client.produce("t", [b"lost"])).error_code == ErrorCode.KAFKA_STORAGE_ERROR
            assert await read_all(client, "t") == [b"a"]
        assert [fault.hits for fault in faults] == [1, 1]
        [told] = [line for line in caplog.messages if "refuses writes until the next start" in line]
        assert told.startswith("/data/t-0 ")
        assert (await client.produce("t", [b"other"], partition=1)).error_code == ErrorCode.NONE
    assert not env.exists("/data/.kafka_cleanshutdown")
    async with running(env) as (broker, client):
        assert await read_all(client, "t") == [b"a"]
        assert (await client.produce("t", [b"b"])).base_offset == 1
        assert await read_all(client, "t") == [b"a", b"b"]
        assert broker.node.directory.logs["t", 1].log_end_offset == 1
    stored(env, f"/data/t-0{LOG_00}")
    assert env.exists("/data/.kafka_cleanshutdown")


async def test_everything_on_a_full_disk(caplog: pytest.LogCaptureFixture) -> None:
    """Without any space, topics can be read and deleted, and writes are refused; the broker's log names the file; a stop works
    and the next start recovers; new space is used at once.
    """
    env = MemoryEnv()
    async with running(env, data_dir=FULL) as (_, client):
        await client.create("t")
        await client.create("doomed")
        assert (await client.produce("t", [b"a"])).error_code == ErrorCode.NONE
        fill_disk(env, 60)
        with caplog.at_level(logging.ERROR):
            refused = await client.produce("t", [b"lost" * 100])
        assert refused.error_code == ErrorCode.KAFKA_STORAGE_ERROR
        assert "No space left on device" in refused.error_message
        assert FULL not in refused.error_message
        assert f"{FULL}/t-0{LOG_00}" in caplog.text
        assert "No space left on device" in caplog.text
        created = await client.create("new")
        assert created.error_code == ErrorCode.KAFKA_STORAGE_ERROR
        assert (await client.create("new")).error_code == ErrorCode.KAFKA_STORAGE_ERROR  # not: it exists already
        assert await read_all(client, "t") == [b"a"]
        fill_disk(env, 500)
        assert await delete(client, "doomed") == ErrorCode.NONE
        assert (await client.create("new")).error_code in (ErrorCode.NONE, ErrorCode.KAFKA_STORAGE_ERROR)
        env.capacity_bytes = None
        assert (await client.produce("t", [b"b"])).base_offset == 1
        assert (await client.create("newer")).error_code == ErrorCode.NONE
        fill_disk(env)
    assert not env.exists(f"{FULL}/.kafka_cleanshutdown")
    assert not env.exists(f"{FULL}/.lock")
    env.capacity_bytes = None
    async with running(env, data_dir=FULL) as (_, client):
        assert await read_all(client, "t") == [b"a", b"b"]
        assert await read_all(client, "newer") == []


async def delete(client: WireClient, topic: str) -> int:
    """Delete a topic; return the error code."""
    fields = {"topics": [{"name": topic, "topic_id": None}], "timeout_ms": 1000}
    return int((await client.call(DELETE_TOPICS, 6, fields)).responses[0].error_code)


@pytest.mark.parametrize("calls", range(8))
@pytest.mark.parametrize("operation", ["create", "append", "sync", "make_dirs"])
async def test_a_topic_half_created(operation: str, calls: int) -> None:
    """If a creation fails at any call, the topic can be deleted and created again, or exists after a restart."""
    env = MemoryEnv()
    async with running(env) as (_, client):
        await client.create("t")
        fault = env.fail(operation, "/data/half-*", errno.ENOSPC, after=calls, times=1)  # type: ignore[arg-type]
        created = await client.create("half", 3)
        fault.clear()
        if fault.hits == 0:
            assert created.error_code == ErrorCode.NONE
            return
        assert created.error_code == ErrorCode.KAFKA_STORAGE_ERROR
        if calls % 2:
            assert await delete(client, "half") == ErrorCode.NONE
            assert (await client.create("half", 3)).error_code == ErrorCode.NONE
            for partition in range(3):
                assert (await client.produce("half", [b"a"], partition=partition)).base_offset == 0
    async with running(env) as (_, client):
        for partition in range(3):
            produced = await client.produce("half", [b"b"], partition=partition)
            assert (produced.error_code, produced.base_offset) == (ErrorCode.NONE, calls % 2)


@asynccontextmanager
async def kept_house(env: MemoryEnv) -> AsyncIterator[tuple[Node, Housekeeping]]:
    """A node without APIs, with topic t, and its housekeeping, which retries soon."""
    config, addresses = BrokerConfig(data_dir="/data"), Addresses([Listener("PLAINTEXT", "127.0.0.1", 9092)])
    directory = LogDirectory.open(env, "/data", producer_expiration_ms=86_400_000)
    node = Node(config, env, directory, open_metadata(env, config, addresses), addresses)
    house = Housekeeping(node, retry_s=0.001)
    await node.load()
    house.schedule()
    node.scheduler.start()
    await create_topics(node.topics, [check_new_topic(node.topics, "t", 3, configs={"file.delete.delay.ms": "0"})])
    yield node, house
    await node.scheduler.stop()
    await node.stop()
    node.close()


async def pass_time_until(clock: SettableClock, condition: Callable[[], bool]) -> None:
    """Move the clock past checkpoint times until a condition holds."""

    def has_passed() -> bool:
        clock.advance_ms(CHECKPOINT_INTERVAL_MS)
        return condition()

    await wait_until(has_passed)


def no_thread() -> None:
    """Fail like `asyncio.to_thread`."""
    raise RuntimeError("can't start new thread")


Refuse = Callable[[MemoryEnv, Operation, str], InjectedFault]
REFUSALS: list[Refuse] = [
    lambda env, operation, path: env.fail(operation, path, errno.ENOSPC, times=2),
    lambda env, operation, path: env.before(operation, path, no_thread, times=2),
]
"""A disk without space, and a lack of threads or memory: each twice."""


@pytest.mark.parametrize("refuse", REFUSALS, ids=["disk", "thread"])
async def test_checkpoints_that_were_refused(refuse: Refuse) -> None:
    """Refused checkpoints are retried without other events: deleted records do not reappear after a kill."""
    clock = SettableClock(START_MS)
    env = MemoryEnv(clock)
    async with kept_house(env) as (node, house):
        log = node.topics.log("t", 0)
        for _ in range(2):
            log.append_as_leader(batch(b"a"))
        await pass_time_until(clock, lambda: not house.has_changes)
        path = "/data/log-start-offset-checkpoint"
        fault = refuse(env, "rename", path)
        log.delete_records(1)
        node.log_events.changed(log)
        await pass_time_until(clock, lambda: read_offset_checkpoint(env, path) == {("t", 0): 1})
        assert fault.hits == 2


@pytest.mark.parametrize("refuse", REFUSALS, ids=["disk", "thread"])
async def test_files_that_were_not_removed(refuse: Refuse) -> None:
    """Their removal is retried, and does not block others."""
    env = MemoryEnv(SettableClock(START_MS))
    async with kept_house(env) as (node, _):
        fault = refuse(env, "remove", "/data/t-?.*-delete*")
        await delete_topics(node.topics, ["t"])
        node.scheduler.poke()
        await wait_until(lambda: fault.hits >= 2)
        await wait_until(lambda: not [name for name in env.list_dir("/data") if name.startswith("t-")])


async def test_a_topic_recreated_whose_directory_could_not_be_taken_away() -> None:
    """The deletion gets an error, but the topic is gone; the new one has none of its records."""
    env = MemoryEnv()
    async with running(env) as (_, client):
        await client.create("t")
        await client.produce("t", [b"old"])
        env.fail("rename", "/data/t-0", errno.EIO, times=1)
        assert await delete(client, "t") == ErrorCode.KAFKA_STORAGE_ERROR
        assert (await client.create("t")).error_code == ErrorCode.NONE
        assert await read_all(client, "t") == []
        assert (await client.produce("t", [b"new"])).base_offset == 0
    async with running(env) as (_, client):
        assert await read_all(client, "t") == [b"new"]


async def test_a_cleaner_that_the_system_refuses_is_loaded_by_the_next_call() -> None:
    """Without a descriptor when the first compacted topic is created, nothing would be compacted until the next start."""
    env = MemoryEnv()
    async with running(env) as (broker, client):
        fault = env.fail("pread", "*/cleaner-offset-checkpoint", errno.EMFILE, times=1)
        await client.create("t", cleanup_policy="compact")
        await wait_until(lambda: fault.hits == 1)
        await wait_until(lambda: not threads_of_cleaners())
        with suppress(OperationError):
            await broker.compact("t")
        assert (await broker.compact("t")).is_clean


def threads_of_cleaners() -> list[threading.Thread]:
    """Return the threads of the pools of cleaners, loaded or given up."""
    return [thread for thread in threading.enumerate() if thread.name.startswith("cleaner")]


async def test_a_cleaner_that_cannot_be_loaded_is_not_tried_forever(monkeypatch: pytest.MonkeyPatch) -> None:
    """An error that no later attempt can avoid ends the attempts, until a call asks for the cleaner."""
    env = MemoryEnv()

    def fail() -> None:
        raise ValueError("a mistake of the program")

    with monkeypatch.context() as patch:
        patch.setattr(cleaner, "RETRY_S", 0.0)
        async with running(env) as (broker, client):
            fault = env.before("pread", "*/cleaner-offset-checkpoint", fail)
            await client.create("t", cleanup_policy="compact")
            await wait_until(lambda: fault.hits == 1)
            await wait_until(lambda: not threads_of_cleaners())
            for name in "uvw":  # many turns of the loop
                await client.create(name)
            assert (fault.hits, broker.services.cleaning.is_loaded) == (1, False)


async def test_a_cleaner_that_the_system_refuses_is_loaded_without_a_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a pause, as long as a log is compacted: with no call, nothing would be compacted until the next start."""
    env = MemoryEnv()
    with monkeypatch.context() as patch:
        patch.setattr(cleaner, "RETRY_S", 0.0)
        async with running(env) as (broker, client):
            fault = env.fail("pread", "*/cleaner-offset-checkpoint", errno.EMFILE, times=2)
            await client.create("t", cleanup_policy="compact")
            await wait_until(lambda: broker.services.cleaning.is_loaded)
            assert fault.hits == 2


async def test_an_idempotent_client_outlasts_a_full_disk() -> None:
    """A real producer that retries delivers everything once and in order once the disk has space again."""
    from aiokafka import AIOKafkaProducer

    env = MemoryEnv()
    async with running(env) as (broker, client):
        await client.create("t")
        fault = env.fail("append", f"/data/t-0{LOG_00}", errno.ENOSPC, after=2, partial_bytes=30)
        values = [b"%d" % number for number in range(200)]
        async with AIOKafkaProducer(
            bootstrap_servers=broker.bootstrap_servers, enable_idempotence=True, max_batch_size=300, retry_backoff_ms=10
        ) as producer:
            sent = [await producer.send("t", value) for value in values[:100]]
            async with asyncio.timeout(TIMEOUT_S):
                await wait_until(lambda: fault.hits >= 2)
                assert not sent[-1].done()
                fault.clear()
                sent += [await producer.send("t", value) for value in values[100:]]
                assert [(await future).offset for future in sent] == list(range(200))
        assert await read_all(client, "t") == values


@pytest.mark.slow
async def test_a_real_process_at_its_file_size_limit(tmp_path: Path) -> None:
    """The operating system limits a segment's size (EFBIG): acknowledged records stay readable, before and after SIGKILL; a
    smaller partition continues; once files may grow again, the partition does, too.
    """
    limit = 64 * 1024
    with broker_process(tmp_path / "data", tmp_path / "first") as process:
        async with WireClient(process.wait_for_address()) as client:
            assert (await client.create("t")).error_code == ErrorCode.NONE
            assert (await client.create("small")).error_code == ErrorCode.NONE
            _, hard = resource.prlimit(process.pid, resource.RLIMIT_FSIZE)
            resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (limit, hard))
            acknowledged = []
            while True:
                value = b"%d" % len(acknowledged) + b"x" * 10_000
                produced = await client.produce("t", [value])
                if produced.error_code:
                    break
                acknowledged.append(value)
            assert produced.error_code == ErrorCode.KAFKA_STORAGE_ERROR
            assert len(acknowledged) == 6
            assert await read_all(client, "t") == acknowledged
            assert (await client.produce("small", [b"a"])).error_code == ErrorCode.NONE
            assert "File too large" in process.log
            assert "/t-0/00000000000000000000.log" in process.log
            assert "Traceback" not in process.log
            resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (hard, hard))
            acknowledged.append(b"y" * 20_000)
            assert (await client.produce("t", acknowledged[-1:])).base_offset == 6
            resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (limit, hard))
            assert (await client.produce("t", [b"lost" * 9])).error_code == ErrorCode.KAFKA_STORAGE_ERROR
        process.kill()
    with broker_process(tmp_path / "data", tmp_path / "second") as process:
        async with WireClient(process.wait_for_address()) as client:
            assert await read_all(client, "t") == acknowledged
            assert await read_all(client, "small") == [b"a"]
            assert (await client.produce("t", [b"more"])).base_offset == len(acknowledged)
        assert "cut off" not in process.log


@pytest.mark.slow
def test_a_start_without_space_is_one_line(tmp_path: Path) -> None:
    """A broker that cannot create its directory names the failed file and exits with 1."""
    command = [sys.executable, "-m", "diamant.broker.cli", "start", "-l", "127.0.0.1:0", "-d", str(tmp_path / "data")]
    run = subprocess.run(
        ["/bin/sh", "-c", 'ulimit -f 0 && exec "$@"', "sh", *command],
        capture_output=True,
        text=True,
        check=False,
        timeout=TIMEOUT_S,
    )
    assert run.returncode == 1
    assert run.stderr.startswith(f"diamant: {tmp_path}/data/")
    assert run.stderr.endswith(": File too large\n")
    assert len(run.stderr.splitlines()) == 1
