"""Requests of the operations on a running broker, in a module that commands can import cheaply."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Annotated, TypeAlias

from diamant.argument import MAX_DURATION_S, Argument
from diamant.storage.checkpoints.manual_clock_file import MAX_TIME_MS

Sessions: TypeAlias = Annotated[bool, Argument("Also advance the timers of group members and rebalances.")]
DueTimeout: TypeAlias = Annotated[float, Argument("How long all due work may take, in real time.", most=MAX_DURATION_S)]
DEFAULT_DUE_TIMEOUT_S = 600.0


@dataclass(frozen=True, slots=True)
class NoArguments:
    """The request of an operation without arguments."""


@dataclass(frozen=True, slots=True)
class HistoryRequest:
    """Asks for figures of the last 24 hours. Errors: NotFound."""

    topic: Annotated[str | None, Argument("One topic. Default: the whole broker.")] = None
    _: KW_ONLY
    since_ms: Annotated[int, Argument("Only samples taken from this time on, in real time.")] = 0


@dataclass(frozen=True, slots=True)
class ResetRequest:
    """Restores a snapshot. Errors: NotFound, NotPossible."""

    snapshot: Annotated[str, Argument("The snapshot's ID.")]
    _: KW_ONLY
    seamless: Annotated[bool, Argument("Keep client connections open. By default they are closed.")] = False


@dataclass(frozen=True, slots=True)
class SnapshotRequest:
    """Names a snapshot. Errors: NotFound."""

    id: Annotated[str, Argument("The snapshot's ID.")]


@dataclass(frozen=True, slots=True)
class AdvanceRequest:
    """Moves the clock by `by` or `by_ms`. Errors: BadArgument, NotAllowed, TimedOut."""

    by: Annotated[str | None, Argument("A duration: numbers with w, d, h, m, s or ms, such as 8d or 1h30m.")] = None
    _: KW_ONLY
    by_ms: Annotated[int | None, Argument("The same in milliseconds.", most=MAX_TIME_MS)] = None
    sessions: Sessions = False
    timeout: DueTimeout = DEFAULT_DUE_TIMEOUT_S


@dataclass(frozen=True, slots=True)
class SetClockRequest:
    """Moves the clock to a time. Errors: BadArgument, NotAllowed, TimedOut."""

    to_ms: Annotated[int, Argument("The time, in ms since the epoch.", most=MAX_TIME_MS)]
    _: KW_ONLY
    sessions: Sessions = False
    timeout: DueTimeout = DEFAULT_DUE_TIMEOUT_S
