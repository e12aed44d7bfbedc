"""Forecasts, compared with a real cleaning by the code of `diamant log clean` and of the broker's cleaner."""

from __future__ import annotations

import gc
import random
import re
from dataclasses import replace
from struct import pack
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as limits
from hypothesis import strategies as st

from diamant.cleaner.engines import compiled, plain_round
from diamant.cleaner.forecast import partition_forecast
from diamant.cleaner.forecast.forecast import (
    BY_HORIZON,
    CLEAN,
    DELETE,
    ROLL,
    WAITS_FOR_APPEND,
    WAITS_FOR_POLICY,
    WAITS_FOR_RATIO,
    WAITS_FOR_ROUND,
    WAITS_FOR_TIME,
    WAITS_FOR_TRANSACTION,
    Contents,
    Scenario,
)
from diamant.cleaner.forecast.overlay_states import OverlayStates
from diamant.cleaner.forecast.partition_forecast import forecast
from diamant.cleaner.offline.offline_clean import PartitionSettings, clean_partition
from diamant.cleaner.offline.partition_stats import read_stats
from diamant.cleaner.rules.eligibility import BY_LAG, BY_RATIO
from diamant.cleaner.rules.modes import KAFKA, PROMPT
from diamant.cleaner.rules.plan_of_log import CleanerSettings
from diamant.cleaner.runners.best_engine import best_engine
from diamant.cleaner.segments.tolerant_reader import Problem, open_log_directory
from diamant.cleaner.service.service import CleanerService
from diamant.cleaner.service.service_settings import ServiceSettings
from diamant.protocol.batches.batch import iter_headers
from diamant.protocol.batches.header import Record
from diamant.storage.checkpoints.checkpoints import read_offset_checkpoint, write_offset_checkpoint
from diamant.storage.env.clocks import SettableClock
from diamant.storage.errors import StorageError
from diamant.storage.segments.log_config import LogConfig
from tests.builder import TIMESTAMP, with_header
from tests.cleaner.cleaner_log import CleanerLog
from tests.cleaner.log_history import History, histories, write_file
from tests.effort import examples
from tests.memory_env import MemoryEnv
from tests.storage.one_log import load_one

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
DATA = "/data"
PARTITION = "/data/t-0"
CLEANER = f"{DATA}/cleaner-offset-checkpoint"


def random_history(seed: int) -> History:
    """Some closed segments and an active one, hours apart: superseded values, tombstones, transactions, a codec."""
    chance = random.Random(seed)
    history = History()
    now_ms = TIMESTAMP
    for index in range(chance.randint(2, 6)):
        for _ in range(chance.randint(1, 5)):
            now_ms += chance.randint(0, HOUR_MS)
            words = []
            for number in range(chance.randint(1, 5)):
                value = chance.choice([None, b"value", b"v" * chance.randrange(40)])
                key = f"key-{chance.randrange(8)}".encode()
                words.append(Record(history.offset + number, now_ms + number, key, value))
            producer = chance.choice([None, None, None, 1, 2])
            history.batch(*words, producer_id=producer, codec=chance.choice([0, 0, 4]))
            if producer is not None and chance.random() < 0.9:
                history.marker(producer, is_commit=chance.random() < 0.5)
                stamp_last_batch(history, now_ms)
        if index or chance.random() < 0.5:
            history.roll()
    return history


def stamp_last_batch(history: History, timestamp: int) -> None:
    """Set the time of the last marker, from which its producer expires."""
    data = history.segments[max(history.segments)]
    position, _ = list(iter_headers(data))[-1]
    data[position:] = with_header(data[position:], base_timestamp=timestamp, max_timestamp=timestamp)


def written(history: History, *, checkpoint: int | None = None) -> MemoryEnv:
    """Return the history in a log directory; its files were written an hour after its last record."""
    env = MemoryEnv(SettableClock(max(record.timestamp for record, _ in history.records) + HOUR_MS))
    history.write(env, DATA)
    for base, data in history.segments.items():
        times = [(header.max_timestamp, header.last_offset - base) for _, header in iter_headers(data)]
        if times:
            entry = pack(">qi", *max(times, key=lambda time: (time[0], -time[1])))
            write_file(env, f"{PARTITION}/{base:020d}.timeindex", entry)
    if checkpoint is not None:
        write_offset_checkpoint(env, CLEANER, {("t", 0): checkpoint})
    return env


