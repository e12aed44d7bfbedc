"""Checks of a broker's dynamic configuration as a whole, before a change of it: together with what is stored.

Over Kafka's protocol nothing may be set that keeps every client out, since nothing could then take it back over that protocol.

Source: DynamicBrokerConfig.validateReconfiguration, SocketServer.validateReconfiguration, LogCleaner.validateReconfiguration.
"""

from __future__ import annotations

from diamant.broker.config.broker_config import BrokerConfig, check_addresses, check_cleaner_memory
from diamant.broker.config.broker_table import ip_overrides_of
from diamant.storage.config_key import ConfigError

_CLEANER = ("log.cleaner.threads", "log.cleaner.dedupe.buffer.size")
_INTERVAL = "group.consumer.assignment.interval.ms"
_LIMIT, _OVERRIDES = "max.connections.per.ip", "max.connections.per.ip.overrides"
_LOOPBACK = ("127.0.0.1", "::1", "localhost")


def check_outcome(present: BrokerConfig, outcome: BrokerConfig) -> None:
    """Raise ConfigError if a broker with `present` must not get the configuration `outcome`."""
    if any(present[name] != outcome[name] for name in _CLEANER):
        _check_cleaner(present.log_cleaner_threads, outcome)
    if present[_INTERVAL] != outcome[_INTERVAL]:
        _check_interval(outcome)
    check_addresses({name: outcome[name] for name in (_LIMIT, _OVERRIDES)})
    _check_this_machine(outcome)


def _check_cleaner(threads: int, outcome: BrokerConfig) -> None:
    wanted = outcome.log_cleaner_threads
    if not threads // 2 <= wanted <= threads * 2:
        raise ConfigError(
            f"log.cleaner.threads can be changed from {threads} to between {max(1, threads // 2)} and {threads * 2} at a time, "
            f"not to {wanted}"
        )
    check_cleaner_memory({name: outcome[name] for name in _CLEANER})


def _check_interval(outcome: BrokerConfig) -> None:
    interval_ms = outcome.group_consumer_assignment_interval_ms
    if interval_ms < outcome.group_consumer_min_assignment_interval_ms:
        raise ConfigError(f"{_INTERVAL} must be greater than or equal to group.consumer.min.assignment.interval.ms")
    if interval_ms > outcome.group_consumer_max_assignment_interval_ms:
        raise ConfigError(f"{_INTERVAL} must be less than or equal to group.consumer.max.assignment.interval.ms")


def _check_this_machine(outcome: BrokerConfig) -> None:
    """Check that clients of this machine may connect to a broker that only they reach."""
    if all(listener.is_loopback for listener in outcome.listeners):
        for host, count in ip_overrides_of(str(outcome[_OVERRIDES])).items():
            if not count and host in _LOOPBACK:
                raise ConfigError(f"{_OVERRIDES}: no client could connect with {host}:0, not even to take it back")
