"""The broker as a whole: its life, its directory, what survives a restart, what it does when idle."""

from __future__ import annotations

import asyncio
import errno
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from diamant.broker.broker import Broker
from diamant.broker.cannot_start import CannotStart
from diamant.broker.config.broker_config import BrokerConfig
from diamant.broker.node.housekeeping import CHECKPOINT_INTERVAL_MS
from diamant.broker.node.scheduler import ScheduledTask
from diamant.protocol.errors import ErrorCode
from diamant.storage.env.clocks import SettableClock
from diamant.storage.env.env import RealEnv
from diamant.storage.names import CLEAN_SHUTDOWN
from tests.broker.fetching import fetch, values_of
from tests.broker.held_disk import held_disk
from tests.broker.running import running
from tests.broker.wire import DELETE_RECORDS, INIT_PRODUCER_ID, METADATA, WireClient
from tests.memory_env import MemoryEnv
from tests.waiting import PATIENCE_S, wait_until


def config(path: Path, **kafka_names: object) -> BrokerConfig:
    """Return a broker's configuration on a free port."""
    return BrokerConfig(listen="127.0.0.1:0", data_dir=path, **kafka_names)


def test_a_broker_in_a_thread_of_its_own(tmp_path: Path) -> None:
    """Plain `with` starts a loop in a thread and ends it; the port is open inside and closed after."""
    before = set(threading.enumerate())
    with Broker(config(tmp_path)) as broker:
        host, _, port = broker.bootstrap_servers.rpartition(":")
        socket.create_connection((host, int(port))).close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((host, int(port)))
    assert set(threading.enumerate()) <= before
    assert (tmp_path / CLEAN_SHUTDOWN).exists()


INTERRUPTED_STARTS = """
import signal, sys, threading
from pathlib import Path
from diamant import Broker, BrokerConfig

main = threading.main_thread().ident
for number in range(40):
    directory = Path(sys.argv[1], str(number))

    def interrupt():
        while not (directory / ".lock").exists():
            threading.Event().wait(0.0001)
        signal.pthread_kill(main, signal.SIGINT)

    before = set(threading.enumerate())
    interrupting = threading.Thread(target=interrupt)
    interrupting.start()
    try:
        with Broker(BrokerConfig(listen="127.0.0.1:0", data_dir=directory)):
            interrupting.join()  # a start that was quicker is interrupted here
            signal.raise_signal(signal.SIGINT)
    except KeyboardInterrupt:
        interrupting.join()
    assert set(threading.enumerate()) <= before
    assert (directory / sys.argv[2]).exists()
with Broker(BrokerConfig(listen="127.0.0.1:0", data_dir=directory)):
    print("started")
"""


def test_an_interrupted_start_leaves_nothing_behind(tmp_path: Path) -> None:
    """After Ctrl-C, as in a notebook, there is no thread any more, and the directory can be opened again. In a process of its
    own: libraries that other tests use change what Ctrl-C does.
    """
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED_STARTS, tmp_path, CLEAN_SHUTDOWN], capture_output=True, text=True
    )
    assert (done.stdout, done.stderr) == ("started\n", "")


async def test_a_cancelled_start_keeps_the_lock_until_its_threads_have_ended() -> None:
    """They would go on recovering the files beside the next broker. After that, nothing is left of the start."""
    env = MemoryEnv()
    async with running(env) as (_, wire):
        await wire.create("t")
    env.remove(f"/data/{CLEAN_SHUTDOWN}")
    begun, may_go_on = threading.Event(), threading.Event()

    def hold() -> None:
        begun.set()
        assert may_go_on.wait(PATIENCE_S)

    env.before("open", "/data/t-0/*.log", hold)
    before = asyncio.all_tasks()
    starting = asyncio.create_task(Broker(config(Path("/data")), env=env).start())
    await asyncio.to_thread(begun.wait, PATIENCE_S)
    starting.cancel()
    with pytest.raises(CannotStart, match="in use"):
        await Broker(config(Path("/data")), env=env).start()
    may_go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert asyncio.all_tasks() == before
    async with running(env) as (broker, _):
        assert list(broker.node.topics.by_name) == ["t"]