def states_of(env: MemoryEnv, now_ms: int, *, scratch_bytes: int | None = None, **fields: Any) -> OverlayStates:
    """Return the initial states of forecasts."""
    scratch = MemoryEnv(SettableClock(0), capacity_bytes=scratch_bytes)
    scratch.make_dirs("/scratch")
    with open_log_directory(env, PARTITION) as opened:
        (partition,) = opened.partitions
        checkpoint = opened.cleaner_checkpoint.get(("t", 0))
    return OverlayStates(env, partition, checkpoint, now_ms, scratch, "/scratch", **fields)


def scenario(mode: str = KAFKA, *, is_laid_out_anew: bool = False, max_keys: int = 1000, **config: Any) -> Scenario:
    """Return a compacted topic with this configuration."""
    config.setdefault("cleanup_policy", frozenset({"compact"}))
    cleaner = CleanerSettings(mode=mode, map_max_entries=max_keys)
    return Scenario({}, LogConfig(**config), cleaner, DAY_MS, is_laid_out_anew)


def contents(env: MemoryEnv) -> Contents:
    """Return the counts of `diamant log stats`."""
    with open_log_directory(env, PARTITION) as opened:
        (topic,) = read_stats(env, opened)
    (stats,) = topic.partitions
    return Contents(stats.bytes, stats.segments, stats.batches, stats.kinds)


def files(env: MemoryEnv) -> dict[str, tuple[int, bytes]]:
    """Return all files of the log directory with their times."""
    paths = [f"{PARTITION}/{name}" for name in env.list_dir(PARTITION)]
    return {path: (env.mtime_ms(path), env.read_bytes(path)) for path in paths}


def really_clean(env: MemoryEnv, tried: Scenario, now_ms: int) -> int:
    """Clean the directory at a time, with retention, until nothing is due; return the number of rounds."""
    clock = env.clock
    assert isinstance(clock, SettableClock)
    clock.set_ms(now_ms)
    rounds = 0
    while True:
        report = clean_partition(
            env,
            PARTITION,
            PartitionSettings(tried.config, tried.cleaner, tried.producer_expiration_ms),
            with_retention=True,
        )
        if not report.is_cleaned and not report.deleted_segments:
            return rounds
        rounds += report.is_cleaned


SETTINGS: dict[str, dict[str, Any]] = {
    "defaults": {},
    "a small share is enough": {"min_cleanable_dirty_ratio": 0.0, "segment_bytes": 700},
    "only the lag": {"min_cleanable_dirty_ratio": 1.0, "max_compaction_lag_ms": 5 * HOUR_MS},
    "not too soon": {"min_compaction_lag_ms": 2 * DAY_MS, "min_cleanable_dirty_ratio": 0.1},
    "tombstones go at once": {"delete_retention_ms": 0, "min_compaction_lag_ms": 4 * HOUR_MS},
    "a small map": {"max_keys": 3},
    "both policies": {
        "cleanup_policy": frozenset({"compact", "delete"}), "retention_ms": 3 * HOUR_MS, "min_compaction_lag_ms": DAY_MS,
    },
    "delete": {"cleanup_policy": frozenset({"delete"}), "retention_ms": 6 * HOUR_MS},
}  # fmt: skip


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("seed", range(6))
def test_a_forecast_is_what_cleaning_does(settings: str, seed: int) -> None:
    """Each event happens at its time and not a millisecond earlier, and the final files are the same, byte for byte."""
    tried = scenario(**SETTINGS[settings])
    history = random_history(seed)
    checkpoint = history.offset // 3 if seed % 2 else None
    env = written(history, checkpoint=checkpoint)
    now_ms = env.clock.now_ms()
    told = forecast(states_of(env, now_ms), tried)
    assert told.before == contents(env)
    times = sorted({now_ms, *(event.at_ms for event in told.events)})
    for at_ms in times:
        if at_ms > now_ms:
            before = contents(env)
            really_clean(env, tried, at_ms - 1)
            assert contents(env) == before, f"something is due {at_ms - now_ms} ms from now"
        rounds = really_clean(env, tried, at_ms)
        assert rounds == sum(event.at_ms == at_ms and event.kind == CLEAN for event in told.events)
        last = [event for event in told.events if event.at_ms == at_ms][-1:]
        assert [(one.bytes, one.segments) for one in last] in ([], [(contents(env).bytes, contents(env).segments)])
    assert told.after == contents(env)
    assert told.failure is None
    cleaned = [event for event in told.events if event.kind == CLEAN]
    if cleaned:
        assert read_offset_checkpoint(env, CLEANER) == {("t", 0): cleaned[-1].offset}


