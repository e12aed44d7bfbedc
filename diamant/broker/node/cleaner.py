"""The cleaner as a component of the broker: its loading, its settings, and the events that it receives and reports.

Topics report new, deleted and reconfigured logs to the cleaner; the broker reports rolled segments, appends to compacted logs,
and changes to `log.cleaner.*`. The cleaner reports cleaned logs and deleted segments, for pending fetches, checkpoints and the
removal of files.

The cleaner is loaded with the first compacted log, so a broker without one starts some 50 ms faster and uses less memory.
"""

from __future__ import annotations

import asyncio
import importlib
import logging
import math
from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, cast

from diamant.broker.config.broker_config import BrokerConfig
from diamant.broker.operation_errors import may_pass
from diamant.kernels import ARE_COMPILED
from diamant.storage import names
from diamant.storage.config_key import DOUBLE_MAX
from diamant.storage.env.env import RealEnv
from diamant.storage.log.log import Log
from diamant.storage.segments.log_config import LogConfig

if TYPE_CHECKING:
    from diamant.broker.node.node import Node
    from diamant.broker.node.superseded_checks import SupersededChecks
    from diamant.cleaner.rules.tombstone_hold import TombstoneHolds
    from diamant.cleaner.runners.contract import Runner
    from diamant.cleaner.service.metrics import CleanerStatus
    from diamant.cleaner.service.rounds import ExpiryWatch
    from diamant.cleaner.service.service import CleanerService
    from diamant.cleaner.service.service_settings import ServiceSettings
    from diamant.cleaner.spark.runner.turns import SparkTurns

logger = logging.getLogger(__name__)

RETRY_S = 10.0
"""How long to wait, in real time, before loading the cleaner again after the system refused to open a file for it."""


