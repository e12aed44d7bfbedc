"""The broker's loggers and their levels, readable and alterable by clients (resource type 8, KIP-412).

Levels have log4j's names; changes last until the broker stops. Only existing loggers can be changed, so memory is bounded.

Source: LoggingController, Log4jController.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping

from diamant.protocol.errors import ErrorCode, KafkaError
from diamant.storage.config_key import ConfigSource, ConfigType, DescribedConfig

ROOT = "root"
PACKAGE = "diamant"

_LEVELS = {"TRACE": 5, "DEBUG": 10, "INFO": 20, "WARN": 30, "ERROR": 40, "FATAL": 50}
"""log4j's level names, with Python's numbers. A level between two of these counts as the lower one."""


def describe_loggers() -> list[DescribedConfig]:
    """Return all loggers with their effective levels, root first."""
    return [
        DescribedConfig(
            name, _level_name(logger.getEffectiveLevel()), ConfigSource.DYNAMIC_BROKER_LOGGER_CONFIG, ConfigType.UNKNOWN
        )
        for name, logger in _loggers()
    ]


def check_logger_changes(changes: Mapping[str, str | None]) -> None:
    """Check new levels, by logger. None removes a logger's own level. Raises KafkaError."""
    existing = {name for name, _ in _loggers()}
    for name, level in changes.items():
        if level is not None and level not in _LEVELS:
            raise KafkaError(
                ErrorCode.INVALID_CONFIG,
                f"Cannot set the log level of {name} to {level} as it is not a supported log level. "
                f"Valid log levels are {', '.join(sorted(_LEVELS))}",
            )
        if name not in existing:
            raise KafkaError(ErrorCode.INVALID_CONFIG, f"Logger {name} does not exist!")
        if level is None and name == ROOT:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "Removing the log level of the root logger is not allowed")


def change_loggers(changes: Mapping[str, str | None]) -> None:
    """Set levels that have passed `check_logger_changes`."""
    for name, level in changes.items():
        logging.getLogger(None if name == ROOT else name).setLevel(logging.NOTSET if level is None else _LEVELS[level])


def _loggers() -> Iterator[tuple[str, logging.Logger]]:
    yield ROOT, logging.getLogger()
    for name, logger in sorted(logging.root.manager.loggerDict.items()):
        if isinstance(logger, logging.Logger) and (name == PACKAGE or name.startswith(f"{PACKAGE}.")):
            yield name, logger


def _level_name(level: int) -> str:
    names = [name for name, number in _LEVELS.items() if number <= level]
    return names[-1] if names else "TRACE"