@given(histories(), st.sampled_from([0, 3, 1000]), st.booleans())
@limits(max_examples=examples(60), deadline=None)
def test_a_forecast_of_anything(history: History, max_keys: int, has_both_policies: bool) -> None:
    """A forecast is exact for old formats, records without keys, gaps, a log start within a segment, and a small map."""
    policies = {"compact", "delete"} if has_both_policies else {"compact"}
    tried = scenario(max_keys=max(1, max_keys), cleanup_policy=frozenset(policies), min_cleanable_dirty_ratio=0.0)
    env = MemoryEnv(SettableClock(TIMESTAMP))
    history.write(env, DATA)
    write_offset_checkpoint(env, f"{DATA}/log-start-offset-checkpoint", {("t", 0): history.log_start_offset})
    now_ms = TIMESTAMP + HOUR_MS
    told = forecast(states_of(env, now_ms), tried, now_ms)
    if told.failure is not None:
        with pytest.raises(StorageError, match=re.escape(told.failure)):
            really_clean(env, tried, now_ms)
        return
    really_clean(env, tried, now_ms)
    assert told.after == contents(env)


@pytest.mark.parametrize("seed", range(4))
def test_a_forecast_up_to_a_time(seed: int) -> None:
    """A forecast with an end gives the contents at that time."""
    tried = scenario(min_compaction_lag_ms=DAY_MS, delete_retention_ms=0, min_cleanable_dirty_ratio=0.0)
    env = written(random_history(seed))
    now_ms = env.clock.now_ms()
    whole = forecast(states_of(env, now_ms), tried)
    assert whole.events
    for event in whole.events:
        up_to = forecast(states_of(env, now_ms), tried, event.at_ms)
        assert up_to.events == tuple(one for one in whole.events if one.at_ms <= event.at_ms)
        copy = written(random_history(seed))
        for at_ms in sorted({now_ms, *(one.at_ms for one in up_to.events)}):
            really_clean(copy, tried, at_ms)
        assert up_to.after == contents(copy)


# -- mode prompt -------------------------------------------------------------------------------------------------------


class Running:
    """A broker's cleaner over the partition from now on, without appends."""

    def __init__(self, env: MemoryEnv, tried: Scenario) -> None:
        self.env = env
        self.clock = env.clock
        self.log = load_one(
            env,
            replace(tried.config, file_delete_delay_ms=0),
            expiration_ms=tried.producer_expiration_ms,
            is_clean=True,
        )
        self.service = CleanerService(env, DATA, {("t", 0): self.log}, ServiceSettings(mode=tried.cleaner.mode))

    async def at(self, now_ms: int) -> Contents:
        """Return the contents once everything due at a time has happened."""
        assert isinstance(self.clock, SettableClock)
        self.clock.set_ms(now_ms)
        self.log.producers.expire(now_ms)
        await self.service.settled()
        return contents(self.env)