async def test_a_cancelled_stop_releases_the_directory() -> None:
    """The stop runs to its end before its caller is told, so that the next start finds the directory free and clean."""
    env = MemoryEnv()
    broker = Broker(config(Path("/data")), env=env)
    await broker.start()
    async with WireClient(broker.bootstrap_servers) as wire:
        await wire.create("t")
        await wire.produce("t", [b"a"])
    with held_disk([broker.node.topics.log("t", 0)], env) as disk:
        (log,) = disk.begun
        stopping = asyncio.create_task(broker.stop())
        await asyncio.to_thread(disk.begun[log].wait, PATIENCE_S)
        stopping.cancel()
        disk.go_on(log)
        with pytest.raises(asyncio.CancelledError):
            await stopping
    assert env.exists(f"/data/{CLEAN_SHUTDOWN}")
    await broker.start()
    async with WireClient(broker.bootstrap_servers) as wire:
        assert values_of((await fetch(wire, "t", 0)).records) == [b"a"]
    await broker.stop()


async def test_two_brokers_side_by_side(tmp_path: Path) -> None:
    """Nothing is global: two brokers in one process have their own ports, clusters and topics."""
    async with Broker(config(tmp_path / "a")) as first, Broker(config(tmp_path / "b")) as second:
        assert first.bootstrap_servers != second.bootstrap_servers
        assert first.cluster_id != second.cluster_id
        async with WireClient(first.bootstrap_servers) as wire:
            await wire.create("t")
        async with WireClient(second.bootstrap_servers) as wire:
            assert (await wire.call(METADATA, 12, {"topics": None})).topics == ()


async def test_a_directory_has_one_broker(tmp_path: Path) -> None:
    """A second broker on the same directory is refused, and the first one is not disturbed."""
    async with Broker(config(tmp_path)) as broker:
        with pytest.raises(CannotStart):
            await Broker(config(tmp_path)).start()
        async with WireClient(broker.bootstrap_servers) as wire:
            assert (await wire.create("t")).error_code == ErrorCode.NONE
    async with Broker(config(tmp_path)) as broker:
        assert list(broker.node.topics.by_name) == ["t"]