class NodeCleaner:
    """The broker's cleaner, loaded on demand."""

    def __init__(self, node: Node, holds: TombstoneHolds, watch: ExpiryWatch) -> None:
        """`holds` returns which tombstones of a log wait for consumer groups. `watch` observes the removal of tombstones."""
        self._node = node
        self._holds = holds
        self._watch = watch
        self._service: CleanerService | None = None
        self._loading: asyncio.Task[CleanerService] | None = None
        self._sweeping: asyncio.Task[None] | None = None
        self._stopping = asyncio.Event()
        node.topics.on_created = node.topics.on_deletion = self._forget
        node.topics.on_config_changed = self._config_changed
        node.on_reconfigured.append(self.reconfigure)

    @cached_property
    def superseded(self) -> SupersededChecks:
        """The checks for superseded records."""
        from diamant.broker.node.superseded_checks import SupersededChecks

        return SupersededChecks()

    @property
    def is_loaded(self) -> bool:
        """True if the cleaner is loaded and running."""
        return self._service is not None

    async def start(self) -> None:
        """Load the cleaner if there is a compacted log, or a cleaner checkpoint that has to be updated when logs are deleted."""
        checkpoint = f"{self._node.directory.path}/{names.CLEANER_CHECKPOINT}"
        is_needed = any(log.config.is_compacted for log in self._node.directory.logs.values())
        if is_needed or self._node.env.exists(checkpoint):
            await self.service()
        if self._node.config.diamant_cleaner_spark_staging and isinstance(self._node.env, RealEnv):
            # A killed run may have left values in the staging location, even of topics that have since been deleted.
            self._sweeping = asyncio.create_task(self._sweep_staging())

    async def service(self) -> CleanerService:
        """Return the cleaner; load and start it if necessary."""
        if self._service is not None:
            return self._service
        if self._loading is None:
            self._begin_loading()
        return await asyncio.shield(cast("asyncio.Task[CleanerService]", self._loading))

    async def settled(self) -> None:
        """Wait until nothing is left to clean at the clock's current time. If no cleaner is loaded, return immediately."""
        if self._loading is not None:
            await asyncio.wait({self._loading})
        if self._service is not None:
            await self._service.settled()

    @property
    def next_deadline_ms(self) -> int | None:
        """The next time at which work becomes due just because time passes; None if unknown."""
        return None if self._service is None else self._service.picker.next_deadline_ms

    async def _load(self) -> CleanerService:
        # In a thread, since it takes some 50 ms.
        module = await asyncio.to_thread(importlib.import_module, "diamant.cleaner.service.service")
        service: CleanerService = make_service(self._node, module.CleanerService, self._holds, self._watch)
        try:
            await service.start(self._node.directory.unopened)
        except BaseException:
            service.blocking.shutdown(wait=False)
            raise
        self._service = service
        self._node.log_events.subscribe(service.saw_append, service.rolled)
        return service

    async def stop(self) -> None:
        """Stop the cleaner if it runs."""
        self._stopping.set()
        if self._loading is not None:
            await asyncio.wait({self._loading})
        if self._service is not None:
            await self._service.stop()
        if self._sweeping is not None:
            await asyncio.wait({self._sweeping})

    async def _sweep_staging(self) -> None:
        """Remove leftovers of earlier runs from the staging location. Repeat while some are still too young to remove."""
        staging = await asyncio.to_thread(importlib.import_module, "diamant.cleaner.spark.clean.staging")
        module = await asyncio.to_thread(importlib.import_module, "diamant.cleaner.spark.runner.staging_sweep")
        config = self._node.config
        sweep = module.StagingSweep(self._node.env, self._node.directory.path, config.diamant_cleaner_spark_staging)
        stopping = asyncio.create_task(self._stopping.wait())
        while not self._stopping.is_set():
            sweeping = asyncio.create_task(asyncio.to_thread(sweep.run))
            await asyncio.wait({sweeping, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if not sweeping.done():
                await asyncio.to_thread(sweep.stop)
            if not await sweeping:
                break
            await asyncio.wait({stopping}, timeout=staging.YOUNG_S)
        stopping.cancel()

    def status(self) -> CleanerStatus:
        """Return the cleaner's status; empty until the cleaner is loaded."""
        from diamant.cleaner.service.metrics import CleanerStatus

        return CleanerStatus() if self._service is None else self._service.status()

    def reconfigure(self, config: BrokerConfig) -> None:
        """Apply changes to `log.cleaner.*`."""
        if self._service is not None:
            self._service.reconfigure(cleaner_settings(config))

    def _forget(self, log: Log) -> None:
        """Discard everything known about the name of a log that is new or about to be deleted."""
        if self._service is not None:
            self._service.forget(log)
        elif not log.is_deleted:
            self._need(log)

    def _config_changed(self, log: Log, before: LogConfig) -> None:
        if self._service is not None:
            self._service.config_changed(log, before)
        else:
            self._need(log)

    def _need(self, log: Log) -> None:
        if log.config.is_compacted and self._loading is None:
            self._begin_loading()

    def _begin_loading(self) -> None:
        self._loading = asyncio.get_running_loop().create_task(self._load())
        self._loading.add_done_callback(self._loaded)

    def _loaded(self, loading: asyncio.Task[CleanerService]) -> None:
        error = None if loading.cancelled() else loading.exception()
        if isinstance(error, Exception):
            logger.error("the cleaner cannot be started, so nothing is compacted for now", exc_info=error)
            self._loading = None
            if may_pass(error):
                asyncio.get_running_loop().call_later(RETRY_S, self._load_again)

    def _load_again(self) -> None:
        if not self._stopping.is_set():
            for log in self._node.directory.logs.values():
                self._need(log)


def cleaner_settings(config: BrokerConfig) -> ServiceSettings:
    """Return the cleaner's settings from the configuration."""
    from diamant.cleaner.service.service_settings import ServiceSettings

    rate = config.log_cleaner_io_max_bytes_per_second
    return ServiceSettings(
        mode=config.diamant_cleaner_mode,
        kafka_version=config.diamant_cleaner_kafka_version,
        is_enabled=config.log_cleaner_enable,
        threads=config.log_cleaner_threads,
        backoff_ms=config.log_cleaner_backoff_ms,
        dedupe_buffer_bytes=config.log_cleaner_dedupe_buffer_size,
        load_factor=config.log_cleaner_io_buffer_load_factor,
        io_buffer_bytes=config.log_cleaner_io_buffer_size,
        io_max_bytes_per_second=math.inf if rate >= DOUBLE_MAX else rate,
    )


def make_service(
    node: Node, service: type[CleanerService], holds: TombstoneHolds, watch: ExpiryWatch
) -> CleanerService:
    """Return the broker's cleaner, to be started once the logs are loaded."""

    def retained(log: Log) -> None:
        node.log_events.changed(log)
        node.scheduler.poke()

    return service(
        node.env,
        node.config.data_dir,
        node.directory.logs,
        cleaner_settings(node.config),
        new_process_runner=_process_runners(node),
        new_offload_runner=_spark_runners(node),
        offload_from_bytes=_offload_from_bytes(node.config),
        on_cleaned=lambda _log: node.scheduler.poke(),
        on_retained=retained,
        holds=holds,
        watch=watch,
    )


def _process_runners(node: Node) -> Callable[[], Runner] | None:
    """Return a factory of runners with worker processes; None if other processes cannot see the files."""
    if not isinstance(node.env, RealEnv):
        return None

    def make() -> Runner:
        from diamant.cleaner.runners.process import ProcessRunner

        return ProcessRunner(node.env, threads=lambda: node.config.log_cleaner_threads)

    return make


def _offload_from_bytes(config: BrokerConfig) -> float:
    return math.inf if config.diamant_cleaner_spark_min_bytes < 0 else config.diamant_cleaner_spark_min_bytes


def _spark_runners(node: Node) -> Callable[[Runner], Runner] | None:
    """Return a factory of Spark runners that takes a fallback runner for failed rounds; None without RealEnv or kernels."""
    if not isinstance(node.env, RealEnv) or not ARE_COMPILED:
        return None
    turns: SparkTurns | None = None

    def make(local: Runner) -> Runner:
        from diamant.cleaner.spark.environment.spark_settings import SparkSettings
        from diamant.cleaner.spark.runner.runner import SparkRunner
        from diamant.cleaner.spark.runner.turns import SparkTurns

        nonlocal turns
        config = node.config
        settings = SparkSettings(
            master=config.diamant_cleaner_spark_master,
            staging=config.diamant_cleaner_spark_staging,
            min_bytes=config.diamant_cleaner_spark_min_bytes,
            conf=config.spark_conf,
            executor_timeout_ms=config.diamant_cleaner_spark_executor_timeout_ms,
            driver_max_idle_ms=config.diamant_cleaner_spark_driver_max_idle_ms,
        )
        turns = turns or SparkTurns(settings)
        return SparkRunner(node.env, settings, local, turns=turns)

    return make