PROMPT_SETTINGS: dict[str, dict[str, Any]] = {
    "a small share is enough": {"min_cleanable_dirty_ratio": 0.0, "delete_retention_ms": 5 * HOUR_MS},
    "only the lag": {"min_cleanable_dirty_ratio": 1.0, "max_compaction_lag_ms": 30 * HOUR_MS},
    "small segments": {
        "min_cleanable_dirty_ratio": 1.0, "max_compaction_lag_ms": HOUR_MS, "segment_bytes": 500,
        "delete_retention_ms": 2 * DAY_MS,
    },
    "not too soon": {
        "min_compaction_lag_ms": 10 * DAY_MS, "max_compaction_lag_ms": 20 * DAY_MS, "delete_retention_ms": 0,
    },
    "both policies": {
        "cleanup_policy": frozenset({"compact", "delete"}), "retention_ms": 9 * HOUR_MS,
        "max_compaction_lag_ms": 7 * HOUR_MS, "delete_retention_ms": HOUR_MS,
    },
}  # fmt: skip


@pytest.mark.parametrize("settings", PROMPT_SETTINGS)
@pytest.mark.parametrize("seed", range(8))
async def test_a_forecast_is_what_a_broker_does(settings: str, seed: int) -> None:
    """In mode prompt a broker closes segments in time and starts rounds for delete horizons, as forecast."""
    tried = scenario(PROMPT, **PROMPT_SETTINGS[settings])
    env = written(random_history(seed))
    now_ms = env.clock.now_ms()
    told = forecast(states_of(env, now_ms), tried, now_ms + 900 * DAY_MS)
    running = Running(env, tried)
    await running.service.start()
    try:
        for at_ms in sorted({now_ms, *(event.at_ms for event in told.events)}):
            if at_ms > now_ms:
                before = contents(env)
                assert await running.at(at_ms - 1) == before, f"something is due {at_ms - now_ms} ms from now"
            left = await running.at(at_ms)
            last = [event for event in told.events if event.at_ms == at_ms][-1:]
            assert [event.bytes for event in last] in ([], [left.bytes])
        # A broker may leave segments alone that would stay as they are.
        assert replace(await running.at(now_ms + 900 * DAY_MS), segments=0) == replace(told.after, segments=0)
    finally:
        await running.service.stop()
        running.log.close()


def test_tombstones_go_when_their_time_is_over() -> None:
    """Mode prompt starts a round for expired tombstones; in mode kafka they wait for a round for another reason."""
    history = History().add("a=1 b=1 a= | roll | c=1")
    env = written(history)
    now_ms = env.clock.now_ms()
    fields: dict[str, Any] = {"delete_retention_ms": 5 * HOUR_MS, "segment_ms": 1000 * DAY_MS}
    prompt = forecast(states_of(env, now_ms), scenario(PROMPT, **fields), now_ms + DAY_MS)
    assert [(event.kind, event.because, event.at_ms - now_ms, dict(event.removed)) for event in prompt.events] == [
        (CLEAN, BY_RATIO, 0, {"superseded": 1}),
        (CLEAN, BY_HORIZON, 5 * HOUR_MS, {"tombstones": 1}),
    ]
    assert (prompt.after.kinds.tombstones, prompt.tombstones_expire_ms) == (0, None)
    kafka = forecast(states_of(env, now_ms), scenario(KAFKA, **fields))
    assert [(event.kind, event.because, event.at_ms - now_ms) for event in kafka.events] == [(CLEAN, BY_RATIO, 0)]
    assert (kafka.after.kinds.tombstones, kafka.tombstones_expire_ms) == (1, now_ms + 5 * HOUR_MS)
    assert kafka.waits_for == (WAITS_FOR_APPEND, WAITS_FOR_ROUND)


