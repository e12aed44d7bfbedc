"""The command `diamant.clock.advance.ms` in IncrementalAlterConfigs of the broker: moves the manual clock and waits for due work.

It is for applications that have only Kafka's admin client. Like `diamant.compact` of topics (`compact_by_config.py`), it is a
command and is never stored. The value is in milliseconds, or a duration such as `8d`. The wait ends after
`diamant.compact.wait.max.ms`, before clients time out. DescribeConfigs of a broker with a manual clock shows the clock's time as
`diamant.clock.now.ms`.

| error | when |
|---|---|
| INVALID_CONFIG | system clock; APPEND or SUBTRACT; a value that is not a duration, is negative, or leads beyond the year 9999 |
| REQUEST_TIMED_OUT | some due work is not done yet; set the value to 0 to continue waiting |
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from diamant.broker.operation_errors import OperationError, TimedOut
from diamant.duration import parse_duration_ms
from diamant.protocol.errors import ErrorCode, KafkaError
from diamant.storage.config_key import ConfigSource, ConfigType, DescribedConfig
from diamant.storage.env.clocks import Clock, SettableClock

if TYPE_CHECKING:
    from diamant.broker.operations.broker_state.broker_clock import BrokerClock

ADVANCE = "diamant.clock.advance.ms"
NOW = "diamant.clock.now.ms"
NAMES = frozenset((ADVANCE, NOW))


def checked_ms(clock: Clock, text: str | None) -> int:
    """Return the milliseconds in `text`. Raises KafkaError if it is not a valid duration or the clock cannot be moved."""
    if not isinstance(clock, SettableClock):
        raise KafkaError(
            ErrorCode.INVALID_CONFIG,
            f"{ADVANCE}: this broker uses the system clock; start it with --clock manual (diamant.clock=manual)",
        )
    given = (text or "").strip()
    try:
        delta_ms = int(given) if given.removeprefix("-").isdecimal() else parse_duration_ms(given)
    except ValueError as error:
        raise KafkaError(ErrorCode.INVALID_CONFIG, f"Invalid value {text} for {ADVANCE}: {error}") from None
    if delta_ms < 0:
        raise KafkaError(ErrorCode.INVALID_CONFIG, f"Invalid value {text} for {ADVANCE}: the clock goes forward only")
    return delta_ms


def refuse_command(clock: Clock, changes: Mapping[str, str | None]) -> None:
    """Refuse new values for the clock's entries in AlterConfigs. Raises KafkaError(INVALID_CONFIG)."""
    shown = {config.name: config.value for config in described(clock)}
    for name in NAMES & changes.keys():
        if changes[name] is not None and changes[name] != shown.get(name):
            raise KafkaError(
                ErrorCode.INVALID_CONFIG,
                f"{name}={changes[name]}: only IncrementalAlterConfigs with {ADVANCE} moves the clock. The whole "
                "request was refused, since AlterConfigs replaces all configurations of the broker together",
            )


async def advance(clock: BrokerClock, delta_ms: int, *, timeout_ms: int) -> KafkaError | None:
    """Move the clock; return the error, or None."""
    try:
        await clock.advance(delta_ms, timeout=timeout_ms / 1000)
    except TimedOut as error:
        return KafkaError(ErrorCode.REQUEST_TIMED_OUT, str(error))
    except OperationError as error:
        return KafkaError(ErrorCode.INVALID_CONFIG, str(error))
    return None


def described(clock: Clock) -> list[DescribedConfig]:
    """Return the clock's entries in DescribeConfigs of the broker; none if the clock cannot be moved."""
    if not isinstance(clock, SettableClock):
        return []
    shown = (
        (
            ADVANCE,
            0,
            "Set by IncrementalAlterConfigs, it moves the clock forward. The answer follows when all due work is done.",
        ),
        (NOW, clock.now_ms(), "The clock's time, in milliseconds since 1970."),
    )
    return [
        DescribedConfig(
            name=name,
            value=str(value),
            source=ConfigSource.DEFAULT_CONFIG,
            type=ConfigType.LONG,
            is_read_only=name == NOW,
            documentation=documentation,
        )
        for name, value, documentation in shown
    ]
