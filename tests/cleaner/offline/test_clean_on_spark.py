"""Cleanings of all partitions of a directory, with engines in this process in place of Spark."""

from __future__ import annotations

from threading import Event

import pytest

from diamant.cleaner.offline.clean_on_spark import PartitionOutcome, clean_directory
from diamant.cleaner.offline.offline_clean import PartitionSettings, inline_engine
from diamant.cleaner.rules.plan import CleanPlan
from diamant.cleaner.rules.plan_of_log import CleanerSettings
from diamant.cleaner.rules.result import CleanResult, OnOutput
from diamant.storage.env.env import Env
from tests.cleaner.cleaner_log import DAY_MS
from tests.cleaner.log_history import History
from tests.cleaner.runners.rounds import CONFIG
from tests.memory_env import MemoryEnv
from tests.waiting import PATIENCE_S


def test_finished_partitions_are_known_when_a_larger_one_is_interrupted() -> None:
    """Outcomes are yielded in the order given; each is reported when it is known, while earlier ones are in progress."""
    env = MemoryEnv()
    for partition in range(2):
        history = History("t", partition)
        history.batch("a=1", "a=2")
        history.roll()
        history.write(env, "/data")
    ended: list[PartitionOutcome] = []
    is_one_done = Event()

    def note(outcome: PartitionOutcome) -> None:
        ended.append(outcome)
        is_one_done.set()

    def engine(files: Env, plan: CleanPlan, on_output: OnOutput) -> CleanResult:
        if plan.partition == 0:
            assert is_one_done.wait(PATIENCE_S)
            raise KeyboardInterrupt
        return inline_engine(files, plan, on_output)

    settings = PartitionSettings(CONFIG, CleanerSettings(), DAY_MS)
    with pytest.raises(KeyboardInterrupt):
        next(
            clean_directory(
                env,
                ["/data/t-0", "/data/t-1"],
                lambda _: settings,
                engine,
                force=True,
                is_clean=True,
                small_bytes=0,
                at_once=2,
                on_end=note,
            )
        )
    assert [(one.partition, one.error) for one in ended] == [("t-1", None)]