@pytest.mark.parametrize("mode", [PROMPT, KAFKA])
def test_timestamps_in_the_future_defer_only_kafka(mode: str) -> None:
    """Mode prompt forecasts the shortest lag from the append, here the file's time; Kafka waits for the timestamp."""
    env = written(History().add("a=1 a=2 | roll | a=3"))
    now_ms = TIMESTAMP - 30 * DAY_MS
    env.clock = SettableClock(now_ms)
    for name in env.list_dir(PARTITION):
        env.set_mtime_ms(f"{PARTITION}/{name}", now_ms - 1000)
    tried = scenario(mode, min_cleanable_dirty_ratio=0.0, min_compaction_lag_ms=HOUR_MS, segment_ms=1000 * DAY_MS)
    told = forecast(states_of(env, now_ms), tried, now_ms + 40 * DAY_MS)
    counts_from_ms = now_ms - 1000 if mode == PROMPT else TIMESTAMP + 1
    assert [(event.kind, event.at_ms) for event in told.events] == [(CLEAN, counts_from_ms + HOUR_MS)]


# -- what is told ------------------------------------------------------------------------------------------------------


def two_segments() -> MemoryEnv:
    """Two closed segments in which all but the last record is superseded, and an active one."""
    history = History()
    for _ in range(2):
        history.add("a=1 a=2 | roll")
    history.batch("a=3")
    return written(history)


def test_times_of_the_active_segment() -> None:
    """The forecast has the closing time of the active segment (in mode prompt by the clock, in mode kafka by an append) and the
    end of the lag.
    """
    env = two_segments()
    now_ms = env.clock.now_ms()
    fields: dict[str, Any] = {"min_cleanable_dirty_ratio": 1.0, "max_compaction_lag_ms": 3 * HOUR_MS}
    prompt = forecast(states_of(env, now_ms), scenario(PROMPT, **fields))
    due_ms = TIMESTAMP + 3 * HOUR_MS + 1
    assert (prompt.rolls_ms, prompt.cleaned_ms) == (due_ms, due_ms)
    assert prompt.overdue_ms == due_ms
    assert [(event.kind, event.because, event.at_ms) for event in prompt.events][:2] == [
        (ROLL, BY_LAG, due_ms),
        (CLEAN, BY_LAG, due_ms),
    ]
    assert prompt.after.kinds.superseded == 0
    assert prompt.waits_for == ()
    kafka = forecast(states_of(env, now_ms), scenario(KAFKA, **fields))
    # As in Kafka the first batch's greatest timestamp counts.
    assert (kafka.rolls_ms, kafka.overdue_ms, kafka.cleaned_ms) == (due_ms, due_ms + 1, due_ms + 1)
    assert kafka.after.kinds.superseded == 1
    assert kafka.waits_for == (WAITS_FOR_APPEND,)


@pytest.mark.parametrize("mode", [KAFKA, PROMPT])
def test_why_nothing_happens(mode: str) -> None:
    """Each reason to wait has its own value."""
    env = two_segments()
    now_ms = env.clock.now_ms()

    def reasons(until_ms: int | None = None, **config: Any) -> tuple[str, ...]:
        told = forecast(states_of(env, now_ms), scenario(mode, segment_ms=2**62, **config), until_ms)
        assert told.events == ()
        assert told.before == told.after
        return told.waits_for

    # In mode prompt the active segment is closed by itself, if only in 2^62 ms.
    append = (WAITS_FOR_APPEND,) if mode == KAFKA else ()
    assert reasons(cleanup_policy=frozenset({"delete"}), retention_ms=-1) == (WAITS_FOR_POLICY,)
    assert reasons(min_cleanable_dirty_ratio=1.0) == (WAITS_FOR_RATIO, *append)
    assert reasons(now_ms, min_compaction_lag_ms=DAY_MS) == (WAITS_FOR_TIME, *append)
    assert reasons(min_compaction_lag_ms=2**61) == (WAITS_FOR_TIME, *append)


def test_an_open_transaction_holds_everything_back() -> None:
    """Nothing from its first record on is cleaned."""
    history = History().add("t1: a=1 | b=1 b=2 | roll | b=3")
    env = written(history)
    told = forecast(states_of(env, env.clock.now_ms()), scenario())
    assert (told.events, told.waits_for) == ((), (WAITS_FOR_TRANSACTION, WAITS_FOR_APPEND))