async def test_a_port_in_use_is_refused_before_the_directory_is_touched(tmp_path: Path) -> None:
    """A start that fails leaves nothing: no files, no lock."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        sock.listen()
        address = f"127.0.0.1:{sock.getsockname()[1]}"
        with pytest.raises(CannotStart, match="in use"):
            await Broker(BrokerConfig(listen=address, data_dir=tmp_path / "data")).start()
    assert not (tmp_path / "data").exists()


async def test_everything_survives_a_restart(tmp_path: Path) -> None:
    """Records, ids, configurations, log start and cluster id survive; the leader epoch never goes down."""
    async with Broker(config(tmp_path)) as broker, WireClient(broker.bootstrap_servers) as wire:
        cluster_id = broker.cluster_id
        topic_id = (await wire.create("t", partitions=2, retention_ms="-1")).topic_id
        await wire.produce("t", [b"a"])
        await wire.produce("t", [b"b"])
        partition = {"partition_index": 0, "offset": 1}
        fields = {"topics": [{"name": "t", "partitions": [partition]}], "timeout_ms": 1000}
        await wire.call(DELETE_RECORDS, 2, fields)
        epoch = broker.node.topics.log("t", 0).leader_epoch
    async with Broker(config(tmp_path)) as broker, WireClient(broker.bootstrap_servers) as wire:
        assert broker.cluster_id == cluster_id
        assert broker.node.topics.by_name["t"].topic_id == topic_id
        assert broker.node.topics.log("t", 1).config.retention_ms == -1
        assert broker.node.topics.log("t", 0).leader_epoch >= epoch
        assert (await fetch(wire, "t", 0)).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
        partition = await fetch(wire, "t", 1)
        assert (partition.high_watermark, partition.log_start_offset) == (2, 1)
        assert values_of(partition.records) == [b"b"]
        assert (await wire.produce("t", [b"c"])).base_offset == 2


@pytest.mark.parametrize("is_clean", [True, False], ids=["clean", "killed"])
async def test_duplicates_are_recognised_after_a_restart(tmp_path: Path, is_clean: bool) -> None:
    """A producer that repeats its last batch after the broker came back gets the first offset; ids are not given
    twice.
    """
    broker = Broker(config(tmp_path))
    await broker.start()
    async with WireClient(broker.bootstrap_servers) as wire:
        await wire.create("t")
        answer = await wire.call(INIT_PRODUCER_ID, 4, {"transactional_id": None, "transaction_timeout_ms": 1000})
        producer = {"producer_id": int(answer.producer_id), "producer_epoch": 0}
        await wire.produce("t", [b"a"], **producer, base_sequence=0)
        await wire.produce("t", [b"b"], **producer, base_sequence=1)
    await broker.stop()
    if not is_clean:
        (tmp_path / CLEAN_SHUTDOWN).unlink()
    async with Broker(config(tmp_path)) as broker, WireClient(broker.bootstrap_servers) as wire:
        assert (await wire.produce("t", [b"b"], **producer, base_sequence=1)).base_offset == 1
        assert (await wire.produce("t", [b"c"], **producer, base_sequence=2)).base_offset == 2
        answer = await wire.call(INIT_PRODUCER_ID, 4, {"transactional_id": None, "transaction_timeout_ms": 1000})
        assert answer.producer_id not in (-1, producer["producer_id"])


async def test_stop_ends_waiting_fetches(tmp_path: Path) -> None:
    """A long poll is answered with what there is when the broker stops, and the stop does not wait for its time."""
    from tests.broker.wire import FETCH, fetch_fields

    broker = Broker(config(tmp_path))
    await broker.start()
    async with WireClient(broker.bootstrap_servers) as wire:
        await wire.create("t")
        correlation_id = wire.send(FETCH, 12, fetch_fields("t", 0, max_wait_ms=600_000))
        await wait_until(lambda: len(broker.node.purgatory) > 0)
        await broker.stop()
        assert (await wire.receive(FETCH, 12, correlation_id)).error_code == ErrorCode.NONE


async def test_retention_follows_the_clock(tmp_path: Path) -> None:
    """A day later, by the clock, old segments are gone and the log start has moved."""
    clock = SettableClock(1_700_000_000_000)
    broker_config = config(tmp_path, log_retention_check_interval_ms=60_000, log_initial_task_delay_ms=0)
    async with Broker(broker_config, env=RealEnv(clock)) as broker, WireClient(broker.bootstrap_servers) as wire:
        await wire.create("t", retention_ms="3600000")
        await wire.produce("t", [b"old"], timestamp=clock.now_ms())
        clock.advance_ms(24 * 3600 * 1000)
        log = broker.node.topics.log("t", 0)
        await wait_until(lambda: log.log_start_offset > 0)
        assert (await fetch(wire, "t", 0)).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
        assert (await wire.produce("t", [b"new"], timestamp=clock.now_ms())).base_offset == 1


@pytest.mark.parametrize("error", [OSError("Input/output error"), RuntimeError("a bug")], ids=["disk", "bug"])
async def test_trouble_with_one_log_keeps_no_other_from_retention(
    caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    """Whatever it is: it is told once, not at each look, and when it is over retention goes on there, too."""
    clock = SettableClock(1_700_000_000_000)
    broker_config = config(Path("/data"), log_retention_check_interval_ms=60_000, log_initial_task_delay_ms=0)
    env = MemoryEnv(clock)
    async with Broker(broker_config, env=env) as broker, WireClient(broker.bootstrap_servers) as wire:
        for topic in ("bad", "good"):
            await wire.create(topic, retention_ms="3600000")
        bad, good = (broker.node.topics.log(topic, 0) for topic in ("bad", "good"))
        assert list(broker.node.directory.logs.values()).index(bad) < list(broker.node.directory.logs.values()).index(
            good
        )

        def failing() -> None:
            raise error

        fault = env.before("create", "/data/bad-0/*", failing, times=None)
        for look in range(1, 3):
            for topic in ("bad", "good"):
                await wire.produce(topic, [b"old"], timestamp=clock.now_ms())
            clock.advance_ms(24 * 3600 * 1000)
            await wait_until(lambda look=look: fault.hits == look and good.log_start_offset == look)  # type: ignore[misc]
        fault.clear()
        assert bad.log_start_offset == 0
        assert len([one for one in caplog.messages if "bad-0: retention failed" in one]) == 1
        clock.advance_ms(60_000)
        await wait_until(lambda: bad.log_start_offset == bad.log_end_offset)


async def test_checkpoints_are_written_after_changes_only(tmp_path: Path) -> None:
    """The high watermark is on disk some seconds after an append; without changes nothing is due."""
    clock = SettableClock(1_700_000_000_000)
    checkpoint = tmp_path / "replication-offset-checkpoint"
    async with Broker(config(tmp_path), env=RealEnv(clock)) as broker, WireClient(broker.bootstrap_servers) as wire:
        await wire.create("t")
        await wire.produce("t", [b"a"], timestamp=clock.now_ms())
        clock.advance_ms(CHECKPOINT_INTERVAL_MS)
        await wait_until(lambda: checkpoint.exists() and "t 0 1" in checkpoint.read_text())
        jobs: list[ScheduledTask] = broker.node.scheduler.jobs
        assert {job.name: job.due_ms() for job in jobs}["checkpoints"] is None


async def test_flush_ms_syncs_what_comes_while_a_checkpoint_waits(tmp_path: Path) -> None:
    """Each record is synced in time, not only the first one since the last checkpoint; also with a log that is in no hurry."""
    clock = SettableClock(1_700_000_000_000)
    async with Broker(config(tmp_path), env=RealEnv(clock)) as broker, WireClient(broker.bootstrap_servers) as wire:
        await wire.create("t", flush_ms="20")
        await wire.create("later", flush_ms="3600000")
        await wire.produce("later", [b"a"], timestamp=clock.now_ms())
        log = broker.node.topics.log("t", 0)
        for count in (1, 2, 3):
            await wire.produce("t", [b"a"], timestamp=clock.now_ms())
            assert log.recovery_point == count - 1
            clock.advance_ms(20)
            await wait_until(lambda count=count: log.recovery_point == count)  # type: ignore[misc]
        assert broker.services.housekeeping.has_changes
        assert broker.node.topics.log("later", 0).recovery_point == 0


@pytest.mark.parametrize("flush_ms", ["0", "1000"])
async def test_flush_ms_leaves_a_log_alone_that_cannot_be_synced(flush_ms: str) -> None:
    """Such a log refuses writes until the next start: nothing is due for it any more, whatever its flush.ms."""
    clock = SettableClock(1_700_000_000_000)
    env = MemoryEnv(clock)
    async with Broker(config(Path("/data")), env=env) as broker, WireClient(broker.bootstrap_servers) as wire:
        await wire.create("t", flush_ms=flush_ms)
        env.fail("sync", "/data/t-0/*.log", errno.EIO, times=1)
        await wire.produce("t", [b"a"], timestamp=clock.now_ms())
        log = broker.node.topics.log("t", 0)
        clock.advance_ms(1000)
        await wait_until(lambda: log.write_failure is not None)
        assert await broker.node.scheduler.settled() == []
        assert {job.name: job.due_ms() for job in broker.node.scheduler.jobs}["flush.ms"] is None


@pytest.mark.slow
async def test_an_idle_broker_uses_no_processor(broker: Broker, wire: WireClient) -> None:
    """With a connection open and nothing to do, the loop sleeps."""
    await wire.create("t")
    await asyncio.to_thread(threading.Event().wait, 0.05)
    # Of the loop's thread alone: others may be left from other tests.
    before_s = time.thread_time()
    await asyncio.to_thread(threading.Event().wait, 0.5)
    assert time.thread_time() - before_s < 0.05


def test_a_broker_loads_nothing_heavy(tmp_path: Path) -> None:
    """Starting and stopping a broker imports neither compilers nor web servers nor data frames."""
    code = (
        "import sys; from diamant import Broker, BrokerConfig\n"
        f"with Broker(BrokerConfig(listen='127.0.0.1:0', data_dir={str(tmp_path)!r})): pass\n"
        "print([name for name in ('numpy', 'pyspark', 'aiohttp', 'pandas', 'pyarrow') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


async def test_several_listeners(tmp_path: Path) -> None:
    """Each listener tells its own address, or what advertised.listeners says."""
    properties = {
        "listeners": "A://127.0.0.1:0,B://127.0.0.1:0",
        "advertised.listeners": "A://127.0.0.1:0,B://example.org:1234",
        "listener.security.protocol.map": "A:PLAINTEXT,B:PLAINTEXT",
    }
    async with Broker(BrokerConfig(data_dir=tmp_path, properties=properties)) as broker:
        first, second = broker.bootstrap_servers.split(",")
        told = []
        for address in (first, second):
            async with WireClient(address) as wire:
                (node,) = (await wire.call(METADATA, 12, {"topics": []})).brokers
                told.append(f"{node.host}:{node.port}")
        assert told == [first, "example.org:1234"]


async def test_every_interface(tmp_path: Path) -> None:
    """An empty host listens in both IP families, and clients are told the address at which they arrived."""
    async with Broker(BrokerConfig(listen=":0", data_dir=tmp_path)) as broker:
        port = broker.addresses.kafka[0].port
        for host in ("127.0.0.1", *(["::1"] if socket.has_ipv6 and _has_ipv6_loopback() else [])):
            async with WireClient(f"{host}:{port}") as wire:
                (node,) = (await wire.call(METADATA, 12, {"topics": []})).brokers
                assert (node.host, node.port) == (host, port)


def _has_ipv6_loopback() -> bool:
    with socket.socket(socket.AF_INET6) as sock:
        try:
            sock.bind(("::1", 0))
        except OSError:
            return False
    return True


def test_the_plugin_gives_every_test_its_topic(diamant_topic: str, request: pytest.FixtureRequest) -> None:
    """A name that says which test it is of, that Kafka accepts, and that is new each time."""
    from diamant.broker.topics.name_checks import check_name

    check_name(diamant_topic)
    assert diamant_topic.startswith("test-the-plugin-gives-every-test-its-topic")


@pytest.mark.parametrize("name", ["clock", "cluster_id", "faults", "loop", "node", "services"])
def test_methods_before_the_start_say_that_it_is_missing(tmp_path: Path, name: str) -> None:
    """Before the start there is no loop, no directory and nothing that answers."""
    with pytest.raises(RuntimeError, match="is not running"):
        getattr(Broker(BrokerConfig(data_dir=tmp_path)), name)


def test_a_value_that_is_neither_bytes_nor_text_is_refused_in_words() -> None:
    """The error names the type that was given, and what to do; nothing is written."""
    with Broker() as broker:
        broker.create_topic("t", 1)
        with pytest.raises(TypeError, match="not dict: encode it"):
            broker.produce("t", {"a": 1})  # type: ignore[arg-type]
        assert list(broker.records("t")) == []


async def test_an_operation_before_the_start_says_so(tmp_path: Path) -> None:
    """Whichever it is: the words of a missing attribute help nobody."""
    broker = Broker(BrokerConfig(data_dir=tmp_path))
    for call in (broker.compact("t"), broker.explain("t"), broker.count("t"), broker.erase(b"k", "t", reason="r")):
        with pytest.raises(RuntimeError, match="is not running"):
            await call
