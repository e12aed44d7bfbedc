"""The cleaner as a part of the broker: its settings from the configuration, and who tells it what.

Topics tell it of new, deleted and reconfigured logs, the broker of rolled segments, appends to compacted logs and changed
`log.cleaner.*`. It tells of cleaned logs and deleted segments, for waiting fetches, checkpoints and the removal of files.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from diamant.broker.config import BROKER_CONFIGS, BrokerConfig, check_cleaner_memory
from diamant.broker.config_key import DOUBLE_MAX, ConfigError
from diamant.cleaner.runner import Runner
from diamant.cleaner.service import CleanerService
from diamant.cleaner.service_settings import ServiceSettings
from diamant.protocol.errors import ErrorCode, KafkaError
from diamant.storage.env import Env, RealEnv
from diamant.storage.log import Log

if TYPE_CHECKING:
    from diamant.broker.broker import Broker


def cleaner_settings(config: BrokerConfig) -> ServiceSettings:
    """Return what the configuration says to the cleaner."""
    rate = config.log_cleaner_io_max_bytes_per_second
    return ServiceSettings(
        mode=config.diamant_cleaner_mode,
        is_enabled=config.log_cleaner_enable,
        threads=config.log_cleaner_threads,
        backoff_ms=config.log_cleaner_backoff_ms,
        dedupe_buffer_bytes=config.log_cleaner_dedupe_buffer_size,
        load_factor=config.log_cleaner_io_buffer_load_factor,
        io_buffer_bytes=config.log_cleaner_io_buffer_size,
        io_max_bytes_per_second=math.inf if rate >= DOUBLE_MAX else rate,
    )


def make_cleaner(broker: Broker) -> CleanerService:
    """Return the broker's cleaner, which is to be started once the logs are loaded, and have the topics tell it of changes."""

    def retained(log: Log) -> None:
        broker.log_changed(log)
        broker.scheduler.poke()

    cleaner = CleanerService(
        broker.env,
        broker.config.data_dir,
        broker.directory.logs,
        cleaner_settings(broker.config),
        new_process_runner=_process_runners(broker.env),
        on_cleaned=lambda _log: broker.scheduler.poke(),
        on_retained=retained,
    )
    broker.topics.on_created = broker.topics.on_deletion = cleaner.forget
    broker.topics.on_config_changed = cleaner.config_changed
    return cleaner


def _process_runners(env: Env) -> Callable[[], Runner] | None:
    """How to make runners with worker processes; None if the files are not where another process could find them."""
    if not isinstance(env, RealEnv):
        return None

    def make() -> Runner:
        from diamant.cleaner.process_runner import ProcessRunner

        return ProcessRunner(env)

    return make


def check_cleaner_change(config: BrokerConfig, changes: Mapping[str, str | None]) -> None:
    """Whether the cleaner can be reconfigured so while it runs; raises KafkaError (``LogCleaner.validateReconfiguration``)."""
    names = ("log.cleaner.threads", "log.cleaner.dedupe.buffer.size")
    values = {name: config[name] for name in names}
    for name in names:
        if name in changes:
            text = changes[name]
            values[name] = BROKER_CONFIGS[name].default if text is None else BROKER_CONFIGS[name].parse(text)
    if values == {name: config[name] for name in names}:
        return
    threads, present = values["log.cleaner.threads"], config.log_cleaner_threads
    assert isinstance(threads, int)
    if not present // 2 <= threads <= present * 2:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            f"log.cleaner.threads can be changed from {present} to between {max(1, present // 2)} and {present * 2} at a time, "
            f"not to {threads}",
        )
    try:
        check_cleaner_memory(values)
    except ConfigError as error:
        raise KafkaError(ErrorCode.INVALID_REQUEST, str(error)) from None