def test_records_of_an_open_transaction_alone_wait_for_it() -> None:
    """Nothing else is removable, and they have no other reason."""
    env = written(History().add("t1: a=1 | t1: a=2 | roll | t1: b=1"))
    told = forecast(states_of(env, env.clock.now_ms()), scenario())
    assert (told.after.kinds.records, told.after.kinds.undecided, told.waits_for) == (3, 3, (WAITS_FOR_TRANSACTION,))


def test_retention_is_reported() -> None:
    """Whole segments are removed, including the active one, once the oldest is old enough."""
    env = two_segments()
    now_ms = env.clock.now_ms()
    tried = scenario(cleanup_policy=frozenset({"delete"}), retention_ms=2 * HOUR_MS)
    told = forecast(states_of(env, now_ms), tried)
    assert [(event.kind, event.at_ms, event.offset, event.bytes, event.segments) for event in told.events] == [
        (DELETE, TIMESTAMP + 1 + 2 * HOUR_MS + 1, 5, 0, 1)
    ]
    assert (told.after.bytes, told.after.kinds.records) == (0, 0)


def test_damage_ends_a_forecast() -> None:
    """A failed round is reported with the damage, and ends the forecast."""
    env = two_segments()
    path = f"{PARTITION}/{0:020d}.log"
    file = env.open(path)
    file.pwrite(b"\xff", 70)
    file.close()
    problems: list[Problem] = []
    told = forecast(states_of(env, env.clock.now_ms(), report=problems.append), scenario())
    assert told.failure is not None
    assert "CRC" in told.failure
    assert told.after == told.before
    assert [problem.path for problem in problems] == [path]


# -- how it is done ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", [KAFKA, PROMPT])
def test_the_files_stay_as_they_are(mode: str) -> None:
    """A forecast changes no byte, time or name of the files."""
    env = written(random_history(1), checkpoint=2)
    before = files(env)
    states = states_of(env, env.clock.now_ms())
    for ratio in (0.0, 0.5):
        assert forecast(states, scenario(mode, min_cleanable_dirty_ratio=ratio, delete_retention_ms=0)).events
    forecast(states, scenario(mode, segment_bytes=300, is_laid_out_anew=True))
    assert files(env) == before
    assert read_offset_checkpoint(env, CLEANER) == {("t", 0): 2}


def test_work_that_scenarios_share_is_done_once() -> None:
    """Rounds with equal plans, and counts of their results, are shared; forecasts are the same as one by one."""
    env = written(random_history(2))
    now_ms = env.clock.now_ms()
    tried = [scenario(min_cleanable_dirty_ratio=ratio, max_compaction_lag_ms=DAY_MS) for ratio in (0.1, 0.2, 1.0)]
    alone = [forecast(states_of(env, now_ms), one) for one in tried]
    rounds = []

    def clean(*arguments: Any, **fields: Any) -> Any:
        rounds.append(arguments)
        return plain_round.clean(*arguments, **fields)

    states = states_of(env, now_ms)
    together = [forecast(states, one, engine_for=lambda _size: clean) for one in tried]
    assert together == alone
    assert len(rounds) == len({(told.cleaned_ms) for told in together})


@pytest.mark.slow
def test_nothing_is_kept_beyond_its_room() -> None:
    """Scratch files are removed once no state needs them; without room for shared ones forecasts are the same."""
    env = written(random_history(3))
    scratch = MemoryEnv(SettableClock(0))
    scratch.make_dirs("/roomy")
    scratch.make_dirs("/narrow")
    with open_log_directory(env, PARTITION) as opened:
        roomy, narrow = (
            OverlayStates(env, opened.partitions[0], None, env.clock.now_ms(), scratch, place, max_kept_bytes=most)
            for place, most in (("/roomy", 1 << 30), ("/narrow", -1))
        )
    tried = scenario(min_cleanable_dirty_ratio=0.0)
    kept = forecast(roomy, tried)
    assert scratch.list_dir("/roomy") != []
    del roomy
    assert forecast(narrow, scenario(min_cleanable_dirty_ratio=0.0, delete_retention_ms=7)).events
    assert forecast(narrow, tried) == kept
    gc.collect()
    assert scratch.list_dir("/roomy") == scratch.list_dir("/narrow") == []


def test_room_is_asked_for_first() -> None:
    """Room is checked before the disk fills."""
    env = two_segments()
    with pytest.raises(StorageError, match="TMPDIR"):
        forecast(states_of(env, env.clock.now_ms(), scratch_bytes=100), scenario())


def test_large_rounds_are_for_the_compiled_engine() -> None:
    """The compiled engine runs them, with the same result."""
    env = written(random_history(4))
    now_ms = env.clock.now_ms()
    plain = forecast(states_of(env, now_ms), scenario(PROMPT))
    assert (partition_forecast.engine_for(16 << 20), partition_forecast.engine_for(17 << 20)) == (
        plain_round.clean,
        best_engine(),
    )
    states = states_of(env, now_ms)
    assert forecast(states, scenario(PROMPT), engine_for=lambda _size: compiled.clean) == plain


# -- other segments ----------------------------------------------------------------------------------------------------


def appended(seed: int, **config: Any) -> CleanerLog:
    """Return a closed log that a broker wrote with this configuration."""
    chance = random.Random(seed)
    log = CleanerLog(**config)
    for _ in range(30):
        log.now_ms += chance.randrange(HOUR_MS)
        words = [f"{chance.randrange(9)}={chance.choice(['', 'v' * chance.randrange(60)])}" for _ in range(4)]
        producer = chance.choice([-1, -1, 3, 4])
        log.data(*words, producer=producer, txn=producer >= 0)
        if producer >= 0:
            log.marker(producer, chance.choice(["commit", "abort"]))
    log.log.close()
    return log


def segments_of(log: CleanerLog, tried: Scenario, now_ms: int) -> dict[str, bytes]:
    """Return the log's segments at the beginning of a forecast."""
    states = topic_states(log, now_ms)
    beginning = states.beginning(tried)
    names = beginning.env.list_dir("/data/topic-0")
    return {
        name: beginning.env.read_bytes(f"/data/topic-0/{name}")
        for name in names
        if name.endswith((".log", ".index", ".timeindex", ".txnindex"))
    }


def topic_states(log: CleanerLog, now_ms: int) -> OverlayStates:
    """Return the initial states of forecasts for a CleanerLog."""
    scratch = MemoryEnv(SettableClock(0))
    scratch.make_dirs("/scratch")
    with open_log_directory(log.env, "/data/topic-0") as opened:
        return OverlayStates(log.env, opened.partitions[0], None, now_ms, scratch, "/scratch")


LAYOUTS: list[dict[str, Any]] = [
    {"segment_bytes": 900, "index_interval_bytes": 200},
    {"segment_ms": 3 * HOUR_MS, "index_interval_bytes": 0},
    {"segment_bytes": 2000, "segment_ms": 5 * HOUR_MS},
    {"max_compaction_lag_ms": 4 * HOUR_MS, "segment_index_bytes": 16, "index_interval_bytes": 100},
]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("seed", range(3))
def test_segments_as_if_settings_had_been_in_force(layout: dict[str, Any], seed: int) -> None:
    """However the log was cut before, its segments become those that a broker would have written with these settings."""
    there = appended(seed, **layout)
    elsewhere = appended(seed)
    now_ms = there.now_ms + HOUR_MS
    tried = scenario(is_laid_out_anew=True, **layout)
    expected = {name: data for name, data in there.files().items() if name.endswith((".log", "index")) and data}
    assert len(expected) > 3
    for log in (there, elsewhere):
        found = segments_of(log, tried, now_ms)
        assert {name: data for name, data in found.items() if data} == expected


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_forecast_with_other_segments(layout: dict[str, Any]) -> None:
    """The forecast equals that of a log written with these settings."""
    there = appended(5, **layout)
    elsewhere = appended(5)
    now_ms = there.now_ms + HOUR_MS
    told = forecast(topic_states(elsewhere, now_ms), scenario(is_laid_out_anew=True, **layout))
    assert told.events
    assert told == forecast(topic_states(there, now_ms), scenario(**layout))
